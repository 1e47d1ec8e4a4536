//! Opens, reads and writes the pinned maps with their types.

pub mod backend_indices;
mod batch;
mod departures;
mod leadership;
pub(super) mod mapped_array;
pub(super) mod raw;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::atomic::Ordering::Relaxed,
};

use aya::{
    EbpfLoader,
    maps::{
        Array, HashMap, IterableMap as _, Map, MapData, MapError, MapInfo, PerCpuArray, PerCpuHashMap, PerCpuValues,
        lpm_trie::{Key, LpmTrie},
    },
    util::nr_cpus,
};
use vipmux_common::{
    abi::{
        ABI_VERSION, Activity, Address, AffinityKey, AffinityValue, BACKEND_GONE, Backend, Budget, Config, Count,
        DropReason, EgressFragmentValue, Fence, FlowSet, FragmentKey, FragmentValue, Interface, Leader, Mac, Member,
        Node, NodeLabel, Range, RefusalKey, SERVICE_GONE, ServiceKey, ServiceOwner, ServiceState, ServiceValue,
        Speaker, SpeakerKey, Stat, VipSlot, VipValue, WAYS,
    },
    service_index::IndexedService,
    table,
};

use self::{
    backend_indices::BackendIndices,
    mapped_array::{Access, MappedArray},
};
use super::{
    flow_table::{self, FlowTable},
    pins::Pins,
};

/// The `errno` of an operation that the map's type does not support (include/linux/errno.h; not in
/// libc).
const ENOTSUPP: i32 = 524;

/// A map could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum MapsError {
    /// Nothing is pinned.
    #[error("vipmux is not loaded on this node (no maps under {})", path.display())]
    NotLoaded {
        /// The folder of the maps.
        path: PathBuf,
    },
    /// The process has no right to open the pins.
    #[error("no permission to open {}: root, or CAP_BPF and access to the pins, is needed", path.display())]
    NoPermission {
        /// The pin.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// An agent with another layout made the maps.
    #[error(
        "the maps under {} have ABI version {found}, this vipmux has {ABI_VERSION}: use the vipmux that loaded them",
        path.display()
    )]
    Abi {
        /// The folder of the maps.
        path: PathBuf,
        /// The version in the maps.
        found: u32,
    },
    /// A pin is missing, is no map, or has another type.
    #[error("cannot open the map {}", path.display())]
    Open {
        /// The pin.
        path: PathBuf,
        /// The error of aya or the kernel.
        #[source]
        source: MapError,
    },
    /// A map could not be read.
    #[error("cannot read the map {map}")]
    Read {
        /// The map's name.
        map: &'static str,
        /// The kernel's error.
        #[source]
        source: MapError,
    },
    /// A map could not be written.
    #[error("cannot write the map {map}")]
    Write {
        /// The map's name.
        map: &'static str,
        /// The kernel's error.
        #[source]
        source: MapError,
    },
}

