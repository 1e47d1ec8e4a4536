//! The mirror of the kernel's maps.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use vipmux_common::abi::{self, Mac, capacity};

use crate::{
    hashing::{self, Endpoint},
    model::{NodeName, ServiceName},
    plan::{
        Desired, Plan, Step,
        arena::{self, Arena, Members, Range},
        endpoints::{Identity, identity},
        pool::Pool,
        settled::Settled,
        sources::{self, Sets},
    },
};

/// How many entries each map has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// `VIPS`.
    pub vips: u32,
    /// `SERVICES`, `SERVICE_STATES` and `SERVICE_NAMES`.
    pub services: u32,
    /// `TABLES`, slots.
    pub tables: u32,
    /// `BACKENDS`.
    pub backends: u32,
    /// `NODES` and `NODE_NAMES`.
    pub nodes: u32,
    /// `PEERS`.
    pub peers: u32,
    /// `SOURCE_RANGES`.
    pub source_ranges: u32,
}

impl Default for Capacities {
    /// As the BPF object has them ([`abi::capacity`]).
    fn default() -> Self {
        Self {
            vips: capacity::VIPS,
            services: capacity::SERVICES,
            tables: capacity::TABLES,
            backends: capacity::BACKENDS,
            nodes: capacity::NODES,
            peers: capacity::PEERS,
            source_ranges: capacity::SOURCE_RANGES,
        }
    }
}

/// What was read from the kernel's maps. Of the arrays, entries that are all zero may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// `CONFIG[0]`.
    pub config: abi::Config,
    /// `VIPS`.
    pub vips: BTreeMap<abi::Address, abi::VipValue>,
    /// `SERVICES`.
    pub services: BTreeMap<abi::ServiceKey, abi::ServiceValue>,
    /// `SERVICE_STATES`.
    pub service_states: BTreeMap<u32, abi::ServiceState>,
    /// `SERVICE_NAMES`.
    pub service_names: BTreeMap<u32, ServiceName>,
    /// `BACKENDS`.
    pub backends: BTreeMap<u32, abi::Backend>,
    /// `TABLES`: what the ranges of [`Entries::table_ranges`] hold, by offset and length.
    pub tables: BTreeMap<(u32, u32), Vec<u32>>,
    /// `NODES`.
    pub nodes: BTreeMap<u32, abi::Node>,
    /// `NODE_NAMES`.
    pub node_names: BTreeMap<u32, NodeName>,
    /// `PEERS`.
    pub peers: BTreeMap<Mac, u32>,
    /// The keys of `SOURCE_RANGES`: how many bits count, and the bits.
    pub source_ranges: BTreeSet<(u32, abi::Range)>,
}

impl Entries {
    /// Which ranges (offset and length) of `TABLES` to read: those that [`Self::services`] refers to.
    pub fn table_ranges(&self) -> BTreeSet<(u32, u32)> {
        let ranges = self.services.values().flat_map(ranges).filter(|range| range.length > 0);
        ranges.map(|range| (range.offset, range.length)).collect()
    }
}

/// `SERVICE_STATES` and `SERVICE_NAMES` at one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) state: abi::ServiceState,
    pub(super) name: Option<ServiceName>,
    /// Entries of `SERVICES` that refer to it.
    pub(super) users: u32,
}

/// `NODES` and `NODE_NAMES` at one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeEntry {
    pub(super) node: abi::Node,
    pub(super) name: Option<NodeName>,
}

/// The maps as the agent last read or wrote them.
#[derive(Clone, Debug)]
pub struct Observed {
    pub(super) capacities: Capacities,
    pub(super) config: abi::Config,
    pub(super) vips: BTreeMap<abi::Address, abi::VipValue>,
    pub(super) services: BTreeMap<abi::ServiceKey, abi::ServiceValue>,
    pub(super) slots: Pool<Slot>,
    pub(super) backends: Pool<abi::Backend>,
    pub(super) backend_indices: BTreeMap<Identity, u32>,
    pub(super) tables: Arena,
    pub(super) nodes: Pool<NodeEntry>,
    pub(super) node_indices: BTreeMap<NodeName, u32>,
    pub(super) peers: BTreeMap<Mac, u32>,
    pub(super) sources: Sets,
    /// The highest generation or epoch ever seen here.
    pub(super) newest_generation: u32,
    pub(super) settled: Settled,
    /// Steps since it was settled; without those that change a VIP, of which plans look at every one.
    recorded: usize,
}

