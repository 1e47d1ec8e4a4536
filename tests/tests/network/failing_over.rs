//! What happens to the node that leads, and what clients see of it: another node takes its place, no request is answered by two,
//! and connections to pods elsewhere go on. How long it takes is `cargo xtask bench failover`'s business.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use vipmux_tests::{
    cluster::PATIENCE,
    failover::{ADDRESS, BULK, DEFAULT_LEASE, LAN, Scene, Stage, await_stopped},
    transfer::Transfer,
    wait,
};

use crate::leading::await_candidate;

/// Bytes before something happens, and after another node leads.
const TRANSFERRED: u64 = 10 << 20;
/// Between a transfer's chunks: it is not to keep agents from their work.
const PAUSE: Duration = Duration::from_millis(5);
/// For a transfer on a busy machine.
const LONG: Duration = Duration::from_mins(2);

#[test]
fn a_killed_agents_address_is_taken_over_while_its_node_goes_on_forwarding() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    scene.check_sessions()?;
    scene.stage.start_agent(&scene.node)?;
    scene.await_return(other)?;
    scene.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

/// The others have a longer one.
#[test]
fn with_the_lease_that_agents_come_with_a_killed_one_is_followed_and_no_two_answer() -> Result<()> {
    let Some(mut scene) = Stage::for_test_with(LAN, DEFAULT_LEASE)?.map(Scene::of).transpose()? else { return Ok(()) };
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    scene.await_another()?;
    scene.check_sessions()?;
    scene.stage.start_agent(&scene.node)?;
    scene.go_on()?;
    scene.check_sessions()?;
    scene.answered_once()
}

#[test]
fn an_agent_that_is_woken_after_its_address_was_taken_over_does_not_answer() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    scene.stage.signal(&scene.node, Signal::SIGSTOP)?;
    await_stopped(scene.stage.cluster.agent(&scene.node)?.process().id())?;
    let other = scene.await_another()?;
    scene.stage.signal(&scene.node, Signal::SIGCONT)?;
    scene.await_the_end_of_its_leadership()?;
    scene.stays_with(other).map(drop)
}

#[test]
fn an_address_moves_when_its_leader_loses_the_link_and_stays_when_that_is_back() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    scene.stage.cluster.lan.unplug(&scene.node)?;
    let other = scene.await_another()?;
    scene.check_sessions()?;
    scene.stage.cluster.lan.plug(&scene.node)?;
    scene.await_return(other)?;
    scene.stays_with(other).map(drop)
}

#[test]
fn an_address_moves_when_the_switch_forwards_nothing_of_its_leader_and_stays_when_it_does_again() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    scene.stage.cluster.lan.cut_off(&scene.node)?;
    let other = scene.await_another()?;
    scene.check_sessions()?;
    scene.stage.cluster.lan.join(&scene.node)?;
    scene.await_the_end_of_its_leadership()?;
    scene.stays_with(other).map(drop)
}

#[test]
fn an_agent_that_is_told_to_stop_hands_over_and_nothing_is_lost() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    scene.stage.stop_agent(&scene.node)?;
    let other = scene.await_another()?;
    scene.check_sessions()?;
    scene.stage.start_agent(&scene.node)?;
    scene.await_return(other)?;
    scene.stays_with(other)?.check_nothing_lost()
}

#[test]
fn a_rolling_restart_of_all_agents_loses_nothing() -> Result<()> {
    Scene::for_test(LAN)?.map_or(Ok(()), Scene::outlives_a_rolling_restart)
}

#[test]
fn a_cordoned_node_hands_over_and_nothing_is_lost() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    scene.stage.cluster.manifests.write_nodes(&scene.stage.cluster.lan, &[&scene.node])?;
    let other = scene.await_another()?;
    scene.stage.cluster.manifests.write_nodes(&scene.stage.cluster.lan, &[])?;
    await_candidate(&scene.stage.cluster, ADDRESS, &scene.node)?;
    scene.stays_with(other)?.check_nothing_lost()
}

#[test]
fn a_node_that_is_excluded_by_its_label_hands_over_and_nothing_is_lost() -> Result<()> {
    const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    let manifests = &scene.stage.cluster.manifests;
    let text = fs::read_to_string(manifests.path().join("nodes.yaml"))?;
    let documents = text.split("---\n").filter(|document| !document.is_empty());
    let mut nodes = documents.map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let node = nodes.iter_mut().find(|node| node["metadata"]["name"] == scene.node.as_str());
    node.context("the leader is no Node")?["metadata"]["labels"] = json!({ EXCLUDE: "" });
    manifests.write("nodes.yaml", &nodes)?;
    let other = scene.await_another()?;
    scene.check_sessions()?;
    scene.followed_by(other)?.check_nothing_lost()
}

#[test]
fn without_the_store_nothing_changes_and_a_killed_leader_is_followed_all_the_same() -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    scene.stage.take_store_away()?;
    scene.go_on()?;
    scene.check_sessions()?;
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    scene.check_sessions()?;

    scene.stage.bring_store_back()?;
    let name = &scene.stage.cluster.lan.node_of(other).context("no node has that MAC")?.name;
    let leases = scene.stage.cluster.agent_options().state.join("leases");
    wait::until(&format!("the Lease is {name}'s"), PATIENCE, || {
        let files = fs::read_dir(&leases)?.map(|file| Ok(fs::read_to_string(file?.path())?));
        let texts = files.collect::<Result<Vec<_>>>()?;
        ensure!(texts.iter().any(|text| text.contains(&format!("holderIdentity: {name}"))), "{texts:?}");
        Ok(())
    })?;
    scene.stage.start_agent(&scene.node)?;
    scene.go_on()?;
    scene.followed_by(other)?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn a_transfer_to_a_pod_elsewhere_survives_its_leaders_agent() -> Result<()> {
    transfer_survives(|stage, node| stage.signal(node, Signal::SIGKILL))
}

#[test]
fn a_transfer_to_a_pod_elsewhere_survives_its_leaders_link() -> Result<()> {
    transfer_survives(|stage, node| stage.cluster.lan.unplug(node))
}

/// Bytes go both ways while it happens, and each end gets the other's, by their hash.
fn transfer_survives(happen: impl FnOnce(&Stage, &str) -> Result<()>) -> Result<()> {
    let Some(mut scene) = Scene::for_test(LAN)? else { return Ok(()) };
    let namespace = scene.stage.cluster.lan.client()?.namespace();
    let mut transfer = Transfer::start(namespace, (ADDRESS, BULK).into(), PAUSE)?;
    transfer.wait_for_more(TRANSFERRED, LONG)?;
    happen(&scene.stage, &scene.node)?;
    let other = scene.await_another()?;
    let client = scene.stage.cluster.lan.client()?;
    wait::until("the client sends to the new leader", PATIENCE, || {
        let known = client.neighbour(ADDRESS)?;
        ensure!(known == Some(other), "it knows {known:?}");
        Ok(())
    })?;
    transfer.wait_for_more(TRANSFERRED, LONG)?;
    let answer = transfer.finish()?;
    ensure!(answer.service == "failing/bulk", "{answer}");
    scene.followed_by(other).map(drop)
}
