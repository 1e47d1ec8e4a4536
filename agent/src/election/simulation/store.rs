//! The store of Leases: one server, which each node may reach or not.

use std::time::Duration;

use imbl::OrdMap;

use super::{Happening, Turn, World};
use crate::{
    election::Outcome,
    election::lease::{Lease, Version},
    model::{NodeName, Vip},
};

/// As in `store/operations.rs`: how long an operation may take, and how many are carried out at a time.
const LIMIT: Duration = Duration::from_secs(2);
const AT_ONCE: usize = 8;

/// How the store is for a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Access {
    #[default]
    Open,
    /// It fails at once.
    Refused,
    /// Nothing comes back, and nothing was done.
    Hangs,
    /// Nothing comes back, but it was done.
    Mute,
}

/// An operation that was begun.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Read(Vip),
    Swap { vip: Vip, expected: Option<Version>, epoch: u64 },
    Delete { vip: Vip, version: Version },
    Survey,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) leases: OrdMap<Vip, Lease>,
    writings: u64,
    /// Operations that changed something.
    pub(super) writes: u64,
    /// All of them.
    pub(super) operations: u64,
}

impl Server {
    /// The new version; `None`: a conflict.
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
        let version = Version(self.writings.to_string());
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
    /// An operation of which the end is of interest.
    pub(super) fn begin(&mut self, node: usize, vip: Vip, operation: Operation) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
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

    pub(super) fn operate(&mut self, node: usize, number: u64, operation: Operation) {
        let (run, asked) = (self.nodes[node].run, self.local(node));
        let access = if self.network.is_on(node) { self.nodes[node].access } else { Access::Hangs };
        let after = match access {
            Access::Open | Access::Mute => {
                let after = self.dice.micros(500, 15_000);
                return self.after(after, Happening::Served { node, run, number, operation, asked });
            }
            Access::Refused => self.dice.millis(1, 5),
            Access::Hangs => LIMIT,
        };
        self.fail(node, run, number, &operation, asked, after);
    }

    /// No answer comes.
    fn fail(&mut self, node: usize, run: u64, number: u64, operation: &Operation, asked: Duration, after: Duration) {
        let turn = match *operation {
            Operation::Read(vip) | Operation::Swap { vip, .. } => {
                Turn::Stored { vip, number, outcome: Outcome::Unavailable }
            }
            Operation::Survey => Turn::Surveyed { asked, leases: None },
            Operation::Delete { .. } => return,
        };
        self.after(after, Happening::Turn { node, run, turn });
    }

    /// An operation reaches the store.
    pub(super) fn serve(&mut self, node: usize, run: u64, number: u64, operation: Operation, asked: Duration) {
        self.server.operations += 1;
        let failed = operation.clone();
        let turn = match operation {
            Operation::Read(vip) => {
                Turn::Stored { vip, number, outcome: Outcome::Read(self.server.leases.get(&vip).cloned()) }
            }
            Operation::Swap { vip, expected, epoch } => {
                let before = self.server.leases.get(&vip).cloned();
                let swapped = self.server.swap(vip, expected.as_ref(), &self.nodes[node].name, epoch);
                if swapped.is_some() {
                    self.tell(Some(node), || format!("store: {vip} is n{node}'s in epoch {epoch}"));
                    self.checker.swapped(vip, &self.nodes[node].name, epoch, before.as_ref());
                }
                Turn::Stored { vip, number, outcome: swapped.map_or(Outcome::Conflict, Outcome::Swapped) }
            }
            Operation::Delete { vip, version } => return self.server.delete(vip, &version),
            Operation::Survey => Turn::Surveyed { asked, leases: Some(self.server.leases.clone()) },
        };
        if self.nodes[node].access == Access::Mute || !self.network.is_on(node) {
            return self.fail(node, run, number, &failed, asked, LIMIT);
        }
        let after = self.dice.micros(500, 15_000);
        self.after(after, Happening::Turn { node, run, turn });
    }
}