impl Observed {
    /// Of each map: its name, entries in use, and how many it has room for.
    pub fn fill(&self) -> [(&'static str, usize, usize); 7] {
        let Capacities { vips, services, tables, backends, nodes, peers, source_ranges } = self.capacities;
        let maps = [
            ("VIPS", self.vips.len(), vips),
            ("SERVICES", self.services.len(), services),
            ("TABLES", self.tables.covered() as usize, tables),
            ("BACKENDS", self.backends.taken(), backends),
            ("NODES", self.nodes.taken(), nodes),
            ("PEERS", self.peers.len(), peers),
            ("SOURCE_RANGES", self.sources.len(), source_ranges),
        ];
        maps.map(|(map, used, capacity)| (map, used, capacity as usize))
    }

    /// The mirror of new maps, of which only `CONFIG` has been written.
    pub fn empty(capacities: Capacities, config: abi::Config) -> Self {
        Self {
            capacities,
            config,
            vips: BTreeMap::new(),
            services: BTreeMap::new(),
            slots: Pool::new(capacities.services),
            backends: Pool::new(capacities.backends),
            backend_indices: BTreeMap::new(),
            tables: Arena::new(capacities.tables),
            nodes: Pool::new(capacities.nodes),
            node_indices: BTreeMap::new(),
            peers: BTreeMap::new(),
            sources: Sets::default(),
            newest_generation: 0,
            settled: Settled::default(),
            recorded: 0,
        }
    }

    /// The mirror of maps that another agent left behind. Whatever they hold, plans from here repair it.
    pub fn from_entries(capacities: Capacities, entries: Entries) -> Self {
        let start = Duration::ZERO;
        let mut observed = Self::empty(capacities, entries.config);
        observed.vips = entries.vips;
        observed.peers = entries.peers;
        for (index, node) in entries.nodes {
            observed.set_node(index, node, start);
        }
        for (index, name) in entries.node_names {
            observed.rename_node(index, Some(name), start);
        }
        for (index, backend) in entries.backends {
            observed.set_backend(index, backend, start);
        }
        for key in entries.source_ranges {
            observed.set_source_range(&key, true, start);
        }
        for (index, state) in entries.service_states {
            observed.set_service_state(index, state, start);
        }
        for (index, name) in entries.service_names {
            observed.slots.edit(index, start, |slot| slot.name = Some(name));
        }
        for ((offset, length), table) in entries.tables {
            let members = arena::members(&table);
            let sound = observed.table(&members).as_ref() == Some(&table);
            observed.tables.insert(Range { offset, length }, members, sound, start);
            observed.tables.seal(Range { offset, length }, hashing::digest(&table));
        }
        for (key, value) in entries.services {
            observed.set_service(key, Some(value), start);
        }
        observed
    }

    /// Tells the mirror that a step has been executed, at the monotonic time `now`: not before the time of its plan.
    pub fn record(&mut self, step: &Step, now: Duration) {
        self.recorded += usize::from(step.counts());
        match step {
            Step::Config(config) => self.config = *config,
            Step::NodeName(index, name) => self.rename_node(*index, name.clone(), now),
            Step::Node(index, node) => self.set_node(*index, *node, now),
            Step::Peer(mac, index) => put(&mut self.peers, *mac, *index),
            Step::Backend(index, backend) => self.set_backend(*index, *backend, now),
            Step::Table(offset, table) => {
                let length = u32::try_from(table.len()).unwrap_or(u32::MAX);
                let range = Range { offset: *offset, length };
                self.tables.insert(range, arena::members(table), true, now);
                self.tables.seal(range, hashing::digest(table));
            }
            Step::ServiceName(index, name) => self.slots.edit(*index, now, |slot| slot.name.clone_from(name)),
            Step::ServiceState(index, state) => self.set_service_state(*index, *state, now),
            Step::Service(key, value) => self.set_service(*key, *value, now),
            Step::SourceRange(key, present) => self.set_source_range(key, *present, now),
            Step::Vip(address, value) => put(&mut self.vips, *address, *value),
        }
    }

    /// Frees memory: forgets ranges that have rested at `now`. To be called between plans, never while one is executed.
    pub fn forget_rested(&mut self, now: Duration) {
        self.tables.forget_rested(now);
    }

    /// Tells the mirror what `VIPS` holds now for an address: a program may have cleared [`abi::VIP_LEADING`] and set
    /// [`abi::VIP_YIELDED`]. The next plan writes what is desired, so change that first if the yielding is to stand.
    /// A VIP that the mirror does not have is gone from the kernel too: nothing happens.
    pub fn refresh_vip(&mut self, address: abi::Address, value: abi::VipValue) {
        if let Some(known) = self.vips.get_mut(&address) {
            *known = value;
        }
    }

    /// Tells the mirror that all steps of `plan`, for `desired`, have been executed, and refused it nothing. Not needed for
    /// plans to be right, but the next one then costs what differs from this desired state.
    pub fn settle(&mut self, desired: &Desired, plan: &Plan) {
        let exact = self.recorded == plan.steps.iter().filter(|step| step.counts()).count();
        let mut settled = mem::take(&mut self.settled);
        settled.advance(desired, plan, self, exact);
        self.settled = settled;
        self.recorded = 0;
    }

    /// What was settled holds no more: something else than a plan's steps was done.
    pub(super) fn unsettle(&mut self) {
        self.settled = Settled::default();
    }

    /// Whether nothing was done since it was [settled](Self::settle).
    pub(super) fn is_settled(&self) -> bool {
        self.recorded == 0
    }

    /// Whether something is left that packets in flight may still need: plan again after [`REST`](super::REST), and it is
    /// removed.
    pub fn has_leftovers(&self) -> bool {
        self.sources.has_leftovers()
    }

    /// Whether another node has this MAC.
    pub fn is_peer(&self, mac: Mac) -> bool {
        self.peers.contains_key(&mac)
    }

    /// `VIPS`, by address.
    pub fn vips(&self) -> &BTreeMap<abi::Address, abi::VipValue> {
        &self.vips
    }

    /// A node's index in `NODES`.
    pub fn node_index(&self, name: &NodeName) -> Option<u32> {
        self.node_indices.get(name).copied()
    }

    /// `NODES`, by name.
    pub fn node(&self, name: &NodeName) -> Option<&abi::Node> {
        Some(&self.nodes.get(*self.node_indices.get(name)?)?.node)
    }

    /// `CONFIG[0]`.
    pub fn config(&self) -> &abi::Config {
        &self.config
    }

    fn rename_node(&mut self, index: u32, name: Option<NodeName>, now: Duration) {
        if let Some(old) = self.nodes.get(index).and_then(|entry| entry.name.as_ref())
            && self.node_indices.get(old) == Some(&index)
        {
            self.node_indices.remove(old);
        }
        if let Some(name) = &name {
            self.node_indices.entry(name.clone()).or_insert(index);
        }
        self.nodes.edit(index, now, |entry| entry.name = name);
    }

    fn set_node(&mut self, index: u32, node: abi::Node, now: Duration) {
        self.newest_generation = self.newest_generation.max(node.epoch);
        self.nodes.edit(index, now, |entry| entry.node = node);
    }

    fn set_backend(&mut self, index: u32, backend: abi::Backend, now: Duration) {
        if let Some(old) = self.backends.get(index).map(identity)
            && self.backend_indices.get(&old) == Some(&index)
        {
            self.backend_indices.remove(&old);
        }
        if backend.generation != 0 {
            self.backend_indices.entry(identity(&backend)).or_insert(index);
        }
        self.newest_generation = self.newest_generation.max(backend.generation);
        self.backends.edit(index, now, |entry| *entry = backend);
    }

    fn set_source_range(&mut self, key: &sources::Key, present: bool, now: Duration) {
        self.newest_generation = self.newest_generation.max(key.1.set);
        self.sources.record(key, present, now);
    }

    fn set_service_state(&mut self, index: u32, state: abi::ServiceState, now: Duration) {
        if index >= self.slots.capacity() {
            return;
        }
        self.newest_generation = self.newest_generation.max(state.generation).max(state.ranges);
        // First the new one's: what both refer to must not come to rest in between.
        let old = self.slots.get(index).map_or(0, |slot| slot.state.ranges);
        self.sources.acquire(state.ranges);
        self.sources.release(old, now);
        self.slots.edit(index, now, |slot| slot.state = state);
    }

    fn set_service(&mut self, key: abi::ServiceKey, value: Option<abi::ServiceValue>, now: Duration) {
        // First the new one's: what both refer to must not come to rest in between.
        if let Some(new) = &value {
            self.slots.edit(new.slot, now, |slot| slot.users += 1);
            ranges(new).for_each(|range| self.tables.acquire(range));
        }
        let old = self.services.get(&key).copied();
        put(&mut self.services, key, value);
        if let Some(old) = &old {
            self.slots.edit(old.slot, now, |slot| slot.users = slot.users.saturating_sub(1));
            ranges(old).for_each(|range| self.tables.release(range, now));
        }
    }

    /// The table that these backends have; `None` if one of them is not there.
    fn table(&self, members: &Members) -> Option<Vec<u32>> {
        let endpoint = |&index: &u32| {
            let backend = self.backends.get(index).filter(|backend| backend.generation != 0)?;
            Some((Endpoint::new(backend.address, backend.port), index))
        };
        let endpoints: Option<Vec<_>> = members.iter().map(endpoint).collect();
        Some(hashing::table(endpoints?))
    }
}

/// The tables of a service revision: over all backends, and over this node's own.
pub(super) fn ranges(value: &abi::ServiceValue) -> impl Iterator<Item = Range> + use<> {
    let all = Range { offset: value.table, length: value.table_length };
    let local = Range { offset: value.local_table, length: value.local_length };
    [all, local].into_iter()
}

pub(super) fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
