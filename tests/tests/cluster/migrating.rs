//! Follows docs/migrating.md in a cluster that another load balancer serves, under traffic, and then the way
//! back. They run only if they are named: `cargo xtask cluster test migrating`.

use std::{fs, net::Ipv4Addr};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vipmux_tests::{
    cleanup::Folder,
    guide::{self, Step},
    manifests::VIP,
    process,
    real_cluster::{PATIENCE, Plan, RealCluster, System},
    requirement, wait,
    watch::{CLIENTS, View},
};

const PAGE: &str = "docs/migrating.md";
const INSTALL: &str = "docs/install.md";
/// The address that two Services share.
const SHARED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 205);

/// A cluster that another load balancer serves, and a folder with what a clone has that the page uses.
struct Migration {
    cluster: RealCluster,
    clone: Folder,
}

impl Migration {
    /// `None` if the test is skipped.
    fn from(system: System) -> Result<Option<Self>> {
        if !requirement::api_server()? || !requirement::system(system)? {
            return Ok(None);
        }
        let Some(vipmux) = requirement::image()? else { return Ok(None) };
        let plan = Plan { clients: CLIENTS, vipmux: Some(vipmux), others: vec![system], ..Plan::default() };
        let cluster = RealCluster::start(&plan, &mut |step| println!("==> {step}"))?;
        let clone = Folder::temporary("clone")?;
        let deploy = guide::repository().join("deploy");
        process::run({
            let mut copy = std::process::Command::new("cp");
            copy.arg("-r").arg(deploy).arg(clone.path());
            copy
        })?;
        println!("==> {}", system.title());
        system.deploy(&cluster)?;
        cluster.api.kubectl(&["create", "namespace", "shop"])?;
        cluster.add_echo()?;
        for (name, port) in [("web", 80), ("admin", 81)] {
            cluster.api.apply_all(&[sharing(system, name, port)])?;
        }
        let migration = Self { cluster, clone };
        migration.await_service()?;
        Ok(Some(migration))
    }

    /// Waits until clients have answers at all addresses.
    fn await_service(&self) -> Result<()> {
        self.cluster.announcer(VIP)?;
        self.cluster.announcer(SHARED)?;
        for server in [format!("{VIP}:9000"), format!("{SHARED}:80"), format!("{SHARED}:81")] {
            wait::until(&format!("an answer of {server}"), PATIENCE, || {
                let ask = format!("curl --silent --fail --max-time 1 http://{server}/hostname");
                self.cluster.on_the_client(&ask)
            })?;
        }
        Ok(())
    }

    /// Runs a command of the page in the clone's folder, as root on a machine of the segment that is no node.
    fn run(&self, command: &str) -> Result<String> {
        println!("{command}");
        let said = self.cluster.as_admin(&format!("cd {} && {command}", self.clone.path().display()))?;
        println!("{said}");
        Ok(said)
    }

    /// Does what the page has between the plan and the cut-over: kinds, pools, and vipmux's configuration.
    fn prepare(&self, page: &str) -> Result<()> {
        for command in commands(page)?.iter().filter(|command| command.starts_with("kubectl apply")) {
            self.run(command)?;
        }
        let kustomization = page.split("\n```").find(|block| block.contains("kind: Kustomization"));
        let kustomization = kustomization.context("the page has no kustomization.yaml")?;
        fs::write(self.clone.path().join("kustomization.yaml"), kustomization)?;
        fs::write(self.clone.path().join("config.yaml"), "adopt: true\n")?;
        Ok(())
    }

    /// Returns all addresses by Service.
    fn addresses(&self) -> Result<String> {
        let path = r#"{range .items[*]}{.metadata.name}{" "}{.status.loadBalancer.ingress[*].ip}{"\n"}{end}"#;
        self.cluster.api.kubectl(&["get", "services", "--namespace", "shop", "--output", &format!("jsonpath={path}")])
    }

    /// Observes the Services while something happens. Nobody may answer twice.
    fn observe(&mut self, label: &str, event: impl FnOnce(&Self) -> Result<()>) -> Result<View> {
        let mut watch = vipmux_tests::watch::Watch::start(&self.cluster.lan, VIP, 9000, 9000)?;
        watch.wait_for_answers(50, PATIENCE)?;
        event(self)?;
        watch.wait_for_answers(50, PATIENCE)?;
        let view = watch.stop()?;
        println!(
            "{label}: the address was away for {} ms (ARP), {} ms (connections), {} ms (datagrams), {} ms (a client that \
             asks anew)",
            view.arp_requests.outage().as_millis(),
            view.connections.outage().as_millis(),
            view.warm.outage().as_millis(),
            view.anew.outage().as_millis()
        );
        let twice = view.arp_requests.answered_twice();
        ensure!(twice == 0, "{twice} requests were answered by two machines");
        Ok(view)
    }
}

