//! `inspect maps` and `inspect prog`: the pinned objects themselves.

use std::{
    io::{self, Write},
    time::UNIX_EPOCH,
};

use aya::{maps::MapInfo, programs::ProgramInfo};
use serde::Serialize;
use vipmux_common::abi::INTERFACE_GENERIC;

use super::{InspectError, Report};
use crate::{
    cli::table::{Colour, Table},
    datapath::{
        maps::{Maps, MapsError},
        pinned::Pinned,
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
    /// The size of a value, bytes; of one CPU's in a per-CPU map.
    pub value_bytes: u32,
    /// How many entries it can hold.
    pub max_entries: u32,
}

/// All maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapList {
    /// The maps.
    pub maps: Vec<MapView>,
}

impl MapList {
    /// Reads them.
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

    fn print(&self, out: &mut impl Write, colour: Colour) -> io::Result<()> {
        let header = ["MAP", "ID", "KEY BYTES", "VALUE BYTES", "MAX ENTRIES"];
        let mut table = Table::new(&header).right_aligned(&header[1..]);
        for map in &self.maps {
            let numbers = [map.id, map.key_bytes, map.value_bytes, map.max_entries].map(|number| number.to_string());
            table.row(std::iter::once(map.name.to_owned()).chain(numbers));
        }
        table.print(out, colour)
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
    /// When it was loaded, seconds since 1970-01-01 UTC; `None`: the kernel does not say.
    pub loaded_at: Option<u64>,
    /// The interfaces it is attached to, by pinned links.
    pub attached: Vec<Attachment>,
}

/// A program on an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// The interface, by name.
    pub interface: String,
    /// XDP runs in the stack there, not in the driver; `None`: not an XDP program.
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

/// The programs, as far as they are pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Programs {
    /// The programs.
    pub programs: Vec<ProgramView>,
}

impl Programs {
    /// Reads them.
    pub fn read(pins: &Pins, maps: &Maps) -> Result<Self, InspectError> {
        let interfaces = maps.read_interfaces()?;
        let mut links = Pinned::read_links(pins)?;
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

impl Report for Programs {
    const KIND: &'static str = "prog";

    fn print(&self, out: &mut impl Write, colour: Colour) -> io::Result<()> {
        let mut table = Table::new(&["PROGRAM", "ID", "TAG", "ATTACHED TO"]).right_aligned(&["ID"]);
        for program in &self.programs {
            let attached: Vec<_> = program.attached.iter().map(Attachment::text).collect();
            table.row([program.name, &program.id.to_string(), &program.tag, &attached.join(",")]);
        }
        table.print(out, colour)
    }
}
