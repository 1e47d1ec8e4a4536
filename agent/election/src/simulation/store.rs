//! The store of Leases: one server that each node may reach or not.

use std::time::Duration;

use imbl::OrdMap;

use super::{AgentEvent, World, WorldEvent};
use crate::{
    LeaseOutcome,
    lease::{Lease, Version},
};
use vipmux_model::{NodeName, Vip};

/// The time limit of an operation, and the number that run at a time, as in `store/operations.rs`.
const LIMIT: Duration = Duration::from_secs(2);
const AT_ONCE: usize = 8;

/// A node's access to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StoreAccess {
    #[default]
    Open,
    /// It fails at once.
    Refused,
    /// No answer comes, and nothing was done.
    Hangs,
    /// No answer comes, but it was done.
    Mute,
}

/// An operation at the store.
#[derive(Clone, Debug)]
pub(super) enum StoreOperation {
    Read(Vip),
    Swap { vip: Vip, expected: Option<Version>, epoch: u64 },
    Delete { vip: Vip, version: Version },
    Survey,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) leases: OrdMap<Vip, Lease>,
    writings: u64,
    /// The number of operations that changed something.
    pub(super) writes: u64,
    /// The number of operations.
    pub(super) operations: u64,
}

impl Server {
    /// Swaps a Lease. Returns the new version; `None`: a conflict.
    pub(super) fn swap(
        &mut self,
        vip: Vip,
        expected: Option<&Version>,
        holder: &NodeName,
        epoch: u64,
    ) -> Option<Version> {
        if self.leases.get(&vip).map(|lease| &lease.version) != expected {
            return None;
        }
        self.writes += 1;
        self.writings += 1;
        let version = Version::new(self.writings.to_string());
        self.leases.insert(vip, Lease { holder: holder.clone(), epoch, version: version.clone() });
        Some(version)
    }

    pub(super) fn delete(&mut self, vip: Vip, version: &Version) {
        if self.leases.get(&vip).is_some_and(|lease| lease.version == *version) {
            self.writes += 1;
            self.leases.remove(&vip);
        }
    }
}

impl World {
    /// Begins an operation whose result the election handles.
    pub(super) fn begin(&mut self, node: usize, vip: Vip, operation: StoreOperation) {
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        agent.operations += 1;
        let number = agent.operations;
        agent.latest.insert(vip, number);
        if agent.under_way < AT_ONCE {
            agent.under_way += 1;
            self.operate(node, number, operation);
        } else {
            agent.waiting.push_back((number, operation));
        }
    }

    pub(super) fn operate(&mut self, node: usize, number: u64, operation: StoreOperation) {
        let (run, asked) = (self.cluster.nodes[node].run, self.local(node));
        let access =
            if self.cluster.network.is_on(node) { self.cluster.nodes[node].access } else { StoreAccess::Hangs };
        let after = match access {
            StoreAccess::Open | StoreAccess::Mute => {
                let after = self.dice.micros(500, 15_000);
                return self.schedule.after(after, WorldEvent::Served { node, run, number, operation, asked });
            }
            StoreAccess::Refused => self.dice.millis(1, 5),
            StoreAccess::Hangs => LIMIT,
        };
        self.fail(node, run, number, &operation, asked, after);
    }

    /// Lets an operation fail after a time.
    fn fail(
        &mut self,
        node: usize,
        run: u64,
        number: u64,
        operation: &StoreOperation,
        asked: Duration,
        after: Duration,
    ) {
        let event = match *operation {
            StoreOperation::Read(vip) | StoreOperation::Swap { vip, .. } => {
                AgentEvent::Stored { vip, number, outcome: LeaseOutcome::Unavailable }
            }
            StoreOperation::Survey => AgentEvent::Surveyed { asked, leases: None },
            StoreOperation::Delete { .. } => return,
        };
        self.schedule.after(after, WorldEvent::Agent { node, run, event });
    }

    /// Handles an operation that reaches the store.
    pub(super) fn serve(&mut self, node: usize, run: u64, number: u64, operation: StoreOperation, asked: Duration) {
        self.server.operations += 1;
        let failed = operation.clone();
        let event = match operation {
            StoreOperation::Read(vip) => {
                AgentEvent::Stored { vip, number, outcome: LeaseOutcome::Read(self.server.leases.get(&vip).cloned()) }
            }
            StoreOperation::Swap { vip, expected, epoch } => {
                let before = self.server.leases.get(&vip).cloned();
                let swapped = self.server.swap(vip, expected.as_ref(), &self.cluster.nodes[node].name, epoch);
                if swapped.is_some() {
                    self.log(Some(node), || format!("store: {vip} is n{node}'s in epoch {epoch}"));
                    self.checker.swapped(vip, &self.cluster.nodes[node].name, epoch, before.as_ref());
                }
                AgentEvent::Stored {
                    vip,
                    number,
                    outcome: swapped.map_or(LeaseOutcome::Conflict, LeaseOutcome::Swapped),
                }
            }
            StoreOperation::Delete { vip, version } => return self.server.delete(vip, &version),
            StoreOperation::Survey => AgentEvent::Surveyed { asked, leases: Some(self.server.leases.clone()) },
        };
        if self.cluster.nodes[node].access == StoreAccess::Mute || !self.cluster.network.is_on(node) {
            return self.fail(node, run, number, &failed, asked, LIMIT);
        }
        let after = self.dice.micros(500, 15_000);
        self.schedule.after(after, WorldEvent::Agent { node, run, event });
    }
}
