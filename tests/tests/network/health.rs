//! Tests health probes: failing backends get no new connections, unless all fail.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vipmux_tests::{
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Options},
    manifests::{Endpoint, Manifests, Service, VIP},
    pod::{self, Listener},
    process::Process,
    wait,
};

/// The port of the pods' health servers.
const HEALTH_PORT: u16 = 9001;
/// With 40 new connections, the chance that one of two equal backends gets none is below 10^-11.
const CONNECTIONS: usize = 40;
const REQUEST: Kind = Kind::Echo;

/// A backend's state: whether it takes new flows, whether its probe fails.
const UP: (bool, bool) = (true, false);
const DOWN: (bool, bool) = (false, true);
const IGNORED: (bool, bool) = (true, true);

/// Returns the Service with health probes.
fn probed(endpoints: impl IntoIterator<Item = Endpoint>) -> Service {
    Service::sharing("shop/web", 80, "TCP", 8080)
        .with(endpoints)
        .annotated("service.beta.kubernetes.io/azure-load-balancer-health-probe-protocol", "Http")
        .annotated("service.beta.kubernetes.io/port_80_health-probe_port", "9001")
}

/// Starts a pod's health server.
fn start(cluster: &Cluster, pod: &str) -> Result<Process> {
    let pod = cluster.pod(pod)?;
    let listener = Listener::new(Kind::Http, HEALTH_PORT, "shop/health");
    pod::start(pod.namespace(), &format!("{}-health", pod.name), pod.address, &[listener])
}

/// Waits until all nodes' maps have these states of the pods.
fn await_states(cluster: &Cluster, expected: [(&str, bool, bool); 2]) -> Result<()> {
    await_states_on(cluster, "node-1", expected)
}

/// Waits until a node's maps have these states of the pods.
fn await_states_on(cluster: &Cluster, node: &str, expected: [(&str, bool, bool); 2]) -> Result<()> {
    let (node, agent) = (cluster.lan.node(node)?, cluster.agent(node)?);
    wait::until("the health of the pods", PATIENCE, || {
        let view = agent.inspect_json(node, &["backends"])?;
        let backends = view["backends"].as_array().context("no backends")?;
        for (pod, ready, failing) in expected {
            let address = cluster.pod(pod)?.address.to_string();
            let backend = backends.iter().find(|backend| backend["address"] == address).context("no such backend")?;
            ensure!(backend["ready"] == ready && backend["failing"] == failing, "{pod}: {backend}");
        }
        Ok(())
    })
    .with_context(|| cluster.last_outputs())
}

/// Returns the pods that new connections reach, with counts.
fn reached(cluster: &Cluster) -> Result<BTreeMap<String, usize>> {
    let mut pods = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        *pods.entry(cluster.ask(Request::new(REQUEST, VIP, 80), TIMEOUT)?.pod).or_default() += 1;
    }
    Ok(pods)
}

/// Opens a lasting connection to this pod.
fn session(cluster: &Cluster, pod: &str) -> Result<Session> {
    let client = cluster.lan.client()?;
    for _ in 0..CONNECTIONS {
        let mut session = client.namespace().run(|| Session::connect((VIP, 80).into(), TIMEOUT))?;
        if session.echo("who")?.pod == pod {
            return Ok(session);
        }
    }
    anyhow::bail!("{pod} was never reached")
}

