//! The store of Leases: one server that each node may reach or not, or a directory of each node's own.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use imbl::OrdMap;

use super::{AgentEvent, World, WorldEvent};
use crate::{
    Input, LeaseOutcome, MAX_LEASE_OPERATIONS, RecordOutcome, StoreOperation,
    lease::{Lease, NodeRecord, RecordContent, StoreId, Version},
};
use vipmux_model::{NodeName, Vip};

/// The time limit of an operation, as in `store/operations.rs`.
const LIMIT: Duration = Duration::from_secs(2);

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
    /// Each answer takes this many milliseconds longer.
    Slow(u64),
}

impl StoreAccess {
    /// Returns the time that an answer takes longer; `None`: there is none.
    pub(super) const fn slowness(self) -> Option<Duration> {
        match self {
            Self::Open | Self::Slow(_) => Some(self.delay()),
            Self::Refused | Self::Hangs | Self::Mute => None,
        }
    }

    /// Returns the time that an answer takes longer.
    const fn delay(self) -> Duration {
        match self {
            Self::Slow(delay) => Duration::from_millis(delay),
            Self::Open | Self::Refused | Self::Hangs | Self::Mute => Duration::ZERO,
        }
    }
}

/// An operation of an agent on its way to the store.
#[derive(Clone, Debug)]
pub(super) struct StoreRequest {
    pub(super) node: usize,
    /// The start of the agent, as in [`WorldEvent::Agent`].
    pub(super) run: u64,
    /// The time of the request, by the node's clock.
    pub(super) asked: Duration,
    pub(super) operation: StoreOperation,
}

/// The operations of an agent. Those on Leases begin in their order, a few at a time.
#[derive(Debug, Default)]
pub(super) struct Operations {
    waiting: VecDeque<(StoreOperation, Duration)>,
    under_way: usize,
    /// All Leases are being listed.
    pub(super) surveying: bool,
}

impl Operations {
    /// Takes an operation. Returns the one that begins now.
    pub(super) fn push(&mut self, operation: StoreOperation, asked: Duration) -> Option<(StoreOperation, Duration)> {
        if matches!(operation, StoreOperation::Read(_) | StoreOperation::Swap { .. }) {
            self.waiting.push_back((operation, asked));
            return self.begin_next();
        }
        Some((operation, asked))
    }

    fn begin_next(&mut self) -> Option<(StoreOperation, Duration)> {
        if self.under_way >= MAX_LEASE_OPERATIONS {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.under_way += 1;
        Some(next)
    }

    /// Notes the end of an operation by its result. Returns the one that begins now.
    pub(super) fn end(&mut self, result: &Input) -> Option<(StoreOperation, Duration)> {
        match result {
            Input::Stored { .. } => self.under_way -= 1,
            Input::Surveyed { .. } => self.surveying = false,
            _ => {}
        }
        self.begin_next()
    }
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) leases: OrdMap<Vip, Lease>,
    records: BTreeMap<NodeName, NodeRecord>,
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

    /// Swaps the record of a node. Returns the new version; `None`: a conflict.
    fn swap_record(&mut self, node: &NodeName, expected: Option<&Version>, content: RecordContent) -> Option<Version> {
        if self.records.get(node).map(|record| &record.version) != expected {
            return None;
        }
        self.writes += 1;
        self.writings += 1;
        let version = Version::new(self.writings.to_string());
        self.records.insert(node.clone(), NodeRecord { content, version: version.clone() });
        Some(version)
    }

    pub(super) fn delete(&mut self, vip: Vip, version: &Version) {
        if self.leases.get(&vip).is_some_and(|lease| lease.version == *version) {
            self.writes += 1;
            self.leases.remove(&vip);
        }
    }

    /// Returns the writes and operations of all servers.
    pub(super) fn work(servers: &[Self]) -> (u64, u64) {
        servers
            .iter()
            .fold((0, 0), |(writes, operations), server| (writes + server.writes, operations + server.operations))
    }
}

impl World {
    /// Returns the number of the store that a node uses.
    fn store_of(&self, node: usize) -> usize {
        node.min(self.servers.len() - 1)
    }

    /// Returns the id of the store of a node, if it is a directory.
    pub(super) fn store_id(&self, node: usize) -> Option<StoreId> {
        (self.servers.len() > 1).then_some(StoreId(node as u64))
    }

    /// Returns the time of a request on its way to a store, or of its answer. A disk is quicker than a server.
    fn transit(&mut self) -> Duration {
        if self.servers.len() > 1 { self.dice.micros(100, 2_000) } else { self.dice.micros(500, 15_000) }
    }

    /// Returns whether a node has a path to its store.
    fn has_path(&self, node: usize) -> bool {
        self.servers.len() > 1 || self.cluster.network.is_on(node)
    }

