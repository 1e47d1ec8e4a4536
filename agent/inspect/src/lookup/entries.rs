//! Looks up single entries of the maps, like the XDP program.

use aya::maps::lpm_trie::Key;
use vipmux_common::{
    abi::{Address, Node, Range, ServiceKey, ServiceValue, node_element},
    table,
};

use vipmux_datapath::bpf::maps::{Maps, MapsError};
use vipmux_model::ServiceName;

/// The maps. Lookups return `None` if there is no such entry, or the index is out of bounds.
pub(super) struct LookupMaps<'maps>(pub(super) &'maps Maps);

impl LookupMaps<'_> {
    /// Looks up the copy of an entry of `SERVICES` in `SERVICE_INDEX`, where the program looks first.
    pub(super) fn service_copy(&self, key: ServiceKey) -> Result<Option<ServiceValue>, MapsError> {
        let element = self.0.service_index.look_up(key.index())?;
        Ok(element.and_then(|element| element.value(key)))
    }

    /// Looks up an owner in `SERVICE_NAMES`; `None`: the slot is free.
    pub(super) fn owner(&self, slot: u32) -> Result<Option<ServiceName>, MapsError> {
        let owner = self.0.service_names.look_up(slot)?;
        let owner = owner.map(|owner| owner.parts()).filter(|(_, name)| !name.is_empty());
        Ok(owner.map(|(namespace, name)| ServiceName::new(namespace, name)))
    }

    /// Looks up an entry of `TABLES`.
    pub(super) fn table_slot(&self, slot: u32) -> Result<Option<u32>, MapsError> {
        let element = self.0.tables.look_up(table::element(slot))?;
        Ok(element.map(|element| table::get(element, slot)))
    }

    /// Looks up a node, and the path to it for a VIP with these flags.
    pub(super) fn node(&self, index: u32, vip_flags: u32) -> Result<Option<Node>, MapsError> {
        self.0.nodes.look_up(node_element(vip_flags, index))
    }

    /// Looks up a name in `NODE_NAMES`; `None`: the index is free.
    pub(super) fn node_name(&self, index: u32) -> Result<Option<String>, MapsError> {
        let label = self.0.node_names.look_up(index)?;
        Ok(label.map(|label| label.to_string()).filter(|name| !name.is_empty()))
    }

    /// Returns whether a prefix of the set in `SOURCE_RANGES` contains the address.
    pub(super) fn is_in_range(&self, set: u32, address: &Address) -> Result<bool, MapsError> {
        let Address { w0, w1, w2, w3 } = *address;
        let key = Key::new(u32::BITS * 5, Range { set, w0, w1, w2, w3 });
        self.0.source_ranges.look_up(&key).map(|found| found.is_some())
    }
}
