//! Opens, reads and writes the pinned maps with their types.

pub mod backend_indices;
mod batch;
mod departures;
mod indices;
mod leadership;
pub(super) mod mapped_array;
mod named_map;
pub(super) mod raw;
#[cfg(test)]
mod tests;
pub(super) mod written_array;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::atomic::Ordering::Relaxed,
};

use aya::{
    EbpfLoader,
    maps::{
        Array, HashMap, HashMap as LruHashMap, IterableMap as _, Map, MapData, MapError, MapInfo, PerCpuArray,
        PerCpuHashMap, lpm_trie::LpmTrie,
    },
};
use vipmux_common::{
    abi::{
        self, ABI_VERSION, Address, BACKEND_GONE, Backend, Config, Count, DropReason, Fence, Interface, Node,
        NodeLabel, Range, RefusalKey, SERVICE_GONE, ServiceKey, ServiceOwner, ServiceState, ServiceValue, Stat,
        VipValue, WAYS,
    },
    backend_nodes, budget, maps, service_index, table,
};

pub use self::named_map::NamedMap;
use self::{
    indices::Indices,
    mapped_array::{Access, MappedArray},
};
use super::{
    flow_table::{self, FlowTable, FlowTableHandle},
    pins::Pins,
};

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

macro_rules! declare {
    (
        globals { $($(#[$global_doc:meta])* $GLOBAL:ident $global:ident: $element:ty;)* }
        maps { $($(#[$doc:meta])* $NAME:ident $field:ident: $kind:ident<$($part:ty),+> = $elements:expr $(, $flag:ident)?;)* }
        calls { $($(#[$call_doc:meta])* $CALL:ident: $array:ty = $programs:expr;)* }
    ) => {
        /// All maps that hold state, opened for reading and writing.
        pub struct Maps {
            $($(#[$global_doc])* pub $global: NamedMap<Array<MapData, $element>>,)*
            $($(#[$doc])* pub $field: NamedMap<$kind<MapData, $($part),+>>,)*
            /// Two small arrays in memory, from their first writes on. Readers need no mapping.
            backend_nodes_mapping: Option<MappedArray>,
            local_ports_mapping: Option<MappedArray>,
            /// The arrays that are derived from other maps, as last written.
            pub(super) indices: Indices,
        }

        impl Maps {
            /// The names of the maps as pins, and in the BPF object except for [`GLOBALS`].
            pub const NAMES: &[&str] = &[$(stringify!($GLOBAL),)* $(stringify!($NAME)),*];

            /// The maps by which programs call each other. They are pinned too: the kernel empties
            /// arrays of programs when no process has them open. And while an agent replaces the
            /// programs of another, programs that are still attached call the new ones, and pass
            /// data to them in `SCRATCH`.
            pub const CALLING: &[&str] = &[$(stringify!($CALL)),*];

            fn open_all(pins: &Pins) -> Result<Self, MapsError> {
                Ok(Self {
                    $($global: NamedMap::open(pins, stringify!($GLOBAL))?,)*
                    $($field: NamedMap::open(pins, stringify!($NAME))?,)*
                    backend_nodes_mapping: None,
                    local_ports_mapping: None,
                    indices: Indices::default(),
                })
            }
        }

        /// The maps that are global variables of the programs, with their names in the BPF object: those of
        /// their sections.
        pub const GLOBALS: &[(&str, &str)] = &[$((stringify!($GLOBAL), concat!(".data.", stringify!($GLOBAL)))),*];

        /// The kind and the number of elements of each map, if no configuration sets another one.
        const KINDS: &[(&str, &str, u32)] = &[$((stringify!($NAME), stringify!($kind), $elements)),*];
    };
}
maps!(declare);

/// Returns the LRU maps, with their numbers of elements.
pub(super) fn lru_maps() -> impl Iterator<Item = (&'static str, u32)> {
    let is_lru =
        |(name, kind, elements): &(&'static str, &str, u32)| (*kind == "LruHashMap").then_some((*name, *elements));
    KINDS.iter().filter_map(is_lru)
}

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
    let pinned = GLOBALS.iter().filter(|(name, _)| folder.join(name).exists());
    pinned.map(|(name, _)| Ok((*name, element(folder, name)?))).collect()
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
        self.config.first()
    }

    /// Returns `FENCE[0]`.
    pub fn read_fence(&self) -> Result<Fence, MapsError> {
        self.fence.first()
    }

    /// Returns the interfaces on which the program sees frames, and those that the agent has
    /// changed, by ifindex.
    pub fn read_interfaces(&self) -> Result<BTreeMap<u32, Interface>, MapsError> {
        self.interfaces.read()
    }

    /// Returns all VIPs.
    pub fn read_vips(&self) -> Result<BTreeMap<Address, VipValue>, MapsError> {
        self.vips.read()
    }

    /// Returns all port claims.
    pub fn read_services(&self) -> Result<BTreeMap<ServiceKey, ServiceValue>, MapsError> {
        self.services.read()
    }

    /// Returns the used slots, with the generations of their owners.
    pub fn read_service_states(&self) -> Result<BTreeMap<u32, ServiceState>, MapsError> {
        self.service_states.used(|state| state.generation != 0 && state.flags & SERVICE_GONE == 0)
    }

    /// Returns the slots that have an owner.
    pub fn read_service_names(&self) -> Result<BTreeMap<u32, ServiceOwner>, MapsError> {
        self.service_names.used(|owner| owner.name[0] != 0)
    }

    /// Returns `length` slots of the arena from `first` on.
    pub fn read_table(&self, first: u32, length: u32) -> Result<Vec<u32>, MapsError> {
        // The kernel would start again at the first element.
        let within = |element: u32| element.min(self.tables.len());
        let (start, end) = (within(table::element(first)), within(first.saturating_add(length).div_ceil(table::SLOTS)));
        let elements = self.tables.elements(start, end - start)?;
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
        self.backends.used_below(count, is_used)
    }

    /// Returns the names of nodes, by index.
    pub fn read_node_names(&self) -> Result<BTreeMap<u32, NodeLabel>, MapsError> {
        self.node_names.used(|label| label.name[0] != 0)
    }

    /// Returns the nodes that have a name, by index.
    pub fn read_nodes(&self) -> Result<BTreeMap<u32, (NodeLabel, Node)>, MapsError> {
        let names = self.read_node_names()?;
        let count = names.keys().next_back().map_or(0, |last| last + 1);
        let nodes = self.nodes.elements(0, count)?;
        Ok(names.into_iter().filter_map(|(i, name)| Some((i, (name, *nodes.get(i as usize)?)))).collect())
    }

    /// Returns the keys of all source ranges: the prefix length and the bits.
    pub fn read_source_ranges(&self) -> Result<BTreeSet<(u32, Range)>, MapsError> {
        let keys = self.source_ranges.keys().map(|key| key.map(|key| (key.prefix_len(), key.data())));
        keys.collect::<Result<_, _>>().map_err(|error| self.source_ranges.reading(error))
    }

    /// Returns [`Config::flow_mask`] for the flow table, which an earlier agent may have made.
    pub(super) fn flow_mask(&self) -> Result<u32, MapsError> {
        let sets = self.flows.len();
        let refused = || io::Error::other(format!("{sets} sets are no flow table of this vipmux"));
        flow_table::mask(sets).ok_or_else(|| self.flows.reading(refused()))
    }

    /// Returns the flow table, which a caller can map later.
    pub fn flow_table_handle(&self) -> Result<FlowTableHandle, MapsError> {
        FlowTableHandle::new(&self.flows, self.read_config()?.flow_secret).map_err(|error| self.flows.reading(error))
    }

    /// Maps the flow table for reading.
    pub fn flow_table(&self) -> Result<FlowTable, MapsError> {
        self.flow_table_handle()?.map().map_err(|error| self.flows.reading(error))
    }

    /// Maps the flow table for reading and writing.
    pub fn writable_flow_table(&self) -> Result<FlowTable, MapsError> {
        self.flow_table_handle()?.map_writable().map_err(|error| self.flows.reading(error))
    }

    /// Returns the counters of events, summed over all CPUs.
    pub fn read_stats(&self) -> Result<Vec<(Stat, Count)>, MapsError> {
        let counts = self.stats.sums(self.stats.len())?;
        Ok(Stat::ALL.iter().copied().zip(counts).collect())
    }

    /// Returns the counters of drops, summed over all CPUs.
    pub fn read_drops(&self) -> Result<Vec<(DropReason, Count)>, MapsError> {
        let counts = self.drops.sums(self.drops.len())?;
        Ok(DropReason::ALL.iter().copied().zip(counts).collect())
    }

    /// Returns the numbers of frames that the kernel refused, summed over all CPUs.
    pub fn read_refusals(&self) -> Result<BTreeMap<RefusalKey, u64>, MapsError> {
        let counted = self.refusals.iter().map(|entry| entry.map(|(key, counts)| (key, counts.iter().sum())));
        counted.collect::<Result<_, _>>().map_err(|error| self.refusals.reading(error))
    }

    /// Returns the counters of the first `slots` slots, summed over all CPUs.
    pub fn read_service_stats(&self, slots: u32) -> Result<Vec<Count>, MapsError> {
        self.service_stats.sums(slots)
    }

    /// Writes `backends` to the arena from slot `first` on, each slot atomically. There is only one
    /// writer, so the other slot of an element is written back unchanged.
    pub fn write_table(&mut self, first: u32, backends: &[u32]) -> Result<(), MapsError> {
        let Some(last) = u32::try_from(backends.len()).ok().and_then(|count| (first + count).checked_sub(1)) else {
            return Ok(());
        };
        let range = table::element(first)..table::element(last) + 1;
        if range.end > self.tables.len() {
            return Err(self.tables.writing(io::Error::from_raw_os_error(libc::E2BIG)));
        }
        // All tables would count as resident memory. The pages of one cost a few microseconds.
        let array = self.tables.map().fd().as_fd();
        let mapping = MappedArray::map(array, range.clone(), size_of::<u64>(), Access::Write);
        let mapping = mapping.map_err(|error| self.tables.writing(error))?;
        for (slot, backend) in (first..).zip(backends) {
            let element = &mapping.elements()[(table::element(slot) - range.start) as usize];
            element.store(table::with(element.load(Relaxed), slot, *backend), Relaxed);
        }
        mapped_array::publish();
        Ok(())
    }
}
