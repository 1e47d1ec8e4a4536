//! Tests nodes that have only IPv6 addresses.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP_V6},
    pod::Listener,
    wait,
};

use crate::ipv6;

const SERVICE: &str = "shop/web";
const PORT: u16 = 80;
const REQUEST: Request = Request { kind: Kind::Http, server: SocketAddr::new(IpAddr::V6(VIP_V6), PORT) };
/// One per node.
const PODS: usize = 3;
/// With 60 new connections, the chance that one of three equal backends gets none is below 10^-10.
const CONNECTIONS: usize = 60;

/// IPv4 does not leave the nodes, whatever addresses their interfaces have.
pub(crate) const NO_IPV4: &str = "table ip none {
    chain output { type filter hook output priority 0; policy drop; }
    chain input { type filter hook input priority 0; policy drop; }
}";

#[test]
fn they_gossip_elect_hand_frames_over_and_follow_one_that_is_killed() -> Result<()> {
    let Some(lan) = Lan::for_test(Options::default())? else { return Ok(()) };
    lan.nodes.iter().try_for_each(|node| node.nft(NO_IPV4).map(drop))?;
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    manifests.write_nodes_v6(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    let mut endpoints = Vec::new();
    for node in ["node-1", "node-2", "node-3"] {
        let pod = format!("on-{node}");
        cluster.add_pod(node, &pod, 10, &[Listener::new(Kind::Http, 8080, SERVICE)])?;
        endpoints.push(cluster.endpoint_v6(&pod)?);
    }
    cluster.manifests.write_service(&Service::sharing(SERVICE, PORT, "TCP", 8080).ipv6().with(endpoints))?;
    cluster.start_agents(&cluster.agent_options())?;
    cluster.await_service(REQUEST, SERVICE)?;
    cluster.await_all_alive()?;
    cluster.await_ready(PORT, PODS)?;
    check_reached(&cluster)?;
    ensure!(cluster.counted("stats", "handed_over")? > 0, "no frame was handed over");

    let first = cluster.await_leader(VIP_V6)?;
    let (first, mac) = (first.name.clone(), first.mac);
    assert_eq!(ipv6::answers(&cluster)?, [mac]);
    cluster.agent_mut(&first)?.process_mut().kill()?;
    for by in cluster.lan.nodes.iter().filter(|node| node.name != first) {
        cluster.await_standing(&by.name, &first, "down")?;
    }
    let answers = wait::until("another node answers alone", PATIENCE, || {
        let answers = ipv6::answers(&cluster)?;
        ensure!(!answers.is_empty() && !answers.contains(&mac), "{answers:?}, and {mac} was the first");
        Ok(answers)
    })
    .with_context(|| cluster.last_outputs())?;
    assert_eq!(answers.len(), 1, "{answers:?}");
    cluster.await_service(REQUEST, SERVICE)?;
    // Its node continues to forward and translate.
    check_reached(&cluster)
}

/// Each pod is reached.
fn check_reached(cluster: &Cluster) -> Result<()> {
    let mut pods = BTreeSet::new();
    for _ in 0..CONNECTIONS {
        pods.insert(cluster.ask(REQUEST, TIMEOUT)?.pod);
    }
    ensure!(pods.len() == PODS, "{pods:?} were reached");
    Ok(())
}
