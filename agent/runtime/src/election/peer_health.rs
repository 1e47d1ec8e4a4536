//! Exchanges the results of health probes with the peers, and passes them to the pipeline.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use tokio::sync::watch::{self, error::RecvError};

use super::elector::Elector;
use crate::{
    probe::{self, ProbeClient, TlsError},
    serving::{kernel::boottime, kernel_error::KernelError},
};
use vipmux_election::membership::{Item, ItemKey, ProbedPort};
use vipmux_model::{
    NodeName,
    health::{self, Checkups, Findings, Health, HealthKey},
};
use vipmux_supervisor::Supervisor;

/// The pipeline's side of the health probes.
#[derive(Debug)]
pub(crate) struct HealthProbes {
    /// This node.
    pub(crate) node: NodeName,
    /// The checkups for this node to make.
    wanted: watch::Sender<Arc<Checkups>>,
    /// This node's results.
    pub(crate) findings: watch::Receiver<Findings>,
    /// All nodes' results.
    pub(crate) health: watch::Receiver<Arc<Health>>,
}

impl HealthProbes {
    /// Starts the probes of this node.
    pub(crate) fn start(node: NodeName, supervisor: &Supervisor) -> Result<(Self, PeerHealth), TlsError> {
        let (wanted, checkups) = watch::channel(Arc::default());
        let (found, findings) = watch::channel(Findings::new());
        let (sender, health) = watch::channel(Arc::default());
        let seed = RandomState::new().hash_one(&node);
        // The clock can always be read; if not, attempts are made too seldom rather than too often.
        let clock = || boottime().unwrap_or_default();
        // Probes the backends of this node. It ends when the last sender of checkups is dropped, or
        // with the runtime: canceling it ends the attempts that are under way, and nothing is
        // lost.
        supervisor.spawn("health probes", probe::run(checkups, found, ProbeClient::new()?, clock, seed));
        let peers =
            PeerHealth { node: node.clone(), findings: findings.clone(), published: BTreeSet::new(), health: sender };
        Ok((Self { node, wanted, findings, health }, peers))
    }

    /// Sets the checkups to make from now on.
    pub(crate) fn want(&self, checkups: Checkups) {
        self.wanted.send_if_modified(|last| {
            let changed = **last != checkups;
            if changed {
                *last = Arc::new(checkups);
            }
            changed
        });
    }
}

/// The results of all nodes' health probes.
#[derive(Debug)]
pub(crate) struct PeerHealth {
    /// This node.
    node: NodeName,
    findings: watch::Receiver<Findings>,
    /// The failing backends of this node, as peers know them.
    published: BTreeSet<HealthKey>,
    health: watch::Sender<Arc<Health>>,
}

impl PeerHealth {
    /// Returns this node's results.
    pub(crate) fn findings(&self) -> watch::Receiver<Findings> {
        self.findings.clone()
    }

    /// Waits for new results of this node. An error: the probes have ended. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> Result<(), RecvError> {
        self.findings.changed().await
    }

    /// Publishes this node's results, and passes all nodes' results to the pipeline. Results of a
    /// peer that is down are void.
    pub(crate) fn update(&mut self, elector: &Elector) -> Result<(), KernelError> {
        let down = health::down(&self.findings.borrow_and_update());
        for key in self.published.symmetric_difference(&down) {
            let probed = ProbedPort { address: key.address, port: key.port, check: key.check };
            if down.contains(key) {
                elector.publish(Item::Health { probed, up: false })?;
            } else {
                elector.withdraw(&ItemKey::Health(probed))?;
            }
        }
        let mut health = Health::default();
        elector.peers(|peers| {
            for (node, peer) in peers.members.iter().filter(|(_, peer)| peer.status.is_alive()) {
                let failing = peer.state.health.iter().filter(|(_, up)| !**up);
                let key = |(it, _): (&ProbedPort, _)| HealthKey { address: it.address, port: it.port, check: it.check };
                health.hear(node.clone(), failing.map(key).collect());
            }
        });
        health.hear(self.node.clone(), down.clone());
        self.published = down;
        self.health.send_if_modified(|last| {
            let changed = **last != health;
            if changed {
                *last = Arc::new(health);
            }
            changed
        });
        Ok(())
    }
}
