//! Tests docs/install.md step by step: its manifests, the deployment's own objects, and agents and
//! an allocator with the rights of their ServiceAccounts, as in Pods.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::json;
use vipmux_tests::{
    agent::{self, Access, Agent, Origin},
    allocator::{self, Allocator},
    api_server::{ApiServer, SYSTEM},
    cleanup::Folder,
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Options},
    manifests::{Endpoint, Service, VIP},
    pod::Listener,
    process, scrape, wait,
};

const PORTS: [(&str, u16); 2] = [("shop/web", 8080), ("ops/admin", 9000)];

fn page() -> Result<String> {
    let path = format!("{}/../docs/install.md", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

/// Returns the page's code blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("```{language}\n");
    page.split(&opening).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn the_page_leads_from_nothing_to_a_shared_address() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 3, ..Options::default() })? else { return Ok(()) };
    let Some(api) = ApiServer::on(&lan)? else { return Ok(()) };
    let state = Folder::temporary("state")?;
    let page = page()?;
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
    let pods = lan.nodes[1..].iter().zip(PORTS).map(|(node, (service, port))| {
        let mut pod = node.add_pod(&service.replace('/', "-"), 10)?;
        pod.serve(&[Listener::new(Kind::Http, port, service)])?;
        Ok(pod)
    });
    let pods = pods.collect::<Result<Vec<_>>>()?;
    let manifests = blocks(&page, "yaml");
    ensure!(manifests.len() >= 2, "the page has no manifests");
    for manifest in manifests {
        api.kubectl_apply(manifest, &[])?;
    }
    for (pod, (service, port)) in pods.iter().zip(PORTS) {
        let slices = Service::sharing(service, 80, "TCP", port).with([Endpoint::new(pod.address, &pod.node)]);
        let mut slice = slices.documents().pop().context("no EndpointSlice")?;
        slice["ports"][0]["name"] = json!("http");
        api.apply_all(&[slice])?;
    }
    agents.iter().try_for_each(|agent| agent.wait_ready(PATIENCE))?;

    // Both Services answer at one address, and see the client's own address.
    let client = lan.client()?;
    for ((service, _), port) in PORTS.into_iter().zip([80, 8080]) {
        let request = Request::new(Kind::Http, VIP, port);
        let answer = wait::until(&format!("{service} at {request}"), PATIENCE, || {
            client.namespace().run(|| request.send(TIMEOUT))
        })?;
        assert_eq!((answer.service.as_str(), answer.client.ip()), (service, client.address.into()));
    }
    shows_what_the_page_shows(&api, &page)
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

/// For each table of `kubectl` in the page: the same columns, and the same rows except for what
/// differs between clusters.
fn shows_what_the_page_shows(api: &ApiServer, page: &str) -> Result<()> {
    let mut compared = 0;
    for block in blocks(page, "console") {
        for part in block.split("$ kubectl ").skip(1) {
            let (command, output) = part.split_once('\n').context("a command has no output")?;
            let arguments: Vec<_> = command.split_whitespace().collect();
            if !arguments.contains(&"get") || arguments.contains(&"pods") || output.trim().is_empty() {
                continue;
            }
            let expected = skeleton(output);
            wait::until(&format!("`kubectl {command}` as docs/install.md has it"), PATIENCE, || {
                let shown = api.kubectl(&arguments)?;
                ensure!(skeleton(&shown) == expected, "it shows\n{shown}and the page has\n{output}");
                Ok(())
            })?;
            compared += 1;
        }
    }
    ensure!(compared >= 4, "{compared} outputs were compared");
    Ok(())
}

/// Returns the words of an output that are the same everywhere: no times, cluster addresses, node
/// ports or nodes.
fn skeleton(output: &str) -> Vec<Vec<String>> {
    let is_time = |word: &str| word.ends_with(['s', 'm', 'h', 'd']) && word.starts_with(|c: char| c.is_ascii_digit());
    let word = |word: &str| match word {
        word if is_time(word) => "TIME".to_owned(),
        word if word.starts_with("10.") => "CLUSTER-ADDRESS".to_owned(),
        word if word.starts_with("node-") => "NODE".to_owned(),
        word => word.split_once(':').map_or(word, |(port, _)| port).to_owned(),
    };
    let mut lines: Vec<Vec<_>> = output.lines().map(|line| line.split_whitespace().map(word).collect()).collect();
    lines.retain(|line| !line.is_empty());
    // Events are ordered by time.
    if let Some(rows) = lines.get_mut(1..) {
        rows.sort();
    }
    lines
}

/// The page's output of `vipmux` is correct.
#[test]
fn the_pages_commands_are_known() -> Result<()> {
    let page = page()?;
    for line in page.lines().filter_map(|line| line.strip_prefix("# vipmux ")) {
        let command = line.split_whitespace().next().context("no command")?;
        let mut help = Command::new(agent::binary()?);
        help.args([command, "--help"]);
        process::run(help)?;
    }
    Ok(())
}
