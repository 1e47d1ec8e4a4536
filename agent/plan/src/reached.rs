//! Records the last desired state that was reached, so that the next plan need not compute it
//! again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::{OrdMap, ordmap::DiffItem};
use vipmux_common::abi::ServiceValue;

use crate::{
    arena::TableRanges,
    endpoints::{BackendKey, EndpointRoles, EndpointSet, Resolution},
    mirror::MapMirror,
    reachability::is_left_to_the_stack,
    service_backends::ServiceBackends,
    step::Plan,
};
use vipmux_model::{
    NodeName, PortClaim,
    desired::{Desired, DesiredService, Unreachable},
    hashing::Hashing,
};

/// A set that has its places in the maps.
#[derive(Clone, Debug)]
pub(super) struct PlacedSet {
    resolution: Arc<Resolution>,
    /// The generations of all indices in the resolution.
    generations: Vec<(u32, u32)>,
    /// The ranges of its tables when it was recorded. They may have moved since.
    tables: Option<TableRanges>,
    /// Whether all its endpoints have an index, and its tables a range. A draining endpoint without an index
    /// may get it from another set, and so may a spare local table without a range. Then this set wants it, too.
    complete: bool,
}

impl PlacedSet {
    fn new(
        set: &EndpointSet,
        local: Option<u32>,
        hashing: Hashing,
        nodes: &BTreeMap<NodeName, u32>,
        maps: &MapMirror,
    ) -> Option<Self> {
        let roles = EndpointRoles::new(set, local, hashing, |name| nodes.get(name).copied());
        let index = |key: &BackendKey| maps.backend_indices.get(key).copied();
        if roles.indexed().any(|key| index(&key).is_none()) {
            return None;
        }
        let resolution = roles.resolve(index);
        let generation = |index: &u32| Some((*index, maps.backends.get(*index)?.generation));
        let generations = resolution.all().map(generation).collect::<Option<_>>()?;
        let table = |members| maps.tables.find(members, hashing.length(members.len()));
        let tables = table(&resolution.all).zip(table(&resolution.local));
        let tables = tables.map(|(all, local)| TableRanges { all, local, spare: resolution.spare });
        let complete = tables.is_some() && roles.draining().all(|key| index(&key).is_some());
        Some(Self { resolution: Arc::new(resolution), generations, tables, complete })
    }

    pub(super) fn resolution(&self) -> &Resolution {
        &self.resolution
    }

    /// Returns the ranges of its tables if they have not moved.
    pub(super) fn tables(&self, maps: &MapMirror) -> Option<TableRanges> {
        let holds = |range, members| maps.tables.holds(range, members);
        let (all, local) = (&self.resolution.all, &self.resolution.local);
        self.tables.filter(|tables| holds(tables.all, all) && holds(tables.local, local))
    }

    /// Whether every index still belongs to the same backend.
    fn holds(&self, maps: &MapMirror) -> bool {
        let same = |(index, generation): &(u32, u32)| {
            maps.backends.get(*index).is_some_and(|backend| backend.generation == *generation)
        };
        self.generations.iter().all(same)
    }
}

/// The number of sets that want a backend, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UseCounts {
    /// Sets with it in a table.
    pub(super) ready: u32,
    /// Sets that let it keep its flows.
    pub(super) draining: u32,
    /// Sets in which it fails its health probe.
    pub(super) failing: u32,
    /// Sets whose flows of datagrams leave it.
    pub(super) stopping: u32,
}

