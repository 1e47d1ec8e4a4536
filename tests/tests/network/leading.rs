//! Tests that exactly one node answers for an address, and that a node without an agent stops by
//! itself.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use pnet::{packet::arp::ArpOperations, util::MacAddr};
use vipmux_tests::{
    agent::{self, Agent},
    arp,
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    failover::await_stopped,
    lan::Options,
    manifests::{VIP, VIP_V6},
    ndp,
    traffic::Traffic,
    wait,
};

use crate::{ipv6, services};

/// The time that a node may answer after its agent's last renewal.
pub(crate) const DEADLINE: Duration = Duration::from_secs(3);
/// This many requests, of [`WINDOW`] each, take far longer than a change of leader, but less time
/// than a yielded address stays without a leader.
const SILENCE: u32 = 13;
/// An answer takes well under a millisecond. This leaves room for a busy machine.
pub(crate) const WINDOW: Duration = Duration::from_millis(150);

/// The preferred node has a head start of 400 ms. On a busy machine another node may rightly be
/// first, but not every time.
#[test]
fn the_planned_leader_answers_and_the_client_knows_its_mac() -> Result<()> {
    const ROUNDS: u32 = 4;
    const ADDRESSES: u32 = 4;
    let Some(mut cluster) = services::with_pods(Options::default())? else { return Ok(()) };
    cluster.start_agents(&cluster.agent_options())?;
    cluster.await_all_alive()?;
    let mut seen = Vec::new();
    for round in 0..ROUNDS {
        let addresses: Vec<_> =
            (0..ADDRESSES).map(|n| Ipv4Addr::from(u32::from(VIP) + round * ADDRESSES + n)).collect();
        addresses.iter().try_for_each(|address| write_web(&cluster, *address))?;
        let leader = |address: &Ipv4Addr| -> Result<(&str, &str)> {
            cluster.await_service(Request::new(Kind::Http, *address, 80), "shop/web")?;
            let leader = cluster.await_leader(*address)?;
            assert_eq!(cluster.lan.client()?.neighbor(*address)?, Some(leader.mac));
            Ok((&cluster.planned_leader(*address)?.name, &leader.name))
        };
        let leaders = addresses.iter().map(leader).collect::<Result<Vec<_>>>()?;
        if leaders.iter().all(|(planned, leader)| planned == leader) {
            return Ok(());
        }
        seen.push(leaders);
    }
    bail!("planned leaders, and who led: {seen:?}")
}

/// Writes a Service `shop/web-N` with this address; N is the address's last byte.
pub(crate) fn write_web(cluster: &Cluster, address: Ipv4Addr) -> Result<()> {
    let mut service = services::web(cluster)?;
    service.name.1 = format!("web-{}", address.octets()[3]);
    service.sharing_key = None;
    service.address = Some(address);
    cluster.manifests.write_service(&service)
}

/// kube-proxy's ipvs mode puts every VIP on a dummy interface of every node. With the default
/// `arp_ignore` of 0, each node's kernel would answer.
#[test]
fn only_the_leader_answers_though_every_node_holds_the_address() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        node.namespace().sysctl("net/ipv4/conf/all/arp_ignore", "0")?;
        node.namespace().links(|links| {
            links.add_holder("kube-ipvs0")?;
            links.add_address("kube-ipvs0", VIP, 32)
        })?;
    }
    let leader = cluster.await_leader(VIP)?;
    let client = cluster.lan.client()?;
    let capture = arp::Capture::start(client.namespace())?;
    for _ in 0..5 {
        assert_eq!(answers(&cluster, VIP)?, [leader.mac]);
    }
    // Traffic makes the nodes' kernels send ARP requests for the client, which must not have the
    // VIP as sender.
    for node in &cluster.lan.nodes {
        node.namespace().links(|links| links.forget_neighbor(client.address))?;
    }
    services::await_all(&cluster)?;
    let claims = wait::until("all answers in the capture", PATIENCE, || {
        let claims = capture.claims(VIP);
        ensure!(claims.len() >= 5, "{claims:?}");
        Ok(claims)
    })?;
    assert!(claims.iter().all(|mac| *mac == leader.mac), "{claims:?}, leader {}", leader.mac);
    Ok(())
}

