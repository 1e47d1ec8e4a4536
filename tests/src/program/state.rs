//! The content of the programs' maps, as plain values.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use aya::{
    Ebpf, Pod,
    maps::{
        Array, HashMap, Map, MapError,
        lpm_trie::{Key, LpmTrie},
    },
};
use vipmux_common::{
    abi::{
        Address, AffinityKey, AffinityValue, Backend, Budget, Config, EgressFragmentValue, Fence, FlowKey, FlowRecord,
        FlowSecret, FlowSet, FragmentKey, FragmentValue, Interface, Mac, Node, NodeLabel, Range, ServiceKey,
        ServiceState, ServiceValue, Speaker, SpeakerKey, VIP_SEGMENT_SHIFT, VipValue, WAYS, capacity, node_element,
    },
    budget,
    flow_table::{LOCK_WAY, OVERFLOW_WAY, Place, RESERVE_EPOCH, RESERVE_WAY, overflow, reserve_set},
    service_index::IndexedService,
    table,
};
use vipmux_datapath::bpf::{
    flow_table,
    maps::{backend_indices, name_in_object},
    service_index,
};

/// The time, in jiffies, at which a state is installed. A record that was used `n` jiffies earlier
/// has `NOW - n`. A record that a CPU with a later time wrote has `NOW + n`. A record that the
/// programs update is read as `NOW`.
pub const NOW: u64 = 1 << 62;

/// [`NOW`] for records that have only the low half of the clock.
pub const NOW_LOW: u32 = 1 << 30;

/// The secret of the flow table in tests.
pub const FLOW_SECRET: FlowSecret = FlowSecret {
    sum: 0x0123_4567_89ab_cdef,
    client: [0xa5a5_1234_9876_5431, 0x1337_8642_9753_fdb1, 0x9999_8888_7777_6661, 0x2bd4_1f7c_55aa_c3e1],
    port: 0x7f3a_91c4_d20b_8e65,
};

/// The contents of all maps except counters and maps that no program reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// `CONFIG[0]`; the time in it is relative to [`NOW_LOW`].
    pub config: Config,
    /// `FENCE[0]`.
    pub fence: Fence,
    /// `INTERFACES`.
    pub interfaces: Vec<Interface>,
    /// `VIPS`.
    pub vips: BTreeMap<Address, VipValue>,
    /// `SERVICES`.
    pub services: BTreeMap<ServiceKey, ServiceValue>,
    /// `SERVICE_INDEX`.
    pub service_index: BTreeMap<u32, IndexedService>,
    /// `SERVICE_STATES`. `SERVICE_STATS` has as many slots.
    pub service_states: Vec<ServiceState>,
    /// `TABLES`.
    pub tables: Vec<u32>,
    /// `BACKENDS`.
    pub backends: Vec<Backend>,
    /// `NODES`: the part for InternalIPs.
    pub nodes: Vec<Node>,
    /// The other parts of `NODES`, by [`path`]. If there are none, the map has no room for any.
    pub paths: BTreeMap<u32, Node>,
    /// `PEERS`.
    pub peers: BTreeMap<Mac, u32>,
    /// The records of `FLOWS`; times are relative to [`NOW_LOW`]. [`FlowRecord::check`] is zero; if
    /// it is not, the record is written with a wrong check.
    pub flows: BTreeMap<FlowKey, FlowRecord>,
    /// `FRAGMENTS`; times are relative to [`NOW`].
    pub fragments: BTreeMap<FragmentKey, FragmentValue>,
    /// `EGRESS_FRAGMENTS`; times are relative to [`NOW`].
    pub egress_fragments: BTreeMap<FragmentKey, EgressFragmentValue>,
    /// `AFFINITY`; times are relative to [`NOW`].
    pub affinity: BTreeMap<AffinityKey, AffinityValue>,
    /// `SPEAKERS`; times are 1, or 0 for never.
    pub speakers: BTreeMap<SpeakerKey, Speaker>,
    /// `SOURCE_RANGES`: the number of significant bits and the prefix.
    pub source_ranges: BTreeSet<(u32, Range)>,
}

