//! Backends and their tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use vipmux_common::abi;

use crate::{
    hashing::{self, Endpoint},
    model::NodeName,
    plan::{
        CapacityMap, Desired, Observed, PlanError, Shortage, Step,
        arena::{Members, Range, Room},
        endpoints::{Identity, Resolution, Roles, Set, pointer},
        observed::ranges,
        pool::Vacancies,
        settled::{Change, Settled, Uses},
    },
};

/// Where the tables of a set of endpoints are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Placement {
    pub(super) all: Range,
    pub(super) local: Range,
    /// [`abi::SERVICE_SPARE`].
    pub(super) spare: bool,
}

/// What a backend is wanted for.
#[expect(clippy::struct_excessive_bools, reason = "any of them goes with any other")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Want {
    /// It is in a table of this plan.
    ready: bool,
    /// It keeps its flows.
    draining: bool,
    /// It fails its health probe.
    failing: bool,
    /// A table that could not be replaced leads to it.
    kept: bool,
}

/// Gives sets of endpoints their places, all of a set or nothing.
pub(super) struct Placements<'a> {
    observed: &'a Observed,
    nodes: &'a BTreeMap<&'a NodeName, u32>,
    local: Option<u32>,
    settled: Option<&'a Settled>,
    now: Duration,
    generation: u32,
    vacancies: Vacancies<'a, abi::Backend>,
    room: Option<Room>,
    by_set: BTreeMap<usize, Result<Placement, Shortage>>,
    by_members: BTreeMap<Members, Range>,
    new_indices: BTreeMap<Identity, u32>,
    new_backends: BTreeMap<u32, abi::Backend>,
    tables: Vec<Step>,
    /// By index.
    wants: BTreeMap<u32, Want>,
    /// What it is all about, if not about everything: of each backend that claims which differ had, what it is wanted for
    /// without them.
    scope: Option<BTreeMap<u32, Uses>>,
}

