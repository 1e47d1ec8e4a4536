//! Carries flows over to a table of another size, and from the LRU maps of agents of version 7 and
//! older.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use aya::maps::{Array, Map};
use vipmux_common::abi::{
    Address, BACKEND_LOCAL, Backend, Config, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_ISN, FLOW_REPLIES,
    FLOW_RESET, FlowKey, FlowRecord, FlowSet, ServiceKey, ServiceValue,
};

use super::CONFIG;
use crate::bpf::{
    flow_table::{self, FlowTable},
    maps::{
        MapsError,
        mapped_array::Access,
        open,
        raw::{RawEntries, RawMap},
    },
    programs::LoadError,
};

const FLOWS: &str = "FLOWS";
const REVERSE: &str = "REVERSE";

/// Adds the flows of the maps in the folder `old` to the table in the folder `new`. A flow that
/// `new` knows already gets the newer record. Returns the number of flows without room.
pub(super) fn carry(old: &Path, new: &Path) -> Result<usize, LoadError> {
    let to = table(new, Access::Write)?;
    let add = |records: &mut dyn Iterator<Item = FlowRecord>| records.filter(|record| !to.add(*record)).count();
    let layout = RawMap::open(old, FLOWS)?.layout();
    Ok(if layout.is_hash() {
        add(&mut legacy(old)?.into_iter())
    } else if layout.value_size as usize == size_of::<FlowSet>() && flow_table::mask(layout.max_entries).is_some() {
        add(&mut table(old, Access::Read)?.records())
    } else {
        // A table of a later agent.
        0
    })
}

/// Maps the table in a folder.
pub(super) fn table(folder: &Path, access: Access) -> Result<FlowTable, MapsError> {
    let path = folder.join(FLOWS);
    let map = Map::from_map_data(open(&path)?).and_then(Array::<_, FlowSet>::try_from);
    let map = map.map_err(|source| MapsError::Open { path, source })?;
    let mut secret = Config::default().flow_secret;
    if let Some((_, config)) = RawMap::open(folder, CONFIG)?.entries()?.iter().next() {
        let at = std::mem::offset_of!(Config, flow_secret);
        let number = |index: usize| Fields(config).u64(at + index * 8);
        secret.sum = number(0);
        secret.client = [number(1), number(2), number(3), number(4)];
        secret.port = number(5);
    }
    FlowTable::map(&map, secret, access).map_err(|error| MapsError::Read { map: FLOWS, source: error.into() })
}

/// Numbers in a value of any layout; zero beyond its end.
#[derive(Clone, Copy)]
struct Fields<'bytes>(&'bytes [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(self.bytes(at))
    }

    fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }

    fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(at))
    }

    fn address(self, at: usize) -> Address {
        Address { w0: self.u32(at), w1: self.u32(at + 4), w2: self.u32(at + 8), w3: self.u32(at + 12) }
    }
}

/// The maps of agents of version 3 to 7 that tell what a flow's records refer to.
struct LegacyMaps {
    vips: BTreeMap<Address, u32>,
    backends: Vec<Backend>,
    services: BTreeMap<ServiceKey, ServiceValue>,
}

impl LegacyMaps {
    fn read(folder: &Path) -> Result<Self, LoadError> {
        let entries = |name| RawMap::open(folder, name).and_then(|map| map.entries());
        let vip = |(key, value)| (Fields(key).address(0), Fields(value).u32(0));
        let mut backends = Vec::new();
        for (index, value) in entries("BACKENDS")?.iter() {
            let (index, value) = (Fields(index).u32(0) as usize, Fields(value));
            backends.resize(backends.len().max(index + 1), Backend::default());
            backends[index] = Backend {
                address: value.address(0),
                port: value.u16(16),
                flags: value.u16(18),
                node: value.u32(20),
                generation: value.u32(24),
                reserved: 0,
            };
        }
        let service = |(key, value)| {
            let (key, value) = (Fields(key), Fields(value));
            let [protocol] = key.bytes(6);
            let (slot, generation) = (value.u32(0), value.u32(4));
            let claim = ServiceKey { vip: key.u32(0), port: key.u16(4), protocol, padding: 0 };
            (claim, ServiceValue { slot, generation, ..ServiceValue::default() })
        };
        Ok(Self {
            vips: entries("VIPS")?.iter().map(vip).collect(),
            backends,
            services: entries("SERVICES")?.iter().map(service).collect(),
        })
    }

