//! Failovers of vipmux: three nodes with agents and their default settings.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::{AFTER, ASLEEP, Case, Contender, Sample};
use crate::{
    cluster::PATIENCE,
    failover::{self, FailoverCluster},
    lan::Lan,
};

/// Lasting connections.
const SESSIONS: usize = 8;
/// The pause of a cluster after each run. An agent that starts waits up to 3 s for its peers.
const REST: Duration = Duration::from_secs(4);

pub(super) struct Agents {
    setup: FailoverCluster,
    rested: Instant,
}

impl Agents {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            setup: FailoverCluster::new(Lan::new(failover::LAN)?, failover::DEFAULT_LEASE)?,
            rested: Instant::now() + REST,
        })
    }

    /// Triggers an event at the node. Returns when the event is complete.
    fn happen(&mut self, case: Case, node: &str) -> Result<()> {
        let setup = &mut self.setup;
        match case {
            Case::Kill | Case::KillMain => setup.signal(node, Signal::SIGKILL),
            Case::Pause => setup.signal(node, Signal::SIGSTOP),
            Case::Unplug => setup.cluster.lan.unplug(node),
            Case::CutOff => setup.cluster.lan.cut_off(node),
            Case::Terminate => setup.stop_agent(node),
            Case::StoreAway => setup.break_store(),
            Case::KillWithoutStore => {
                setup.break_store()?;
                setup.signal(node, Signal::SIGKILL)
            }
            Case::RollingRestart => {
                let nodes: Vec<_> = setup.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
                for node in nodes {
                    setup.stop_agent(&node)?;
                    setup.start_agent(&node)?;
                    thread::sleep(REST);
                }
                Ok(())
            }
        }
    }

    /// Undoes the event.
    fn repair(&mut self, case: Case, node: &str) -> Result<()> {
        let setup = &mut self.setup;
        match case {
            Case::Kill | Case::KillMain | Case::Terminate => setup.start_agent(node),
            Case::Unplug => setup.cluster.lan.plug(node),
            Case::CutOff => setup.cluster.lan.join(node),
            Case::StoreAway => setup.restore_store(),
            Case::KillWithoutStore => {
                setup.restore_store()?;
                setup.start_agent(node)
            }
            // Continued or started again already.
            Case::Pause | Case::RollingRestart => Ok(()),
        }
    }

    fn observe(&mut self, case: Case, node: &str) -> Result<Sample> {
        let mac = self.setup.cluster.lan.node(node)?.mac;
        let mut sessions = self.setup.sessions(SESSIONS)?;
        let mut watch = self.setup.watch()?;
        let happened = self.happen(case, node).and_then(|()| {
            if !matches!(case, Case::StoreAway | Case::RollingRestart) {
                watch.wait_for_another(mac, PATIENCE)?;
            }
            if case == Case::Pause {
                thread::sleep(ASLEEP);
                self.setup.signal(node, Signal::SIGCONT)?;
            }
            thread::sleep(AFTER);
            Ok(())
        });
        // Runs also after a failure, or the next run would begin with a broken cluster. Clients
        // continue: a node that returns must not answer.
        let repaired = self.repair(case, node);
        happened.and(repaired)?;
        thread::sleep(AFTER);
        let broken = failover::broken(&mut sessions);
        Ok(Sample::of(&watch.stop()?, (sessions.len(), broken)))
    }
}

impl Contender for Agents {
    fn system(&self) -> String {
        "vipmux".to_owned()
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            Case::Kill,
            Case::Pause,
            Case::Unplug,
            Case::CutOff,
            Case::KillWithoutStore,
            Case::StoreAway,
            Case::Terminate,
            Case::RollingRestart,
        ]
    }

    fn measure(&mut self, case: Case) -> Result<Sample> {
        thread::sleep(self.rested.saturating_duration_since(Instant::now()));
        let leader = self.setup.leader()?.name.clone();
        self.setup.remove_endpoints_of(&leader)?;
        let sample = self.observe(case, &leader).with_context(|| self.setup.cluster.last_outputs());
        self.rested = Instant::now() + REST;
        sample
    }
}
