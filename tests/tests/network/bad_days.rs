//! What should not happen and does: lost gossip, a firewall in its way, agents that flap, two of one name, two of one MAC.
//!
//! A wall clock that steps is not among them: a machine has one. No deadline goes by it; `cargo xtask lint` (purity) finds any
//! clock that the election or the membership reads.

use std::{os::unix::fs::symlink, thread};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use vipmux_tests::{
    agent, arp,
    cleanup::Folder,
    cluster::PATIENCE,
    failover::{LAN, Scene},
    lan::{Node, Options},
    process::Process,
    watch::PAUSE,
};

/// Requests of each kind: ten seconds of them.
const LONG: usize = 1_000;
/// A second of them.
const SOME: usize = 100;
/// `--gossip-port` by default.
const GOSSIP: u16 = 7_944;

/// What a node's own packet filter does to gossip that comes in.
fn filter(node: &Node, verdict: &str) -> Result<()> {
    node.nft(&format!(
        "table inet filter {{
            chain input {{
                type filter hook input priority 0;
                udp dport {GOSSIP} {verdict}
            }}
        }}"
    ))
    .map(drop)
}

fn unfilter(node: &Node) -> Result<()> {
    node.nft("delete table inet filter").map(drop)
}

/// Some node but the leader.
fn follower(scene: &Scene) -> Result<&Node> {
    scene.stage.cluster.lan.nodes.iter().find(|node| node.name != scene.node).context("no other node")
}

#[test]
fn a_leader_keeps_its_address_though_a_third_of_the_gossip_is_lost_and_is_followed_when_killed() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    for node in &scene.stage.cluster.lan.nodes {
        filter(node, "numgen random mod 100 < 30 drop")?;
    }
    scene.go_on_for(LONG)?;
    let leader = scene.mac;
    let before = scene.watch.leaders();
    // One move in a minute would do no harm; that nobody is answered twice, and that it is one move, is seen below.
    ensure!(before.len() <= 2, "{before:?} answered one after the other");
    let now = before.last().copied().context("nobody answered")?;
    let node = scene.stage.cluster.lan.node_of(now).context("no node has that MAC")?.name.clone();
    scene.stage.signal(&node, Signal::SIGKILL)?;
    let next = scene.watch.wait_for_another(now, PATIENCE).with_context(|| scene.stage.cluster.last_outputs())?;
    scene.go_on()?;
    scene.check_sessions()?;
    let view = scene.watch.stop()?;
    let expected = if now == leader { vec![leader, next] } else { vec![leader, now, next] };
    view.check_leaders(&expected).with_context(|| scene.stage.cluster.last_outputs())
}

/// The others hear the leader and it hears nobody, so they hold it for dead, while it can tell by the Leases that it is not: either it keeps
/// the address, or another takes it, once.
#[test]
fn gossip_that_the_leaders_firewall_drops_moves_the_address_once_at_most() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    filter(scene.stage.cluster.lan.node(&scene.node)?, "drop")?;
    scene.go_on_for(LONG)?;
    scene.check_sessions()?;
    let during = scene.watch.leaders();
    ensure!(during.len() <= 2, "{during:?} answered one after the other\n{}", scene.stage.cluster.last_outputs());
    unfilter(scene.stage.cluster.lan.node(&scene.node)?)?;
    scene.go_on_for(LONG)?;
    scene.check_sessions()?;
    let view = scene.watch.stop()?;
    view.check_nothing_lost_by_who_knows_the_mac()?;
    let after = view.questions.leaders();
    ensure!(after == during, "{after:?} answered one after the other\n{}", scene.stage.cluster.last_outputs());
    Ok(())
}

#[test]
fn a_follower_whose_agent_flaps_disturbs_nobody() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    let follower = follower(&scene)?.name.clone();
    for _ in 0..5 {
        scene.stage.signal(&follower, Signal::SIGKILL)?;
        scene.stage.start_agent(&follower)?;
    }
    scene.go_on()?;
    scene.check_sessions()?;
    scene.undisturbed()?.check_nothing_lost()
}

