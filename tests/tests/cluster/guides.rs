//! Follows docs/install.md and the chart's page command by command, and then what happens to a cluster
//! in its life.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    arp,
    guide::{self, Step, skeleton},
    kube_proxy::Mode,
    manifests::VIP,
    real_cluster::{PATIENCE, Plan, RealCluster},
    requirement, wait,
    watch::{CLIENTS, View},
};

/// The time without a control plane.
const OUTAGE: Duration = Duration::from_mins(2);
const INSTALL: &str = "docs/install.md";
const CHART: &str = "deploy/helm/vipmux/README.md";

fn cluster(mode: Mode) -> Result<Option<RealCluster>> {
    if !requirement::api_server()? {
        return Ok(None);
    }
    let Some(vipmux) = requirement::image()? else { return Ok(None) };
    let plan = Plan { clients: CLIENTS, mode, vipmux: Some(vipmux), ..Plan::default() };
    RealCluster::start(&plan, &mut |step| println!("==> {step}")).map(Some)
}

/// Does what a section of a page says, and compares what it shows. `fitting` changes a command that
/// names what differs here.
fn follow(cluster: &RealCluster, page: &str, heading: &str, fitting: impl Fn(&str) -> String) -> Result<()> {
    for step in guide::steps(&guide::page(page)?, heading)? {
        match step {
            Step::Apply(manifests) => drop(cluster.api.kubectl_apply(manifests, &[])?),
            Step::Run { prompt, command, output } => {
                println!("{prompt} {command}");
                let (command, expected) = (fitting(command), skeleton(output));
                // What a command only does, it does once.
                let patience = if expected.is_empty() { Duration::ZERO } else { PATIENCE };
                wait::until(&format!("`{command}` as {page} has it"), patience, || {
                    let shown = match prompt {
                        '#' => cluster.as_root_on(&cluster.nodes[0].name, &command)?,
                        _ if command.starts_with("curl ") => cluster.on_the_client(&command)?,
                        _ => cluster.as_admin(&command)?,
                    };
                    let same = expected.is_empty() || skeleton(&shown) == expected;
                    ensure!(same, "it shows\n{shown}and the page has\n{output}");
                    Ok(())
                })?;
            }
        }
    }
    Ok(())
}

fn literally(command: &str) -> String {
    command.to_owned()
}

