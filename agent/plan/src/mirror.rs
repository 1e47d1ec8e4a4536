//! Mirrors the kernel's maps, as the agent last read or wrote them.

use std::{collections::BTreeMap, time::Duration};

use vipmux_common::abi::{self, Mac, capacity};

use crate::{
    arena::{self, Arena, TableMembers, TableRange, tables_of},
    capacity::Capacities,
    endpoints::{BackendKey, backend_key},
    entries::MapEntries,
    index_pool::IndexPool,
    sources::{self, SetId, SourceSets},
    step::Step,
};
use vipmux_model::{
    NodeName, PortClaim, ServiceName,
    hashing::{self, Endpoint, Hashing},
};

/// `SERVICE_STATES` and `SERVICE_NAMES` at one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) state: abi::ServiceState,
    pub(super) name: Option<ServiceName>,
    /// The number of entries of `SERVICES` that refer to it.
    pub(super) users: u32,
}

/// `NODES` and `NODE_NAMES` at one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeEntry {
    pub(super) node: abi::Node,
    pub(super) name: Option<String>,
}

/// Returns a claim's key in `SERVICES`.
pub(super) fn service_key(vip: u32, claim: &PortClaim) -> abi::ServiceKey {
    let (port, protocol) = (u16::from(claim.port).to_be(), claim.protocol.number());
    abi::ServiceKey { vip, port, protocol, padding: 0 }
}

/// The maps as the agent last read or wrote them.
#[derive(Clone, Debug)]
pub(super) struct MapMirror {
    pub(super) capacities: Capacities,
    pub(super) config: abi::Config,
    pub(super) vips: BTreeMap<abi::Address, abi::VipValue>,
    pub(super) services: BTreeMap<abi::ServiceKey, abi::ServiceValue>,
    pub(super) slots: IndexPool<Slot>,
    pub(super) backends: IndexPool<abi::Backend>,
    pub(super) backend_indices: BTreeMap<BackendKey, u32>,
    pub(super) tables: Arena,
    pub(super) nodes: IndexPool<NodeEntry>,
    /// The elements of `NODES` for segments.
    pub(super) paths: BTreeMap<u32, abi::Node>,
    pub(super) node_indices: BTreeMap<String, u32>,
    pub(super) peers: BTreeMap<Mac, u32>,
    pub(super) sources: SourceSets,
    /// The highest generation or epoch ever seen in these maps.
    pub(super) newest_generation: u32,
}

impl MapMirror {
    /// Returns a node's index in `NODES`.
    pub(super) fn node_index(&self, name: &NodeName) -> Option<u32> {
        self.node_indices.get(name.as_str()).copied()
    }

    /// Returns a claim's key, if its VIP has an id.
    pub(super) fn service_key(&self, claim: &PortClaim) -> Option<abi::ServiceKey> {
        let vip = self.vips.get(&claim.vip.address().into())?.id;
        Some(service_key(vip, claim))
    }

    /// Returns a claim's entry in `SERVICES`.
    pub(super) fn service(&self, claim: &PortClaim) -> Option<&abi::ServiceValue> {
        self.services.get(&self.service_key(claim)?)
    }

    /// Returns an element of `NODES`.
    pub(super) fn node_element(&self, element: u32) -> abi::Node {
        let node = || self.nodes.get(element).map(|entry| entry.node);
        self.paths.get(&element).copied().or_else(node).unwrap_or_default()
    }

    /// Returns the elements of `NODES` that a node has, the one for its InternalIP first.
    pub(super) fn node_elements(&self, index: u32) -> impl Iterator<Item = (u32, abi::Node)> {
        let segments = if self.paths.is_empty() || index >= capacity::PATH_NODES { 1 } else { capacity::SEGMENTS };
        let element = move |segment| abi::node_element(segment << abi::VIP_SEGMENT_SHIFT, index);
        let elements = (0..segments).map(element).map(|element| (element, self.node_element(element)));
        elements.filter(|(_, node)| *node != abi::Node::default())
    }

    /// Returns the mirror of new maps, of which only `CONFIG` has been written.
    pub(super) fn empty(capacities: Capacities, config: abi::Config) -> Self {
        Self {
            capacities,
            config,
            vips: BTreeMap::new(),
            services: BTreeMap::new(),
            slots: IndexPool::new(capacities.services),
            backends: IndexPool::new(capacities.backends),
            backend_indices: BTreeMap::new(),
            tables: Arena::new(capacities.tables),
            nodes: IndexPool::new(capacities.nodes),
            paths: BTreeMap::new(),
            node_indices: BTreeMap::new(),
            peers: BTreeMap::new(),
            sources: SourceSets::default(),
            newest_generation: 0,
        }
    }