/// Its peers' agents are stopped as well, so nobody could take over.
#[test]
fn stopped_agents_are_silent_after_the_deadline_and_one_answers_again_when_continued() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let mut session = connect(&cluster)?;
    for agent in &cluster.agents {
        agent.process().signal(Signal::SIGSTOP)?;
        await_stopped(agent.process().id())?;
    }
    assert_silent(&cluster)?;
    serves_who_knows_the_mac(&cluster, &mut session)?;

    cluster.agents.iter().try_for_each(|agent| agent.process().signal(Signal::SIGCONT))?;
    let leader = cluster.await_leader(VIP)?.mac;
    assert_eq!(answers(&cluster, VIP)?, [leader]);
    assert_eq!(session.echo("continued")?.service, "shop/secure");
    services::await_all(&cluster)
}

#[test]
fn killed_agents_nodes_are_silent_after_the_deadline_while_traffic_goes_on() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let mut session = connect(&cluster)?;
    cluster.agents.iter_mut().try_for_each(|agent| agent.process_mut().kill())?;
    assert_silent(&cluster)?;
    serves_who_knows_the_mac(&cluster, &mut session)?;

    for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
        agent.restart(node)?;
    }
    let leader = cluster.await_leader(VIP)?.mac;
    assert_eq!(answers(&cluster, VIP)?, [leader]);
    assert_eq!(session.echo("restarted")?.service, "shop/secure");
    services::await_all(&cluster)
}

#[test]
fn an_edit_of_the_nodes_moves_the_address_without_a_long_silence() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    for _ in 0..3 {
        let (first, mac) = { cluster.await_leader(VIP).map(|node| (node.name.clone(), node.mac))? };
        cluster.manifests.write_nodes(&cluster.lan, &[&first])?;
        await_successor(&cluster, mac)?;
        let second = cluster.await_leader(VIP)?.mac;
        cluster.manifests.write_nodes(&cluster.lan, &[])?;
        await_candidate(&cluster, VIP, &first)?;
        services::await_all(&cluster)?;
        assert_eq!(answers(&cluster, VIP)?, [second], "it does not go back when the node is uncordoned");
    }
    Ok(())
}

/// Waits until another node than this one answers for [`VIP`], which must never be long without an answer.
fn await_successor(cluster: &Cluster, before: MacAddr) -> Result<()> {
    let begin = Instant::now();
    let (mut unanswered, mut in_a_row) = (0, 0);
    while in_a_row < 10 && unanswered < SILENCE {
        ensure!(begin.elapsed() < PATIENCE, "{before} still answers");
        let client = cluster.lan.client()?;
        let answer = arp::first_answer(client.namespace(), client.address, VIP, WINDOW)?;
        unanswered = if answer.is_none() { unanswered + 1 } else { 0 };
        match answer {
            Some(answer) if answer == before => in_a_row = 0,
            Some(_) => in_a_row += 1,
            None => {}
        }
    }
    ensure!(unanswered < SILENCE, "nobody answered {unanswered} questions, {WINDOW:?} each");
    Ok(())
}

#[test]
fn a_leader_whose_node_is_deleted_transfers_the_address_without_a_long_silence() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let (first, mac) = { cluster.await_leader(VIP).map(|node| (node.name.clone(), node.mac))? };
    cluster.manifests.write_nodes_but(&cluster.lan, &first)?;
    await_successor(&cluster, mac)?;
    let second = cluster.await_leader(VIP)?;
    let transfers = |line: &str| line.contains("no longer leading") && line.contains("handed over to");
    cluster.agent(&first)?.process().wait_for_line("a transfer", PATIENCE, transfers)?;
    cluster.manifests.write_nodes(&cluster.lan, &[])?;
    await_candidate(&cluster, VIP, &first)?;
    services::await_all(&cluster)?;
    assert_eq!(answers(&cluster, VIP)?, [second.mac]);
    Ok(())
}