#[test]
fn pods_that_fail_their_probe_get_no_new_connections_unless_all_do() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    for (pod, host) in [("web-1", 10), ("web-2", 11)] {
        cluster.add_pod("node-1", pod, host, &[Listener::new(REQUEST, 8080, "shop/web")])?;
    }
    let (mut first, mut second) = (start(&cluster, "web-1")?, start(&cluster, "web-2")?);
    cluster.manifests.write_service(&probed([cluster.endpoint("web-1")?, cluster.endpoint("web-2")?]))?;
    cluster.start_agents(&cluster.agent_options())?;
    cluster.await_service(Request::new(REQUEST, VIP, 80), "shop/web")?;
    await_states(&cluster, [("web-1", true, false), ("web-2", true, false)])?;
    ensure!(reached(&cluster)?.len() == 2, "one pod is never reached");

    let mut staying = session(&cluster, "web-1")?;
    first.kill()?;
    await_states(&cluster, [("web-1", false, true), ("web-2", true, false)])?;
    assert_eq!(reached(&cluster)?, [("web-2".to_owned(), CONNECTIONS)].into());
    assert_eq!(staying.echo("still")?.pod, "web-1", "an established connection stays");
    let (code, explanation) = cluster.agents[0].explain(&cluster.lan.nodes[0], "shop/web", &[])?;
    let links = explanation["chain"].as_array().context("no chain")?;
    let reported = |link: &Value| {
        let finding = link["finding"].as_str().unwrap_or_default();
        finding.contains("1 fail their health probes") && finding.contains("Connection refused")
    };
    assert!(code == 0 && links.iter().any(reported), "{explanation}");

    second.kill()?;
    await_states(&cluster, [("web-1", true, true), ("web-2", true, true)])?;
    ensure!(reached(&cluster)?.len() == 2, "all fail, and one pod is never reached");
    let reported = |line: &str| line.contains("all 2 backends fail their health probes: they are served nevertheless");
    cluster.agents[0].process().wait_for_line("that probes are ignored", PATIENCE, reported)?;

    let _again = (start(&cluster, "web-1")?, start(&cluster, "web-2")?);
    await_states(&cluster, [("web-1", true, false), ("web-2", true, false)])?;
    ensure!(reached(&cluster)?.len() == 2, "one pod is never reached again");
    assert_eq!(staying.echo("to the end")?.pod, "web-1");
    Ok(())
}

/// Tenants write EndpointSlices: an address in one is no reason to send anything there.
#[test]
fn an_endpoint_that_is_no_pod_is_not_probed() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.add_pod("node-1", "web-1", 10, &[Listener::new(REQUEST, 8080, "shop/web")])?;
    let client = cluster.lan.client()?.address;
    let foreign = Endpoint { address: client.into(), ..cluster.endpoint("web-1")? };
    cluster.manifests.write_service(&probed([cluster.endpoint("web-1")?, foreign]))?;
    cluster.start_agents(&cluster.agent_options())?;
    let reported = |line: &str| line.contains(&format!("{client} is not probed, since no podCIDR of a Node has it"));
    cluster.agents[0].process().wait_for_line("that the client is not probed", PATIENCE, reported)?;
    // Nobody answers probes on either. The pod fails, and the client has no result.
    wait::until("the health of the pod", PATIENCE, || {
        let view = cluster.agents[0].inspect_json(cluster.lan.node("node-1")?, &["backends"])?;
        let backends = view["backends"].as_array().context("no backends")?;
        let failing = |address: String| backends.iter().find(|backend| backend["address"] == address);
        let pod = failing(cluster.pod("web-1")?.address.to_string()).context("no pod")?;
        let client = failing(client.to_string()).context("no client")?;
        ensure!(pod["failing"] == true && client["failing"] == false, "{view}");
        Ok(())
    })
}

/// Two nodes with a serving, healthy pod each: the cluster, the leader, the other node, and the
/// health servers by node.
struct Spread {
    cluster: Cluster,
    leader: String,
    other: String,
    health: BTreeMap<String, Process>,
}