impl<'a> Placements<'a> {
    pub(super) fn new(
        observed: &'a Observed,
        nodes: &'a BTreeMap<&'a NodeName, u32>,
        desired: &Desired,
        changes: Option<&[Change<'_>]>,
        now: Duration,
    ) -> Result<Self, PlanError> {
        let local = &desired.local;
        let newer = observed.newest_generation.checked_add(1).ok_or(PlanError::GenerationsExhausted)?;
        Ok(Self {
            observed,
            nodes,
            local: nodes.get(local).copied(),
            settled: Some(&observed.settled).filter(|settled| settled.is_of(local, nodes)),
            now,
            generation: observed.config.next_generation.max(newer),
            vacancies: observed.backends.vacancies(now),
            room: None,
            by_set: BTreeMap::new(),
            by_members: BTreeMap::new(),
            new_indices: BTreeMap::new(),
            new_backends: BTreeMap::new(),
            tables: Vec::new(),
            wants: BTreeMap::new(),
            scope: changes.map(|changes| observed.settled.without(changes, desired)),
        })
    }

    /// The generation of everything that is new in this plan. One is enough: an index is given out once in a plan.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// The tables of a set, with all backends in them.
    pub(super) fn place(&mut self, set: &Set) -> Result<Placement, Shortage> {
        if let Some(placement) = self.by_set.get(&pointer(set)) {
            return *placement;
        }
        let observed = self.observed;
        let placement = match self.settled.and_then(|settled| settled.known(set, observed)) {
            Some(known) => match known.placement(observed) {
                Some(placement) => {
                    self.want_all(known.resolution());
                    Ok(placement)
                }
                None => self.commit(known.resolution(), BTreeMap::new()),
            },
            None => self.place_new(set),
        };
        self.by_set.insert(pointer(set), placement);
        placement
    }

    fn place_new(&mut self, set: &Set) -> Result<Placement, Shortage> {
        let mark = self.vacancies.mark();
        let placement = self.resolve(set).and_then(|(resolution, new)| self.commit(&resolution, new));
        if placement.is_err() {
            self.vacancies.reset(mark);
        }
        placement
    }

    /// Leaves alone what a service revision refers to that could not be replaced.
    pub(super) fn keep(&mut self, value: &abi::ServiceValue) {
        let observed = self.observed;
        for &index in ranges(value).flat_map(|range| observed.tables.members(range)) {
            self.want(index).kept = true;
        }
    }

    fn want_all(&mut self, resolution: &Resolution) {
        for &index in resolution.ready() {
            self.want(index).ready = true;
        }
        for &index in &*resolution.draining {
            self.want(index).draining = true;
        }
        for &index in &*resolution.failing {
            self.want(index).failing = true;
        }
    }

    fn want(&mut self, index: u32) -> &mut Want {
        self.wants.entry(index).or_default()
    }

    /// The indices of a set's endpoints, and which of them are new.
    fn resolve(&mut self, set: &Set) -> Result<(Resolution, BTreeMap<Identity, u32>), Shortage> {
        let observed = self.observed;
        let nodes = self.nodes;
        let mut roles = Roles::new(set, self.local, |name| nodes.get(name).copied());
        let (new, indices) = loop {
            let new: BTreeSet<_> = roles.indexed().filter(|identity| self.index(identity).is_none()).collect();
            let shortage = |free| {
                let needed = u32::try_from(new.len()).unwrap_or(u32::MAX);
                Shortage { map: CapacityMap::Backends, capacity: observed.backends.capacity(), free, needed }
            };
            match self.vacancies.take_all(new.len()).map_err(shortage) {
                Ok(indices) => break (new, indices),
                Err(_) if roles.drop_spare() => {}
                Err(shortage) => return Err(shortage),
            }
        };
        let new: BTreeMap<_, _> = new.into_iter().zip(indices).collect();
        let resolution = roles.resolve(|identity| self.index(identity).or_else(|| new.get(identity).copied()));
        Ok((resolution, new))
    }

    fn index(&self, identity: &Identity) -> Option<u32> {
        self.observed.backend_indices.get(identity).or_else(|| self.new_indices.get(identity)).copied()
    }

    fn commit(&mut self, resolution: &Resolution, new: BTreeMap<Identity, u32>) -> Result<Placement, Shortage> {
        let mut missing: Vec<_> = [&resolution.all, &resolution.local].into_iter().collect();
        missing.retain(|members| self.table(members).is_none());
        missing.dedup();
        let ranges = match self.make_room(&missing) {
            Err(_) if resolution.spare => return self.commit(&resolution.without_spare(), new),
            ranges => ranges?,
        };
        for (identity, index) in new {
            self.add_backend(identity, index);
        }
        for (members, range) in missing.into_iter().zip(ranges) {
            let endpoints = members.iter().filter_map(|&index| Some((self.endpoint(index)?, index)));
            let table = hashing::table(endpoints);
            self.tables.push(Step::Table(range.offset, table.into()));
            self.by_members.insert(Arc::clone(members), range);
        }
        self.want_all(resolution);
        let range = |members| self.table(members).unwrap_or_default();
        Ok(Placement { all: range(&resolution.all), local: range(&resolution.local), spare: resolution.spare })
    }

    fn table(&self, members: &Members) -> Option<Range> {
        self.observed.tables.find(members).or_else(|| self.by_members.get(members).copied())
    }

    fn make_room(&mut self, tables: &[&Members]) -> Result<Vec<Range>, Shortage> {
        if tables.is_empty() {
            return Ok(Vec::new());
        }
        let lengths: Vec<_> = tables.iter().map(|members| hashing::length(members.len())).collect();
        self.room.get_or_insert_with(|| self.observed.tables.room(self.now)).take_all(&lengths)
    }

    fn add_backend(&mut self, identity: Identity, index: u32) {
        let (address, port, node) = identity;
        // Its flags tell what it is wanted for, which is known in the end.
        let backend = abi::Backend { address, port, flags: 0, node, generation: self.generation, reserved: 0 };
        self.new_indices.insert(identity, index);
        self.new_backends.insert(index, backend);
    }

    fn endpoint(&self, index: u32) -> Option<Endpoint> {
        let backend = self.observed.backends.get(index).or_else(|| self.new_backends.get(&index))?;
        Some(Endpoint::new(backend.address, backend.port))
    }

    fn flags(&self, ready: bool, failing: bool, node: u32) -> u16 {
        let flag = |is: bool, flag: u16| if is { flag } else { 0 };
        flag(ready, abi::BACKEND_READY)
            | flag(failing, abi::BACKEND_FAILING)
            | flag(self.local == Some(node), abi::BACKEND_LOCAL)
    }

    /// The steps for `BACKENDS` and `TABLES`, once everything has its place.
    pub(super) fn finish(mut self) -> Backends {
        let arrival = |(index, backend): (&u32, &abi::Backend)| {
            let Want { ready, failing, .. } = self.wants.get(index).copied().unwrap_or_default();
            Step::Backend(*index, abi::Backend { flags: self.flags(ready, failing, backend.node), ..*backend })
        };
        let mut backends = Backends {
            arrivals: self.new_backends.iter().map(arrival).collect(),
            tables: std::mem::take(&mut self.tables),
            drained: Vec::new(),
            departures: Vec::new(),
            // Nothing is left of nodes that are not there any more, since what was settled.
            nodes: self.scope.is_none().then(BTreeSet::new),
            unsettled: BTreeSet::new(),
            generation: (!self.new_backends.is_empty()).then_some(self.generation),
        };
        for (index, entry, want) in self.judged() {
            if want == Want::default() {
                backends.departures.push(Step::Backend(index, abi::Backend::default()));
                backends.unsettled.extend(is_vouched_for(entry.flags).then_some(entry.node));
                continue;
            }
            if let Some(nodes) = &mut backends.nodes {
                nodes.insert(entry.node);
            }
            let ready = want.ready || (want.kept && entry.flags & abi::BACKEND_READY != 0);
            let failing = want.failing || (want.kept && entry.flags & abi::BACKEND_FAILING != 0);
            let flags = self.flags(ready, failing, entry.node);
            if flags != entry.flags {
                let stage = if ready { &mut backends.arrivals } else { &mut backends.drained };
                stage.push(Step::Backend(index, abi::Backend { flags, ..*entry }));
                let unsettled = is_vouched_for(entry.flags) && !is_vouched_for(flags);
                backends.unsettled.extend(unsettled.then_some(entry.node));
            }
        }
        backends
    }

    /// The backends that there are and that it is about, ascending, and what each is wanted for.
    fn judged(&self) -> Vec<(u32, &'a abi::Backend, Want)> {
        let observed = self.observed;
        let want = |index: u32| self.wants.get(&index).copied().unwrap_or_default();
        let Some(scope) = &self.scope else {
            return observed.backends.iter().map(|(index, entry)| (index, entry, want(index))).collect();
        };
        let indices: BTreeSet<u32> = scope.keys().chain(self.wants.keys()).copied().collect();
        let judged = indices.into_iter().filter_map(|index| {
            let others = scope.get(&index).copied().unwrap_or_else(|| observed.settled.uses(index));
            let Want { ready, draining, failing, kept } = want(index);
            let want = Want {
                ready: ready || others.ready > 0,
                draining: draining || others.draining > 0,
                failing: failing || others.failing > 0,
                kept,
            };
            Some((index, observed.backends.get(index)?, want))
        });
        judged.collect()
    }
}

/// Whether flow records get an epoch for a backend with these flags ([`abi::FlowValue::epoch`]).
fn is_vouched_for(flags: u16) -> bool {
    flags & (abi::BACKEND_READY | abi::BACKEND_LOCAL) == abi::BACKEND_READY
}

/// The steps for `BACKENDS` and `TABLES`.
pub(super) struct Backends {
    /// New ones, and those that take new flows again.
    pub(super) arrivals: Vec<Step>,
    pub(super) tables: Vec<Step>,
    /// Those that take no new flows any more.
    pub(super) drained: Vec<Step>,
    pub(super) departures: Vec<Step>,
    /// The nodes of those that stay, if all were looked at; otherwise no node goes.
    pub(super) nodes: Option<BTreeSet<u32>>,
    /// The nodes of those that flow records' epochs vouch for, and shall not any more.
    pub(super) unsettled: BTreeSet<u32>,
    /// The generation of the new ones, if there are any.
    pub(super) generation: Option<u32>,
}