macro_rules! maps {
    ($($(#[$doc:meta])* $field:ident: $name:literal => $kind:ident<$($value:ty),+>,)*) => {
        /// All maps of `ebpf/src/maps.rs`, opened for reading and writing. See
        /// [`vipmux_common::abi`] for the types.
        pub struct Maps {
            $($(#[$doc])* pub $field: $kind<MapData, $($value),+>,)*
            /// `TABLES` mapped into memory, from the first write on. Readers need no mapping.
            tables_mapping: Option<MappedArray>,
            /// The same for `BACKEND_NODES` and `LOCAL_PORTS`.
            backend_nodes_mapping: Option<MappedArray>,
            local_ports_mapping: Option<MappedArray>,
            /// `LOCAL_PORTS` and `BACKEND_NODES`, from the first change of a backend on.
            backend_indices: Option<BackendIndices>,
        }

        impl Maps {
            /// The names of the maps as pins, and in the BPF object except for [`GLOBALS`].
            pub const NAMES: &[&str] = &[$($name),*];

            /// The maps by which programs call each other. They are pinned too: the kernel empties
            /// arrays of programs when no process has them open. And while an agent replaces the
            /// programs of another, programs that are still attached call the new ones, and pass
            /// data to them in `SCRATCH`.
            pub const CALLING: &[&str] = &["CALLS", "CALLS_FRAGMENTED", "SCRATCH"];

            fn open_all(pins: &Pins) -> Result<Self, MapsError> {
                Ok(Self {
                    $($field: {
                        let path = pins.map($name);
                        let map = Map::from_map_data(open(&path)?).and_then(TryInto::try_into);
                        map.map_err(|source| MapsError::Open { path, source })?
                    },)*
                    tables_mapping: None,
                    backend_nodes_mapping: None,
                    local_ports_mapping: None,
                    backend_indices: None,
                })
            }
        }
    };
}

maps! {
    /// `CONFIG`: one element.
    config: "CONFIG" => Array<Config>,
    /// `FENCE`: one element.
    fence: "FENCE" => Array<Fence>,
    /// `ACTIVITY`: one element.
    activity: "ACTIVITY" => Array<Activity>,
    /// `INTERFACES`: by ifindex.
    interfaces: "INTERFACES" => Array<Interface>,
    /// `VIPS`.
    vips: "VIPS" => HashMap<Address, VipValue>,
    /// `VIP_INDEX`: by the hash of the address.
    vip_index: "VIP_INDEX" => Array<VipSlot>,
    /// `SERVICES`.
    services: "SERVICES" => HashMap<ServiceKey, ServiceValue>,
    /// `SERVICE_INDEX`: copies of `SERVICES`, by [`ServiceKey::index`].
    service_index: "SERVICE_INDEX" => Array<IndexedService>,
    /// `SERVICE_STATES`: by slot.
    service_states: "SERVICE_STATES" => Array<ServiceState>,
    /// `SERVICE_NAMES`: by slot.
    service_names: "SERVICE_NAMES" => Array<ServiceOwner>,
    /// `TABLES`: backend indices, two to an element ([`vipmux_common::table`]).
    tables: "TABLES" => Array<u64>,
    /// `BACKENDS`.
    backends: "BACKENDS" => Array<Backend>,
    /// `BACKEND_NODES`: the other nodes that backends are on ([`vipmux_common::backend_nodes`]).
    backend_nodes: "BACKEND_NODES" => Array<u64>,
    /// `NODES`.
    nodes: "NODES" => Array<Node>,
    /// `NODE_NAMES`: by the index of `NODES`.
    node_names: "NODE_NAMES" => Array<NodeLabel>,
    /// `LEADERS`: by VIP.
    leaders: "LEADERS" => LpmTrie<[u32; 4], Leader>,
    /// `MEMBERS`: by the index of `NODES`.
    members: "MEMBERS" => HashMap<u32, Member>,
    /// `PEERS`: to the index of `NODES`.
    peers: "PEERS" => HashMap<Mac, u32>,
    /// `SPEAKERS`: LRU.
    speakers: "SPEAKERS" => HashMap<SpeakerKey, Speaker>,
    /// `FLOWS`: by set ([`super::flow_table`]).
    flows: "FLOWS" => Array<FlowSet>,
    /// `LOCAL_PORTS`: a bit for each port of this node's backends.
    local_ports: "LOCAL_PORTS" => Array<u64>,
    /// `FRAGMENTS`: LRU.
    fragments: "FRAGMENTS" => HashMap<FragmentKey, FragmentValue>,
    /// `EGRESS_FRAGMENTS`: LRU.
    egress_fragments: "EGRESS_FRAGMENTS" => HashMap<FragmentKey, EgressFragmentValue>,
    /// `AFFINITY`: LRU.
    affinity: "AFFINITY" => HashMap<AffinityKey, AffinityValue>,
    /// `SOURCE_RANGES`.
    source_ranges: "SOURCE_RANGES" => LpmTrie<Range, u32>,
    /// `BUDGETS`: by [`vipmux_common::budget`].
    budgets: "BUDGETS" => Array<Budget>,
    /// `REFUSALS`.
    refusals: "REFUSALS" => PerCpuHashMap<RefusalKey, u64>,
    /// `STATS`: by [`Stat`].
    stats: "STATS" => PerCpuArray<Count>,
    /// `DROPS`: by [`DropReason`].
    drops: "DROPS" => PerCpuArray<Count>,
    /// `SERVICE_STATS`: by slot.
    service_stats: "SERVICE_STATS" => PerCpuArray<Count>,
}

/// The maps that are global variables of the programs, with their names in the BPF object: those of
/// their sections.
pub const GLOBALS: [(&str, &str); 3] =
    [("CONFIG", ".data.CONFIG"), ("FENCE", ".data.FENCE"), ("ACTIVITY", ".data.ACTIVITY")];

/// Returns a map's name in the BPF object.
pub fn name_in_object(name: &str) -> &str {
    GLOBALS.iter().find(|(pinned, _)| *pinned == name).map_or(name, |(_, section)| section)
}

/// Makes `loader` use the maps that are pinned in a folder, or pin new ones there. `globals` has the
/// values of [`GLOBALS`] in the folder: the loader writes initial ones into them, although they may be in
/// use.
pub fn use_pins<'a>(loader: &mut EbpfLoader<'a>, folder: &Path, globals: &'a [(&'static str, Vec<u8>)]) {
    for name in Maps::NAMES.iter().chain(Maps::CALLING) {
        loader.map_pin_path(name_in_object(name), folder.join(name));
    }
    for (name, bytes) in globals {
        loader.override_global(name, bytes.as_slice(), true);
    }
}

/// Returns the values of [`GLOBALS`] that are pinned in a folder, for [`use_pins`].
pub(super) fn read_globals(folder: &Path) -> Result<Vec<(&'static str, Vec<u8>)>, MapsError> {
    let pinned = GLOBALS.into_iter().filter(|(name, _)| folder.join(name).exists());
    pinned.map(|(name, _)| Ok((name, element(folder, name)?))).collect()
}

/// Returns the bytes of the only element of a pinned map.
pub(super) fn element(folder: &Path, name: &'static str) -> Result<Vec<u8>, MapsError> {
    let map = open(&folder.join(name))?;
    let read = |source| MapsError::Read { map: name, source };
    let size = map.info().map_err(read)?.value_size() as usize;
    batch::element_bytes(&map, size, 1).map_err(|error| read(error.into()))
}

pub(super) fn open(path: &Path) -> Result<MapData, MapsError> {
    MapData::from_pin(path).map_err(|source| match source {
        MapError::SyscallError(error) if error.io_error.kind() == io::ErrorKind::PermissionDenied => {
            MapsError::NoPermission { path: path.into(), source: error.io_error }
        }
        source => MapsError::Open { path: path.into(), source },
    })
}

/// Returns the ABI version of the pinned maps: the first four bytes of `CONFIG[0]` in every layout.
/// 0: the agent has not written yet.
pub(super) fn version(pins: &Pins) -> Result<u32, MapsError> {
    let bytes = element(&pins.maps(), "CONFIG")?;
    Ok(bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)))
}

