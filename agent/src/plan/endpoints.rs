//! From a set of endpoints to indices of `BACKENDS`.

use std::{collections::BTreeSet, sync::Arc};

use vipmux_common::abi;

use crate::{
    hashing::{Endpoint, LONGEST},
    model::NodeName,
    plan::{DesiredBackend, arena::Members},
};

/// The endpoints of a Service port.
pub(super) type Set = Arc<BTreeSet<DesiredBackend>>;

/// A backend within one node: address, port (wire), the node's index.
pub(super) type Identity = (abi::Address, u16, u32);

pub(super) fn identity(backend: &abi::Backend) -> Identity {
    (backend.address, backend.port, backend.node)
}

/// Tells sets apart without looking into them.
pub(super) fn pointer(set: &Set) -> usize {
    Arc::as_ptr(set).addr()
}

/// The endpoints of a set, by what they are for.
pub(super) struct Roles {
    /// In the table over all backends.
    all: Vec<Identity>,
    /// In the table over this node's own.
    local: Vec<Identity>,
    /// Those drain: no other of this node is ready.
    spare: bool,
    /// In no table but that, for their established flows.
    draining: Vec<Identity>,
    /// Those of all of them that fail their health probes.
    failing: Vec<Identity>,
}

impl Roles {
    /// `node`: the index of a node; endpoints of one that has none are left out.
    pub(super) fn new(set: &Set, local: Option<u32>, node: impl Fn(&NodeName) -> Option<u32>) -> Self {
        let (mut ready, mut draining, mut failing) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut serving = Vec::new();
        for backend in set.iter() {
            if let Some(node) = node(&backend.node) {
                let identity = (backend.address.into(), backend.port.to_be(), node);
                failing.extend(backend.failing.then_some(identity));
                let serves = backend.serving && !backend.ready && !backend.failing && Some(node) == local;
                serving.extend(serves.then_some(identity));
                if backend.ready { &mut ready } else { &mut draining }.push(identity);
            }
        }
        // In the order, and as few, as hashing takes them: all nodes must agree. The sort is stable, so of one endpoint
        // on two nodes the first by the node's name stays.
        let endpoint = |(address, port, _): &Identity| Endpoint::new(*address, *port);
        ready.sort_by_cached_key(endpoint);
        ready.dedup_by_key(|identity| endpoint(identity));
        let mut own: Vec<_> = ready.iter().copied().filter(|(_, _, node)| Some(*node) == local).collect();
        // Nodes do not learn of a drain at one time: what one that has not heard of it hands over is not to be lost.
        let spare = own.is_empty() && !ready.is_empty() && !serving.is_empty();
        if spare {
            own = serving;
        }
        own.truncate(LONGEST as usize);
        let excess = ready.split_off(ready.len().min(LONGEST as usize));
        draining.extend(excess);
        let failing = ready.iter().chain(&own).chain(&draining).filter(|it| failing.contains(it)).copied().collect();
        Self { all: ready, local: own, spare, draining, failing }
    }

    /// Leaves out what is in the local table if that is but spare; whether it was.
    pub(super) fn drop_spare(&mut self) -> bool {
        let spare = std::mem::take(&mut self.spare);
        if spare {
            self.local.clear();
        }
        spare
    }

    /// Those that need an index: in a table, or to be shown as failing.
    pub(super) fn indexed(&self) -> impl Iterator<Item = Identity> {
        self.all.iter().chain(&self.local).chain(&self.failing).copied()
    }

    pub(super) fn draining(&self) -> impl Iterator<Item = Identity> {
        self.draining.iter().copied()
    }

    /// `index`: the index of a backend. Those that have none are left out.
    pub(super) fn resolve(&self, index: impl Fn(&Identity) -> Option<u32>) -> Resolution {
        let members = |identities: &[Identity]| {
            let mut indices: Vec<_> = identities.iter().filter_map(&index).collect();
            indices.sort_unstable();
            indices.dedup();
            Members::from(indices)
        };
        let [draining, failing] = [&self.draining, &self.failing].map(|identities| members(identities));
        Resolution { all: members(&self.all), local: members(&self.local), spare: self.spare, draining, failing }
    }
}

/// The indices of a set's endpoints.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolution {
    pub(super) all: Members,
    pub(super) local: Members,
    /// [`Roles::spare`].
    pub(super) spare: bool,
    pub(super) draining: Members,
    /// Of all of them.
    pub(super) failing: Members,
}

impl Resolution {
    /// The same, without a local table that is but spare.
    pub(super) fn without_spare(&self) -> Self {
        Self { local: Members::default(), spare: false, ..self.clone() }
    }

    /// Those that take new flows whoever sends them; one may come twice.
    pub(super) fn ready(&self) -> impl Iterator<Item = &u32> {
        self.all.iter().chain(self.local.iter().filter(|_| !self.spare))
    }
}
