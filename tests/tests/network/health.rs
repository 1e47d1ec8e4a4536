//! Health probes: backends that fail them get no new connections, unless all do.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vipmux_tests::{
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP},
    pod::{self, Listener},
    process::Process,
    wait,
};

/// Where the pods say that they are well.
const HEALTH_PORT: u16 = 9001;
/// With 40 new connections, the chance that one of two equal backends gets none is below 10^-11.
const CONNECTIONS: usize = 40;
const REQUEST: Kind = Kind::Echo;

/// Starts a pod's health server.
fn start(cluster: &Cluster, pod: &str) -> Result<Process> {
    let pod = cluster.pod(pod)?;
    let listener = Listener::new(Kind::Http, HEALTH_PORT, "shop/health");
    pod::start(pod.namespace(), &format!("{}-health", pod.name), pod.address, &[listener])
}

/// Waits until the maps have each pod so: it takes new flows, it fails.
fn await_states(cluster: &Cluster, expected: [(&str, bool, bool); 2]) -> Result<()> {
    let (node, agent) = (&cluster.lan.nodes[0], &cluster.agents[0]);
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

/// Which pods new connections reach, and how often.
fn reached(cluster: &Cluster) -> Result<BTreeMap<String, usize>> {
    let mut pods = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        *pods.entry(cluster.ask(Request::new(REQUEST, VIP, 80), TIMEOUT)?.pod).or_default() += 1;
    }
    Ok(pods)
}

/// A connection to this pod that stays.
fn session(cluster: &Cluster, pod: &str) -> Result<Session> {
    let client = cluster.lan.client()?;
    for _ in 0..CONNECTIONS {
        let mut session = client.namespace().run(|| Session::connect((VIP, 80).into(), TIMEOUT))?;
        if session.say("who")?.pod == pod {
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
    let web = Service::sharing("shop/web", 80, "TCP", 8080)
        .with([cluster.endpoint("web-1")?, cluster.endpoint("web-2")?])
        .annotated("service.beta.kubernetes.io/azure-load-balancer-health-probe-protocol", "Http")
        .annotated("service.beta.kubernetes.io/port_80_health-probe_port", "9001");
    cluster.manifests.write_service(&web)?;
    cluster.start_agents(&cluster.agent_options())?;
    cluster.await_service(Request::new(REQUEST, VIP, 80), "shop/web")?;
    await_states(&cluster, [("web-1", true, false), ("web-2", true, false)])?;
    ensure!(reached(&cluster)?.len() == 2, "one pod is never reached");

    let mut staying = session(&cluster, "web-1")?;
    first.kill()?;
    await_states(&cluster, [("web-1", false, true), ("web-2", true, false)])?;
    assert_eq!(reached(&cluster)?, [("web-2".to_owned(), CONNECTIONS)].into());
    assert_eq!(staying.say("still")?.pod, "web-1", "an established connection stays");
    let (code, explanation) = cluster.agents[0].explain(&cluster.lan.nodes[0], "shop/web", &[])?;
    let links = explanation["chain"].as_array().context("no chain")?;
    let told = |link: &Value| {
        let finding = link["finding"].as_str().unwrap_or_default();
        finding.contains("1 fail their health probes") && finding.contains("Connection refused")
    };
    assert!(code == 0 && links.iter().any(told), "{explanation}");

    second.kill()?;
    await_states(&cluster, [("web-1", true, true), ("web-2", true, true)])?;
    ensure!(reached(&cluster)?.len() == 2, "all fail, and one pod is never reached");
    let told = |line: &str| line.contains("all 2 backends fail their health probes: they are served nevertheless");
    cluster.agents[0].process().wait_for_line("that probes are ignored", PATIENCE, told)?;

    let _again = (start(&cluster, "web-1")?, start(&cluster, "web-2")?);
    await_states(&cluster, [("web-1", true, false), ("web-2", true, false)])?;
    ensure!(reached(&cluster)?.len() == 2, "one pod is never reached again");
    assert_eq!(staying.say("to the end")?.pod, "web-1");
    Ok(())
}
