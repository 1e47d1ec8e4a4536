//! Tests drivers that take seconds to attach a program, and hold the kernel's lock of all interfaces (RTNL)
//! meanwhile.

use std::{
    fs,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use vipmux_tests::{
    cluster::PATIENCE,
    failover::{FailoverCluster, LAN, ObservedFailover},
    lan::Lan,
    rtnl::Rtnl,
};

/// The lease of the agents here, and how long an attach takes: the fence deadline would pass twice.
const LEASE: &str = "1s";
const ATTACH: Duration = Duration::from_secs(3);

/// A leader with a second card, where it has announced nothing yet.
fn observed() -> Result<Option<(Rtnl, ObservedFailover)>> {
    let Some(mut lan) = Lan::for_test(LAN)? else { return Ok(None) };
    lan.add_cards()?;
    let rtnl = Rtnl::intercept()?;
    let failover = ObservedFailover::of(FailoverCluster::new(lan, LEASE)?)?;
    Ok(Some((rtnl, failover)))
}

#[test]
fn a_leader_goes_on_answering_and_keeps_its_address_while_the_driver_of_another_card_takes_long() -> Result<()> {
    let Some((rtnl, mut failover)) = observed()? else { return Ok(()) };
    let cluster = &failover.setup.cluster;
    let (node, agent) = (cluster.lan.node(&failover.node)?, cluster.agent(&failover.node)?);
    rtnl.slow_down(agent.process().id());
    let (there, gateway) = (Ipv4Addr::new(198, 51, 100, 0), Ipv4Addr::new(192, 0, 3, 1));
    node.namespace().links(|links| links.add_route("eth1", (there, 24), Some(gateway)))?;
    rtnl.await_attach(PATIENCE)?;
    let start = Instant::now();
    while start.elapsed() < ATTACH {
        failover.go_on()?;
    }
    rtnl.release()?;
    let agent = failover.setup.cluster.agent(&failover.node)?;
    let is_attached = |line: &str| line.contains("attached for a route") && line.contains("eth1");
    agent.process().wait_for_line("the program on eth1", PATIENCE, is_attached)?;
    failover.check_sessions()?;
    failover.undisturbed()?.check_nothing_lost()
}

#[test]
fn an_address_moves_while_the_driver_of_its_leaders_card_takes_long_to_attach_the_program_again() -> Result<()> {
    let Some((rtnl, mut failover)) = observed()? else { return Ok(()) };
    let cluster = &failover.setup.cluster;
    let (node, agent) = (cluster.lan.node(&failover.node)?, cluster.agent(&failover.node)?);
    let card = node.namespace().links(|links| links.index("eth0"))?;
    rtnl.slow_down(agent.process().id());
    let link = agent.pins().join(format!("links/xdp-{card}"));
    fs::remove_file(&link).with_context(|| link.display().to_string())?;
    rtnl.await_attach(PATIENCE)?;
    let other = failover.await_another()?;
    rtnl.release()?;
    let agent = failover.setup.cluster.agent(&failover.node)?;
    agent.process().wait_for_line("the program on eth0", PATIENCE, |line| line.contains("attaching it again"))?;
    failover.stays_with(other).map(drop)
}
