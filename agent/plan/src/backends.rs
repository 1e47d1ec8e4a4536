//! Plans backends and their tables.

mod backend_indices;
mod table_places;
mod wants;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi;

use self::{
    backend_indices::BackendIndices,
    table_places::TablePlaces,
    wants::{Want, Wants},
};
use crate::{
    arena::{TableRanges, tables_of},
    capacity::Shortage,
    endpoints::{BackendKey, EndpointRoles, EndpointSet, Resolution, pointer},
    error::PlanError,
    mirror::MapMirror,
    observed::Observed,
    reached::{ClaimChange, ReachedState, UseCounts},
    step::Step,
};
use vipmux_model::{NodeName, desired::Desired, hashing::Hashing};

/// Gives sets of endpoints their places in `BACKENDS` and `TABLES`: all of a set or nothing.
pub(super) struct BackendPlanner<'a> {
    maps: &'a MapMirror,
    nodes: &'a BTreeMap<&'a NodeName, u32>,
    local: Option<u32>,
    hashing: Hashing,
    reached: &'a ReachedState,
    /// The reached state, if its resolutions are of the same nodes.
    known_sets: Option<&'a ReachedState>,
    by_set: BTreeMap<usize, Result<TableRanges, Shortage>>,
    indices: BackendIndices<'a>,
    tables: TablePlaces<'a>,
    wants: Wants,
    /// The backends that the differing port claims had, with their uses by all other claims.
    /// `None`: the plan looks at all backends.
    scope: Option<BTreeMap<u32, UseCounts>>,
}

