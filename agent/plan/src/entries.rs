//! Holds the entries that were read from the kernel's maps.

use std::collections::{BTreeMap, BTreeSet};

use vipmux_common::abi::{self, Mac};

use crate::arena::tables_of;
use vipmux_model::ServiceName;

/// The entries that were read from the kernel's maps. Entries of arrays that are all zero may be
/// left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapEntries {
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
    /// `TABLES`: the contents of the ranges of [`MapEntries::table_ranges`], by offset and length.
    pub tables: BTreeMap<(u32, u32), Vec<u32>>,
    /// `NODES`.
    pub nodes: BTreeMap<u32, abi::Node>,
    /// `NODE_NAMES`.
    pub node_names: BTreeMap<u32, String>,
    /// `PEERS`.
    pub peers: BTreeMap<Mac, u32>,
    /// The keys of `SOURCE_RANGES`: the number of bits that count, and the bits.
    pub source_ranges: BTreeSet<(u32, abi::Range)>,
}

impl MapEntries {
    /// Returns the ranges (offset and length) of `TABLES` to read: those that [`Self::services`]
    /// refers to.
    pub fn table_ranges(&self) -> BTreeSet<(u32, u32)> {
        let ranges = self.services.values().flat_map(tables_of).filter(|range| range.length > 0);
        ranges.map(|range| (range.offset, range.length)).collect()
    }
}