/// Returns a Service that names [`SHARED`] as its address, as the system wants it.
fn sharing(system: System, name: &str, port: u16) -> Value {
    let mut annotations = json!({ system.address_annotation(): SHARED });
    match system {
        System::MetalLb => annotations["metallb.io/allow-shared-ip"] = "edge".into(),
        // With a lease for each Service, two nodes would have the address.
        System::KubeVip => annotations["kube-vip.io/leaseName"] = "edge".into(),
        System::Vipmux => {}
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": "shop", "name": name, "annotations": annotations },
        "spec": {
            "type": "LoadBalancer", "selector": { "app": "echo" },
            "ports": [{ "port": port, "targetPort": 8080 }],
        },
    })
}

/// Returns the commands of the page's section about live clusters.
fn commands(page: &str) -> Result<Vec<String>> {
    let steps = guide::steps(page, "In a live cluster")?;
    let command = |step: &Step<'_>| match step {
        Step::Run { command, .. } => Some((*command).to_owned()),
        Step::Apply(_) => None,
    };
    Ok(steps.iter().filter_map(command).collect())
}

/// Returns the command of a list that starts like this.
fn find(commands: &[String], start: &str) -> Result<String> {
    let found = commands.iter().find(|command| command.starts_with(start));
    found.cloned().with_context(|| format!("the page has no command {start:?}"))
}

/// Returns the lines of a text without their indentation.
fn unindented(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim_start(), "\n"]).collect()
}

/// Returns a list of commands in a plan.
fn listed(plan: &Value, list: &str) -> Result<Vec<String>> {
    let commands = plan["commands"][list].as_array().with_context(|| format!("the plan has no {list}"))?;
    Ok(commands.iter().filter_map(|command| command.as_str().map(str::to_owned)).collect())
}

fn migrates(system: System) -> Result<()> {
    let Some(mut migration) = Migration::from(system)? else { return Ok(()) };
    // Its blocks are parts of a list.
    let page = unindented(&guide::page(PAGE)?);
    let before = migration.addresses()?;
    println!("{before}");
    let page_commands = commands(&page)?;

    println!("==> the plan, and what comes before the cut-over");
    let shown = migration.run(&find(&page_commands, "vipmux migrate plan")?)?;
    let plan: Value = serde_json::from_str(&migration.run("vipmux migrate plan out-as-json --json")?)?;
    let (assigners, announcers, undo) =
        (listed(&plan, "assigners")?, listed(&plan, "announcers")?, listed(&plan, "undo")?);
    for command in assigners.iter().chain(&announcers).chain(&undo) {
        ensure!(shown.contains(command), "the plan does not show {command}");
    }
    migration.prepare(&page)?;

    println!("==> the cut-over");
    let cut_over = find(&page_commands, "vipmux migrate ready")?.replace("-k deploy/kustomize", "-k .");
    let verify = find(&page_commands, "vipmux migrate verify")?;
    migration.observe("cut-over", |migration| {
        for command in assigners.iter().chain(&announcers) {
            migration.run(command)?;
        }
        migration.run(&cut_over)?;
        migration.run(&verify).map(drop)
    })?;
    ensure!(migration.addresses()? == before, "addresses changed: {}", migration.addresses()?);
    migration.await_service()?;

    println!("==> the way back");
    migration.observe("way back", |migration| {
        for step in guide::steps(&guide::page(INSTALL)?, "Uninstall")? {
            if let Step::Run { command, .. } = step {
                migration.run(command)?;
            }
        }
        for command in &undo {
            migration.run(command)?;
        }
        system.await_rollouts(&migration.cluster)
    })?;
    ensure!(migration.addresses()? == before, "addresses changed: {}", migration.addresses()?);
    migration.await_service()
}

#[test]
fn services_move_from_metallb_and_back() -> Result<()> {
    migrates(System::MetalLb)
}

#[test]
fn services_move_from_kube_vip_and_back() -> Result<()> {
    migrates(System::KubeVip)
}
