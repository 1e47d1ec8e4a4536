//! What plans need not find out again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::{OrdMap, ordmap::DiffItem};

use crate::{
    model::{NodeName, PortClaim},
    plan::{
        Desired, DesiredService, Observed, Plan, Unreachable,
        backends::Placement,
        endpoints::{Identity, Resolution, Roles, Set},
        services::is_left_to_the_stack,
    },
};

/// What is known of a set that was placed.
#[derive(Clone, Debug)]
pub(super) struct Known {
    resolution: Resolution,
    /// The generations of all the indices in the resolution.
    generations: Vec<(u32, u32)>,
    /// Where its tables were; they may have moved since.
    placement: Option<Placement>,
    /// All its endpoints have an index. A draining one that has none may get it from another set, and is then wanted by
    /// this one too.
    complete: bool,
}

impl Known {
    fn new(set: &Set, local: Option<u32>, nodes: &BTreeMap<NodeName, u32>, observed: &Observed) -> Option<Self> {
        let roles = Roles::new(set, local, |name| nodes.get(name).copied());
        let index = |identity: &Identity| observed.backend_indices.get(identity).copied();
        if roles.indexed().any(|identity| index(&identity).is_none()) {
            return None;
        }
        let complete = roles.draining().all(|identity| index(&identity).is_some());
        let resolution = roles.resolve(index);
        let indices = resolution.all.iter().chain(&*resolution.local).chain(&*resolution.draining);
        let generation = |index: &u32| Some((*index, observed.backends.get(*index)?.generation));
        let generations = indices.map(generation).collect::<Option<_>>()?;
        let table = |members| observed.tables.find(members);
        let placement = table(&resolution.all).zip(table(&resolution.local));
        let placement = placement.map(|(all, local)| Placement { all, local, spare: resolution.spare });
        Some(Self { resolution, generations, placement, complete })
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

/// What a backend is wanted for, by how many sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// Sets with it in a table.
    pub(super) ready: u32,
    /// Sets that let it keep its flows.
    pub(super) draining: u32,
    /// Sets in which it fails its health probe.
    pub(super) failing: u32,
}

/// A claim whose Service differs from the settled one: that, and the desired one.
pub(super) type Change<'a> = (&'a PortClaim, [Option<&'a DesiredService>; 2]);

/// The last desired state that was reached, and the resolutions of its sets: those of sets that stay need not be found
/// again.
#[derive(Clone, Debug, Default)]
pub(super) struct Settled {
    local: Option<NodeName>,
    nodes: BTreeMap<NodeName, u32>,
    services: OrdMap<PortClaim, DesiredService>,
    /// With how many claims have each.
    sets: BTreeMap<Set, (Arc<Known>, u32)>,
    /// By index.
    uses: Vec<Uses>,
    /// Of [`Plan::unreachable`](crate::plan::Plan::unreachable), and what becomes of them.
    unreachable: BTreeSet<PortClaim>,
    choice: Unreachable,
    /// The resolution of every set is known: [`Self::uses`] is all that backends are wanted for.
    full: bool,
}

impl Settled {
    /// Called when `observed` has come to what is desired. `exact`: all that was done to `observed` since the last time
    /// is a plan's, from what was settled then.
    pub(super) fn advance(&mut self, desired: &Desired, plan: &Plan, observed: &Observed, exact: bool) {
        let index = |name: &NodeName| Some((name.clone(), *observed.node_indices.get(name)?));
        let nodes: BTreeMap<_, _> = desired.nodes.keys().filter_map(index).collect();
        let same =
            self.local.as_ref() == Some(&desired.local) && self.nodes == nodes && self.choice == desired.unreachable;
        if !(exact && self.full && same) {
            let (local, choice) = (Some(desired.local.clone()), desired.unreachable);
            *self = Self { local, nodes, choice, full: true, ..Self::default() };
        }
        self.unreachable = plan.unreachable.iter().copied().collect();
        let before = std::mem::replace(&mut self.services, desired.services.clone());
        for (_, [old, new]) in changes(&before, &desired.services) {
            // First what comes: what both have is then not looked for again.
            let placed = |service: &&DesiredService| !is_left_to_the_stack(desired, service);
            if let Some(service) = new.filter(placed) {
                self.acquire(&service.backends, observed);
            }
            if let Some(service) = old.filter(placed) {
                self.release(&service.backends);
            }
        }
    }

    fn acquire(&mut self, set: &Set, observed: &Observed) {
        if let Some((_, claims)) = self.sets.get_mut(set) {
            *claims += 1;
            return;
        }
        let local = self.local.as_ref().and_then(|local| self.nodes.get(local).copied());
        let Some(known) = Known::new(set, local, &self.nodes, observed) else {
            self.full = false;
            return;
        };
        count(&mut self.uses, &known, |uses| *uses += 1);
        self.sets.insert(Arc::clone(set), (Arc::new(known), 1));
    }

    fn release(&mut self, set: &Set) {
        let Some((_, claims)) = self.sets.get_mut(set) else { return };
        *claims -= 1;
        if *claims == 0
            && let Some((known, _)) = self.sets.remove(set)
        {
            count(&mut self.uses, &known, |uses| *uses = uses.saturating_sub(1));
        }
    }

    /// The claims that differ from what is desired, in their order, if that is all that a plan need look at; `exact`:
    /// nothing was done to the maps since this was settled.
    pub(super) fn changes<'a>(
        &'a self,
        desired: &'a Desired,
        nodes: &BTreeMap<&NodeName, u32>,
        exact: bool,
    ) -> Option<Vec<Change<'a>>> {
        let usable = exact && self.full && self.choice == desired.unreachable && self.is_of(&desired.local, nodes);
        usable.then(|| changes(&self.services, &desired.services).collect())
    }