    /// Returns the mirror of maps that another agent left behind. Plans repair them, whatever they
    /// hold.
    pub(super) fn from_entries(capacities: Capacities, entries: MapEntries) -> Self {
        let start = Duration::ZERO;
        let mut mirror = Self::empty(capacities, entries.config);
        mirror.vips = entries.vips;
        mirror.peers = entries.peers;
        for (index, node) in entries.nodes {
            mirror.set_node(index, node, start);
        }
        for (index, name) in entries.node_names {
            mirror.rename_node(index, Some(name), start);
        }
        for (index, backend) in entries.backends {
            mirror.set_backend(index, backend, start);
        }
        for key in entries.source_ranges {
            mirror.set_source_range(&key, true, start);
        }
        for (index, state) in entries.service_states {
            mirror.set_service_state(index, state, start);
        }
        for (index, name) in entries.service_names {
            mirror.slots.edit(index, start, |slot| slot.name = Some(name));
        }
        for ((offset, length), table) in entries.tables {
            let members = arena::members(&table);
            let sound = mirror.is_sound(&members, &table);
            mirror.tables.insert(TableRange { offset, length }, members, sound, start);
            mirror.tables.seal(TableRange { offset, length }, hashing::digest(&table));
        }
        for (key, value) in entries.services {
            mirror.set_service(key, Some(value), start);
        }
        mirror
    }

    /// Records that a step was executed at the monotonic time `now`.
    pub(super) fn record(&mut self, step: &Step, now: Duration) {
        match step {
            Step::Config(config) => self.config = *config,
            Step::NodeName(index, name) => self.rename_node(*index, name.clone(), now),
            Step::Node(index, node) => self.set_node(*index, *node, now),
            Step::Peer(mac, index) => put(&mut self.peers, *mac, *index),
            Step::Backend(index, backend) => self.set_backend(*index, *backend, now),
            Step::Table(offset, table) => {
                let length = u32::try_from(table.len()).unwrap_or(u32::MAX);
                let range = TableRange { offset: *offset, length };
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

    fn rename_node(&mut self, index: u32, name: Option<String>, now: Duration) {
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
        if index >= capacity::NODES {
            return put(&mut self.paths, index, (node != abi::Node::default()).then_some(node));
        }
        self.nodes.edit(index, now, |entry| entry.node = node);
    }

    fn set_backend(&mut self, index: u32, backend: abi::Backend, now: Duration) {
        if let Some(old) = self.backends.get(index).map(backend_key)
            && self.backend_indices.get(&old) == Some(&index)
        {
            self.backend_indices.remove(&old);
        }
        if backend.generation != 0 {
            self.backend_indices.entry(backend_key(&backend)).or_insert(index);
        }
        self.newest_generation = self.newest_generation.max(backend.generation);
        self.backends.edit(index, now, |entry| *entry = backend);
    }

    fn set_source_range(&mut self, key: &sources::SourceKey, present: bool, now: Duration) {
        self.newest_generation = self.newest_generation.max(key.1.set);
        self.sources.record(key, present, now);
    }

    fn set_service_state(&mut self, index: u32, state: abi::ServiceState, now: Duration) {
        if index >= self.slots.capacity() {
            return;
        }
        self.newest_generation = self.newest_generation.max(state.generation).max(state.ranges);
        // Acquire for the new one first: an item that both refer to must not start to rest in
        // between.
        let old = self.slots.get(index).and_then(|slot| SetId::new(slot.state.ranges));
        if let Some(new) = SetId::new(state.ranges) {
            self.sources.acquire(new);
        }
        if let Some(old) = old {
            self.sources.release(old, now);
        }
        self.slots.edit(index, now, |slot| slot.state = state);
    }

    fn set_service(&mut self, key: abi::ServiceKey, value: Option<abi::ServiceValue>, now: Duration) {
        // Acquire for the new one first: an item that both refer to must not start to rest in
        // between.
        if let Some(new) = &value {
            self.slots.edit(new.slot, now, |slot| slot.users += 1);
            tables_of(new).for_each(|range| self.tables.acquire(range));
        }
        let old = self.services.get(&key).copied();
        put(&mut self.services, key, value);
        if let Some(old) = &old {
            self.slots.edit(old.slot, now, |slot| slot.users = slot.users.saturating_sub(1));
            tables_of(old).for_each(|range| self.tables.release(range, now));
        }
    }

    /// Whether a hashing builds this table from these backends.
    fn is_sound(&self, members: &TableMembers, table: &[u32]) -> bool {
        let has_length = |hashing: &Hashing| hashing.length(members.len()) as usize == table.len();
        let hashing = Hashing::ALL.into_iter().find(has_length);
        hashing.and_then(|hashing| self.table(members, hashing)).is_some_and(|built| built == table)
    }

    /// Returns the table of these backends; `None` if one of them does not exist.
    fn table(&self, members: &TableMembers, hashing: Hashing) -> Option<Vec<u32>> {
        let endpoint = |&index: &u32| {
            let backend = self.backends.get(index).filter(|backend| backend.generation != 0)?;
            Some((Endpoint::new(backend.address, backend.port), index))
        };
        let endpoints: Option<Vec<_>> = members.iter().map(endpoint).collect();
        Some(hashing.table(endpoints?))
    }
}

/// Sets or removes an entry.
pub(super) fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
