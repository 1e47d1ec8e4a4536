//! Tests docs/install.md step by step: its manifests, the deployment's own objects, and agents and
//! an allocator with the rights of their ServiceAccounts, as in Pods.

use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vipmux_tests::{
    agent::{self, Access, Agent, Origin},
    allocator::{self, Allocator},
    api_server::{ApiServer, SYSTEM},
    cleanup::Folder,
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    guide::{self, Step, skeleton},
    lan::{Lan, Options},
    manifests::{Endpoint, Service, VIP},
    pod::{Listener, Pod},
    process, scrape, wait,
};

const SERVICES: [&str; 2] = ["shop/web", "shop/admin"];
/// Their Pods' port.
const PORT: u16 = 8080;

#[test]
fn the_page_leads_from_nothing_to_a_shared_address() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 3, ..Options::default() })? else { return Ok(()) };
    let Some(api) = ApiServer::on(&lan)? else { return Ok(()) };
    let state = Folder::temporary("state")?;
    let page = guide::page("docs/install.md")?;
    api.add_nodes(&lan)?;

    // Applies the deployment as the page does.
    let kustomize = format!("{}/../deploy/kustomize", env!("CARGO_MANIFEST_DIR"));
    api.kubectl(&["apply", "--kustomize", &kustomize])?;
    let account = api.service_account(SYSTEM, allocator::NAME)?.kubeconfig;
    // The first agents start before there is a key: the kubelet mounts it a minute later.
    let access = Access {
        kubeconfig: api.service_account(SYSTEM, agent::ACCOUNT)?.kubeconfig,
        namespace: SYSTEM.to_owned(),
        gossip_key: state.path().join("gossip.key"),
        allocator: "on",
    };
    let options = agent::Options::with(Origin::Cluster(access), state.path());
    let agents = lan.nodes.iter().map(|node| Agent::start(node, &options)).collect::<Result<Vec<_>>>()?;
    for agent in &agents {
        agent.process().wait_for_line("that it waits", PATIENCE, |line| line.contains("no gossip key yet"))?;
    }
    // Probes that come meanwhile wait for an answer.
    let probes = lan.nodes.iter().map(|node| {
        let address = node.address;
        let probe = move || scrape::get_here(address, "/healthz", PATIENCE);
        node.namespace().spawn(probe)
    });
    let probes = probes.collect::<Result<Vec<_>>>()?;
    let _allocator = Allocator::start(&api, &account, "vipmux-allocator-0", &[])?;
    for probe in probes {
        let (status, body) = probe.join().map_err(|_| anyhow!("the probe panicked"))??;
        assert_eq!(status, 200, "{body}");
    }

    // The page's pool and Services. The harness provides their Pods.
    let pods = lan.nodes[1..].iter().zip(SERVICES).map(|(node, service)| {
        let mut pod = node.add_pod(&service.replace('/', "-"), 10)?;
        pod.serve(&[Listener::new(Kind::Http, PORT, service)])?;
        Ok(pod)
    });
    let pods = pods.collect::<Result<Vec<_>>>()?;
    let mut compared = 0;
    for step in [guide::steps(&page, "4.")?, guide::steps(&page, "5.")?].concat() {
        match step {
            Step::Apply(manifests) => {
                api.kubectl_apply(manifests, &[])?;
                if manifests.contains("kind: Service\n") {
                    api.apply_all(&slices(&pods)?)?;
                }
            }
            Step::Run { command, output, .. } if command.contains(" get ") => {
                compared += 1;
                shows_what_the_page_shows(&api, command, output)?;
            }
            Step::Run { .. } => {}
        }
    }
    ensure!(compared >= 3, "{compared} outputs were compared");
    agents.iter().try_for_each(|agent| agent.wait_ready(PATIENCE))?;

    // Both Services answer at one address, and see the client's own address.
    let client = lan.client()?;
    for (service, port) in SERVICES.into_iter().zip([80, 8080]) {
        let request = Request::new(Kind::Http, VIP, port);
        let answer = wait::until(&format!("{service} at {request}"), PATIENCE, || {
            client.namespace().run(|| request.send(TIMEOUT))
        })?;
        assert_eq!((answer.service.as_str(), answer.client.ip()), (service, client.address.into()));
    }
    Ok(())
}

/// Returns the EndpointSlices of the page's Services.
fn slices(pods: &[Pod]) -> Result<Vec<Value>> {
    let slice = |(pod, service): (&Pod, _)| {
        let service = Service::sharing(service, 80, "TCP", PORT).with([Endpoint::new(pod.address, &pod.node)]);
        let mut slice = service.documents().pop().context("no EndpointSlice")?;
        slice["ports"][0]["name"] = json!("http");
        Ok(slice)
    };
    pods.iter().zip(SERVICES).map(slice).collect()
}

/// The Leases of the agents stay, whether they have ended or not.
#[test]
fn after_an_uninstallation_no_service_counts_as_announced() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let Some(mut cluster) = Cluster::in_kubernetes(lan)? else { return Ok(()) };
    let account = allocator::prepare(cluster.api()?)?;
    let mut allocator = Allocator::start(cluster.api()?, &account, "a", &[])?;
    let options = cluster.agent_options();
    let Origin::Cluster(access) = options.origin.clone() else { bail!("the agents have no API server") };
    let origin = Origin::Cluster(Access { allocator: "on", ..access });
    cluster.start_agents(&agent::Options { origin, ..options })?;
    cluster.api()?.add_namespace("shop")?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "shop", "name": "web" },
        "spec": { "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{ "port": 80 }] },
    });
    cluster.api()?.apply_all(std::slice::from_ref(&service))?;
    let announced = || -> Result<String> {
        let service = cluster.api()?.get(&service)?.context("no Service")?;
        let conditions = service["status"]["conditions"].as_array().context("no conditions")?;
        let announced = conditions.iter().find(|it| it["type"] == "vipmux.io/Announced").context("no Announced")?;
        Ok(announced["status"].as_str().context("no status")?.to_owned())
    };
    wait::until("an announced Service", PATIENCE, || {
        let status = announced()?;
        ensure!(status == "True", "{status}");
        Ok(())
    })?;

    allocator.stop()?;
    let allocator = Allocator::start(cluster.api()?, &account, "b", &["--uninstalling"])?;
    wait::until("a ready allocator", PATIENCE, || {
        let (is_ready, why) = allocator.readiness(cluster.api()?)?;
        ensure!(is_ready, "{why}");
        Ok(())
    })?;
    assert_eq!(announced()?, "False");
    Ok(())
}

/// A table of `kubectl` has the same columns as in the page, and the same rows except for what differs
/// between clusters.
fn shows_what_the_page_shows(api: &ApiServer, command: &str, output: &str) -> Result<()> {
    let arguments: Vec<_> = command.trim_start_matches("kubectl ").split_whitespace().collect();
    wait::until(&format!("`{command}` as docs/install.md has it"), PATIENCE, || {
        let shown = api.kubectl(&arguments)?;
        ensure!(skeleton(&shown) == skeleton(output), "it shows\n{shown}and the page has\n{output}");
        Ok(())
    })
}

/// The page's output of `vipmux` is correct.
#[test]
fn the_pages_commands_are_known() -> Result<()> {
    let page = guide::page("docs/install.md")?;
    for line in page.lines().filter_map(|line| line.strip_prefix("# vipmux ")) {
        let command = line.split_whitespace().next().context("no command")?;
        let mut help = Command::new(agent::binary()?);
        help.args([command, "--help"]);
        process::run(help)?;
    }
    Ok(())
}
