//! What plans need not find out again.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    model::NodeName,
    plan::{
        Desired, Observed,
        backends::Placement,
        endpoints::{Identity, Resolution, Roles, Set, pointer},
    },
};

/// What is known of a set that was placed.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Held, so that its address is not given to another set.
    set: Set,
    resolution: Resolution,
    /// The generations of all the indices in the resolution.
    generations: Vec<(u32, u32)>,
    /// Where its tables were; they may have moved since.
    placement: Option<Placement>,
}

impl Known {
    fn new(set: &Set, resolution: Resolution, observed: &Observed) -> Option<Self> {
        let indices = resolution.all.iter().chain(&*resolution.local).chain(&*resolution.draining);
        let generation = |index: &u32| Some((*index, observed.backends.get(*index)?.generation));
        let generations = indices.map(generation).collect::<Option<_>>()?;
        let table = |members| observed.tables.find(members);
        let placement = table(&resolution.all).zip(table(&resolution.local));
        let placement = placement.map(|(all, local)| Placement { all, local });
        Some(Self { set: Arc::clone(set), resolution, generations, placement })
    }

    pub(super) fn resolution(&self) -> &Resolution {
        &self.resolution
    }

    /// Where its tables are, if they are where they were.
    pub(super) fn placement(&self, observed: &Observed) -> Option<Placement> {
        let holds = |range, members| observed.tables.holds(range, members);
        let (all, local) = (&self.resolution.all, &self.resolution.local);
        self.placement.filter(|placement| holds(placement.all, all) && holds(placement.local, local))
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

    /// What is known of a set and still true.
    pub(super) fn known(&self, set: &Set, observed: &Observed) -> Option<&Arc<Known>> {
        self.sets.get(&pointer(set)).filter(|known| Arc::ptr_eq(&known.set, set) && known.holds(observed))
    }
}
