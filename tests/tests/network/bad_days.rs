//! Tests faults: lost gossip, a firewall against it, flapping agents, duplicate node names and
//! duplicate MACs.
//!
//! A step of the wall clock is not tested here, since a machine has only one. No deadline uses it:
//! `cargo xtask lint` finds every clock that the election or the membership reads.

use std::{os::unix::fs::symlink, thread};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use vipmux_tests::{
    agent, arp,
    cleanup::Folder,
    cluster::{PATIENCE, TIMEOUT},
    failover::{LAN, MOST_OVERLAP, ObservedFailover},
    lan::{Node, Options},
    process::Process,
    scrape, wait,
    watch::PAUSE,
};

/// Requests of each kind in ten seconds.
const LONG: usize = 1_000;
/// Requests of each kind in one second.
const SOME: usize = 100;

/// Returns a node that does not lead.
fn follower(failover: &ObservedFailover) -> Result<&Node> {
    failover.setup.cluster.lan.nodes.iter().find(|node| node.name != failover.node).context("no other node")
}

#[test]
fn a_leader_keeps_its_address_though_a_third_of_the_gossip_is_lost_and_is_followed_when_killed() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    for node in &failover.setup.cluster.lan.nodes {
        node.filter_gossip("numgen random mod 100 < 30 drop")?;
    }
    failover.go_on_for(LONG)?;
    let leader = failover.mac;
    let before = failover.watch.leaders();
    // One move per minute is allowed. The check below requires at most one, and no request with two
    // answers.
    ensure!(before.len() <= 2, "{before:?} answered one after the other");
    let now = before.last().copied().context("nobody answered")?;
    let node = failover.setup.cluster.lan.node_of(now).context("no node has that MAC")?.name.clone();
    failover.setup.signal(&node, Signal::SIGKILL)?;
    let next = failover.watch.wait_for_another(now, PATIENCE).with_context(|| failover.setup.cluster.last_outputs())?;
    failover.go_on()?;
    failover.check_sessions()?;
    let view = failover.watch.stop()?;
    let expected = if now == leader { vec![leader, next] } else { vec![leader, now, next] };
    view.check_leaders(&expected).with_context(|| failover.setup.cluster.last_outputs())
}

/// The others hear the leader, but it hears nobody. So they take it for dead, while the Leases tell
/// it that it is alive. Either it keeps the address, or another node takes it, once. Then both may
/// answer until the announcement reaches the former leader, and no longer than its deadline allows.
#[test]
fn gossip_that_the_leaders_firewall_drops_moves_the_address_once_at_most() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.cluster.lan.node(&failover.node)?.filter_gossip("drop")?;
    failover.go_on_for(LONG)?;
    failover.check_sessions()?;
    let during = failover.watch.leaders();
    ensure!(during.len() <= 2, "{during:?} answered one after the other\n{}", failover.setup.cluster.last_outputs());
    failover.setup.cluster.lan.node(&failover.node)?.unfilter_gossip()?;
    failover.go_on_for(LONG)?;
    failover.check_sessions()?;
    let view = failover.watch.stop()?;
    view.check_nothing_lost_by_who_knows_the_mac()?;
    let after = view.arp_requests.leaders();
    ensure!(after == during, "{after:?} answered one after the other\n{}", failover.setup.cluster.last_outputs());
    let overlap = view.arp_requests.overlap();
    ensure!(overlap <= MOST_OVERLAP, "two answered for {overlap:?}\n{}", failover.setup.cluster.last_outputs());
    Ok(())
}

/// It knows of the leader by the Lease alone, and takes its MAC for a stranger's.
#[test]
fn an_agent_whose_gossip_is_blocked_from_its_start_takes_nothing_and_is_not_ready() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    let name = follower(&failover)?.name.clone();
    failover.setup.signal(&name, Signal::SIGKILL)?;
    failover.setup.cluster.lan.node(&name)?.filter_gossip("drop")?;
    failover.setup.start_agent(&name)?;
    let readiness = || {
        let node = failover.setup.cluster.lan.node(&name)?;
        scrape::get(node.namespace(), node.address, "/readyz", TIMEOUT)
    };
    wait::until("an agent that is not ready", PATIENCE, || {
        let (status, body) = readiness()?;
        let why = format!("[-]peers failed: this agent hears no other, and Leases name {} as leader", failover.node);
        ensure!(status == 503 && body.contains(&why), "{status}: {body}");
        Ok(())
    })
    .with_context(|| failover.setup.cluster.last_outputs())?;
    failover.setup.cluster.lan.node(&name)?.unfilter_gossip()?;
    wait::until("an agent that is ready again", PATIENCE, || {
        let (status, body) = readiness()?;
        ensure!(status == 200, "{status}: {body}");
        Ok(())
    })?;
    failover.go_on()?;
    failover.check_sessions()?;
    failover.undisturbed()?.check_nothing_lost()
}