impl State {
    /// Gives Services their copies in the index, as an agent does. Elements in use stay.
    #[must_use]
    pub fn indexed(mut self) -> Self {
        for (index, copy) in service_index::elements(&self.services) {
            self.service_index.entry(index).or_insert(copy);
        }
        self
    }

    /// Returns the number of entries of each map, for the loader.
    pub(super) fn capacities(&self, flows: u32) -> Result<Vec<(&'static str, u32)>> {
        let slots = self.service_states.len();
        let nodes = if self.paths.is_empty() { self.nodes.len() } else { capacity::NODE_ELEMENTS as usize };
        let sizes = [
            ("INTERFACES", self.interfaces.len()),
            ("VIPS", self.vips.len() + 8),
            ("SERVICES", self.services.len() + 8),
            ("SERVICE_STATES", slots),
            ("SERVICE_NAMES", slots),
            ("SERVICE_STATS", slots),
            ("TABLES", self.tables.len().div_ceil(2)),
            ("BACKENDS", self.backends.len()),
            ("NODES", nodes),
            ("NODE_NAMES", self.nodes.len()),
            ("PEERS", self.peers.len() + 8),
        ];
        let mut capacities =
            ["FRAGMENTS", "EGRESS_FRAGMENTS", "AFFINITY", "SPEAKERS"].map(|name| (name, flows)).to_vec();
        capacities.push(("FLOWS", flow_table::elements(flows)));
        for (name, entries) in sizes {
            capacities.push((name, u32::try_from(entries)?.max(1)));
        }
        Ok(capacities)
    }
}

/// Converts a time relative to [`NOW`] to the clock that started at `origin`, and back.
fn absolute(origin: u64, relative: u64) -> u64 {
    (origin + relative.saturating_sub(NOW)).saturating_sub(NOW.saturating_sub(relative))
}

fn relative(origin: u64, absolute: u64) -> u64 {
    NOW - origin.saturating_sub(absolute)
}

/// Returns the low half of a time.
fn low(time: u64) -> u32 {
    let [b0, b1, b2, b3, ..] = time.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3])
}

/// Converts the low halves, which may wrap in between.
fn absolute_low(origin: u64, relative: u32) -> u32 {
    low(origin).wrapping_add(relative.wrapping_sub(NOW_LOW))
}

fn relative_low(origin: u64, absolute: u32) -> u32 {
    let age = low(origin).wrapping_sub(absolute).cast_signed();
    NOW_LOW - u32::try_from(age).unwrap_or(0)
}

/// Returns the tables as the map has them, two slots per element.
fn elements(slots: &[u32]) -> Vec<u64> {
    let element = |pair: &[u32]| (0..).zip(pair).fold(0, |element, (slot, index)| table::with(element, slot, *index));
    slots.chunks(table::SLOTS as usize).map(element).collect()
}

fn slots(elements: &[u64]) -> Vec<u32> {
    elements.iter().flat_map(|element| [table::get(*element, 0), table::get(*element, 1)]).collect()
}