    /// Returns the record of a flow of which only the record of its replies is left.
    fn record(&self, key: FlowKey, backend: Address, port: u16) -> Option<FlowRecord> {
        let is_it = |(_, entry): &(u32, &Backend)| {
            let is_port = entry.port == port || entry.port == 0 && key.vip_port == port;
            entry.flags & BACKEND_LOCAL != 0 && entry.generation != 0 && entry.address == backend && is_port
        };
        let (index, entry) = (0..).zip(&self.backends).find(is_it)?;
        let claim = |port| ServiceKey { vip: key.vip, port, protocol: protocol(key), padding: 0 };
        let service = self.services.get(&claim(key.vip_port)).or_else(|| self.services.get(&claim(0)))?;
        Some(FlowRecord {
            backend: index,
            backend_generation: entry.generation,
            slot: service.slot,
            slot_generation: service.generation,
            node: u16::try_from(entry.node).ok()?,
            ..new_record(key)
        })
    }

    fn has(&self, record: &FlowRecord, backend: Address, port: u16) -> bool {
        self.backends.get(record.backend as usize).is_some_and(|entry| {
            let entry_port = if entry.port == 0 { record.vip_port } else { entry.port };
            entry.generation == record.backend_generation && entry.address == backend && entry_port == port
        })
    }
}

fn protocol(key: FlowKey) -> u8 {
    key.protocol.to_le_bytes()[0]
}

fn new_record(key: FlowKey) -> FlowRecord {
    let FlowKey { client, vip, client_port, vip_port, .. } = key;
    FlowRecord { vip, client_port, vip_port, client, protocol: protocol(key), ..FlowRecord::default() }
}

/// Returns the flows of agents of version 3 to 7, whose two maps had one record for each direction.
fn legacy(folder: &Path) -> Result<Vec<FlowRecord>, LoadError> {
    let maps = LegacyMaps::read(folder)?;
    let read = |name| match RawMap::open(folder, name) {
        Ok(map) => map.entries(),
        Err(error @ MapsError::NoPermission { .. }) => Err(error),
        Err(_) => Ok(RawEntries::default()),
    };
    let mut flows: HashMap<FlowKey, FlowRecord> = HashMap::new();
    for (key, value) in read(FLOWS)?.iter() {
        let (key, value) = (Fields(key), Fields(value));
        let (client, vip, client_port, vip_port) = (key.address(0), key.u32(16), key.u16(20), key.u16(22));
        let key = FlowKey { client, vip, client_port, vip_port, protocol: key.u32(24), reserved: 0 };
        let record = FlowRecord {
            backend: value.u32(4),
            backend_generation: value.u32(8),
            slot: value.u32(12),
            slot_generation: value.u32(16),
            epoch: value.u32(20),
            node: value.u16(24),
            flags: flags(value.u16(26).into(), FLOW_CLIENT_FIN | FLOW_RESET),
            seen: value.u32(28),
            ..new_record(key)
        };
        flows.insert(key, record);
    }
    for (key, value) in read(REVERSE)?.iter() {
        let (key, value) = (Fields(key), Fields(value));
        let Some(&vip) = maps.vips.get(&value.address(8)) else { continue };
        let (backend, client, port) = (key.address(0), key.address(16), key.u16(32));
        let (client_port, vip_port, protocol) = (key.u16(34), value.u16(24), key.u32(36));
        let key = FlowKey { client, vip, client_port, vip_port, protocol, reserved: 0 };
        let known = flows.get(&key).copied().filter(|record| maps.has(record, backend, port));
        let Some(record) = known.or_else(|| maps.record(key, backend, port)) else { continue };
        let reply = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN | FLOW_RESET | FLOW_ISN | FLOW_DIRECT;
        let flags = flags(value.u32(28) & reply | FLOW_REPLIES, u32::MAX);
        flows.insert(key, FlowRecord { flags, epoch: 0, isn: value.u32(4), seen: value.u32(32), ..record });
    }
    Ok(flows.into_values().collect())
}

fn flags(flags: u32, known: u32) -> u8 {
    (flags & known).to_le_bytes()[0]
}