/// Returns the number of records that the pinned flow table has room for.
pub fn flow_capacity(pins: &Pins) -> Option<u32> {
    let info = MapInfo::from_pin(pins.map("FLOWS")).ok()?;
    Some((flow_table::mask(info.max_entries())? + 1).saturating_mul(WAYS))
}

impl Maps {
    /// Opens the maps that are pinned below `pin_path` (see [`Pins`]).
    pub fn open(pin_path: &Path) -> Result<Self, MapsError> {
        let pins = Pins::new(pin_path);
        let path = pins.maps();
        match path.try_exists() {
            Ok(true) => {}
            Ok(false) => return Err(MapsError::NotLoaded { path }),
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                return Err(MapsError::NoPermission { path, source });
            }
            Err(error) => return Err(MapsError::Open { path, source: error.into() }),
        }
        // Checks the version before any type is used.
        match version(&pins)? {
            0 | ABI_VERSION => Self::open_all(&pins),
            found => Err(MapsError::Abi { path, found }),
        }
    }

    /// Writes `CONFIG[0]` of the maps in a folder.
    pub(super) fn write_config(folder: &Path, config: &Config) -> Result<(), MapsError> {
        let path = folder.join("CONFIG");
        let map = Map::from_map_data(open(&path)?).and_then(Array::<_, Config>::try_from);
        let mut map = map.map_err(|source| MapsError::Open { path, source })?;
        map.set(0, config, 0).map_err(|source| MapsError::Write { map: "CONFIG", source })
    }

    /// Returns `CONFIG[0]`. All zero: no agent has written it yet.
    pub fn read_config(&self) -> Result<Config, MapsError> {
        self.config.get(&0, 0).map_err(|source| MapsError::Read { map: "CONFIG", source })
    }

    /// Returns `FENCE[0]`.
    pub fn read_fence(&self) -> Result<Fence, MapsError> {
        self.fence.get(&0, 0).map_err(|source| MapsError::Read { map: "FENCE", source })
    }

    /// Returns the interfaces on which the program sees frames, and those that the agent has
    /// changed, by ifindex.
    pub fn read_interfaces(&self) -> Result<BTreeMap<u32, Interface>, MapsError> {
        used("INTERFACES", &self.interfaces, |interface| *interface != Interface::default())
    }

    /// Returns all VIPs.
    pub fn read_vips(&self) -> Result<BTreeMap<Address, VipValue>, MapsError> {
        all("VIPS", &self.vips)
    }

    /// Returns the used slots of `VIP_INDEX`.
    pub fn read_vip_index(&self) -> Result<BTreeMap<u32, VipSlot>, MapsError> {
        used("VIP_INDEX", &self.vip_index, |slot| *slot != VipSlot::default())
    }

    /// Returns all port claims.
    pub fn read_services(&self) -> Result<BTreeMap<ServiceKey, ServiceValue>, MapsError> {
        all("SERVICES", &self.services)
    }

    /// Returns the used elements of `SERVICE_INDEX`.
    pub fn read_service_index(&self) -> Result<BTreeMap<u32, IndexedService>, MapsError> {
        used("SERVICE_INDEX", &self.service_index, |element| *element != IndexedService::default())
    }

    /// Returns the used slots, with the generations of their owners.
    pub fn read_service_states(&self) -> Result<BTreeMap<u32, ServiceState>, MapsError> {
        let is_used = |state: &ServiceState| state.generation != 0 && state.flags & SERVICE_GONE == 0;
        used("SERVICE_STATES", &self.service_states, is_used)
    }

    /// Returns the slots that have an owner.
    pub fn read_service_names(&self) -> Result<BTreeMap<u32, ServiceOwner>, MapsError> {
        used("SERVICE_NAMES", &self.service_names, |owner| owner.name[0] != 0)
    }

    /// Returns `length` slots of the arena from `first` on.
    pub fn read_table(&self, first: u32, length: u32) -> Result<Vec<u32>, MapsError> {
        // The kernel would start again at the first element.
        let within = |element: u32| element.min(self.tables.len());
        let (start, end) = (within(table::element(first)), within(first.saturating_add(length).div_ceil(table::SLOTS)));
        let elements: Vec<u64> = batch::elements(&self.tables, start, end - start).map_err(reading("TABLES"))?;
        let slot = |slot| Some(table::get(*elements.get((table::element(slot) - start) as usize)?, slot));
        Ok((first..first.saturating_add(length)).map_while(slot).collect())
    }

    /// Returns the used backends, by index.
    pub fn read_backends(&self) -> Result<BTreeMap<u32, Backend>, MapsError> {
        self.read_backends_below(self.backends.len())
    }

    /// Returns the used backends among the first `count` indices.
    pub fn read_backends_below(&self, count: u32) -> Result<BTreeMap<u32, Backend>, MapsError> {
        let is_used = |backend: &Backend| backend.generation != 0 && backend.flags & BACKEND_GONE == 0;
        used_below("BACKENDS", &self.backends, count, is_used)
    }

    /// Returns all elements of `BACKENDS`.
    pub(super) fn read_all_backends(&self) -> Result<Vec<Backend>, MapsError> {
        batch::elements(&self.backends, 0, self.backends.len()).map_err(reading("BACKENDS"))
    }

    /// Returns the names of nodes, by index.
    pub fn read_node_names(&self) -> Result<BTreeMap<u32, NodeLabel>, MapsError> {
        used("NODE_NAMES", &self.node_names, |label| label.name[0] != 0)
    }

    /// Returns the used entries of `NODES`, with a name or without, by index.
    pub fn read_node_entries(&self) -> Result<BTreeMap<u32, Node>, MapsError> {
        used("NODES", &self.nodes, |node| *node != Node::default())
    }

    /// Returns the nodes that have a name, by index.
    pub fn read_nodes(&self) -> Result<BTreeMap<u32, (NodeLabel, Node)>, MapsError> {
        let names = self.read_node_names()?;
        let count = names.keys().next_back().map_or(0, |last| last + 1);
        let nodes = batch::elements(&self.nodes, 0, count).map_err(reading("NODES"))?;
        Ok(names.into_iter().filter_map(|(i, name)| Some((i, (name, *nodes.get(i as usize)?)))).collect())
    }

    /// Returns the node index of each MAC.
    pub fn read_peers(&self) -> Result<BTreeMap<Mac, u32>, MapsError> {
        all("PEERS", &self.peers)
    }

    /// Returns the other hosts that recently spoke for a VIP, or probed for one.
    pub fn read_speakers(&self) -> Result<BTreeMap<SpeakerKey, Speaker>, MapsError> {
        all("SPEAKERS", &self.speakers)
    }

    /// Returns the keys of all source ranges: the prefix length and the bits.
    pub fn read_source_ranges(&self) -> Result<BTreeSet<(u32, Range)>, MapsError> {
        let keys = self.source_ranges.keys().map(|key| key.map(|key| (key.prefix_len(), key.data())));
        keys.collect::<Result<_, _>>().map_err(|source| MapsError::Read { map: "SOURCE_RANGES", source })
    }

    /// Returns [`Config::flow_mask`] for the flow table, which an earlier agent may have made.
    pub(super) fn flow_mask(&self) -> Result<u32, MapsError> {
        let sets = self.flows.len();
        let refused = || io::Error::other(format!("{sets} sets are no flow table of this vipmux"));
        flow_table::mask(sets).ok_or_else(|| reading("FLOWS")(refused()))
    }

    /// Maps the flow table for reading.
    pub fn flow_table(&self) -> Result<FlowTable, MapsError> {
        self.map_flow_table(Access::Read)
    }

    /// Maps the flow table for reading and writing.
    pub fn writable_flow_table(&self) -> Result<FlowTable, MapsError> {
        self.map_flow_table(Access::Write)
    }

    fn map_flow_table(&self, access: Access) -> Result<FlowTable, MapsError> {
        let secret = self.read_config()?.flow_secret;
        FlowTable::map(&self.flows, secret, access).map_err(reading("FLOWS"))
    }

    /// Returns the counters of events, summed over all CPUs.
    pub fn read_stats(&self) -> Result<Vec<(Stat, Count)>, MapsError> {
        let counts = sums("STATS", &self.stats, self.stats.len())?;
        Ok(Stat::ALL.iter().copied().zip(counts).collect())
    }

    /// Returns the counters of drops, summed over all CPUs.
    pub fn read_drops(&self) -> Result<Vec<(DropReason, Count)>, MapsError> {
        let counts = sums("DROPS", &self.drops, self.drops.len())?;
        Ok(DropReason::ALL.iter().copied().zip(counts).collect())
    }

    /// Returns the numbers of frames that the kernel refused, summed over all CPUs.
    pub fn read_refusals(&self) -> Result<BTreeMap<RefusalKey, u64>, MapsError> {
        let counted = self.refusals.iter().map(|entry| entry.map(|(key, counts)| (key, counts.iter().sum())));
        counted.collect::<Result<_, _>>().map_err(|source| MapsError::Read { map: "REFUSALS", source })
    }

    /// Returns the counters of the first `slots` slots, summed over all CPUs.
    pub fn read_service_stats(&self, slots: u32) -> Result<Vec<Count>, MapsError> {
        sums("SERVICE_STATS", &self.service_stats, slots)
    }

    /// Makes a slot count from zero, for its new owner.
    pub(super) fn clear_service_stats(&mut self, slot: u32) -> Result<(), MapsError> {
        const MAP: &str = "SERVICE_STATS";
        let cpus = nr_cpus().map_err(|(_, error)| reading(MAP)(error))?;
        let zeros = PerCpuValues::try_from(vec![Count::default(); cpus]).map_err(reading(MAP))?;
        self.service_stats.set(slot, zeros, 0).map_err(|source| MapsError::Write { map: MAP, source })
    }

    /// Writes `backends` to the arena from slot `first` on, each slot atomically. There is only one
    /// writer, so the other slot of an element is written back unchanged.
    pub fn write_table(&mut self, first: u32, backends: &[u32]) -> Result<(), MapsError> {
        let failed = |source: io::Error| MapsError::Write { map: "TABLES", source: source.into() };
        let Some(last) = u32::try_from(backends.len()).ok().and_then(|count| (first + count).checked_sub(1)) else {
            return Ok(());
        };
        let elements = mapped_array::mapped(&mut self.tables_mapping, &self.tables, "TABLES")?;
        if elements.len() <= table::element(last) as usize {
            return Err(failed(io::Error::from_raw_os_error(libc::E2BIG)));
        }
        for (slot, backend) in (first..).zip(backends) {
            let element = &elements[table::element(slot) as usize];
            element.store(table::with(element.load(Relaxed), slot, *backend), Relaxed);
        }
        mapped_array::publish();
        Ok(())
    }
}

