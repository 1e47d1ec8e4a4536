//! Reads and shows the pinned objects: `inspect maps` and `inspect prog`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    time::UNIX_EPOCH,
};

use aya::{maps::MapInfo, programs::ProgramInfo};
use serde::Serialize;
use vipmux_common::abi::{INTERFACE_FILTER, INTERFACE_GENERIC, Interface};

use super::InspectError;
use crate::output::{
    Report,
    table::{Color, Table},
};
use vipmux_datapath::{
    bpf::{
        direction::Direction,
        maps::{Maps, MapsError},
        pinned::{PinnedLinkInfo, PinnedObjects},
        pins::{LinkKind, PinError, Pins},
        place::Chain,
    },
    link::interface_name,
};

type PinnedLinks = BTreeMap<(LinkKind, u32), PinnedLinkInfo>;

/// A map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapView {
    /// Its name.
    pub name: &'static str,
    /// Its id in the kernel (`bpftool map show id`).
    pub id: u32,
    /// The size of a key, bytes.
    pub key_bytes: u32,
    /// The size of a value, bytes; in a per-CPU map for one CPU.
    pub value_bytes: u32,
    /// The greatest number of entries.
    pub max_entries: u32,
}

/// All maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapList {
    /// The maps.
    pub maps: Vec<MapView>,
}

impl MapList {
    /// Reads the maps.
    pub fn read(pins: &Pins) -> Result<Self, MapsError> {
        let view = |name: &&'static str| {
            let path = pins.map(name);
            let info = MapInfo::from_pin(&path).map_err(|source| MapsError::Open { path, source })?;
            Ok(MapView {
                name,
                id: info.id(),
                key_bytes: info.key_size(),
                value_bytes: info.value_size(),
                max_entries: info.max_entries(),
            })
        };
        Ok(Self { maps: Maps::NAMES.iter().map(view).collect::<Result<_, _>>()? })
    }
}

impl Report for MapList {
    const KIND: &'static str = "maps";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let header = ["MAP", "ID", "KEY BYTES", "VALUE BYTES", "MAX ENTRIES"];
        let mut table = Table::new(&header).right_aligned(&header[1..]);
        for map in &self.maps {
            let numbers = [map.id, map.key_bytes, map.value_bytes, map.max_entries].map(|number| number.to_string());
            table.row(std::iter::once(map.name.to_owned()).chain(numbers));
        }
        table.print(out, color)
    }
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramView {
    /// Its name.
    pub name: &'static str,
    /// Its id in the kernel (`bpftool prog show id`).
    pub id: u32,
    /// The hash of its instructions.
    pub tag: String,
    /// The time when it was loaded, seconds since 1970-01-01 UTC; `None`: not known.
    pub loaded_at: Option<u64>,
    /// The interfaces with a pinned link to it.
    pub attached: Vec<Attachment>,
}

/// A program on an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// The interface, by name.
    pub interface: String,
    /// XDP runs in the stack, not in the driver; `None`: not an XDP program.
    pub generic: Option<bool>,
    /// The place among the programs of the interface; `None`: an XDP program, which is alone.
    pub place: Option<ChainPosition>,
}

/// A classifier's place among the programs that see the same packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChainPosition {
    /// 1: it runs first.
    pub position: usize,
    /// The number of programs, with this one.
    pub of: usize,
    /// It is a filter in a clsact qdisc, not a tcx program.
    pub filter: bool,
}

impl Attachment {
    fn of_xdp(links: &PinnedLinks, interfaces: &BTreeMap<u32, Interface>) -> Vec<Self> {
        let attachment = |ifindex| Self {
            interface: interface_name(ifindex),
            generic: interfaces.get(&ifindex).map(|interface| interface.flags & INTERFACE_GENERIC != 0),
            place: None,
        };
        links.keys().filter(|(kind, _)| *kind == LinkKind::Xdp).map(|(_, ifindex)| attachment(*ifindex)).collect()
    }

    /// Returns the attachments of a classifier: by links, and by filters.
    fn of_classifier(direction: Direction, links: &PinnedLinks, interfaces: &BTreeMap<u32, Interface>) -> Vec<Self> {
        let attachment = |ifindex, link: Option<u32>| {
            // It may be read only with CAP_NET_ADMIN.
            let chain = Chain::read(direction, ifindex, link).unwrap_or_default();
            let place =
                chain.own.map(|own| ChainPosition { position: own + 1, of: chain.all.len(), filter: link.is_none() });
            let is_attached = place.is_some() || link.is_some();
            is_attached.then(|| Self { interface: interface_name(ifindex), generic: None, place })
        };
        let linked = links.iter().filter(|((kind, _), _)| *kind == direction.kind());
        let linked = linked.filter_map(|((_, ifindex), link)| attachment(*ifindex, Some(link.id)));
        let filtered = interfaces.iter().filter(|(_, interface)| interface.flags & INTERFACE_FILTER != 0);
        linked.chain(filtered.filter_map(|(ifindex, _)| attachment(*ifindex, None))).collect()
    }

    fn text(&self) -> String {
        let name = &self.interface;
        match (self.generic, self.place) {
            (Some(true), _) => format!("{name} (generic)"),
            (Some(false), _) => format!("{name} (native)"),
            (None, Some(ChainPosition { position, of, filter })) => {
                let filter = if filter { "filter, " } else { "" };
                format!("{name} ({filter}{position} of {of})")
            }
            (None, None) => name.clone(),
        }
    }
}

/// The pinned programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinnedPrograms {
    /// The programs.
    pub programs: Vec<ProgramView>,
}

impl PinnedPrograms {
    /// Reads the programs.
    pub fn read(pins: &Pins, maps: &Maps) -> Result<Self, InspectError> {
        let interfaces = maps.read_interfaces()?;
        let mut links = PinnedObjects::read_links(pins)?;
        links.retain(|_, link| link.ifindex != 0);
        let mut programs = Vec::new();
        for kind in LinkKind::ALL {
            let name = kind.program();
            let path = pins.program(name);
            if !path.exists() {
                continue;
            }
            let info = ProgramInfo::from_pin(&path).map_err(io::Error::other).map_err(PinError::new("read", &path))?;
            let attached = match Direction::of(kind) {
                Some(direction) => Attachment::of_classifier(direction, &links, &interfaces),
                None => Attachment::of_xdp(&links, &interfaces),
            };
            programs.push(ProgramView {
                name,
                id: info.id(),
                tag: format!("{:016x}", info.tag()),
                loaded_at: info.loaded_at().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|at| at.as_secs()),
                attached,
            });
        }
        Ok(Self { programs })
    }
}

impl Report for PinnedPrograms {
    const KIND: &'static str = "prog";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let mut table = Table::new(&["PROGRAM", "ID", "TAG", "ATTACHED TO"]).right_aligned(&["ID"]);
        for program in &self.programs {
            let attached: Vec<_> = program.attached.iter().map(Attachment::text).collect();
            table.row([program.name, &program.id.to_string(), &program.tag, &attached.join(",")]);
        }
        table.print(out, color)
    }
}
