//! A machine that is no node has an address which a node leads.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{arp, cluster::PATIENCE, lan::Options, manifests::VIP, wait};

use crate::{leading::answers, services};

/// Longer than any pause of the burst that an address is announced by but the last one, of eight seconds.
const QUIET: Duration = Duration::from_secs(5);
/// Far shorter than what is left of that one then.
const AT_ONCE: Duration = Duration::from_secs(1);

#[test]
fn a_stranger_that_has_the_address_is_told_and_announced_against() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?;
    let stranger = cluster.lan.client()?;
    let capture = arp::Capture::start(stranger.namespace())?;
    let announced = || {
        let seen = capture.seen().into_iter();
        seen.filter(|seen| seen.announces(VIP) && seen.sender_mac == leader.mac).map(|seen| seen.at).max()
    };
    let start = Instant::now();
    wait::until("the first announcements are over", PATIENCE, || {
        let quiet = announced().unwrap_or(start).elapsed() > QUIET;
        ensure!(quiet, "{} may go on", leader.name);
        Ok(())
    })?;
    let mac = stranger.namespace().links(|links| links.mac("eth0"))?;
    let begin = Instant::now();
    arp::announce(stranger.namespace(), VIP)?;
    wait::until("the leader announces the address too", AT_ONCE, || {
        ensure!(announced().is_some_and(|at| at > begin), "it does not");
        Ok(())
    })?;
    let agent = cluster.agent(&leader.name)?.process();
    agent.wait_for_line("the conflict", PATIENCE, |line| tells(line, &mac.to_string()))?;
    assert_eq!(answers(&cluster, VIP)?, [leader.mac], "it keeps the address");
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents).filter(|(node, _)| node.name != leader.name) {
        let output = agent.process().output();
        assert!(!output.lines().any(|line| tells(line, &mac.to_string())), "{} leads nothing: {output}", node.name);
    }
    Ok(())
}

/// The second client is a printer with a fixed address.
#[test]
fn an_address_that_a_stranger_has_is_not_put_into_service_before_it_is_free() -> Result<()> {
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
        let tells = |line: &str| line.contains("a stranger has this address") && line.contains(&mac.to_string());
        let mut agents = cluster.agents.iter();
        ensure!(agents.any(|agent| agent.process().output().lines().any(tells)), "{}", cluster.last_outputs());
        Ok(())
    })?;
    assert_eq!(answers(&cluster, VIP)?, [mac], "no node answers");
    for client in cluster.lan.clients.iter().filter(|client| client.mac == mac) {
        client.namespace().links(|links| links.delete("held0"))?;
    }
    cluster.await_leader(VIP)?;
    services::await_all(&cluster)
}

fn tells(line: &str, mac: &str) -> bool {
    line.contains(&format!("the address {VIP} is also used by {mac} on eth0"))
}