    /// Whether the resolutions are of these nodes.
    pub(super) fn is_of(&self, local: &NodeName, nodes: &BTreeMap<&NodeName, u32>) -> bool {
        self.local.as_ref() == Some(local)
            && self.nodes.len() == nodes.len()
            && self.nodes.iter().zip(nodes).all(|((a, i), (b, j))| a == *b && i == j)
    }

    /// What is known of a set and still true.
    pub(super) fn known(&self, set: &Set, observed: &Observed) -> Option<&Arc<Known>> {
        let (known, _) = self.sets.get(set)?;
        Some(known).filter(|known| known.complete && known.holds(observed))
    }

    /// What backends are wanted for when these claims have their sets no more: of each index that it matters to.
    pub(super) fn without(&self, changes: &[Change<'_>], desired: &Desired) -> BTreeMap<u32, Uses> {
        let mut claims: BTreeMap<&Set, u32> = BTreeMap::new();
        let olds = changes.iter().filter_map(|(_, [old, _])| *old);
        for service in olds.filter(|service| !is_left_to_the_stack(desired, service)) {
            *claims.entry(&service.backends).or_default() += 1;
        }
        let mut left = BTreeMap::new();
        for (set, gone) in claims {
            let Some((known, _)) = self.sets.get(set).filter(|(_, claims)| *claims == gone) else { continue };
            let Resolution { draining, failing, .. } = &known.resolution;
            let mut less = |index: &u32, field: fn(&mut Uses) -> &mut u32| {
                let uses = field(left.entry(*index).or_insert_with(|| self.uses(*index)));
                *uses = uses.saturating_sub(1);
            };
            known.resolution.ready().for_each(|index| less(index, |uses| &mut uses.ready));
            draining.iter().for_each(|index| less(index, |uses| &mut uses.draining));
            failing.iter().for_each(|index| less(index, |uses| &mut uses.failing));
        }
        left
    }

    /// Claims that have endpoints, none of which can be reached.
    pub(super) fn unreachable(&self) -> &BTreeSet<PortClaim> {
        &self.unreachable
    }

    /// Whether it is known what every endpoint is.
    #[cfg(test)]
    pub(super) fn is_complete(&self) -> bool {
        self.full && self.sets.values().all(|(known, _)| known.complete)
    }

    /// What a backend is wanted for.
    pub(super) fn uses(&self, index: u32) -> Uses {
        self.uses.get(index as usize).copied().unwrap_or_default()
    }
}

/// Counts a set in or out.
fn count(uses: &mut Vec<Uses>, known: &Known, change: impl Fn(&mut u32)) {
    let Resolution { all, local, draining, failing, .. } = &known.resolution;
    let length = all.iter().chain(&**local).chain(&**draining).max().map_or(0, |last| *last as usize + 1);
    uses.resize(uses.len().max(length), Uses::default());
    known.resolution.ready().for_each(|index| change(&mut uses[*index as usize].ready));
    draining.iter().for_each(|index| change(&mut uses[*index as usize].draining));
    failing.iter().for_each(|index| change(&mut uses[*index as usize].failing));
}

fn changes<'a>(
    old: &'a OrdMap<PortClaim, DesiredService>,
    new: &'a OrdMap<PortClaim, DesiredService>,
) -> impl Iterator<Item = Change<'a>> {
    old.diff(new).map(|item| match item {
        DiffItem::Add(claim, new) => (claim, [None, Some(new)]),
        DiffItem::Update { old: (claim, old), new: (_, new) } => (claim, [Some(old), Some(new)]),
        DiffItem::Remove(claim, old) => (claim, [Some(old), None]),
    })
}
