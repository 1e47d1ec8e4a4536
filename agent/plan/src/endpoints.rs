//! Resolves sets of endpoints to indices of `BACKENDS`.

use std::{collections::BTreeSet, sync::Arc};

use vipmux_common::abi;

use crate::arena::TableMembers;
use vipmux_model::{
    NodeName,
    desired::{DesiredBackend, Readiness},
    hashing::{Endpoint, Hashing},
};

/// The endpoints of a Service port.
pub(super) type EndpointSet = Arc<BTreeSet<DesiredBackend>>;

/// The key of a backend on one node: address, port (wire order), the node's index.
pub(super) type BackendKey = (abi::Address, u16, u32);

pub(super) fn backend_key(backend: &abi::Backend) -> BackendKey {
    (backend.address, backend.port, backend.node)
}

/// Returns a number that identifies a set as long as it lives, without a look at its contents. Two
/// sets at different addresses may be equal, and then get the same tables.
pub(super) fn pointer(set: &EndpointSet) -> usize {
    Arc::as_ptr(set).addr()
}

/// The endpoints of a set, by their role.
pub(super) struct EndpointRoles {
    /// Endpoints in the table over all backends.
    all: Vec<BackendKey>,
    /// Endpoints in the table over this node's own.
    local: Vec<BackendKey>,
    /// The endpoints in the local table drain, or are not ready yet: no other endpoint of this node is.
    spare: bool,
    /// Endpoints in no table, or only in a spare local one, for their established flows.
    draining: Vec<BackendKey>,
    /// Endpoints, of any role, that fail their health probes.
    failing: Vec<BackendKey>,
    /// Endpoints that flows of datagrams leave.
    stopping: Vec<BackendKey>,
}

impl EndpointRoles {
    /// Sorts the endpoints by role. `node` returns the index of a node. Endpoints of a node without
    /// an index are left out.
    pub(super) fn new(
        set: &EndpointSet,
        local: Option<u32>,
        hashing: Hashing,
        node: impl Fn(&NodeName) -> Option<u32>,
    ) -> Self {
        let (mut ready, mut draining, mut failing) = (Vec::new(), Vec::new(), BTreeSet::new());
        let (mut serving, mut waiting, mut stopping) = (Vec::new(), Vec::new(), Vec::new());
        for backend in set.iter() {
            if let Some(node) = backend.node.as_ref().and_then(&node) {
                let key = (backend.address.into(), backend.port_number().to_be(), node);
                failing.extend(backend.readiness.is_failing().then_some(key));
                match backend.readiness {
                    Readiness::Draining if Some(node) == local => serving.push(key),
                    Readiness::NotReady if Some(node) == local => waiting.push(key),
                    _ => {}
                }
                stopping.extend(backend.readiness.is_stopping().then_some(key));
                if backend.readiness.is_ready() { &mut ready } else { &mut draining }.push(key);
            }
        }
        // Keep the order and the limit of hashing, since all nodes must agree. The sort is stable:
        // of one endpoint on two nodes, the first by the node's name stays.
        let endpoint = |(address, port, _): &BackendKey| Endpoint::new(*address, *port);
        ready.sort_by_cached_key(endpoint);
        ready.dedup_by_key(|key| endpoint(key));
        let mut own: Vec<_> = ready.iter().copied().filter(|(_, _, node)| Some(*node) == local).collect();
        // Nodes do not learn at the same time that a backend drains, or became ready. A packet that
        // another node hands over meanwhile must not be lost.
        let others = if serving.is_empty() { waiting } else { serving };
        let spare = own.is_empty() && !ready.is_empty() && !others.is_empty();
        if spare {
            own = others;
        }
        own.truncate(hashing.most_endpoints());
        let excess = ready.split_off(ready.len().min(hashing.most_endpoints()));
        draining.extend(excess);
        let failing = ready.iter().chain(&own).chain(&draining).filter(|it| failing.contains(it)).copied().collect();
        Self { all: ready, local: own, spare, draining, failing, stopping }
    }

    /// Clears the local table if it is only a spare one. Returns whether it was.
    pub(super) fn drop_spare(&mut self) -> bool {
        let spare = std::mem::take(&mut self.spare);
        if spare {
            self.local.clear();
        }
        spare
    }

    /// Returns the endpoints that need an index: those in a table, and those shown as failing.
    pub(super) fn indexed(&self) -> impl Iterator<Item = BackendKey> {
        self.all.iter().chain(&self.local).chain(&self.failing).copied()
    }

    pub(super) fn draining(&self) -> impl Iterator<Item = BackendKey> {
        self.draining.iter().copied()
    }

    /// Resolves the endpoints. `index` returns the index of a backend. Those without an index are
    /// left out.
    pub(super) fn resolve(&self, index: impl Fn(&BackendKey) -> Option<u32>) -> Resolution {
        let members = |keys: &[BackendKey]| {
            let mut indices: Vec<_> = keys.iter().filter_map(&index).collect();
            indices.sort_unstable();
            indices.dedup();
            TableMembers::from(indices)
        };
        let [draining, failing, stopping] = [&self.draining, &self.failing, &self.stopping].map(|keys| members(keys));
        let (all, local) = (members(&self.all), members(&self.local));
        Resolution { all, local, spare: self.spare, draining, failing, stopping }
    }
}

/// The indices of a set's endpoints, by role.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolution {
    pub(super) all: TableMembers,
    pub(super) local: TableMembers,
    /// [`EndpointRoles::spare`].
    pub(super) spare: bool,
    pub(super) draining: TableMembers,
    /// Of any role.
    pub(super) failing: TableMembers,
    /// Some of `draining`.
    pub(super) stopping: TableMembers,
}

impl Resolution {
    /// Returns the same resolution without a local table that is only a spare one.
    pub(super) fn without_spare(&self) -> Self {
        Self { local: TableMembers::default(), spare: false, ..self.clone() }
    }

    /// Returns all endpoints. One may come twice.
    pub(super) fn all(&self) -> impl Iterator<Item = &u32> {
        self.all.iter().chain(&*self.local).chain(&*self.draining)
    }

    /// Returns whether an index is one of an endpoint, of any role.
    pub(super) fn has(&self, index: u32) -> bool {
        [&self.all, &self.local, &self.draining].iter().any(|members| members.binary_search(&index).is_ok())
    }

    /// Returns the endpoints that take new flows from every sender. One may come twice.
    pub(super) fn ready(&self) -> impl Iterator<Item = &u32> {
        self.all.iter().chain(self.local.iter().filter(|_| !self.spare))
    }
}