pub(super) fn write(ebpf: &mut Ebpf, state: &State, origin: u64) -> Result<()> {
    let sets: Array<_, FlowSet> = map(ebpf, "FLOWS")?.try_into()?;
    let flow_mask = flow_table::mask(sets.len()).context("no flow table")?;
    write_array(
        ebpf,
        "CONFIG",
        &[Config { flow_mask, removed: absolute_low(origin, state.config.removed), ..state.config }],
    )?;
    forget(ebpf)?;
    write_array(ebpf, "FENCE", &[state.fence])?;
    write_array(ebpf, "INTERFACES", &state.interfaces)?;
    write_array(ebpf, "NODES", &state.nodes)?;
    write_paths(ebpf, state)?;
    write_array(ebpf, "BACKENDS", &state.backends)?;
    write_array(ebpf, "TABLES", &elements(&state.tables))?;
    write_array(ebpf, "SERVICE_STATES", &state.service_states)?;
    write_hash(ebpf, "PEERS", state.peers.iter().map(|(key, value)| (*key, *value)))?;
    write_hash(ebpf, "SERVICES", state.services.iter().map(|(key, value)| (*key, *value)))?;
    write_hash(ebpf, "VIPS", state.vips.iter().map(|(key, value)| (*key, *value)))?;
    write_array(ebpf, "LOCAL_PORTS", &backend_indices::local_ports(&state.backends))?;
    write_array(ebpf, "BACKEND_NODES", &backend_indices::nodes(&state.backends))?;
    let flows = state.flows.values();
    write_flows(ebpf, state, flows.map(|flow| FlowRecord { seen: absolute_low(origin, flow.seen), ..*flow }))?;
    let seen = |at| absolute(origin, at);
    let fragments =
        state.fragments.iter().map(|(key, value)| (*key, FragmentValue { seen: seen(value.seen), ..*value }));
    write_hash(ebpf, "FRAGMENTS", fragments)?;
    let fragments = state
        .egress_fragments
        .iter()
        .map(|(key, value)| (*key, EgressFragmentValue { seen: seen(value.seen), ..*value }));
    write_hash(ebpf, "EGRESS_FRAGMENTS", fragments)?;
    let affinity = state.affinity.iter().map(|(key, value)| (*key, AffinityValue { seen: seen(value.seen), ..*value }));
    write_hash(ebpf, "AFFINITY", affinity)?;
    write_hash(ebpf, "SPEAKERS", state.speakers.iter().map(|(key, value)| (*key, *value)))?;
    write_ranges(ebpf, &state.source_ranges)
}

pub(super) fn read(ebpf: &Ebpf, origin: u64) -> Result<State> {
    let seen = |at| relative(origin, at);
    let config: Config = first(&read_array(ebpf, "CONFIG")?)?;
    Ok(State {
        config: Config { flow_mask: 0, removed: relative_low(origin, config.removed), ..config },
        fence: Fence { kept_until: 0, abandoned_until: 0, ..first(&read_array(ebpf, "FENCE")?)? },
        interfaces: read_array(ebpf, "INTERFACES")?,
        vips: read_hash(ebpf, "VIPS")?,
        services: read_hash(ebpf, "SERVICES")?,
        service_index: BTreeMap::new(),
        service_states: read_array(ebpf, "SERVICE_STATES")?,
        tables: slots(&read_array(ebpf, "TABLES")?),
        backends: read_array(ebpf, "BACKENDS")?,
        nodes: read_nodes(ebpf)?,
        paths: read_paths(ebpf)?,
        peers: read_hash(ebpf, "PEERS")?,
        flows: read_flows(ebpf)?
            .into_iter()
            .map(|flow| (flow.key(), FlowRecord { seen: relative_low(origin, flow.seen), ..flow }))
            .collect(),
        fragments: read_hash(ebpf, "FRAGMENTS")?
            .into_iter()
            .map(|(key, value): (FragmentKey, FragmentValue)| (key, FragmentValue { seen: seen(value.seen), ..value }))
            .collect(),
        egress_fragments: read_hash(ebpf, "EGRESS_FRAGMENTS")?
            .into_iter()
            .map(|(key, value): (FragmentKey, EgressFragmentValue)| {
                (key, EgressFragmentValue { seen: seen(value.seen), ..value })
            })
            .collect(),
        affinity: read_hash(ebpf, "AFFINITY")?
            .into_iter()
            .map(|(key, value): (AffinityKey, AffinityValue)| (key, AffinityValue { seen: seen(value.seen), ..value }))
            .collect(),
        speakers: read_hash(ebpf, "SPEAKERS")?
            .into_iter()
            .map(|(key, value): (SpeakerKey, Speaker)| {
                (key, Speaker { claimed: value.claimed.min(1), probed: value.probed.min(1), ..value })
            })
            .collect(),
        source_ranges: read_ranges(ebpf)?,
    })
}

/// Returns the index in `NODES` of a node's path for VIPs of a segment.
pub const fn path(node: u32, segment: u32) -> u32 {
    node_element(segment << VIP_SEGMENT_SHIFT, node)
}