/// A port claim whose Service differs: the reached and the desired one.
pub(super) type ClaimChange<'a> = (&'a PortClaim, [Option<&'a DesiredService>; 2]);

/// The last desired state that was reached, and the resolutions of its sets. Unchanged sets need no
/// new resolution.
#[derive(Clone, Debug, Default)]
pub(super) struct ReachedState {
    local: Option<NodeName>,
    nodes: BTreeMap<NodeName, u32>,
    services: OrdMap<PortClaim, DesiredService>,
    /// Each set, with the number of port claims that have it.
    sets: BTreeMap<EndpointSet, (Arc<PlacedSet>, u32)>,
    /// The uses of backends, by index.
    uses: Vec<UseCounts>,
    backends: ServiceBackends,
    /// The claims of [`Plan::unreachable`], and what happens to them.
    unreachable: BTreeSet<PortClaim>,
    choice: Unreachable,
    hashing: Hashing,
    /// Whether the resolution of every set is known. Then [`Self::uses`] has all uses of backends.
    full: bool,
}

impl ReachedState {
    /// Records that `maps` has reached the desired state. `exact`: since the last call, only the
    /// steps of a plan from the state reached then were executed.
    pub(super) fn advance(&mut self, desired: &Desired, plan: &Plan, maps: &MapMirror, exact: bool) {
        let index = |name: &NodeName| Some((name.clone(), maps.node_index(name)?));
        let nodes: BTreeMap<_, _> = desired.nodes.keys().filter_map(index).collect();
        let same = self.local.as_ref() == Some(&desired.local)
            && self.nodes == nodes
            && (self.choice, self.hashing) == (desired.unreachable, desired.hashing);
        if !(exact && self.full && same) {
            let (local, choice, hashing) = (Some(desired.local.clone()), desired.unreachable, desired.hashing);
            *self = Self { local, nodes, choice, hashing, full: true, ..Self::default() };
        }
        self.unreachable = plan.unreachable.iter().copied().collect();
        let before = std::mem::replace(&mut self.services, desired.services.clone());
        for (claim, [old, new]) in changes(&before, &desired.services) {
            // Acquire the new set first, so that a set that both have is not resolved again.
            let placed = |service: &&DesiredService| !is_left_to_the_stack(desired, service);
            let new = new.filter(placed);
            if let Some(service) = new {
                self.acquire(&service.backends, maps);
            }
            self.note_backends(maps.service(claim), new);
            if let Some(service) = old.filter(placed) {
                self.release(&service.backends);
            }
        }
    }

    fn acquire(&mut self, set: &EndpointSet, maps: &MapMirror) {
        if let Some((_, claims)) = self.sets.get_mut(set) {
            *claims += 1;
            return;
        }
        let local = self.local.as_ref().and_then(|local| self.nodes.get(local).copied());
        let Some(known) = PlacedSet::new(set, local, self.hashing, &self.nodes, maps) else {
            self.full = false;
            return;
        };
        count(&mut self.uses, &known, |uses| *uses += 1);
        self.sets.insert(Arc::clone(set), (Arc::new(known), 1));
    }

    /// Notes the backends of a claim. If the claim has no set, or nobody knows the resolution, nothing is known
    /// of its flows.
    fn note_backends(&mut self, value: Option<&ServiceValue>, service: Option<&DesiredService>) {
        let Some(ServiceValue { slot, generation, .. }) = value else { return };
        match service.and_then(|service| self.sets.get(&service.backends)) {
            Some((known, _)) => self.backends.insert(*slot, *generation, Arc::clone(&known.resolution)),
            None => self.backends.remove(*slot),
        }
    }

    /// Returns the backends of each Service port.
    pub(super) fn service_backends(&self) -> &ServiceBackends {
        &self.backends
    }

    fn release(&mut self, set: &EndpointSet) {
        let Some((_, claims)) = self.sets.get_mut(set) else { return };
        *claims -= 1;
        if *claims == 0
            && let Some((known, _)) = self.sets.remove(set)
        {
            count(&mut self.uses, &known, |uses| *uses = uses.saturating_sub(1));
        }
    }

    /// Returns the port claims that differ from the desired state, in order. Returns `None` if the
    /// plan has to look at all of them. `exact`: nothing was done to the maps since this state was
    /// reached.
    pub(super) fn changes<'a>(
        &'a self,
        desired: &'a Desired,
        nodes: &BTreeMap<&NodeName, u32>,
        exact: bool,
    ) -> Option<Vec<ClaimChange<'a>>> {
        let usable = exact && self.full && self.choice == desired.unreachable && self.is_of(desired, nodes);
        usable.then(|| changes(&self.services, &desired.services).collect())
    }

    /// Whether the resolutions are of these nodes and this hashing.
    pub(super) fn is_of(&self, desired: &Desired, nodes: &BTreeMap<&NodeName, u32>) -> bool {
        self.local.as_ref() == Some(&desired.local)
            && self.hashing == desired.hashing
            && self.nodes.len() == nodes.len()
            && self.nodes.iter().zip(nodes).all(|((a, i), (b, j))| a == *b && i == j)
    }

    /// Returns a set if its record is still true.
    pub(super) fn known(&self, set: &EndpointSet, maps: &MapMirror) -> Option<&Arc<PlacedSet>> {
        let (known, _) = self.sets.get(set)?;
        Some(known).filter(|known| known.complete && known.holds(maps))
    }

    /// Returns the uses of backends without the sets of these claims, for each index that they
    /// affect.
    pub(super) fn without(&self, changes: &[ClaimChange<'_>], desired: &Desired) -> BTreeMap<u32, UseCounts> {
        let mut claims: BTreeMap<&EndpointSet, u32> = BTreeMap::new();
        let olds = changes.iter().filter_map(|(_, [old, _])| *old);
        for service in olds.filter(|service| !is_left_to_the_stack(desired, service)) {
            *claims.entry(&service.backends).or_default() += 1;
        }
        let mut left = BTreeMap::new();
        for (set, gone) in claims {
            let Some((known, _)) = self.sets.get(set).filter(|(_, claims)| *claims == gone) else { continue };
            let Resolution { draining, failing, stopping, .. } = &*known.resolution;
            let mut less = |index: &u32, field: fn(&mut UseCounts) -> &mut u32| {
                let uses = field(left.entry(*index).or_insert_with(|| self.uses(*index)));
                *uses = uses.saturating_sub(1);
            };
            known.resolution.ready().for_each(|index| less(index, |uses| &mut uses.ready));
            draining.iter().for_each(|index| less(index, |uses| &mut uses.draining));
            failing.iter().for_each(|index| less(index, |uses| &mut uses.failing));
            stopping.iter().for_each(|index| less(index, |uses| &mut uses.stopping));
        }
        left
    }

    /// Returns the port claims that have endpoints, none of which can be reached.
    pub(super) fn unreachable(&self) -> &BTreeSet<PortClaim> {
        &self.unreachable
    }

    /// Whether every endpoint of every set has an index, and every table a range.
    #[cfg(test)]
    pub(super) fn is_complete(&self) -> bool {
        self.full && self.sets.values().all(|(known, _)| known.complete)
    }

    /// Returns the uses of a backend.
    pub(super) fn uses(&self, index: u32) -> UseCounts {
        self.uses.get(index as usize).copied().unwrap_or_default()
    }
}

/// Counts a set in or out.
fn count(uses: &mut Vec<UseCounts>, known: &PlacedSet, change: impl Fn(&mut u32)) {
    let Resolution { draining, failing, stopping, .. } = &*known.resolution;
    let length = known.resolution.all().max().map_or(0, |last| *last as usize + 1);
    uses.resize(uses.len().max(length), UseCounts::default());
    known.resolution.ready().for_each(|index| change(&mut uses[*index as usize].ready));
    draining.iter().for_each(|index| change(&mut uses[*index as usize].draining));
    failing.iter().for_each(|index| change(&mut uses[*index as usize].failing));
    stopping.iter().for_each(|index| change(&mut uses[*index as usize].stopping));
}

fn changes<'a>(
    old: &'a OrdMap<PortClaim, DesiredService>,
    new: &'a OrdMap<PortClaim, DesiredService>,
) -> impl Iterator<Item = ClaimChange<'a>> {
    old.diff(new).map(|item| match item {
        DiffItem::Add(claim, new) => (claim, [None, Some(new)]),
        DiffItem::Update { old: (claim, old), new: (_, new) } => (claim, [Some(old), Some(new)]),
        DiffItem::Remove(claim, old) => (claim, [Some(old), None]),
    })
}
