//! Between those who settle what is served and those who ask the backends.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use tokio::sync::watch::{self, error::RecvError};

use super::{Agent, AgentError, kernel::boottime};
use crate::{
    membership::{Item, Key, Probed},
    model::{
        NodeName,
        health::{self, Checkups, Findings, Health, HealthKey},
    },
    probe::{self, Asker, TlsError},
};

/// What those who settle have of the probes.
#[derive(Debug)]
pub(super) struct Probes {
    /// This node.
    pub(super) node: NodeName,
    /// What it is to check.
    wanted: watch::Sender<Arc<Checkups>>,
    /// What it found.
    pub(super) findings: watch::Receiver<Findings>,
    /// What all nodes found.
    pub(super) health: watch::Receiver<Arc<Health>>,
}

impl Probes {
    /// Starts to probe. The task ends when this is dropped, or with the runtime; it holds nothing that needs care.
    pub(super) fn start(node: NodeName) -> Result<(Self, Hearsay), TlsError> {
        let (wanted, checkups) = watch::channel(Arc::default());
        let (found, findings) = watch::channel(Findings::new());
        let (sender, health) = watch::channel(Arc::default());
        let seed = RandomState::new().hash_one(&node);
        // The clock can always be read; if not, attempts are made too seldom rather than too often.
        let clock = || boottime().unwrap_or_default();
        tokio::spawn(probe::run(checkups, found, Asker::new()?, clock, seed));
        let hearsay = Hearsay { findings: findings.clone(), published: BTreeSet::new(), health: sender };
        Ok((Self { node, wanted, findings, health }, hearsay))
    }

    /// Has it check this from now on.
    pub(super) fn want(&self, checkups: Checkups) {
        self.wanted.send_if_modified(|last| {
            let changed = **last != checkups;
            if changed {
                *last = Arc::new(checkups);
            }
            changed
        });
    }
}

/// What all nodes say of their backends.
#[derive(Debug)]
pub(super) struct Hearsay {
    findings: watch::Receiver<Findings>,
    /// What peers were told of this node's.
    published: BTreeSet<HealthKey>,
    health: watch::Sender<Arc<Health>>,
}

impl Hearsay {
    /// What this node found.
    pub(super) fn findings(&self) -> watch::Receiver<Findings> {
        self.findings.clone()
    }

    /// Waits until this node has found something; an error if nobody probes any more. Cancel-safe.
    pub(super) async fn found(&mut self) -> Result<(), RecvError> {
        self.findings.changed().await
    }
}

impl Agent {
    /// Tells peers what this node found, and takes in what they did. The word of one that is down is void.
    pub(super) fn hear_health(&mut self) -> Result<(), AgentError> {
        let down = health::down(&self.health.findings.borrow_and_update());
        for key in self.health.published.symmetric_difference(&down) {
            let probed = Probed { address: key.address, port: key.port, check: key.check };
            if down.contains(key) {
                self.elector.publish(Item::Health { probed, up: false })?;
            } else {
                self.elector.withdraw(&Key::Health(probed))?;
            }
        }
        let mut health = Health::default();
        self.elector.peers(|peers| {
            for (node, peer) in peers.members.iter().filter(|(_, peer)| peer.standing.lives()) {
                let failing = peer.state.health.iter().filter(|(_, up)| !**up);
                let key = |(it, _): (&Probed, _)| HealthKey { address: it.address, port: it.port, check: it.check };
                health.hear(node.clone(), failing.map(key).collect());
            }
        });
        health.hear(self.options.node.clone(), down.clone());
        self.health.published = down;
        self.health.health.send_if_modified(|last| {
            let changed = **last != health;
            if changed {
                *last = Arc::new(health);
            }
            changed
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn an_agent_whose_backends_nobody_probes_any_more_is_told_so() {
        let (probes, mut hearsay) = Probes::start(NodeName("here".to_owned())).unwrap();
        drop(probes);
        let found = timeout(Duration::from_mins(1), hearsay.found()).await;
        assert!(found.is_ok_and(|found| found.is_err()));
    }
}
