//! Single entries of the maps, as the XDP program looks them up.

use aya::maps::{MapError, lpm_trie::Key};
use vipmux_common::abi::{
    Address, AffinityKey, AffinityValue, Backend, Config, FlowKey, FlowValue, Interface, Mac, Node, Range, ReverseKey,
    ReverseValue, ServiceKey, ServiceState, ServiceValue, VipValue,
};
use vipmux_common::table;

use crate::{
    datapath::maps::{Maps, MapsError},
    model::ServiceName,
};

/// What the walk reads: the maps, or a test's model of them. `None`: no such entry, or an index out of bounds.
pub trait Entries {
    /// `CONFIG[0]`.
    fn config(&self) -> Result<Config, MapsError>;
    /// The interfaces with a bit, by ifindex.
    fn interfaces(&self) -> Result<Vec<(u32, Interface)>, MapsError>;
    /// `VIPS`.
    fn vip(&self, address: &Address) -> Result<Option<VipValue>, MapsError>;
    /// `SERVICES`.
    fn service(&self, key: &ServiceKey) -> Result<Option<ServiceValue>, MapsError>;
    /// `SERVICE_STATES`.
    fn service_state(&self, slot: u32) -> Result<Option<ServiceState>, MapsError>;
    /// `SERVICE_NAMES`; `None`: the slot is free.
    fn owner(&self, slot: u32) -> Result<Option<ServiceName>, MapsError>;
    /// `TABLES`.
    fn table_slot(&self, slot: u32) -> Result<Option<u32>, MapsError>;
    /// `BACKENDS`.
    fn backend(&self, index: u32) -> Result<Option<Backend>, MapsError>;
    /// `NODES`.
    fn node(&self, index: u32) -> Result<Option<Node>, MapsError>;
    /// `NODE_NAMES`; `None`: the index is free.
    fn node_name(&self, index: u32) -> Result<Option<String>, MapsError>;
    /// Whether `PEERS` has it.
    fn is_peer(&self, mac: &Mac) -> Result<bool, MapsError>;
    /// `FLOWS`.
    fn flow(&self, key: &FlowKey) -> Result<Option<FlowValue>, MapsError>;
    /// `AFFINITY`.
    fn affinity(&self, key: &AffinityKey) -> Result<Option<AffinityValue>, MapsError>;
    /// Whether a prefix of the set in `SOURCE_RANGES` holds the address.
    fn is_in_range(&self, set: u32, address: &Address) -> Result<bool, MapsError>;
    /// `REVERSE`.
    fn reverse(&self, key: &ReverseKey) -> Result<Option<ReverseValue>, MapsError>;
}

fn entry<V>(map: &'static str, found: Result<V, MapError>) -> Result<Option<V>, MapsError> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound | MapError::OutOfBounds { .. }) => Ok(None),
        Err(source) => Err(MapsError::Read { map, source }),
    }
}

impl Entries for Maps {
    fn config(&self) -> Result<Config, MapsError> {
        self.read_config()
    }

    fn interfaces(&self) -> Result<Vec<(u32, Interface)>, MapsError> {
        Ok(self.read_interfaces()?.into_iter().collect())
    }

    fn vip(&self, address: &Address) -> Result<Option<VipValue>, MapsError> {
        entry("VIPS", self.vips.get(address, 0))
    }

    fn service(&self, key: &ServiceKey) -> Result<Option<ServiceValue>, MapsError> {
        entry("SERVICES", self.services.get(key, 0))
    }

    fn service_state(&self, slot: u32) -> Result<Option<ServiceState>, MapsError> {
        entry("SERVICE_STATES", self.service_states.get(&slot, 0))
    }

    fn owner(&self, slot: u32) -> Result<Option<ServiceName>, MapsError> {
        let owner = entry("SERVICE_NAMES", self.service_names.get(&slot, 0))?;
        let owner = owner.map(|owner| owner.parts()).filter(|(_, name)| !name.is_empty());
        Ok(owner.map(|(namespace, name)| ServiceName { namespace, name }))
    }

    fn table_slot(&self, slot: u32) -> Result<Option<u32>, MapsError> {
        let element = entry("TABLES", self.tables.get(&table::element(slot), 0))?;
        Ok(element.map(|element| table::get(element, slot)))
    }

    fn backend(&self, index: u32) -> Result<Option<Backend>, MapsError> {
        entry("BACKENDS", self.backends.get(&index, 0))
    }

    fn node(&self, index: u32) -> Result<Option<Node>, MapsError> {
        entry("NODES", self.nodes.get(&index, 0))
    }

    fn node_name(&self, index: u32) -> Result<Option<String>, MapsError> {
        let label = entry("NODE_NAMES", self.node_names.get(&index, 0))?;
        Ok(label.map(|label| label.to_string()).filter(|name| !name.is_empty()))
    }

    fn is_peer(&self, mac: &Mac) -> Result<bool, MapsError> {
        Ok(entry("PEERS", self.peers.get(mac, 0))?.is_some())
    }

    fn flow(&self, key: &FlowKey) -> Result<Option<FlowValue>, MapsError> {
        entry("FLOWS", self.flows.get(key, 0))
    }

    fn affinity(&self, key: &AffinityKey) -> Result<Option<AffinityValue>, MapsError> {
        entry("AFFINITY", self.affinity.get(key, 0))
    }

    fn is_in_range(&self, set: u32, address: &Address) -> Result<bool, MapsError> {
        let Address { w0, w1, w2, w3 } = *address;
        let key = Key::new(u32::BITS * 5, Range { set, w0, w1, w2, w3 });
        entry("SOURCE_RANGES", self.source_ranges.get(&key, 0)).map(|found| found.is_some())
    }

    fn reverse(&self, key: &ReverseKey) -> Result<Option<ReverseValue>, MapsError> {
        entry("REVERSE", self.reverse.get(key, 0))
    }
}