#[test]
fn a_leader_whose_cable_is_out_is_followed_by_another_which_keeps_the_address() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let first = cluster.await_leader(VIP)?.name.clone();
    cluster.lan.switch().links(|links| links.set_down(&first))?;
    let second = cluster.await_leader(VIP)?;
    assert_ne!(second.name, first);
    cluster.lan.switch().links(|links| links.set_up(&first))?;
    cluster.await_standing(&second.name, &first, "alive")?;
    services::await_all(&cluster)?;
    assert_eq!(answers(&cluster, VIP)?, [second.mac]);
    Ok(())
}

#[test]
fn restarting_every_agent_loses_no_request() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    // The client has a permanent neighbor entry: the test is about traffic, not ARP.
    let leader = cluster.await_leader(VIP)?.mac;
    let client = cluster.lan.client()?;
    client.namespace().links(|links| links.add_neighbor("eth0", VIP, leader))?;
    let mut session = connect(&cluster)?;
    let traffic: Vec<_> = services::expected()
        .iter()
        .map(|expected| Traffic::start(client.namespace(), expected.request, Duration::from_millis(5)))
        .collect::<Result<_>>()?;
    for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
        agent.restart(node)?;
        agent.wait_ready(PATIENCE)?;
        assert_eq!(session.echo(&node.name)?.service, "shop/secure");
    }
    for (traffic, expected) in traffic.into_iter().zip(services::expected()) {
        traffic.wait_for_more(5, PATIENCE)?;
        traffic.stop()?.check_all_by(expected.name)?;
    }
    Ok(())
}

/// RFC 5944, 4.6: a gratuitous ARP packet is a request or a reply. Some clients only accept one of
/// them.
#[test]
fn an_address_that_is_gained_is_announced_by_request_and_by_reply() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let capture = arp::Capture::start(cluster.lan.client()?.namespace())?;
    cluster.start_agents(&cluster.agent_options())?;
    await_announcement(&cluster, &capture)
}

/// All were cut off, so none could take over.
#[test]
fn a_leader_whose_carrier_comes_back_announces_and_serves() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let nodes = &cluster.lan.nodes;
    cluster.lan.switch().links(|links| nodes.iter().try_for_each(|node| links.set_down(&node.name)))?;
    assert!(cluster.ask(Request::new(Kind::Http, VIP, 80), WINDOW).is_err());
    let capture = arp::Capture::start(cluster.lan.client()?.namespace())?;
    cluster.lan.switch().links(|links| nodes.iter().try_for_each(|node| links.set_up(&node.name)))?;
    await_announcement(&cluster, &capture)?;
    services::await_all(&cluster)
}

/// As a node does that believes it leads. This one does not answer, so the address comes back.
#[test]
fn a_leader_that_hears_another_node_announce_its_address_is_silent_at_once_and_leads_again_later() -> Result<()> {
    /// Far shorter than the lease.
    const AT_ONCE: Duration = Duration::from_secs(5);
    // So long that nobody takes over from a stopped agent.
    let lease = |options| agent::Options { lease: "30s", ..options };
    let Some(mut cluster) = ipv6::served_with(lease, Options::default())? else { return Ok(()) };
    let leaders = [cluster.await_leader(VIP)?.name.clone(), cluster.await_leader(VIP_V6)?.name.clone()];
    let other = cluster.lan.nodes.iter().find(|node| !leaders.contains(&node.name)).context("no other node")?;
    let other = other.name.clone();
    // Nothing prevents it from announcing any address.
    cluster.agent_mut(&other)?.process_mut().kill()?;
    let other = cluster.lan.node(&other)?;
    cluster.agent(&other.name)?.unload(other)?;

    // The kernel is silent. A running agent would see that and repair it.
    let agents = || cluster.agents.iter().filter(|agent| agent.node() != other.name).map(Agent::process);
    for process in agents() {
        process.signal(Signal::SIGSTOP)?;
        await_stopped(process.id())?;
    }
    let client = cluster.lan.client()?;
    arp::announce(other.namespace(), VIP)?;
    wait::until("silence after the announcement", AT_ONCE, || {
        let after = answers(&cluster, VIP)?;
        ensure!(after.is_empty(), "{after:?} answered");
        Ok(())
    })?;
    ensure!(ndp::advertise(other.namespace(), VIP_V6)?, "it did not leave");
    wait::until("silence after the advertisement", AT_ONCE, || {
        let after = ndp::answers(client.namespace(), client.address_v6, VIP_V6, WINDOW)?;
        ensure!(after.is_empty(), "{after:?} answered in IPv6");
        Ok(())
    })?;
    agents().try_for_each(|process| process.signal(Signal::SIGCONT))?;
    for (vip, leader) in [IpAddr::from(VIP), VIP_V6.into()].into_iter().zip(leaders) {
        assert_eq!(cluster.await_leader(vip)?.name, leader, "{vip}");
    }
    Ok(())
}

