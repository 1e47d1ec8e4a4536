//! Tests failovers while the agents' connection to the API server is bad.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pnet::util::MacAddr;
use vipmux_tests::{
    api_proxy::{ApiProxy, Fault, Rule},
    cluster::PATIENCE,
    failover::{ADDRESS, DEFAULT_LEASE, FailoverCluster, LAN, ObservedFailover},
    lan::Options,
    wait,
};

use crate::serving::holder;

/// All Leases and objects go through the proxy.
fn failover() -> Result<Option<(ObservedFailover, ApiProxy)>> {
    let Some((setup, proxy)) = FailoverCluster::in_kubernetes_by_proxy(LAN)? else { return Ok(None) };
    Ok(Some((ObservedFailover::of(setup)?, proxy)))
}

/// Waits until the Lease names the node that has this MAC.
fn await_holder(failover: &ObservedFailover, mac: MacAddr) -> Result<()> {
    let cluster = &failover.setup.cluster;
    let leader = &cluster.lan.node_of(mac).context("no node has that MAC")?.name;
    wait::until("the Lease of who leads", PATIENCE, || {
        let holder = holder(cluster, ADDRESS.into())?;
        ensure!(holder == *leader, "the Lease names {holder}, and {leader} leads");
        Ok(())
    })
    .with_context(|| cluster.last_outputs())
}

#[test]
fn a_killed_leader_is_followed_once_though_the_api_server_is_slow_and_loses_and_repeats_requests() -> Result<()> {
    let Some((mut failover, proxy)) = failover()? else { return Ok(()) };
    proxy.set_rules([
        Rule::new(Fault::Delay(Duration::from_millis(700))),
        Rule::new(Fault::Delay(Duration::from_secs(2))).in_percent(30),
        Rule::new(Fault::Lose).in_percent(15),
        Rule::new(Fault::Again(Duration::from_secs(1))).of_writes(),
        Rule::new(Fault::LoseAnswer).in_percent(15),
    ]);
    failover.go_on()?;
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    wait::until("a write of the Lease, and its copy", PATIENCE, || {
        ensure!(proxy.fault_count("again") > 0);
        Ok(())
    })
    .with_context(|| format!("{:?}", proxy.fault_counts()))?;
    proxy.clear();
    await_holder(&failover, other)?;
    let node = failover.node.clone();
    failover.setup.start_agent(&node)?;
    failover.await_return(other)?;
    failover.go_on()?;
    await_holder(&failover, other)?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

/// Connections stay open without responses, as after a power failure. A refused connection would be
/// noticed at once.
#[test]
fn a_majority_takes_over_while_the_api_server_is_silent() -> Result<()> {
    let Some((mut failover, proxy)) = failover()? else { return Ok(()) };
    proxy.set_rules([Rule::new(Fault::Stall)]);
    proxy.freeze();
    failover.go_on()?;
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    proxy.clear();
    await_holder(&failover, other)?;
    failover.go_on()?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

/// Exactly half of the nodes are left, so the store decides.
#[test]
fn half_of_four_nodes_follow_the_others_through_a_slow_api_server_and_wait_for_a_silent_one() -> Result<()> {
    let options = Options { nodes: 4, ..LAN };
    let Some((setup, proxy)) = FailoverCluster::in_kubernetes_by_proxy_with(options, DEFAULT_LEASE)? else {
        return Ok(());
    };
    let mut failover = ObservedFailover::of(setup)?;
    let mut mac = failover.mac;
    for delay in [20, 150, 500] {
        proxy.set_rules([Rule::new(Fault::Delay(Duration::from_millis(delay))).on("leases")]);
        let killed = kill_half(&mut failover, mac)?;
        failover.watch.wait_for_another(mac, PATIENCE).with_context(|| failover.setup.cluster.last_outputs())?;
        // A store that is slower than the lease no longer interrupts anything.
        failover.go_on()?;
        failover.check_sessions()?;
        proxy.clear();
        for node in killed {
            failover.setup.start_agent(&node)?;
            failover.setup.cluster.await_standing(&failover.setup.leader()?.name, &node, "alive")?;
        }
        mac = failover.setup.leader()?.mac;
    }
    proxy.set_rules([Rule::new(Fault::Stall).on("leases")]);
    kill_half(&mut failover, mac)?;
    wait::until("requests without an answer", PATIENCE, || {
        ensure!(proxy.fault_count("stall") > 2);
        Ok(())
    })?;
    proxy.clear();
    failover.watch.wait_for_another(mac, PATIENCE).with_context(|| failover.setup.cluster.last_outputs())?;
    failover.go_on()?;
    failover.answered_once()
}

/// Kills the agents of the node with this MAC and of another one. Returns their names.
fn kill_half(failover: &mut ObservedFailover, leader: MacAddr) -> Result<[String; 2]> {
    let lan = &failover.setup.cluster.lan;
    let first = lan.node_of(leader).context("no node has that MAC")?.name.clone();
    let second = lan.nodes.iter().find(|node| node.name != first).context("no other node")?.name.clone();
    for node in [&second, &first] {
        failover.setup.signal(node, Signal::SIGKILL)?;
    }
    Ok([first, second])
}

/// The new leader's Lease is written, but only the API server knows. An agent that reads it again
/// finds its own name.
#[test]
fn a_takeover_whose_first_writes_seem_to_fail_is_one_takeover() -> Result<()> {
    let Some((mut failover, proxy)) = failover()? else { return Ok(()) };
    proxy.set_rules([
        Rule::new(Fault::Twice).of_writes().on("leases").times(3),
        Rule::new(Fault::LoseAnswer).of_writes().on("leases").times(1),
    ]);
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    // A node with a majority may lead before it can write.
    wait::until("faults of writes of the Lease", PATIENCE, || {
        let missing: Vec<_> =
            ["twice", "lose answer"].into_iter().filter(|fault| proxy.fault_count(fault) == 0).collect();
        ensure!(missing.is_empty(), "none of {missing:?}");
        Ok(())
    })?;
    proxy.clear();
    await_holder(&failover, other)?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}
