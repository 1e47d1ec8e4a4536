//! From a set of endpoints to indices of `BACKENDS`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use vipmux_common::abi;

use crate::{
    hashing::{Endpoint, LONGEST},
    model::NodeName,
    plan::{Desired, DesiredBackend, Observed, arena::Members},
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
    /// In no table, for their established flows.
    draining: Vec<Identity>,
}

impl Roles {
    /// `node`: the index of a node; endpoints of one that has none are left out.
    pub(super) fn new(set: &Set, local: Option<u32>, node: impl Fn(&NodeName) -> Option<u32>) -> Self {
        let (mut ready, mut draining) = (Vec::new(), Vec::new());
        for backend in set.iter() {
            if let Some(node) = node(&backend.node) {
                let identity = (backend.address.into(), backend.port.to_be(), node);
                if backend.ready { &mut ready } else { &mut draining }.push(identity);
            }
        }
        // In the order, and as few, as hashing takes them: all nodes must agree. The sort is stable, so of one endpoint
        // on two nodes the first by the node's name stays.
        let endpoint = |(address, port, _): &Identity| Endpoint::new(*address, *port);
        ready.sort_by_cached_key(endpoint);
        ready.dedup_by_key(|identity| endpoint(identity));
        let own = ready.iter().copied().filter(|(_, _, node)| Some(*node) == local);
        let own: Vec<_> = own.take(LONGEST as usize).collect();
        let excess = ready.split_off(ready.len().min(LONGEST as usize));
        draining.extend(excess);
        Self { all: ready, local: own, draining }
    }

    /// Those that need an index.
    pub(super) fn in_tables(&self) -> impl Iterator<Item = Identity> {
        self.all.iter().chain(&self.local).copied()
    }

    fn draining(&self) -> impl Iterator<Item = Identity> {
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
        let draining = members(&self.draining);
        Resolution { all: members(&self.all), local: members(&self.local), draining }
    }
}

/// The indices of a set's endpoints.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolution {
    pub(super) all: Members,
    pub(super) local: Members,
    pub(super) draining: Members,
}

/// A set with its resolution and the generations of all the indices in it.
#[derive(Clone, Debug)]
struct Known {
    /// Held, so that its address is not given to another set.
    set: Set,
    resolution: Resolution,
    generations: Vec<(u32, u32)>,
}

impl Known {
    fn new(set: &Set, resolution: Resolution, observed: &Observed) -> Option<Self> {
        let indices = resolution.all.iter().chain(&*resolution.local).chain(&*resolution.draining);
        let generation = |index: &u32| Some((*index, observed.backends.get(*index)?.generation));
        let generations = indices.map(generation).collect::<Option<_>>()?;
        Some(Self { set: Arc::clone(set), resolution, generations })
    }

    /// Whether every index still is the same backend's.
    fn holds(&self, observed: &Observed) -> bool {
        let same = |(index, generation): &(u32, u32)| {
            observed.backends.get(*index).is_some_and(|backend| backend.generation == *generation)
        };
        self.generations.iter().all(same)
    }
}

/// The resolutions of the last desired state: so that those of sets that stay need not be found again.
#[derive(Clone, Debug, Default)]
pub(super) struct Settled {
    local: Option<NodeName>,
    nodes: BTreeMap<NodeName, u32>,
    sets: BTreeMap<usize, Arc<Known>>,
}

impl Settled {
    /// Called when `observed` has come to what is desired.
    pub(super) fn new(desired: &Desired, observed: &Observed) -> Self {
        let index = |name: &NodeName| Some((name.clone(), *observed.node_indices.get(name)?));
        let nodes: BTreeMap<_, _> = desired.nodes.keys().filter_map(index).collect();
        let local = nodes.get(&desired.local).copied();
        let old = &observed.settled;
        let old = Some(old).filter(|old| old.local.as_ref() == Some(&desired.local) && old.nodes == nodes);
        let mut sets = BTreeMap::new();
        for service in desired.services.values() {
            let set = &service.backends;
            if sets.contains_key(&pointer(set)) {
                continue;
            }
            let known = old.and_then(|old| old.known(set, observed)).cloned();
            let known = known.or_else(|| {
                let roles = Roles::new(set, local, |name| nodes.get(name).copied());
                let index = |identity: &Identity| observed.backend_indices.get(identity).copied();
                // One without an index may get it from another set, and is then wanted by this one too.
                let complete = roles.in_tables().chain(roles.draining()).all(|identity| index(&identity).is_some());
                complete.then(|| Known::new(set, roles.resolve(index), observed)).flatten().map(Arc::new)
            });
            if let Some(known) = known {
                sets.insert(pointer(set), known);
            }
        }
        Self { local: Some(desired.local.clone()), nodes, sets }
    }

    /// Whether the resolutions are of these nodes.
    pub(super) fn is_of(&self, local: &NodeName, nodes: &BTreeMap<&NodeName, u32>) -> bool {
        self.local.as_ref() == Some(local)
            && self.nodes.len() == nodes.len()
            && self.nodes.iter().zip(nodes).all(|((a, i), (b, j))| a == *b && i == j)
    }

    fn known(&self, set: &Set, observed: &Observed) -> Option<&Arc<Known>> {
        self.sets.get(&pointer(set)).filter(|known| Arc::ptr_eq(&known.set, set) && known.holds(observed))
    }

    pub(super) fn resolution(&self, set: &Set, observed: &Observed) -> Option<&Resolution> {
        self.known(set, observed).map(|known| &known.resolution)
    }
}
