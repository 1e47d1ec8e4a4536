//! Tests nodes whose replies leave by another card than the one that announces the VIP.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vipmux_tests::{
    agent,
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP, VIP_V6},
    pod::Listener,
    router::Router,
    wait,
};

use crate::policies::endpoints;

const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP), IpAddr::V6(VIP_V6)];
const TCP: u16 = 80;
const UDP: u16 = 514;
/// With that many connections, the chance that one of two equal backends gets none is below 1 in
/// 100 billion.
const CONNECTIONS: usize = 40;

#[test]
fn replies_are_translated_where_a_route_leads_out_wherever_it_moves() -> Result<()> {
    followed("auto")
}

#[test]
fn a_filter_translates_replies_where_a_route_leads_out() -> Result<()> {
    followed("clsact")
}

/// The VIPs are announced on eth0. The route to the client is through eth0, then eth1, then eth0
/// again.
fn followed(tc: &'static str) -> Result<()> {
    let Some((mut cluster, router)) = served(tc)? else { return Ok(()) };
    let nodes = ["node-1", "node-2"];
    ask_all(&cluster, &router)?;
    ensure!(!nodes.iter().any(|node| translates_on_eth1(&cluster, node).unwrap_or(true)), "there is no route there");
    let mut session = router.client().run(|| Session::connect((VIP, TCP).into(), TIMEOUT))?;
    session.echo("by eth0")?;

    router.move_routes(&cluster.lan, true)?;
    await_on_eth1(&cluster, true)?;
    ask_all(&cluster, &router)?;
    session.echo("by eth1")?;
    for name in nodes {
        let node = cluster.lan.node(name)?;
        ensure!(!node.namespace().links(|links| links.has_xdp("eth1"))?, "{name} announces nothing on eth1");
    }

    // An agent that finds the route when it starts.
    nodes.iter().try_for_each(|node| cluster.restart_agent(node))?;
    ask_all(&cluster, &router)?;
    await_on_eth1(&cluster, true)?;
    for name in nodes {
        let (code, differences) = cluster.agent(name)?.diff(cluster.lan.node(name)?)?;
        ensure!(code == 0, "{name}: {differences}");
    }

    router.move_routes(&cluster.lan, false)?;
    await_on_eth1(&cluster, false)?;
    ask_all(&cluster, &router)?;

    router.move_routes(&cluster.lan, true)?;
    await_on_eth1(&cluster, true)?;
    for name in nodes {
        cluster.agent_mut(name)?.process_mut().kill()?;
        let node = cluster.lan.node(name)?;
        cluster.agent(name)?.unload(node)?;
        let left =
            node.tc(&["filter", "show", "dev", "eth1", "egress"])? + &node.tc(&["qdisc", "show", "dev", "eth1"])?;
        ensure!(!left.contains("vipmux") && !left.contains("clsact"), "{name}: {left}");
    }
    Ok(())
}

/// Makes two nodes with two cards and a pod each, a TCP and a UDP Service, and a client behind a
/// router. The nodes' rules are those of Kubernetes. A strict reverse path filter would drop
/// packets that come in by another card than replies leave by.
fn served(tc: &'static str) -> Result<Option<(Cluster, Router)>> {
    let options = Options { nodes: 2, kubernetes_rules: true, ..Options::default() };
    let Some(mut lan) = Lan::for_test(options)? else { return Ok(None) };
    lan.add_cards()?;
    let router = Router::plug_in(&lan)?;
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    let pods = ["pod-1", "pod-2"];
    for (node, pod) in ["node-1", "node-2"].into_iter().zip(pods) {
        let listeners = [Listener::new(Kind::Echo, 8080, "shop/web"), Listener::new(Kind::UdpEcho, 5140, "ops/syslog")];
        cluster.add_pod(node, pod, 10, &listeners)?;
    }
    let endpoints = endpoints(&cluster, &pods)?;
    let services = [("shop/web", TCP, "TCP", 8080), ("ops/syslog", UDP, "UDP", 5140)];
    for (name, port, protocol, target_port) in services {
        let service = Service::sharing(name, port, protocol, target_port).dual_stack();
        cluster.manifests.write_service(&service.with(endpoints.clone()))?;
    }
    cluster.start_agents(&agent::Options { tc, ..cluster.agent_options() })?;
    for vip in VIPS {
        cluster.await_service(Request::new(Kind::Echo, vip, TCP), "shop/web")?;
        cluster.await_service(Request::new(Kind::UdpEcho, vip, UDP), "ops/syslog")?;
    }
    Ok(Some((cluster, router)))
}

/// Sends requests from behind the router to both nodes' pods.
fn ask_all(cluster: &Cluster, router: &Router) -> Result<()> {
    for vip in VIPS {
        let client = if vip.is_ipv4() { router.address.into() } else { IpAddr::from(router.address_v6) };
        for request in [Request::new(Kind::Echo, vip, TCP), Request::new(Kind::UdpEcho, vip, UDP)] {
            let mut reached = BTreeSet::new();
            for _ in 0..CONNECTIONS {
                let answer = router.client().run(|| request.send(TIMEOUT)).with_context(|| cluster.last_outputs())?;
                assert_eq!(answer.client.ip(), client, "{request}");
                reached.insert(answer.pod);
            }
            ensure!(reached.len() == 2, "{request}: {reached:?} were reached");
        }
    }
    Ok(())
}

fn await_on_eth1(cluster: &Cluster, wanted: bool) -> Result<()> {
    wait::until(&format!("replies are translated on eth1: {wanted}"), PATIENCE, || {
        for agent in &cluster.agents {
            let name = agent.node();
            ensure!(translates_on_eth1(cluster, name)? == wanted, "{name}: {}", agent.process().last_output());
        }
        Ok(())
    })
}

/// By a link, which `inspect` shows, or by a filter.
fn translates_on_eth1(cluster: &Cluster, node: &str) -> Result<bool> {
    let (agent, node) = (cluster.agent(node)?, cluster.lan.node(node)?);
    let programs = agent.inspect_json(node, &["prog"])?;
    let of = |name: &str| programs["programs"].as_array()?.iter().find(|program| program["name"] == name);
    let egress = of("vipmux_egress").context("no vipmux_egress")?;
    let is_eth1 = |attached: &Value| attached["interface"] == "eth1";
    let linked = egress["attached"].as_array().is_some_and(|attached| attached.iter().any(is_eth1));
    Ok(linked || node.tc(&["filter", "show", "dev", "eth1", "egress"])?.contains("vipmux_egress"))
}