#[test]
fn every_address_has_one_leader_and_not_all_have_the_same() -> Result<()> {
    let Some(mut cluster) = services::with_pods(Options::default())? else { return Ok(()) };
    let addresses: Vec<_> = (0..12).map(|n| Ipv4Addr::from(u32::from(VIP) + 1 + n)).collect();
    cluster.start_agents(&cluster.agent_options())?;
    // A lone agent would lead all of them, and transfer some later.
    cluster.await_all_alive()?;
    addresses.iter().try_for_each(|address| write_web(&cluster, *address))?;
    let mut leaders = BTreeSet::new();
    for address in &addresses {
        cluster.await_service(Request::new(Kind::Http, *address, 80), "shop/web")?;
        let leader = cluster.await_leader(*address)?;
        assert_eq!(answers(&cluster, *address)?, [leader.mac], "{address}");
        leaders.insert(&leader.name);
    }
    assert!(leaders.len() > 1, "{leaders:?}");
    Ok(())
}

/// Waits for a gratuitous request and reply with the VIP as sender, and checks that only the leader
/// sends them.
fn await_announcement(cluster: &Cluster, capture: &arp::Capture) -> Result<()> {
    for operation in [ArpOperations::Request, ArpOperations::Reply] {
        wait::until(&format!("an announcement by {operation:?}"), PATIENCE, || {
            let seen = capture.frames();
            ensure!(seen.iter().any(|seen| seen.announces(VIP) && seen.operation == operation), "{seen:?}");
            Ok(())
        })?;
    }
    let (leader, claims) = (cluster.await_leader(VIP)?.mac, capture.claims(VIP));
    assert!(claims.iter().all(|mac| *mac == leader), "{claims:?}, leader {leader}");
    Ok(())
}

fn connect(cluster: &Cluster) -> Result<Session> {
    let mut session = cluster.lan.client()?.namespace().run(|| Session::connect((VIP, 443).into(), TIMEOUT))?;
    session.echo("hello")?;
    Ok(session)
}

pub(crate) fn answers(cluster: &Cluster, address: Ipv4Addr) -> Result<Vec<MacAddr>> {
    let client = cluster.lan.client()?;
    arp::answers(client.namespace(), client.address, address, WINDOW)
}

/// Waits until every agent counts a node among the candidates.
pub(crate) fn await_candidate(cluster: &Cluster, vip: Ipv4Addr, node: &str) -> Result<()> {
    for (on, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
        wait::until(&format!("{} counts {node} in for {vip}", on.name), PATIENCE, || {
            let (_, explanation) = agent.explain(on, &vip.to_string(), &[])?;
            let why = explanation["vips"][0]["why"].as_str().with_context(|| explanation.to_string())?;
            ensure!(why.contains(node), "{why}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Sends requests until the deadline has passed, then some more: nobody answers those.
fn assert_silent(cluster: &Cluster) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() <= DEADLINE {
        answers(cluster, VIP)?;
    }
    for attempt in 1..=4 {
        let answers = answers(cluster, VIP)?;
        assert!(
            answers.is_empty(),
            "attempt {attempt}, {:?} after the last sign of life: {answers:?}",
            start.elapsed()
        );
    }
    Ok(())
}

/// An established connection continues, and a client that knows the leader's MAC opens new ones.
fn serves_who_knows_the_mac(cluster: &Cluster, session: &mut Session) -> Result<()> {
    for line in ["one", "two", "three"] {
        assert_eq!(session.echo(line)?.service, "shop/secure");
    }
    let answer = cluster.ask(Request::new(Kind::Http, VIP, 80), TIMEOUT)?;
    assert_eq!(answer.service, "shop/web");
    Ok(())
}
