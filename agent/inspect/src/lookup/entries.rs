//! Looks up single entries of the maps, like the XDP program.

use aya::maps::{MapError, lpm_trie::Key};
use vipmux_common::abi::{
    Address, AffinityKey, AffinityValue, Backend, FlowKey, FlowRecord, Mac, Node, Range, ServiceKey, ServiceState,
    ServiceValue, node_element,
};
use vipmux_common::table;

use vipmux_datapath::bpf::maps::{Maps, MapsError};
use vipmux_model::ServiceName;

/// The maps. Lookups return `None` if there is no such entry, or the index is out of bounds.
pub(super) struct LookupMaps<'maps>(pub(super) &'maps Maps);

fn entry<V>(map: &'static str, found: Result<V, MapError>) -> Result<Option<V>, MapsError> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound | MapError::OutOfBounds { .. }) => Ok(None),
        Err(source) => Err(MapsError::Read { map, source }),
    }
}

impl LookupMaps<'_> {
    /// Looks up an entry of `SERVICES`.
    pub(super) fn service(&self, key: ServiceKey) -> Result<Option<ServiceValue>, MapsError> {
        entry("SERVICES", self.0.services.get(&key, 0))
    }

    /// Looks up the copy of an entry of `SERVICES` in `SERVICE_INDEX`, where the program looks first.
    pub(super) fn service_copy(&self, key: ServiceKey) -> Result<Option<ServiceValue>, MapsError> {
        let element = entry("SERVICE_INDEX", self.0.service_index.get(&key.index(), 0))?;
        Ok(element.and_then(|element| element.value(key)))
    }

    /// Looks up an entry of `SERVICE_STATES`.
    pub(super) fn service_state(&self, slot: u32) -> Result<Option<ServiceState>, MapsError> {
        entry("SERVICE_STATES", self.0.service_states.get(&slot, 0))
    }

    /// Looks up an owner in `SERVICE_NAMES`; `None`: the slot is free.
    pub(super) fn owner(&self, slot: u32) -> Result<Option<ServiceName>, MapsError> {
        let owner = entry("SERVICE_NAMES", self.0.service_names.get(&slot, 0))?;
        let owner = owner.map(|owner| owner.parts()).filter(|(_, name)| !name.is_empty());
        Ok(owner.map(|(namespace, name)| ServiceName::new(namespace, name)))
    }

    /// Looks up an entry of `TABLES`.
    pub(super) fn table_slot(&self, slot: u32) -> Result<Option<u32>, MapsError> {
        let element = entry("TABLES", self.0.tables.get(&table::element(slot), 0))?;
        Ok(element.map(|element| table::get(element, slot)))
    }

    /// Looks up an entry of `BACKENDS`.
    pub(super) fn backend(&self, index: u32) -> Result<Option<Backend>, MapsError> {
        entry("BACKENDS", self.0.backends.get(&index, 0))
    }

    /// Looks up a node, and the path to it for a VIP with these flags.
    pub(super) fn node(&self, index: u32, vip_flags: u32) -> Result<Option<Node>, MapsError> {
        entry("NODES", self.0.nodes.get(&node_element(vip_flags, index), 0))
    }

    /// Looks up a name in `NODE_NAMES`; `None`: the index is free.
    pub(super) fn node_name(&self, index: u32) -> Result<Option<String>, MapsError> {
        let label = entry("NODE_NAMES", self.0.node_names.get(&index, 0))?;
        Ok(label.map(|label| label.to_string()).filter(|name| !name.is_empty()))
    }

    /// Returns the value of `PEERS`.
    pub(super) fn peer(&self, mac: Mac) -> Result<Option<u32>, MapsError> {
        entry("PEERS", self.0.peers.get(&mac, 0))
    }

    /// Looks up a flow's record.
    pub(super) fn flow(&self, key: &FlowKey) -> Result<Option<FlowRecord>, MapsError> {
        Ok(self.0.flow_table()?.find(key))
    }

    /// Looks up an entry of `AFFINITY`.
    pub(super) fn affinity(&self, key: &AffinityKey) -> Result<Option<AffinityValue>, MapsError> {
        entry("AFFINITY", self.0.affinity.get(key, 0))
    }

    /// Returns whether a prefix of the set in `SOURCE_RANGES` contains the address.
    pub(super) fn is_in_range(&self, set: u32, address: &Address) -> Result<bool, MapsError> {
        let Address { w0, w1, w2, w3 } = *address;
        let key = Key::new(u32::BITS * 5, Range { set, w0, w1, w2, w3 });
        entry("SOURCE_RANGES", self.0.source_ranges.get(&key, 0)).map(|found| found.is_some())
    }
}