#[test]
fn a_leader_whose_agent_flaps_loses_its_address_once() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    for _ in 0..4 {
        scene.stage.start_agent(&scene.node)?;
        scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    }
    scene.stage.start_agent(&scene.node)?;
    scene.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

/// On one machine, or where the state directory is shared.
#[test]
fn a_second_agent_of_the_same_name_with_the_same_state_is_refused() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    let pins = Folder::of_pins("second");
    let leader = scene.stage.cluster.lan.node(&scene.node)?;
    let options = agent::Options { interface: "lo".to_owned(), ..scene.stage.cluster.agent_options() };
    let mut second = Process::spawn("the second agent", agent::command(leader, &options, pins.path())?)?;
    let status = second.wait(PATIENCE)?;
    let output = second.output();
    ensure!(!status.success() && output.contains(&format!("another agent is running as {}", scene.node)), "{output}");
    scene.go_on()?;
    scene.undisturbed()?.check_nothing_lost()
}

/// As when a machine was made from another one's image, or the name was mistyped: the key and the Leases are the cluster's.
#[test]
fn a_second_agent_of_the_same_name_on_another_machine_is_told_and_disturbs_nobody() -> Result<()> {
    // The last client is the machine.
    let Some(mut scene) = Scene::for_test(Options { clients: LAN.clients + 1, ..LAN })? else { return Ok(()) };
    let mut outputs = Vec::new();
    for name in [scene.node.clone(), follower(&scene)?.name.clone()] {
        let second = namesake(&scene, &name)?;
        let told = |line: &str| line.contains(&format!("another agent running as {name}"));
        second.process.wait_for_line("that there are two of that name", PATIENCE, told)?;
        scene.go_on_for(5 * SOME)?;
        scene.check_sessions()?;
        outputs.push(format!("the second {name}'s agent:\n{}", second.process.last_output()));
    }
    outputs.push(scene.stage.cluster.last_outputs());
    scene.undisturbed().and_then(|view| view.check_nothing_lost()).context(outputs.concat())
}

/// An agent on a machine of the LAN that is no Node, with the name of one that is.
fn namesake(scene: &Scene, name: &str) -> Result<Namesake> {
    let theirs = scene.stage.cluster.agent_options();
    let state = Folder::temporary("second")?;
    let pins = Folder::of_pins("second");
    for file in ["gossip.key", "leases"] {
        symlink(theirs.state.join(file), state.path().join(file)).with_context(|| format!("cannot link {file}"))?;
    }
    let machine = scene.stage.cluster.lan.clients.last().context("no machine")?;
    let options = agent::Options { state: state.path().to_owned(), ..theirs };
    let command = agent::command_as(machine.namespace(), name, &options, pins.path())?;
    Ok(Namesake { process: Process::spawn(&format!("the second {name}"), command)?, _pins: pins, _state: state })
}

struct Namesake {
    process: Process,
    _pins: Folder,
    _state: Folder,
}

/// The switch sends what is for both to whoever spoke last, until that machine is gone.
#[test]
fn a_machine_that_has_the_leaders_mac_for_a_while_does_no_lasting_harm() -> Result<()> {
    let Some(mut scene) = Scene::for_test(Options { clients: LAN.clients + 1, ..LAN })? else { return Ok(()) };
    let machine = scene.stage.cluster.lan.clients.last().context("no machine")?;
    machine.namespace().links(|links| links.set_mac("eth0", scene.mac))?;
    for _ in 0..SOME {
        arp::announce(machine.namespace(), machine.address)?;
        thread::sleep(PAUSE);
    }
    machine.namespace().links(|links| links.set_mac("eth0", machine.mac))?;
    scene.go_on_for(SOME)?;
    scene.check_sessions()?;
    let view = scene.watch.stop()?;
    let (twice, leaders) = (view.questions.answered_twice(), view.questions.leaders());
    // Nobody hears the leader for a while, or it hears nobody: another may take its place.
    ensure!(leaders.len() <= 2, "{leaders:?} answered one after the other\n{}", scene.stage.cluster.last_outputs());
    ensure!(twice == 0, "{twice} requests were answered by two of {leaders:?}");
    Ok(())
}
