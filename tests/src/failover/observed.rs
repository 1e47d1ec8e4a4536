//! Clients and lasting connections while something happens to the leading node.

use anyhow::{Context as _, Result, ensure};
use pnet::util::MacAddr;

use super::FailoverCluster;
use crate::{
    client::Session,
    cluster::{LONG, PATIENCE},
    lan::Options,
    watch::{View, Watch},
};

/// The number of lasting connections.
const SESSIONS: usize = 6;
/// Requests of each kind in a second. A node that returns and answers wrongly does so much sooner.
const SOME: usize = 100;

/// The leader, with connections and clients that do not use its pods.
#[derive(Debug)]
pub struct ObservedFailover {
    /// The cluster.
    pub setup: FailoverCluster,
    /// The node that leads at the beginning.
    pub node: String,
    /// Its MAC.
    pub mac: MacAddr,
    sessions: Vec<Session>,
    /// The clients.
    pub watch: Watch,
}

impl ObservedFailover {
    /// Makes it on a LAN that has at least [`LAN`](super::LAN)'s clients; `None` if the test is
    /// skipped.
    pub fn for_test(options: Options) -> Result<Option<Self>> {
        FailoverCluster::for_test(options)?.map(Self::of).transpose()
    }

    /// Makes it in this cluster.
    pub fn of(setup: FailoverCluster) -> Result<Self> {
        let leader = setup.leader()?;
        let (node, mac) = (leader.name.clone(), leader.mac);
        setup.remove_endpoints_of(&node)?;
        let (sessions, watch) = (setup.sessions(SESSIONS)?, setup.watch()?);
        Ok(Self { setup, node, mac, sessions, watch })
    }

    /// Waits until another node answers, and all requests are answered for some time.
    pub fn await_another(&mut self) -> Result<MacAddr> {
        let outputs = self.setup.cluster.last_outputs();
        let other = self.watch.wait_for_another(self.mac, PATIENCE).context(outputs)?;
        self.go_on()?;
        Ok(other)
    }

    /// Lets clients send requests for some time.
    pub fn go_on(&mut self) -> Result<()> {
        self.go_on_for(SOME)
    }

    /// Lets clients send requests until this many of each kind were answered.
    pub fn go_on_for(&mut self, requests: usize) -> Result<()> {
        self.watch.wait_for_answers(requests, LONG).with_context(|| self.setup.cluster.last_outputs())
    }

    /// Waits until the agent of the former leader logs that it no longer leads.
    pub fn await_the_end_of_its_leadership(&self) -> Result<()> {
        let agent = self.setup.cluster.agent(&self.node)?.process();
        agent.wait_for_line("no longer leading", PATIENCE, |line| line.contains("no longer leading")).map(drop)
    }

    /// Waits until the new leader sees the former one as alive again. Only then can it go wrong.
    pub fn await_return(&self, now: MacAddr) -> Result<()> {
        let cluster = &self.setup.cluster;
        let by = cluster.lan.node_of(now).context("no node has that MAC")?;
        cluster.await_standing(&by.name, &self.node, "alive")
    }

    /// Lets clients send requests for some time after the repair. No connection may break. Then
    /// checks as [`Self::followed_by`] does.
    pub fn stays_with(mut self, other: MacAddr) -> Result<View> {
        self.go_on()?;
        self.check_sessions()?;
        self.followed_by(other)
    }

    /// Returns what the clients saw. Only the first leader may have answered, and no request twice.
    pub fn undisturbed(self) -> Result<View> {
        let view = self.watch.stop()?;
        view.check_leaders(&[self.mac]).with_context(|| self.setup.cluster.last_outputs())?;
        Ok(view)
    }

    /// Returns what the clients saw. This node must have followed the first one, and no request may
    /// have been answered twice.
    pub fn followed_by(self, other: MacAddr) -> Result<View> {
        let view = self.watch.stop()?;
        view.check_leaders(&[self.mac, other]).with_context(|| self.setup.cluster.last_outputs())?;
        Ok(view)
    }

    /// Checks that no connection is broken.
    pub fn check_sessions(&mut self) -> Result<()> {
        let broken = super::broken(&mut self.sessions);
        ensure!(broken == 0, "{broken} of {SESSIONS} connections are broken");
        Ok(())
    }

    /// Checks that no request was answered by two nodes. The leaders do not matter: with a short
    /// lease, a busy machine may see several changes.
    pub fn answered_once(self) -> Result<()> {
        let view = self.watch.stop()?;
        let twice = view.arp_requests.answered_twice();
        ensure!(twice == 0, "{twice} requests were answered by two of {:?}", view.arp_requests.leaders());
        Ok(())
    }

    /// Restarts all agents like a DaemonSet's rolling update: the next agent stops once the last
    /// one is ready. No request may be lost or answered by two nodes. Each restart may move the VIP
    /// once.
    pub fn outlives_a_rolling_restart(mut self) -> Result<()> {
        let nodes: Vec<_> = self.setup.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
        for node in &nodes {
            self.setup.stop_agent(node)?;
            self.setup.start_agent(node)?;
            self.watch.wait_for_answers(1, PATIENCE).with_context(|| self.setup.cluster.last_outputs())?;
            self.check_sessions()?;
        }
        self.go_on()?;
        let outputs = self.setup.cluster.last_outputs();
        let view = self.watch.stop()?;
        view.check_nothing_lost().context(outputs)?;
        let leaders = view.arp_requests.leaders();
        ensure!(view.arp_requests.answered_twice() == 0, "some requests were answered by two of {leaders:?}");
        ensure!((2..=nodes.len() + 1).contains(&leaders.len()), "{leaders:?} answered one after the other");
        Ok(())
    }
}