impl<'a> BackendPlanner<'a> {
    pub(super) fn new(
        observed: &'a Observed,
        nodes: &'a BTreeMap<&'a NodeName, u32>,
        desired: &Desired,
        changes: Option<&[ClaimChange<'_>]>,
        now: Duration,
    ) -> Result<Self, PlanError> {
        let Observed { maps, reached, .. } = observed;
        let newer = maps.newest_generation.checked_add(1).ok_or(PlanError::GenerationsExhausted)?;
        Ok(Self {
            maps,
            nodes,
            local: nodes.get(&desired.local).copied(),
            hashing: desired.hashing,
            reached,
            known_sets: Some(reached).filter(|reached| reached.is_of(desired, nodes)),
            by_set: BTreeMap::new(),
            indices: BackendIndices::new(maps, maps.config.next_generation.max(newer), now),
            tables: TablePlaces::new(maps, desired.hashing, now),
            wants: Wants::default(),
            scope: changes.map(|changes| reached.without(changes, desired)),
        })
    }

    /// Returns the generation of all new entries of this plan. One is enough: a plan gives an index
    /// out once.
    pub(super) fn generation(&self) -> u32 {
        self.indices.generation()
    }

    /// Returns the hashing of all tables that [`Self::place`] returns.
    pub(super) fn hashing(&self) -> Hashing {
        self.hashing
    }

    /// Places a set. Returns the ranges of its tables.
    pub(super) fn place(&mut self, set: &EndpointSet) -> Result<TableRanges, Shortage> {
        if let Some(tables) = self.by_set.get(&pointer(set)) {
            return *tables;
        }
        let maps = self.maps;
        let tables = match self.known_sets.and_then(|reached| reached.known(set, maps)) {
            Some(known) => match known.tables(maps) {
                Some(tables) => {
                    self.wants.want_all(known.resolution());
                    Ok(tables)
                }
                None => self.commit(known.resolution(), BTreeMap::new()),
            },
            None => self.place_new(set),
        };
        self.by_set.insert(pointer(set), tables);
        tables
    }

    fn place_new(&mut self, set: &EndpointSet) -> Result<TableRanges, Shortage> {
        let mark = self.indices.mark();
        let tables = self.resolve(set).and_then(|(resolution, new)| self.commit(&resolution, new));
        if tables.is_err() {
            self.indices.reset(mark);
        }
        tables
    }

    /// Keeps the backends of a service revision that could not be replaced.
    pub(super) fn keep(&mut self, value: &abi::ServiceValue) {
        let maps = self.maps;
        for &index in tables_of(value).flat_map(|range| maps.tables.members(range)) {
            self.wants.want(index).kept = true;
        }
    }

    /// Returns the indices of a set's endpoints, and the new ones among them.
    fn resolve(&mut self, set: &EndpointSet) -> Result<(Resolution, BTreeMap<BackendKey, u32>), Shortage> {
        let nodes = self.nodes;
        let mut roles = EndpointRoles::new(set, self.local, self.hashing, |name| nodes.get(name).copied());
        let new = loop {
            match self.indices.take(roles.indexed()) {
                Ok(new) => break new,
                Err(_) if roles.drop_spare() => {}
                Err(shortage) => return Err(shortage),
            }
        };
        let resolution = roles.resolve(|key| self.indices.get(key).or_else(|| new.get(key).copied()));
        Ok((resolution, new))
    }

    fn commit(&mut self, resolution: &Resolution, new: BTreeMap<BackendKey, u32>) -> Result<TableRanges, Shortage> {
        let mut missing: Vec<_> = [&resolution.all, &resolution.local].into_iter().collect();
        missing.retain(|members| self.tables.find(members).is_none());
        missing.dedup();
        let ranges = match self.tables.make_room(&missing) {
            Err(_) if resolution.spare => return self.commit(&resolution.without_spare(), new),
            ranges => ranges?,
        };
        for (key, index) in new {
            self.indices.add(key, index);
        }
        for (members, range) in missing.into_iter().zip(ranges) {
            self.tables.add(members, range, |index| self.indices.endpoint(index));
        }
        self.wants.want_all(resolution);
        let range = |members| self.tables.find(members).unwrap_or_default();
        Ok(TableRanges { all: range(&resolution.all), local: range(&resolution.local), spare: resolution.spare })
    }

    fn flags(&self, Want { ready, failing, stopping, .. }: Want, node: u32) -> u16 {
        let flag = |is: bool, flag: u16| if is { flag } else { 0 };
        flag(ready, abi::BACKEND_READY)
            | flag(failing, abi::BACKEND_FAILING)
            | flag(stopping && !ready, abi::BACKEND_STOPPING)
            | flag(self.local == Some(node), abi::BACKEND_LOCAL)
    }

    /// Returns the steps for `BACKENDS` and `TABLES`, once every set has its place.
    pub(super) fn finish(self) -> BackendSteps {
        let arrival = |(index, backend): (&u32, &abi::Backend)| {
            let flags = self.flags(self.wants.of(*index), backend.node);
            Step::Backend(*index, abi::Backend { flags, ..*backend })
        };
        let mut backends = BackendSteps {
            arrivals: self.indices.new_backends().iter().map(arrival).collect(),
            tables: Vec::new(),
            drained: Vec::new(),
            departures: Vec::new(),
            // If the scope is limited, the reached state has left nothing of nodes that are gone.
            nodes: self.scope.is_none().then(BTreeSet::new),
            stale_epochs: BTreeSet::new(),
            generation: (!self.indices.new_backends().is_empty()).then_some(self.generation()),
        };
        for (index, entry, want) in self.affected() {
            if want == Want::default() {
                backends.departures.push(Step::Backend(index, abi::Backend::default()));
                backends.stale_epochs.extend(is_vouched_for(entry.flags).then_some(entry.node));
                continue;
            }
            if let Some(nodes) = &mut backends.nodes {
                nodes.insert(entry.node);
            }
            let ready = want.ready || (want.kept && entry.flags & abi::BACKEND_READY != 0);
            let failing = want.failing || (want.kept && entry.flags & abi::BACKEND_FAILING != 0);
            let flags = self.flags(Want { ready, failing, ..want }, entry.node);
            if flags != entry.flags {
                let stage = if ready { &mut backends.arrivals } else { &mut backends.drained };
                stage.push(Step::Backend(index, abi::Backend { flags, ..*entry }));
                let ends_epoch = is_vouched_for(entry.flags) && !is_vouched_for(flags);
                backends.stale_epochs.extend(ends_epoch.then_some(entry.node));
            }
        }
        backends.tables = self.tables.into_steps();
        backends
    }

    /// Returns the existing backends that the plan looks at, ascending, and the purposes
    /// that each is wanted for.
    fn affected(&self) -> Vec<(u32, &'a abi::Backend, Want)> {
        let maps = self.maps;
        let Some(scope) = &self.scope else {
            return maps.backends.iter().map(|(index, entry)| (index, entry, self.wants.of(index))).collect();
        };
        let indices: BTreeSet<u32> = scope.keys().copied().chain(self.wants.indices()).collect();
        let affected = indices.into_iter().filter_map(|index| {
            let others = scope.get(&index).copied().unwrap_or_else(|| self.reached.uses(index));
            let Want { ready, draining, failing, stopping, kept } = self.wants.of(index);
            let want = Want {
                ready: ready || others.ready > 0,
                draining: draining || others.draining > 0,
                failing: failing || others.failing > 0,
                stopping: stopping || others.stopping > 0,
                kept,
            };
            Some((index, maps.backends.get(index)?, want))
        });
        affected.collect()
    }
}

/// Whether flow records get an epoch for a backend with these flags ([`abi::FlowValue::epoch`]).
fn is_vouched_for(flags: u16) -> bool {
    flags & (abi::BACKEND_READY | abi::BACKEND_LOCAL) == abi::BACKEND_READY
}

/// The steps for `BACKENDS` and `TABLES`.
pub(super) struct BackendSteps {
    /// New backends, and those that take new flows again.
    pub(super) arrivals: Vec<Step>,
    pub(super) tables: Vec<Step>,
    /// Backends that take no new flows any more.
    pub(super) drained: Vec<Step>,
    pub(super) departures: Vec<Step>,
    /// The nodes of the backends that stay, if the plan looked at all of them. Else no node is
    /// removed.
    pub(super) nodes: Option<BTreeSet<u32>>,
    /// The nodes of backends that flow records' epochs no longer vouch for.
    pub(super) stale_epochs: BTreeSet<u32>,
    /// The generation of the new backends, if there are any.
    pub(super) generation: Option<u32>,
}
