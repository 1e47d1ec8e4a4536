//! Clients that ask, and connections that stay, while something happens to the node that leads.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pnet::util::MacAddr;

use super::Stage;
use crate::{
    client::Session,
    cluster::PATIENCE,
    lan::Options,
    watch::{View, Watch},
};

/// Connections that stay.
const SESSIONS: usize = 6;
/// A second of each kind of requests: far longer than whoever comes back takes to answer wrongly.
const SOME: usize = 100;
/// For a transfer on a busy machine.
const LONG: Duration = Duration::from_mins(2);

/// The leader, with connections and clients that do not go through its pods.
#[derive(Debug)]
pub struct Scene {
    /// The cluster.
    pub stage: Stage,
    /// The node that leads at the beginning.
    pub node: String,
    /// Its MAC.
    pub mac: MacAddr,
    sessions: Vec<Session>,
    /// The clients.
    pub watch: Watch,
}

impl Scene {
    /// On a LAN that has [`LAN`](super::LAN)'s clients at least; `None` where the test is to be skipped.
    pub fn for_test(options: Options) -> Result<Option<Self>> {
        Stage::for_test(options)?.map(Self::of).transpose()
    }

    /// On this stage.
    pub fn of(stage: Stage) -> Result<Self> {
        let leader = stage.leader()?;
        let (node, mac) = (leader.name.clone(), leader.mac);
        stage.spare(&node)?;
        let (sessions, watch) = (stage.sessions(SESSIONS)?, stage.watch()?);
        Ok(Self { stage, node, mac, sessions, watch })
    }

    /// Waits until another node answers, and everything is answered for some time.
    pub fn await_another(&mut self) -> Result<MacAddr> {
        let outputs = self.stage.cluster.last_outputs();
        let other = self.watch.wait_for_another(self.mac, PATIENCE).context(outputs)?;
        self.go_on()?;
        Ok(other)
    }

    /// Lets clients ask for some time.
    pub fn go_on(&mut self) -> Result<()> {
        self.go_on_for(SOME)
    }

    /// Lets clients ask until so many requests of each kind were answered.
    pub fn go_on_for(&mut self, requests: usize) -> Result<()> {
        self.watch.wait_for_answers(requests, LONG).with_context(|| self.stage.cluster.last_outputs())
    }

    /// Waits until the agent of the node that led has said that it does not any more.
    pub fn await_the_end_of_its_leadership(&self) -> Result<()> {
        let agent = self.stage.cluster.agent(&self.node)?.process();
        agent.wait_for_line("no longer leading", PATIENCE, |line| line.contains("no longer leading")).map(drop)
    }

    /// Waits until the node that leads now has the one that led as alive again: what is wrong with that happens from then on.
    pub fn await_return(&self, now: MacAddr) -> Result<()> {
        let cluster = &self.stage.cluster;
        let by = cluster.lan.node_of(now).context("no node has that MAC")?;
        cluster.await_standing(&by.name, &self.node, "alive")
    }

    /// Lets clients ask for some time after all is mended; then [`Self::followed_by`], without a connection that is broken.
    pub fn stays_with(mut self, other: MacAddr) -> Result<View> {
        self.go_on()?;
        self.check_sessions()?;
        self.followed_by(other)
    }

    /// What the clients saw, which must be that nobody but the first one answered, and that nobody was answered twice.
    pub fn undisturbed(self) -> Result<View> {
        let view = self.watch.stop()?;
        view.check_leaders(&[self.mac]).with_context(|| self.stage.cluster.last_outputs())?;
        Ok(view)
    }

    /// What the clients saw, which must be that this node came after the first one, and that nobody was answered twice.
    pub fn followed_by(self, other: MacAddr) -> Result<View> {
        let view = self.watch.stop()?;
        view.check_leaders(&[self.mac, other]).with_context(|| self.stage.cluster.last_outputs())?;
        Ok(view)
    }

    /// None of the connections is broken.
    pub fn check_sessions(&mut self) -> Result<()> {
        let broken = super::broken(&mut self.sessions);
        ensure!(broken == 0, "{broken} of {SESSIONS} connections are broken");
        Ok(())
    }

    /// What the clients saw, which must be that nobody was answered twice, whoever led: with a short lease, a busy machine may
    /// see more than one change.
    pub fn answered_once(self) -> Result<()> {
        let view = self.watch.stop()?;
        let twice = view.questions.answered_twice();
        ensure!(twice == 0, "{twice} requests were answered by two of {:?}", view.questions.leaders());
        Ok(())
    }

    /// Restarts all agents as a DaemonSet's controller does: the next one is stopped as soon as the last one is ready. Nothing may
    /// be lost, no request be answered by two, and each restart may move the address once.
    pub fn outlives_a_rolling_restart(mut self) -> Result<()> {
        let nodes: Vec<_> = self.stage.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
        for node in &nodes {
            self.stage.stop_agent(node)?;
            self.stage.start_agent(node)?;
            self.watch.wait_for_answers(1, PATIENCE).with_context(|| self.stage.cluster.last_outputs())?;
            self.check_sessions()?;
        }
        self.go_on()?;
        let outputs = self.stage.cluster.last_outputs();
        let view = self.watch.stop()?;
        view.check_nothing_lost().context(outputs)?;
        let leaders = view.questions.leaders();
        ensure!(view.questions.answered_twice() == 0, "some requests were answered by two of {leaders:?}");
        ensure!((2..=nodes.len() + 1).contains(&leaders.len()), "{leaders:?} answered one after the other");
        Ok(())
    }
}
