//! `inspect services`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    rc::Rc,
};

use serde::Serialize;
use vipmux_common::abi::ServiceValue;

use super::{
    Report,
    names::{self, Claim, Names},
};
use crate::{
    cli::table::{Cell, Colour, Table, Tone},
    datapath::maps::{Maps, MapsError},
};

/// The sets of backends that tables hold. Services with equal endpoints share a table, which is read once.
pub(super) struct Tables<'maps> {
    maps: &'maps Maps,
    known: BTreeMap<(u32, u32), Rc<BTreeSet<u32>>>,
}

impl<'maps> Tables<'maps> {
    pub(super) fn new(maps: &'maps Maps) -> Self {
        Self { maps, known: BTreeMap::new() }
    }

    /// The backends of the Service's table over all backends.
    pub(super) fn all(&mut self, service: &ServiceValue) -> Result<Rc<BTreeSet<u32>>, MapsError> {
        self.backends(service.table, service.table_length)
    }

    /// The backends of its table over this node's own.
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
    /// Who owns which port of which VIP.
    #[serde(flatten)]
    pub claim: Claim,
    /// Its slot in the arrays.
    pub slot: u32,
    /// Slots of its Maglev table; 0 without a ready backend.
    pub table_length: u32,
    /// Backends that take new flows.
    pub ready: usize,
    /// Those of them on this node.
    pub local: usize,
    /// Packets to it through this node.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
    /// Flows that began here.
    pub flows: u64,
}

/// All Service ports, ordered by VIP, port and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Services {
    /// The Service ports.
    pub services: Vec<ServiceView>,
}

impl Services {
    /// Reads them.
    pub fn read(maps: &Maps) -> Result<Self, MapsError> {
        let claims = maps.read_services()?;
        let names = Names::read(maps)?;
        let slots = claims.values().map(|value| value.slot.saturating_add(1)).max().unwrap_or(0);
        let counts = maps.read_service_stats(slots)?;
        let mut tables = Tables::new(maps);
        let mut services = Vec::with_capacity(claims.len());
        for (key, value) in &claims {
            let count = counts.get(value.slot as usize).copied().unwrap_or_default();
            services.push(ServiceView {
                claim: names.claim(key, value),
                slot: value.slot,
                table_length: value.table_length,
                ready: tables.all(value)?.len(),
                local: tables.local(value)?.len(),
                packets: count.packets,
                bytes: count.bytes,
                flows: count.flows,
            });
        }
        services.sort_by(|a, b| a.claim.cmp(&b.claim));
        Ok(Self { services })
    }
}

impl Report for Services {
    const KIND: &'static str = "services";

    fn print(&self, out: &mut impl Write, colour: Colour) -> io::Result<()> {
        let numbers = ["READY", "LOCAL", "PACKETS", "BYTES", "FLOWS"];
        let header = ["VIP", "PORT", "SERVICE", "READY", "LOCAL", "PACKETS", "BYTES", "FLOWS"];
        let mut table = Table::new(&header).right_aligned(&numbers);
        for service in &self.services {
            let claim = &service.claim;
            table.row([
                names::address(claim.vip).into(),
                format!("{}/{}", claim.port, claim.protocol).into(),
                format!("{}/{}", claim.namespace, claim.name).into(),
                Cell::toned(service.ready.to_string(), if service.ready == 0 { Tone::Bad } else { Tone::Plain }),
                service.local.to_string().into(),
                service.packets.to_string().into(),
                service.bytes.to_string().into(),
                service.flows.to_string().into(),
            ]);
        }
        table.print_with(out, colour)
    }
}