impl Spread {
    fn new() -> Result<Option<Self>> {
        let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(None) };
        let manifests = Manifests::for_lan(&lan)?;
        let mut cluster = Cluster::new(lan, manifests)?;
        let (mut endpoints, mut health) = (Vec::new(), BTreeMap::new());
        for node in ["node-1", "node-2"] {
            let pod = on(node);
            cluster.add_pod(node, &pod, 10, &[Listener::new(REQUEST, 8080, "shop/web")])?;
            endpoints.push(cluster.endpoint(&pod)?);
            health.insert(node.to_owned(), start(&cluster, &pod)?);
        }
        cluster.manifests.write_service(&probed(endpoints))?;
        cluster.start_agents(&cluster.agent_options())?;
        cluster.await_service(Request::new(REQUEST, VIP, 80), "shop/web")?;
        let leader = cluster.await_leader(VIP)?.name.clone();
        let other = if leader == "node-1" { "node-2" } else { "node-1" }.to_owned();
        Ok(Some(Self { cluster, leader, other, health }))
    }

    /// Waits until both nodes have these states of the pods.
    fn await_both(&self, leaders: (bool, bool), others: (bool, bool)) -> Result<()> {
        let pods = [(on(&self.leader), leaders), (on(&self.other), others)];
        let expected = pods.each_ref().map(|(pod, (ready, failing))| (pod.as_str(), *ready, *failing));
        ["node-1", "node-2"].into_iter().try_for_each(|node| await_states_on(&self.cluster, node, expected))
    }

    fn is_reached(&self, nodes: &[&String]) -> Result<()> {
        let reached = reached(&self.cluster)?;
        let pods: Vec<_> = nodes.iter().map(|node| on(node)).collect();
        ensure!(reached.len() == pods.len() && pods.iter().all(|pod| reached.contains_key(pod)), "{reached:?}");
        Ok(())
    }

    /// Returns the failing endpoints according to the leader's agent.
    fn explained(&self) -> Result<Option<String>> {
        let (agent, node) = (self.cluster.agent(&self.leader)?, self.cluster.lan.node(&self.leader)?);
        let (code, explanation) = agent.explain(node, "shop/web", &[])?;
        ensure!(code == 0, "{explanation}");
        let links = explanation["chain"].as_array().context("no chain")?;
        let mut findings = links.iter().filter_map(|link| link["finding"].as_str());
        Ok(findings.find(|finding| finding.contains("fail their health probes")).map(str::to_owned))
    }
}

/// Returns a node's pod.
fn on(node: &str) -> String {
    format!("on-{node}")
}

#[test]
fn a_leader_heeds_what_another_node_says_of_its_pods() -> Result<()> {
    let Some(mut spread) = Spread::new()? else { return Ok(()) };
    let (leader, other) = (spread.leader.clone(), spread.other.clone());
    spread.await_both(UP, UP)?;
    spread.is_reached(&[&leader, &other])?;
    assert_eq!(spread.explained()?, None);

    spread.health.remove(&other);
    spread.await_both(UP, DOWN)?;
    spread.is_reached(&[&leader])?;
    let at = |node: &str| Ok::<_, anyhow::Error>(format!("{}:8080 on {node}", spread.cluster.pod(&on(node))?.address));
    let explained = spread.explained()?.context("nothing is said of it")?;
    ensure!(explained.ends_with(&format!("1 fail their health probes: {}", at(&other)?)), "{explained}");

    spread.health.insert(other.clone(), start(&spread.cluster, &on(&other))?);
    spread.await_both(UP, UP)?;
    spread.is_reached(&[&leader, &other])?;
    assert_eq!(spread.explained()?, None);

    spread.health.clear();
    spread.await_both(IGNORED, IGNORED)?;
    spread.is_reached(&[&leader, &other])?;
    let explained = spread.explained()?.context("nothing is said of it")?;
    ensure!(explained.contains("2 fail their health probes, so that probes are ignored"), "{explained}");
    let reported = |line: &str| line.contains("all 2 backends fail their health probes: they are served nevertheless");
    for agent in &spread.cluster.agents {
        agent.process().wait_for_line("that probes are ignored", PATIENCE, reported)?;
    }

    // Nobody reports its pods' health any more, and earlier reports are void.
    spread.cluster.agent_mut(&other)?.process_mut().kill()?;
    let (leaders, others) = (on(&leader), on(&other));
    await_states_on(&spread.cluster, &leader, [(&leaders, DOWN.0, DOWN.1), (&others, UP.0, UP.1)])?;
    spread.is_reached(&[&other])
}
