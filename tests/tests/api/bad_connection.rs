//! What happens to the node that leads while the agents' connection to the API server is bad, and clients ask.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pnet::util::MacAddr;
use vipmux_tests::{
    api_proxy::{ApiProxy, Fault, Rule},
    cluster::PATIENCE,
    failover::{ADDRESS, LAN, Scene, Stage},
    wait,
};

use crate::serving::holder;

/// Whose Leases and objects all go through the proxy.
fn scene() -> Result<Option<(Scene, ApiProxy)>> {
    let Some((stage, proxy)) = Stage::in_kubernetes_by_proxy(LAN)? else { return Ok(None) };
    Ok(Some((Scene::of(stage)?, proxy)))
}

/// Waits until the Lease names the node that has this MAC.
fn await_holder(scene: &Scene, mac: MacAddr) -> Result<()> {
    let cluster = &scene.stage.cluster;
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
    let Some((mut scene, proxy)) = scene()? else { return Ok(()) };
    proxy.set_rules([
        Rule::new(Fault::Delay(Duration::from_millis(700))),
        Rule::new(Fault::Delay(Duration::from_secs(2))).in_percent(30),
        Rule::new(Fault::Lose).in_percent(15),
        Rule::new(Fault::Again(Duration::from_secs(1))).of_writes(),
        Rule::new(Fault::LoseAnswer).in_percent(15),
    ]);
    scene.go_on()?;
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    wait::until("a write of the Lease, and its copy", PATIENCE, || {
        ensure!(proxy.did("again") > 0);
        Ok(())
    })
    .with_context(|| format!("{:?}", proxy.faults()))?;
    proxy.clear();
    await_holder(&scene, other)?;
    let node = scene.node.clone();
    scene.stage.start_agent(&node)?;
    scene.await_return(other)?;
    scene.go_on()?;
    await_holder(&scene, other)?;
    scene.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

/// Connections stay open and nothing ever comes, as when its machine lost its power; it is not refused, which would be told at
/// once.
#[test]
fn a_majority_takes_over_while_the_api_server_is_silent() -> Result<()> {
    let Some((mut scene, proxy)) = scene()? else { return Ok(()) };
    proxy.set_rules([Rule::new(Fault::Stall)]);
    proxy.freeze();
    scene.go_on()?;
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    proxy.clear();
    await_holder(&scene, other)?;
    scene.go_on()?;
    scene.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

/// The Lease of who took over is written, and nobody but the API server knows: who reads it again finds its own name.
#[test]
fn a_takeover_whose_first_writes_seem_to_fail_is_one_takeover() -> Result<()> {
    let Some((mut scene, proxy)) = scene()? else { return Ok(()) };
    proxy.set_rules([
        Rule::new(Fault::Twice).of_writes().on("leases").times(3),
        Rule::new(Fault::LoseAnswer).of_writes().on("leases").times(1),
    ]);
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    // Who has a majority may lead before it can write.
    wait::until("faults of writes of the Lease", PATIENCE, || {
        let missing: Vec<_> = ["twice", "lose answer"].into_iter().filter(|fault| proxy.did(fault) == 0).collect();
        ensure!(missing.is_empty(), "none of {missing:?}");
        Ok(())
    })?;
    proxy.clear();
    await_holder(&scene, other)?;
    scene.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}