    /// Sends a request to the store.
    pub(super) fn send(&mut self, request: StoreRequest) {
        let node = request.node;
        let access = if self.has_path(node) { self.cluster.nodes[node].access } else { StoreAccess::Hangs };
        let after = match access {
            StoreAccess::Open | StoreAccess::Mute | StoreAccess::Slow(_) => {
                let after = self.transit() + access.delay() / 2;
                return self.schedule.after(after, WorldEvent::Served(request));
            }
            StoreAccess::Refused => self.dice.millis(1, 5),
            StoreAccess::Hangs => LIMIT,
        };
        self.fail(&request, after);
    }

    /// Lets a request fail after a time.
    fn fail(&mut self, request: &StoreRequest, after: Duration) {
        let StoreRequest { node, run, asked, .. } = *request;
        if let Some(input) = request.operation.failed(asked) {
            self.schedule.after(after, WorldEvent::Agent { node, run, event: AgentEvent::Reported { asked, input } });
        }
    }

    /// Tells the nodes that can reach the store how a Lease is now. Some watches are silent.
    pub(super) fn notify_watches(&mut self, vip: Vip, store: usize) {
        let lease = self.servers[store].leases.get(&vip).cloned();
        self.notify_nodes(&Input::LeaseChanged { vip, lease });
    }

    /// Directories are not watched.
    fn notify_nodes(&mut self, change: &Input) {
        if self.servers.len() > 1 {
            return;
        }
        for node in 0..self.cluster.nodes.len() {
            let is_open = self.cluster.nodes[node].access == StoreAccess::Open && self.cluster.network.is_on(node);
            if is_open && !self.dice.chance(100) {
                let after = self.dice.millis(1, 60);
                self.schedule_agent(node, after, AgentEvent::LeaseChange(change.clone()));
            }
        }
    }

    /// Shows a node the records, as a watch does at its beginning.
    pub(super) fn show_records(&mut self, node: usize) {
        if self.servers.len() > 1 || self.cluster.nodes[node].access != StoreAccess::Open || !self.has_path(node) {
            return;
        }
        for (of, record) in self.servers[0].records.clone() {
            let after = self.dice.millis(1, 60);
            let change = Input::RecordChanged { node: of, record: Some(record) };
            self.schedule_agent(node, after, AgentEvent::LeaseChange(change));
        }
    }

    /// Handles a request that reaches the store.
    pub(super) fn serve(&mut self, request: &StoreRequest) {
        let StoreRequest { node, run, asked, .. } = *request;
        let store = self.store_of(node);
        self.servers[store].operations += 1;
        let input = match &request.operation {
            StoreOperation::Read(vip) => {
                Input::Stored { vip: *vip, outcome: LeaseOutcome::Read(self.servers[store].leases.get(vip).cloned()) }
            }
            StoreOperation::Swap { vip, expected, holder, epoch } => {
                let (vip, epoch) = (*vip, *epoch);
                let before = self.servers[store].leases.get(&vip).cloned();
                let swapped = self.servers[store].swap(vip, expected.as_ref(), holder, epoch);
                if swapped.is_some() {
                    self.log(Some(node), || format!("store: {vip} is {holder}'s in epoch {epoch}"));
                    self.checker.swapped((vip, store), holder, epoch, before.as_ref());
                    self.notify_watches(vip, store);
                }
                Input::Stored { vip, outcome: swapped.map_or(LeaseOutcome::Conflict, LeaseOutcome::Swapped) }
            }
            StoreOperation::Delete { vip, version } => {
                self.servers[store].delete(*vip, version);
                return self.notify_watches(*vip, store);
            }
            StoreOperation::Survey => Input::Surveyed { asked, leases: Some(self.servers[store].leases.clone()) },
            StoreOperation::ReadRecord { node: of, .. } => {
                let outcome = RecordOutcome::Read(self.servers[store].records.get(of).cloned());
                Input::Recorded { node: of.clone(), asked, outcome }
            }
            StoreOperation::SwapRecord { node: of, expected, content, .. } => {
                let swapped = self.servers[store].swap_record(of, expected.as_ref(), content.clone());
                if let Some(version) = &swapped {
                    self.log(Some(node), || format!("store: the record of {of} is {content:?}"));
                    let record = NodeRecord { content: content.clone(), version: version.clone() };
                    self.notify_nodes(&Input::RecordChanged { node: of.clone(), record: Some(record) });
                }
                let outcome = swapped.map_or(RecordOutcome::Conflict, RecordOutcome::Swapped);
                Input::Recorded { node: of.clone(), asked, outcome }
            }
        };
        if self.cluster.nodes[node].access == StoreAccess::Mute || !self.has_path(node) {
            return self.fail(request, LIMIT);
        }
        let after = self.transit() + self.cluster.nodes[node].access.delay() / 2;
        self.schedule.after(after, WorldEvent::Agent { node, run, event: AgentEvent::Reported { asked, input } });
    }
}
