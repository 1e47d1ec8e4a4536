//! Reads and shows the pinned objects: `inspect maps` and `inspect prog`.

use std::{
    io::{self, Write},
    time::UNIX_EPOCH,
};

use aya::{maps::MapInfo, programs::ProgramInfo};
use serde::Serialize;
use vipmux_common::abi::INTERFACE_GENERIC;

use super::InspectError;
use crate::output::{
    Report,
    table::{Color, Table},
};
use vipmux_datapath::{
    bpf::{
        maps::{Maps, MapsError},
        pinned::PinnedObjects,
        pins::{LinkKind, PinError, Pins},
    },
    link::interface_name,
};

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
}

impl Attachment {
    fn text(&self) -> String {
        let mode = match self.generic {
            Some(true) => " (generic)",
            Some(false) => " (native)",
            None => "",
        };
        format!("{}{mode}", self.interface)
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
            let attached = links.keys().filter(|(found, _)| *found == kind).map(|(_, ifindex)| Attachment {
                interface: interface_name(*ifindex),
                generic: interfaces
                    .get(ifindex)
                    .filter(|_| kind == LinkKind::Xdp)
                    .map(|interface| interface.flags & INTERFACE_GENERIC != 0),
            });
            programs.push(ProgramView {
                name,
                id: info.id(),
                tag: format!("{:016x}", info.tag()),
                loaded_at: info.loaded_at().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|at| at.as_secs()),
                attached: attached.collect(),
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
