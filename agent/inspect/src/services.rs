//! Reads and shows the Service ports: `inspect services`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    rc::Rc,
};

use serde::Serialize;
use vipmux_common::abi::{SERVICE_DIRECT, SERVICE_KERNEL, SERVICE_SPARE, ServiceValue};

use super::{
    clock::Clock,
    names::{self, Claim, Names},
};
use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_datapath::bpf::maps::{Maps, MapsError};

/// A cache of the backends in tables. Services with equal endpoints share a table, which is read
/// once.
pub(super) struct Tables<'maps> {
    maps: &'maps Maps,
    known: BTreeMap<(u32, u32), Rc<BTreeSet<u32>>>,
}

impl<'maps> Tables<'maps> {
    pub(super) fn new(maps: &'maps Maps) -> Self {
        Self { maps, known: BTreeMap::new() }
    }

    /// Returns the backends of the Service's table over all backends.
    pub(super) fn all(&mut self, service: &ServiceValue) -> Result<Rc<BTreeSet<u32>>, MapsError> {
        self.backends(service.table, service.table_length)
    }

    /// Returns the backends of its table over this node's own backends.
    fn local(&mut self, service: &ServiceValue) -> Result<Rc<BTreeSet<u32>>, MapsError> {
        self.backends(service.local_table, service.local_length)
    }

    fn backends(&mut self, first: u32, length: u32) -> Result<Rc<BTreeSet<u32>>, MapsError> {
        if let Some(known) = self.known.get(&(first, length)) {
            return Ok(Rc::clone(known));
        }
        let read: Rc<BTreeSet<u32>> = Rc::new(self.maps.read_table(first, length)?.into_iter().collect());
        self.known.insert((first, length), Rc::clone(&read));
        Ok(read)
    }
}

/// A Service port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceView {
    /// The port claim and its owner.
    #[serde(flatten)]
    pub claim: Claim,
    /// Its slot in the arrays.
    pub slot: u32,
    /// The length of its table; 0 without a ready backend.
    pub table_length: u32,
    /// Backends that take new flows.
    pub ready: usize,
    /// Those of them that are on this node.
    pub local: usize,
    /// Packets to it through this node.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
    /// Flows that started on this node.
    pub flows: u64,
    /// Packets are left to the node's own stack.
    pub kernel: bool,
    /// Backends get packets with the VIP as destination (direct server return).
    pub direct: bool,
    /// How long an inactive client is remembered, seconds; `None`: no session affinity.
    pub affinity_s: Option<u64>,
    /// The idle timeout of flows, seconds; `None`: the protocol's.
    pub idle_s: Option<u64>,
    /// The number of admitted source prefixes; `None`: all clients are admitted.
    pub source_ranges: Option<usize>,
}

impl ServiceView {
    /// Returns what differs from the default, one word each.
    fn particulars(&self) -> String {
        let kernel = self.kernel.then(|| "kernel".to_owned());
        let direct = self.direct.then(|| "direct".to_owned());
        let affinity = self.affinity_s.map(|seconds| format!("affinity={seconds}s"));
        let idle = self.idle_s.map(|seconds| format!("idle={seconds}s"));
        let ranges = self.source_ranges.map(|count| format!("ranges={count}"));
        [kernel, direct, affinity, idle, ranges].into_iter().flatten().collect::<Vec<_>>().join(",")
    }
}

/// All Service ports, ordered by VIP, port and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Services {
    /// The Service ports.
    pub services: Vec<ServiceView>,
}

impl Services {
    /// Reads the Service ports.
    pub fn read(maps: &Maps, clock: &Clock) -> Result<Self, MapsError> {
        let claims = maps.read_services()?;
        let names = Names::read(maps)?;
        let slots = claims.values().map(|value| value.slot.saturating_add(1)).max().unwrap_or(0);
        let counts = maps.read_service_stats(slots)?;
        let states = maps.read_service_states()?;
        let mut ranges: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, range) in maps.read_source_ranges()? {
            *ranges.entry(range.set).or_default() += 1;
        }
        let seconds = |ticks: u32| (ticks != 0).then(|| clock.duration(ticks.into()).as_secs());
        let mut tables = Tables::new(maps);
        let mut services = Vec::with_capacity(claims.len());
        for (key, value) in &claims {
            let count = counts.get(value.slot as usize).copied().unwrap_or_default();
            let state = states.get(&value.slot).copied().unwrap_or_default();
            let spare = value.flags & SERVICE_SPARE != 0;
            services.push(ServiceView {
                claim: names.claim(key, value),
                slot: value.slot,
                table_length: value.table_length,
                ready: tables.all(value)?.len(),
                local: if spare { 0 } else { tables.local(value)?.len() },
                packets: count.packets,
                bytes: count.bytes,
                flows: count.flows,
                kernel: value.flags & SERVICE_KERNEL != 0,
                direct: state.flags & SERVICE_DIRECT != 0,
                affinity_s: seconds(value.affinity),
                idle_s: seconds(state.idle),
                source_ranges: (state.ranges != 0).then(|| ranges.get(&state.ranges).copied().unwrap_or(0)),
            });
        }
        services.sort_by(|a, b| a.claim.cmp(&b.claim));
        Ok(Self { services })
    }
}

impl Report for Services {
    const KIND: &'static str = "services";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let numbers = ["READY", "LOCAL", "PACKETS", "BYTES", "FLOWS"];
        let header = ["VIP", "PORT", "SERVICE", "READY", "LOCAL", "PACKETS", "BYTES", "FLOWS", "PARTICULARS"];
        // Without any, the last column is left out.
        let plain = self.services.iter().all(|service| service.particulars().is_empty());
        let header = &header[..header.len() - usize::from(plain)];
        let mut table = Table::new(header).right_aligned(&numbers);
        for service in &self.services {
            let claim = &service.claim;
            let unserved = service.ready == 0 && !service.kernel;
            table.row([
                names::address(claim.vip).into(),
                names::claimed(claim.port, &claim.protocol).into(),
                format!("{}/{}", claim.namespace, claim.name).into(),
                Cell::toned(service.ready.to_string(), if unserved { Tone::Bad } else { Tone::Plain }),
                service.local.to_string().into(),
                service.packets.to_string().into(),
                service.bytes.to_string().into(),
                service.flows.to_string().into(),
                service.particulars().into(),
            ]);
        }
        table.print(out, color)
    }
}