#[test]
fn a_follower_whose_agent_flaps_disturbs_nobody() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    let follower = follower(&failover)?.name.clone();
    for _ in 0..5 {
        failover.setup.signal(&follower, Signal::SIGKILL)?;
        failover.setup.start_agent(&follower)?;
    }
    failover.go_on()?;
    failover.check_sessions()?;
    failover.undisturbed()?.check_nothing_lost()
}

#[test]
fn a_leader_whose_agent_flaps_loses_its_address_once() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    for _ in 0..4 {
        failover.setup.start_agent(&failover.node)?;
        failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    }
    failover.setup.start_agent(&failover.node)?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

/// On one machine, or with a shared state directory.
#[test]
fn a_second_agent_of_the_same_name_with_the_same_state_is_refused() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    let pins = Folder::of_pins("second");
    let leader = failover.setup.cluster.lan.node(&failover.node)?;
    let options = agent::Options { interface: "lo".to_owned(), ..failover.setup.cluster.agent_options() };
    let mut second = Process::spawn("the second agent", agent::command(leader, &options, pins.path())?)?;
    let status = second.wait(PATIENCE)?;
    let output = second.output();
    ensure!(
        !status.success() && output.contains(&format!("another agent is running as {}", failover.node)),
        "{output}"
    );
    failover.go_on()?;
    failover.undisturbed()?.check_nothing_lost()
}

/// As when a machine was cloned or the node name is wrong: key and Leases are the cluster's.
#[test]
fn a_second_agent_of_the_same_name_on_another_machine_is_reported_and_disturbs_nobody() -> Result<()> {
    // The last client is the machine.
    let Some(mut failover) = ObservedFailover::for_test(Options { clients: LAN.clients + 1, ..LAN })? else {
        return Ok(());
    };
    let mut outputs = Vec::new();
    for name in [failover.node.clone(), follower(&failover)?.name.clone()] {
        let second = namesake(&failover, &name)?;
        let reported = |line: &str| line.contains(&format!("another agent running as {name}"));
        second.process.wait_for_line("that there are two of that name", PATIENCE, reported)?;
        failover.go_on_for(5 * SOME)?;
        failover.check_sessions()?;
        outputs.push(format!("the second {name}'s agent:\n{}", second.process.last_output()));
    }
    outputs.push(failover.setup.cluster.last_outputs());
    failover.undisturbed().and_then(|view| view.check_nothing_lost()).context(outputs.concat())
}

/// Starts an agent on a machine of the LAN that is no Node, with a Node's name.
fn namesake(failover: &ObservedFailover, name: &str) -> Result<Namesake> {
    let theirs = failover.setup.cluster.agent_options();
    let state = Folder::temporary("second")?;
    let pins = Folder::of_pins("second");
    for file in ["gossip.key", "leases"] {
        symlink(theirs.state.join(file), state.path().join(file)).with_context(|| format!("cannot link {file}"))?;
    }
    let machine = failover.setup.cluster.lan.clients.last().context("no machine")?;
    let options = agent::Options { state: state.path().to_owned(), ..theirs };
    let command = agent::command_as(machine.namespace(), name, &options, pins.path())?;
    Ok(Namesake { process: Process::spawn(&format!("the second {name}"), command)?, _pins: pins, _state: state })
}

struct Namesake {
    process: Process,
    _pins: Folder,
    _state: Folder,
}

/// The switch sends packets for both to the machine that spoke last, until one is gone.
#[test]
fn a_machine_that_has_the_leaders_mac_for_a_while_does_no_lasting_harm() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(Options { clients: LAN.clients + 1, ..LAN })? else {
        return Ok(());
    };
    let machine = failover.setup.cluster.lan.clients.last().context("no machine")?;
    machine.namespace().links(|links| links.set_mac("eth0", failover.mac))?;
    for _ in 0..SOME {
        arp::announce(machine.namespace(), machine.address)?;
        thread::sleep(PAUSE);
    }
    machine.namespace().links(|links| links.set_mac("eth0", machine.mac))?;
    failover.go_on_for(SOME)?;
    failover.check_sessions()?;
    let view = failover.watch.stop()?;
    let (twice, leaders) = (view.arp_requests.answered_twice(), view.arp_requests.leaders());
    // Either nobody hears the leader for a while, or it hears nobody. Another node may take over.
    ensure!(leaders.len() <= 2, "{leaders:?} answered one after the other\n{}", failover.setup.cluster.last_outputs());
    ensure!(twice == 0, "{twice} requests were answered by two of {leaders:?}");
    Ok(())
}