/// Returns the indices of all paths that there may be.
fn places(ebpf: &Ebpf) -> Result<impl Iterator<Item = u32>> {
    let nodes: Array<_, Node> = map(ebpf, "NODES")?.try_into()?;
    let names: Array<_, NodeLabel> = map(ebpf, "NODE_NAMES")?.try_into()?;
    let (all, count) = (nodes.len(), names.len());
    let places = (1..capacity::SEGMENTS).flat_map(move |segment| (0..count).map(move |node| path(node, segment)));
    Ok(places.filter(move |place| *place < all))
}

fn write_paths(ebpf: &mut Ebpf, state: &State) -> Result<()> {
    let places: Vec<_> = places(ebpf)?.collect();
    let mut nodes: Array<_, Node> = map_mut(ebpf, "NODES")?.try_into()?;
    let value = |place| state.paths.get(place).copied().unwrap_or_default();
    places.iter().try_for_each(|place| nodes.set(*place, value(place), 0).context("writing NODES"))
}

fn read_nodes(ebpf: &Ebpf) -> Result<Vec<Node>> {
    let nodes: Array<_, Node> = map(ebpf, "NODES")?.try_into()?;
    let names: Array<_, NodeLabel> = map(ebpf, "NODE_NAMES")?.try_into()?;
    Ok((0..names.len()).map(|index| nodes.get(&index, 0)).collect::<Result<_, _>>()?)
}

fn read_paths(ebpf: &Ebpf) -> Result<BTreeMap<u32, Node>> {
    let nodes: Array<_, Node> = map(ebpf, "NODES")?.try_into()?;
    let all = places(ebpf)?.map(|place| Ok((place, nodes.get(&place, 0)?))).collect::<Result<Vec<_>>>()?;
    Ok(all.into_iter().filter(|(_, node)| *node != Node::default()).collect())
}

fn first<T: Copy>(values: &[T]) -> Result<T> {
    values.first().copied().context("an empty array")
}

fn map<'a>(ebpf: &'a Ebpf, name: &str) -> Result<&'a Map> {
    ebpf.map(name_in_object(name)).with_context(|| format!("no map {name}"))
}

fn map_mut<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Map> {
    ebpf.map_mut(name_in_object(name)).with_context(|| format!("no map {name}"))
}

pub(super) fn write_array<T: Pod>(ebpf: &mut Ebpf, name: &str, values: &[T]) -> Result<()> {
    let mut array: Array<_, T> = map_mut(ebpf, name)?.try_into()?;
    for (index, value) in values.iter().enumerate() {
        array.set(u32::try_from(index)?, value, 0).with_context(|| format!("writing {name}[{index}]"))?;
    }
    Ok(())
}

pub(super) fn read_array<T: Pod>(ebpf: &Ebpf, name: &str) -> Result<Vec<T>> {
    let array: Array<_, T> = map(ebpf, name)?.try_into()?;
    Ok(array.iter().collect::<Result<_, MapError>>()?)
}

/// Makes a hash map hold exactly these elements.
fn write_hash<K: Pod + Ord, V: Pod>(ebpf: &mut Ebpf, name: &str, wanted: impl Iterator<Item = (K, V)>) -> Result<()> {
    let mut hash: HashMap<_, K, V> = map_mut(ebpf, name)?.try_into()?;
    let present = hash.keys().collect::<Result<Vec<K>, MapError>>()?;
    for key in present {
        hash.remove(&key).with_context(|| format!("removing from {name}"))?;
    }
    for (key, value) in wanted {
        hash.insert(key, value, 0).with_context(|| format!("writing {name}"))?;
    }
    Ok(())
}

fn read_hash<K: Pod + Ord, V: Pod>(ebpf: &Ebpf, name: &str) -> Result<BTreeMap<K, V>> {
    let hash: HashMap<_, K, V> = map(ebpf, name)?.try_into()?;
    Ok(hash.iter().collect::<Result<_, MapError>>()?)
}

fn read_ranges(ebpf: &Ebpf) -> Result<BTreeSet<(u32, Range)>> {
    let trie: LpmTrie<_, Range, u32> = map(ebpf, "SOURCE_RANGES")?.try_into()?;
    let keys = trie.keys().collect::<Result<Vec<_>, MapError>>()?;
    Ok(keys.iter().map(|key| (key.prefix_len(), key.data())).collect())
}

