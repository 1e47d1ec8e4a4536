//! What happens to the node that leads, and to the API server, while clients ask: the agents keep their Leases there.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pnet::util::MacAddr;
use vipmux_tests::{
    client::Session,
    cluster::PATIENCE,
    failover::{self, Stage},
    watch::{View, Watch},
};

/// Connections that stay.
const SESSIONS: usize = 6;
/// A second of each kind of requests.
const SOME: usize = 100;
const LONG: Duration = Duration::from_mins(2);
/// How long the API server is away.
const OUTAGE: Duration = Duration::from_mins(1);

/// Clients that ask, and connections that stay, while something happens to the leader.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    /// The leader.
    pub(crate) node: String,
    /// Its MAC.
    pub(crate) mac: MacAddr,
    sessions: Vec<Session>,
    watch: Watch,
}

impl Scene {
    fn new() -> Result<Option<Self>> {
        Stage::in_kubernetes(failover::LAN)?.map(Self::of).transpose()
    }

    pub(crate) fn of(stage: Stage) -> Result<Self> {
        let leader = stage.leader()?;
        let (node, mac) = (leader.name.clone(), leader.mac);
        stage.spare(&node)?;
        let (sessions, watch) = (stage.sessions(SESSIONS)?, stage.watch()?);
        Ok(Self { stage, node, mac, sessions, watch })
    }

    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.watch.wait_for_answers(SOME, LONG).with_context(|| self.stage.cluster.last_outputs())
    }

    pub(crate) fn await_another(&mut self) -> Result<MacAddr> {
        let outputs = self.stage.cluster.last_outputs();
        let other = self.watch.wait_for_another(self.mac, PATIENCE).context(outputs)?;
        self.go_on()?;
        Ok(other)
    }

    /// What the clients saw: these nodes, in this order, and no request that two answered; and no connection is broken.
    pub(crate) fn ends_with(mut self, nodes: &[MacAddr]) -> Result<View> {
        let broken = failover::broken(&mut self.sessions);
        ensure!(broken == 0, "{broken} of {SESSIONS} connections are broken");
        let view = self.watch.stop()?;
        view.check_leaders(nodes).with_context(|| self.stage.cluster.last_outputs())?;
        Ok(view)
    }
}

#[test]
fn a_killed_agents_address_is_taken_over() -> Result<()> {
    let Some(mut scene) = Scene::new()? else { return Ok(()) };
    let mac = scene.mac;
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    let node = scene.node.clone();
    scene.stage.start_agent(&node)?;
    scene.go_on()?;
    scene.ends_with(&[mac, other])?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn an_api_server_that_is_away_for_a_minute_changes_nothing() -> Result<()> {
    let Some(mut scene) = Scene::new()? else { return Ok(()) };
    let mac = scene.mac;
    scene.stage.take_store_away()?;
    thread::sleep(OUTAGE);
    scene.go_on()?;
    scene.stage.bring_store_back()?;
    scene.go_on()?;
    scene.ends_with(&[mac])?.check_nothing_lost()
}

#[test]
fn a_majority_takes_over_while_the_api_server_is_away() -> Result<()> {
    let Some(mut scene) = Scene::new()? else { return Ok(()) };
    let mac = scene.mac;
    scene.stage.take_store_away()?;
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    scene.stage.bring_store_back()?;
    scene.go_on()?;
    scene.ends_with(&[mac, other])?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn a_rolling_update_of_the_agents_loses_nothing() -> Result<()> {
    let Some(mut scene) = Scene::new()? else { return Ok(()) };
    let nodes: Vec<_> = scene.stage.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    for node in nodes {
        scene.stage.stop_agent(&node)?;
        scene.stage.start_agent(&node)?;
        scene.go_on()?;
    }
    let broken = failover::broken(&mut scene.sessions);
    ensure!(broken == 0, "{broken} of {SESSIONS} connections are broken");
    let outputs = scene.stage.cluster.last_outputs();
    let view = scene.watch.stop()?;
    let twice = view.questions.answered_twice();
    ensure!(twice == 0, "{twice} requests were answered twice\n{outputs}");
    view.check_nothing_lost().context(outputs)
}