/// Writes or removes an entry of a hash map. Removing a missing entry is no error.
pub(super) fn put<K: aya::Pod, V: aya::Pod>(
    map: &mut HashMap<MapData, K, V>,
    key: &K,
    value: Option<&V>,
) -> Result<(), MapError> {
    match value {
        Some(value) => map.insert(key, value, 0),
        None => removed(map.remove(key)),
    }
}

/// Writes or removes an entry of a trie. Removing a missing entry is no error.
pub(super) fn put_prefix<K: aya::Pod, V: aya::Pod>(
    map: &mut LpmTrie<MapData, K, V>,
    key: &Key<K>,
    value: Option<&V>,
) -> Result<(), MapError> {
    match value {
        Some(value) => map.insert(key, value, 0),
        None => removed(map.remove(key)),
    }
}

fn removed(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn reading(map: &'static str) -> impl Fn(io::Error) -> MapsError {
    move |error| MapsError::Read { map, source: error.into() }
}

fn all<K: aya::Pod + Ord, V: aya::Pod>(
    name: &'static str,
    map: &HashMap<MapData, K, V>,
) -> Result<BTreeMap<K, V>, MapsError> {
    Ok(batch::entries(map).map_err(reading(name))?.into_iter().collect())
}

fn used<V: aya::Pod>(
    name: &'static str,
    map: &Array<MapData, V>,
    used: impl Fn(&V) -> bool,
) -> Result<BTreeMap<u32, V>, MapsError> {
    used_below(name, map, map.len(), used)
}

fn used_below<V: aya::Pod>(
    name: &'static str,
    map: &Array<MapData, V>,
    count: u32,
    used: impl Fn(&V) -> bool,
) -> Result<BTreeMap<u32, V>, MapsError> {
    let values = batch::elements(map, 0, count.min(map.len())).map_err(reading(name))?;
    Ok((0..).zip(values).filter(|(_, value)| used(value)).collect())
}

fn sums(name: &'static str, map: &PerCpuArray<MapData, Count>, count: u32) -> Result<Vec<Count>, MapsError> {
    let cpus = nr_cpus().map_err(|(_, error)| reading(name)(error))?;
    match batch::per_cpu::<Count>(map.map(), cpus, 0, count) {
        Ok(values) => Ok(values.chunks(cpus).map(sum).collect()),
        // Before Linux 5.13.
        Err(error) if error.raw_os_error() == Some(ENOTSUPP) => (0..count.min(map.len()))
            .map(|i| map.get(&i, 0).map(|values| sum(&values)))
            .collect::<Result<_, _>>()
            .map_err(|source| MapsError::Read { map: name, source }),
        Err(error) => Err(reading(name)(error)),
    }
}

fn sum(counts: &[Count]) -> Count {
    counts.iter().fold(Count::default(), |sum, count| Count {
        packets: sum.packets.wrapping_add(count.packets),
        bytes: sum.bytes.wrapping_add(count.bytes),
        flows: sum.flows.wrapping_add(count.flows),
    })
}