/// Returns the nodes of the Pods of `shop/echo`.
fn nodes_of_echo(cluster: &RealCluster) -> Result<Vec<String>> {
    let of = ["get", "pods", "--namespace", "shop", "--selector", "app=echo"];
    let nodes = cluster.api.kubectl(&[&of[..], &["--output", "jsonpath={.items[*].spec.nodeName}"]].concat())?;
    Ok(nodes.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn the_installation_guide_leads_to_an_answer_and_to_a_cluster_that_survives_bad_days() -> Result<()> {
    let Some(mut cluster) = cluster(Mode::Nftables)? else { return Ok(()) };
    for heading in ["2.", "3.", "4.", "5."] {
        follow(&cluster, INSTALL, heading, |command| {
            let kubeconfig = cluster.kubeconfig().map(|path| path.display().to_string()).unwrap_or_default();
            command.replace("/etc/kubernetes/admin.conf", &kubeconfig)
        })?;
    }
    cluster.add_echo()?;

    println!("==> rolling update of the agents");
    for node in &cluster.nodes {
        let tag = format!("docker.io/library/vipmux:{}", env!("CARGO_PKG_VERSION"));
        let tag = format!("ctr --namespace k8s.io images tag {tag} docker.io/library/vipmux:next");
        cluster.as_root_on(&node.name, &tag)?;
    }
    let view = cluster.observe(VIP, |cluster| {
        cluster.as_admin("kubectl --namespace vipmux-system set image daemonset/vipmux-agent '*=vipmux:next'")?;
        cluster.await_rollout("vipmux-system", "daemonset/vipmux-agent")
    })?;
    print(&view);
    view.check_nothing_lost()?;

    println!("==> drain of the leader's node");
    let before = cluster.leader(VIP)?;
    drain(&mut cluster, &before)?;
    println!("==> drain of a backend's node");
    let leads = cluster.leader(VIP)?;
    let other = nodes_of_echo(&cluster)?.into_iter().find(|node| *node != leads);
    drain(&mut cluster, &other.context("all Pods are on the leader's node")?)?;

    println!("==> {} s without a control plane", OUTAGE.as_secs());
    let view = cluster.observe(VIP, |cluster| {
        cluster.api.stop()?;
        thread::sleep(OUTAGE);
        Ok(())
    })?;
    print(&view);
    view.check_nothing_lost()?;
    cluster.api.start()?;
    cluster
        .as_admin("kubectl --namespace shop expose deployment/admin --name later --port 8080 --type LoadBalancer")?;
    wait::until("a Service after the outage", PATIENCE, || {
        let path = "{.status.loadBalancer.ingress[0].ip}";
        let of = ["get", "service", "later", "--namespace", "shop", "--output"];
        let address = cluster.api.kubectl(&[&of[..], &[&format!("jsonpath={path}")]].concat())?;
        cluster.on_the_client(&format!("curl --silent --fail --max-time 1 http://{address}:8080/hostname"))
    })?;

    println!("==> power cut of the leader's node");
    let before = cluster.leader(VIP)?;
    let view = cluster.observe(VIP, |cluster| {
        cluster.cut_power(&before)?;
        cluster.await_another_leader(VIP, &before)
    })?;
    print(&view);
    ensure!(view.arp_requests.answered_twice() == 0, "two nodes answered");
    cluster.as_admin(&format!("kubectl delete node {before}"))?;

    println!("==> uninstallation");
    follow(&cluster, INSTALL, "Uninstall", literally)?;
    nothing_is_left(&cluster)
}

/// Drains a node under traffic, and takes it back. Datagrams of a client that a Pod served are lost
/// between its end and the time when its endpoint is gone.
fn drain(cluster: &mut RealCluster, node: &str) -> Result<()> {
    let view = cluster.observe(VIP, |cluster| {
        let led = cluster.leader(VIP)? == node;
        cluster.as_admin(&format!("kubectl drain {node} --ignore-daemonsets --timeout=120s"))?;
        if led {
            cluster.await_another_leader(VIP, node)?;
        }
        ensure!(!nodes_of_echo(cluster)?.iter().any(|on| on == node), "a Pod stayed on {node}");
        Ok(())
    })?;
    print(&view);
    let lost = view.connections.lost();
    ensure!(lost == 0, "{lost} connections failed in the drain of {node}");
    cluster.as_admin(&format!("kubectl uncordon {node}"))?;
    ["web", "admin", "echo"].iter().try_for_each(|name| cluster.await_rollout("shop", &format!("deployment/{name}")))
}

fn print(view: &View) {
    for (kind, series) in
        [("datagrams", &view.warm), ("datagrams, MAC asked anew", &view.anew), ("connections", &view.connections)]
    {
        println!("  {kind}: {} of {} lost, away for {} ms", series.lost(), series.count(), series.outage().as_millis());
    }
    println!("  ARP: away for {} ms", view.arp_requests.outage().as_millis());
}

/// Checks that no node answers for the VIP, and that nothing of vipmux is in a kernel.
fn nothing_is_left(cluster: &RealCluster) -> Result<()> {
    // By ARP: a client that still has a MAC reaches kube-proxy's rules on that node.
    let client = cluster.lan.client()?;
    let answers = arp::answers(client.namespace(), client.address, VIP, Duration::from_secs(1))?;
    ensure!(answers.is_empty(), "{answers:?} answer for {VIP}");
    for node in &cluster.nodes {
        let links = cluster.as_root_on(&node.name, "ip -details link show")?;
        ensure!(!links.contains("xdp"), "{}: {links}", node.name);
        let tables = cluster.as_root_on(&node.name, "nft list tables")?;
        ensure!(!tables.contains("vipmux"), "{}: {tables}", node.name);
        let pins = cluster.as_root_on(&node.name, "ls /sys/fs/bpf")?;
        ensure!(!pins.contains("vipmux"), "{}: {pins}", node.name);
    }
    wait::until("the end of all objects", PATIENCE, || {
        let kinds = "namespaces,crds,clusterroles,clusterrolebindings,flowschemas";
        let objects = cluster.as_admin(&format!("kubectl get {kinds} --output name"))?;
        let left: Vec<_> = objects.lines().filter(|object| object.contains("vipmux")).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })?;
    let path = r"{.status.conditions[?(@.type=='vipmux.io/Announced')].status}";
    let announced =
        cluster.as_admin(&format!("kubectl --namespace shop get service web --output \"jsonpath={path}\""))?;
    ensure!(announced == "False", "the Service says {announced:?}");
    Ok(())
}

#[test]
fn the_chart_leads_to_an_answer_and_leaves_nothing() -> Result<()> {
    let Some(cluster) = cluster(Mode::Iptables)? else { return Ok(()) };
    // Its image is on the nodes already.
    follow(&cluster, CHART, "Install", |command| {
        command.replace(" --set image.repository=registry.example/vipmux", "")
    })?;
    for heading in ["4.", "5."] {
        follow(&cluster, INSTALL, heading, literally)?;
    }
    follow(&cluster, CHART, "Uninstall", literally)?;
    nothing_is_left(&cluster)
}
