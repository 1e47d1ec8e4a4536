//! Tests a foreign speaker: a machine that is no node has a VIP.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use vipmux_common::abi::Mac;
use vipmux_datapath::bpf::maps::Maps;
use vipmux_tests::{
    agent, arp,
    client::Kind,
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Options},
    manifests::{self, Manifests, Service, VIP},
    pod::Listener,
    wait,
};

use crate::{leading::answers, services};

/// Longer than any pause in the burst of announcements: the longest one is eight seconds.
const QUIET: Duration = Duration::from_secs(10);
/// A time limit. The burst takes fifteen seconds.
const LONG: Duration = Duration::from_mins(1);
/// An address in the network of the nodes' second cards.
const BESIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 3, 200);

#[test]
fn a_foreign_speaker_that_has_the_address_is_reported_and_announced_against() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?;
    let foreign = cluster.lan.client()?;
    let capture = arp::Capture::start(foreign.namespace())?;
    let announced = || {
        let seen = capture.frames().into_iter();
        seen.filter(|seen| seen.announces(VIP) && seen.sender_mac == leader.mac).map(|seen| seen.at).max()
    };
    let start = Instant::now();
    wait::until("the first announcements are over", LONG, || {
        let quiet = announced().unwrap_or(start).elapsed() > QUIET;
        ensure!(quiet, "{} may go on", leader.name);
        Ok(())
    })?;
    let mac = foreign.namespace().links(|links| links.mac("eth0"))?;
    let begin = Instant::now();
    arp::announce(foreign.namespace(), VIP)?;
    wait::until("the leader announces the address too", PATIENCE, || {
        ensure!(announced().is_some_and(|at| at > begin), "it does not");
        Ok(())
    })?;
    let agent = cluster.agent(&leader.name)?.process();
    agent.wait_for_line("the conflict", PATIENCE, |line| is_conflict_with(line, &mac.to_string()))?;
    assert_eq!(answers(&cluster, VIP)?, [leader.mac], "it keeps the address");
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents).filter(|(node, _)| node.name != leader.name) {
        let output = agent.process().output();
        assert!(
            !output.lines().any(|line| is_conflict_with(line, &mac.to_string())),
            "{} leads nothing: {output}",
            node.name
        );
    }
    Ok(())
}

/// The second client plays a printer with a fixed address.
#[test]
fn an_address_that_a_foreign_speaker_has_is_not_used_before_it_is_free() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options { clients: 2, ..Options::default() })? else { return Ok(()) };
    let mac = cluster.lan.clients.last().context("no client")?.mac;
    for client in cluster.lan.clients.iter().filter(|client| client.mac == mac) {
        client.namespace().links(|links| {
            links.add_holder("held0")?;
            links.add_address("held0", VIP, 32)
        })?;
    }
    cluster.start_agents(&cluster.agent_options())?;
    wait::until("a node that finds the printer", PATIENCE, || {
        let finds = |line: &str| line.contains("foreign speaker has the address") && line.contains(&mac.to_string());
        let mut agents = cluster.agents.iter();
        ensure!(agents.any(|agent| agent.process().output().lines().any(finds)), "{}", cluster.last_outputs());
        Ok(())
    })?;
    assert_eq!(answers(&cluster, VIP)?, [mac], "no node answers");
    for client in cluster.lan.clients.iter().filter(|client| client.mac == mac) {
        client.namespace().links(|links| links.delete("held0"))?;
    }
    cluster.await_leader(VIP)?;
    services::await_all(&cluster)
}

/// It announces the address with another MAC than the one that reaches it.
#[test]
fn a_node_that_announces_by_its_second_card_is_no_foreign_speaker() -> Result<()> {
    let Some(mut lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let cards = lan.add_cards()?;
    let mut cluster = Cluster::new(lan, Manifests::empty()?)?;
    cluster.manifests.write_nodes(&cluster.lan, &[])?;
    cluster.manifests.write("pool.yaml", &[manifests::pool("beside", &[&format!("{BESIDE}/32")])])?;
    cluster.add_pod("node-1", "web-1", 10, &[Listener::new(Kind::Http, 8080, "shop/web")])?;
    let service = Service::sharing("shop/web", 80, "TCP", 8080).with([cluster.endpoint("web-1")?]);
    cluster.manifests.write_service(&Service { address: Some(BESIDE), sharing_key: None, ..service })?;
    cluster.start_agents(&agent::Options { interface: "eth0,eth1".to_owned(), ..cluster.agent_options() })?;
    for (agent, other) in cluster.agents.iter().zip(cards.iter().rev()) {
        wait::until("the other node's second card is known", PATIENCE, || {
            let peers = Maps::open(agent.pins())?.peers.read()?;
            ensure!(peers.contains_key(&Mac::new(other.octets())), "{peers:?}");
            Ok(())
        })?;
    }
    let leader = wait::until("a leader", PATIENCE, || {
        let answers = answers(&cluster, BESIDE)?;
        cards.iter().position(|card| answers == [*card]).with_context(|| format!("{answers:?} answer"))
    })?;
    let before = cluster.counted("stats", "foreign")?;
    // To the other node and back.
    for (cordoned, next) in [(leader, 1 - leader), (1 - leader, leader)] {
        cluster.manifests.write_nodes(&cluster.lan, &[&cluster.lan.nodes[cordoned].name])?;
        wait::until("the address has moved", PATIENCE, || {
            let answers = answers(&cluster, BESIDE)?;
            ensure!(answers == [cards[next]], "{answers:?} answer");
            Ok(())
        })?;
    }
    assert_eq!(cluster.counted("stats", "foreign")?, before, "nodes are taken for foreign speakers");
    for agent in &cluster.agents {
        let output = agent.process().output();
        assert!(!output.contains("is also used by"), "{output}");
    }
    Ok(())
}

fn is_conflict_with(line: &str, mac: &str) -> bool {
    line.contains(&format!("the address {VIP} is also used by {mac} on eth0"))
}