/// Makes the trie hold exactly these prefixes.
fn write_ranges(ebpf: &mut Ebpf, wanted: &BTreeSet<(u32, Range)>) -> Result<()> {
    let present = read_ranges(ebpf)?;
    let mut trie: LpmTrie<_, Range, u32> = map_mut(ebpf, "SOURCE_RANGES")?.try_into()?;
    for (bits, range) in present.difference(wanted) {
        trie.remove(&Key::new(*bits, *range)).context("removing from SOURCE_RANGES")?;
    }
    for (bits, range) in wanted.difference(&present) {
        trie.insert(&Key::new(*bits, *range), 1, 0).context("writing SOURCE_RANGES")?;
    }
    Ok(())
}

/// Makes the table hold exactly these records.
fn write_flows(ebpf: &mut Ebpf, state: &State, wanted: impl Iterator<Item = FlowRecord>) -> Result<()> {
    let mut table: Array<_, FlowSet> = map_mut(ebpf, "FLOWS")?.try_into()?;
    let mask = flow_table::mask(table.len()).context("no flow table")?;
    let mut sets: BTreeMap<u32, FlowSet> = BTreeMap::new();
    for index in 0..table.len() {
        if table.get(&index, 0)? != FlowSet::default() {
            sets.insert(index, FlowSet::default());
        }
    }
    for flow in wanted {
        let place = flow.place(&state.config.flow_secret);
        let check = place.check(flow.words()) ^ flow.check;
        let homes = [place.set(mask), place.other_set(mask)];
        let mut add = |home| {
            let records = &mut sets.entry(home).or_default().records;
            let mut ways = (0..WAYS).map(|way| Place::next_way(place.way(), way) as usize);
            let free = ways.find(|way| records[*way].vip == 0)?;
            records[free] = FlowRecord { check, of_set: records[free].of_set, ..flow };
            records[LOCK_WAY as usize].of_set = flow.of_set;
            Some(home)
        };
        let waits = flow.epoch == RESERVE_EPOCH;
        let home = if waits { add(reserve_set(homes[0], mask)) } else { add(homes[0]).or_else(|| add(homes[1])) };
        let home = home.context("no room for a flow")?;
        let records = &mut sets.entry(homes[0]).or_default().records;
        if home != homes[0] {
            records[OVERFLOW_WAY as usize].of_set = overflow(flow.seen);
        }
        if waits {
            records[RESERVE_WAY as usize].of_set = overflow(flow.seen);
        }
    }
    for (index, set) in sets {
        table.set(index, set, 0).context("writing FLOWS")?;
    }
    Ok(())
}

/// Returns the whole records.
fn read_flows(ebpf: &Ebpf) -> Result<Vec<FlowRecord>> {
    let config: Config = first(&read_array(ebpf, "CONFIG")?)?;
    let records = read_array::<FlowSet>(ebpf, "FLOWS")?.into_iter().flat_map(|set| set.records);
    let whole = records.filter(|record| record.is_whole(&config.flow_secret));
    Ok(whole.map(|record| FlowRecord { of_set: 0, check: 0, ..record }).collect())
}

/// Fills the programs' budgets.
fn forget(ebpf: &mut Ebpf) -> Result<()> {
    let mut budgets: Array<_, Budget> = map_mut(ebpf, "BUDGETS")?.try_into()?;
    (0..budget::ELEMENTS).try_for_each(|index| Ok(budgets.set(index, Budget::default(), 0)?))
}

/// Makes an index hold exactly these elements. `known`: its current content.
pub(super) fn write_index<V: Pod + Default>(
    ebpf: &mut Ebpf,
    name: &str,
    known: &mut BTreeMap<u32, V>,
    wanted: BTreeMap<u32, V>,
) -> Result<()> {
    let mut index: Array<_, V> = map_mut(ebpf, name)?.try_into()?;
    for &number in known.keys().chain(wanted.keys()) {
        let element = wanted.get(&number).copied().unwrap_or_default();
        index.set(number, element, 0).with_context(|| format!("writing {name}"))?;
    }
    *known = wanted;
    Ok(())
}
