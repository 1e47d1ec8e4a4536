//! What the kernel holds, read from the pinned maps alone: it works while the agent is down. But for [`diff`], which
//! asks the agent.
//!
//! Each submodule reads one view into a [`Report`], which is shown as a table or as JSON. A view is not a snapshot: the
//! maps change while they are read, so an entry that refers to one that went meanwhile is shown as such, never an error.

pub mod backends;
pub mod clock;
pub mod diff;
pub mod flows;
pub mod freshness;
pub mod leadership;
pub mod lookup;
pub mod members;
pub mod names;
pub mod neighbors;
pub mod objects;
pub mod services;
pub mod stats;
pub mod vips;

#[cfg(test)]
mod tests;

use std::{
    io::{self, Write},
    net::IpAddr,
};

use serde::Serialize;

use crate::{
    cli::table::Colour,
    control::AskError,
    datapath::{maps::MapsError, pins::PinError},
};

/// The JSON's version: changes when a field goes or changes its meaning, not when one is added.
pub const VERSION: u32 = 1;

/// A view could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The maps could not be opened or read.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The pinned programs or links could not be read.
    #[error(transparent)]
    Pinned(#[from] PinError),
    /// The system's clocks could not be read.
    #[error("cannot read the clock")]
    Clock(#[from] nix::Error),
    /// The output could not be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    /// No packet has such addresses.
    #[error("{client} and {vip} are of different address families")]
    Families {
        /// The client.
        client: IpAddr,
        /// The VIP.
        vip: IpAddr,
    },
    /// The agent could not be asked.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The view could not be made into JSON.
    #[error("cannot make JSON")]
    Json(#[source] serde_json::Error),
}

/// One view.
pub trait Report: Serialize {
    /// Its name on the command line, and the JSON's `kind`.
    const KIND: &'static str;

    /// Writes it for people.
    fn print(&self, out: &mut impl Write, colour: Colour) -> io::Result<()>;
}

/// How a view is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Table(Colour),
    /// One line of JSON.
    Json,
    /// Indented JSON.
    PrettyJson,
}

#[derive(Serialize)]
struct Document<'a, R> {
    version: u32,
    kind: &'static str,
    #[serde(flatten)]
    report: &'a R,
}

/// Writes `report`.
pub fn write<R: Report>(report: &R, format: Format, out: &mut impl Write) -> Result<(), InspectError> {
    let document = Document { version: VERSION, kind: R::KIND, report };
    let text = match format {
        Format::Table(colour) => return Ok(report.print(out, colour)?),
        Format::Json => serde_json::to_string(&document),
        Format::PrettyJson => serde_json::to_string_pretty(&document),
    };
    Ok(writeln!(out, "{}", text.map_err(InspectError::Json)?)?)
}
