//! vipmux: three nodes with agents, which keep the settings that they come with.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::{AFTER, ASLEEP, Case, Sample, Site};
use crate::{
    cluster::PATIENCE,
    failover::{self, Stage},
    lan::Lan,
};

/// Connections that stay.
const SESSIONS: usize = 8;
/// How long a cluster is left alone after each run: an agent that starts waits for up to 3 s until it knows who is there.
const REST: Duration = Duration::from_secs(4);

pub(super) struct Agents {
    stage: Stage,
    rested: Instant,
}

impl Agents {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            stage: Stage::new(Lan::new(failover::LAN)?, failover::DEFAULT_LEASE)?,
            rested: Instant::now() + REST,
        })
    }

    /// What happens to the node; returns when it is over.
    fn happen(&mut self, case: Case, node: &str) -> Result<()> {
        let stage = &mut self.stage;
        match case {
            Case::Kill | Case::KillMain => stage.signal(node, Signal::SIGKILL),
            Case::Pause => stage.signal(node, Signal::SIGSTOP),
            Case::Unplug => stage.cluster.lan.unplug(node),
            Case::CutOff => stage.cluster.lan.cut_off(node),
            Case::Terminate => stage.stop_agent(node),
            Case::StoreAway => stage.take_store_away(),
            Case::KillWithoutStore => {
                stage.take_store_away()?;
                stage.signal(node, Signal::SIGKILL)
            }
            Case::RollingRestart => {
                let nodes: Vec<_> = stage.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
                for node in nodes {
                    stage.stop_agent(&node)?;
                    stage.start_agent(&node)?;
                    thread::sleep(REST);
                }
                Ok(())
            }
        }
    }

    /// Undoes it.
    fn mend(&mut self, case: Case, node: &str) -> Result<()> {
        let stage = &mut self.stage;
        match case {
            Case::Kill | Case::KillMain | Case::Terminate => stage.start_agent(node),
            Case::Unplug => stage.cluster.lan.plug(node),
            Case::CutOff => stage.cluster.lan.join(node),
            Case::StoreAway => stage.bring_store_back(),
            Case::KillWithoutStore => {
                stage.bring_store_back()?;
                stage.start_agent(node)
            }
            // Woken, or started, already.
            Case::Pause | Case::RollingRestart => Ok(()),
        }
    }

    fn observe(&mut self, case: Case, node: &str) -> Result<Sample> {
        let mac = self.stage.cluster.lan.node(node)?.mac;
        let mut sessions = self.stage.sessions(SESSIONS)?;
        let mut watch = self.stage.watch()?;
        let happened = self.happen(case, node).and_then(|()| {
            if !matches!(case, Case::StoreAway | Case::RollingRestart) {
                watch.wait_for_another(mac, PATIENCE)?;
            }
            if case == Case::Pause {
                thread::sleep(ASLEEP);
                self.stage.signal(node, Signal::SIGCONT)?;
            }
            thread::sleep(AFTER);
            Ok(())
        });
        // Also after a failure, or the next run begins with a broken cluster. Clients go on: who comes back must not answer.
        let mended = self.mend(case, node);
        happened.and(mended)?;
        thread::sleep(AFTER);
        let broken = failover::broken(&mut sessions);
        Ok(Sample::of(&watch.stop()?, (sessions.len(), broken)))
    }
}

impl Site for Agents {
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
        let leader = self.stage.leader()?.name.clone();
        self.stage.spare(&leader)?;
        let sample = self.observe(case, &leader).with_context(|| self.stage.cluster.last_outputs());
        self.rested = Instant::now() + REST;
        sample
    }
}
