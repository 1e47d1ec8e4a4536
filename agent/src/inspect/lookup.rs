//! `inspect lookup`: what would happen to a packet, step by step.

mod entries;
mod walk;

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;
use vipmux_common::abi::{DropReason, Mac};

pub(super) use self::entries::Entries;
pub use self::walk::{Request, Source, walk};
use super::Report;
use crate::cli::table::{Cell, Colour, Table, Tone};

/// One decision on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What was asked: `vip`, `fence`, `flow`, `service`, `ranges`, `kernel`, `affinity`, `table`, `backend`, `reverse` or
    /// `node`.
    pub step: &'static str,
    /// What was found.
    pub finding: String,
}

/// The endpoint that a packet reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Its index in `BACKENDS`.
    pub index: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The node it is on; `None`: the node went.
    pub node: Option<String>,
}

/// What becomes of the packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Outcome {
    /// To the stack, untouched.
    Passed,
    /// To the stack, with the backend as its destination.
    Delivered {
        /// The backend, on this node.
        backend: Endpoint,
        /// With the VIP as its destination all the same.
        direct: bool,
    },
    /// To the stack, untouched, since the Service's packets are left to it.
    LeftToKernel,
    /// To the backend's node, on layer 2.
    HandedOver {
        /// The backend.
        backend: Endpoint,
        /// The frame's new destination.
        mac: String,
        /// The frame's new source.
        source_mac: String,
        /// The interface it leaves by.
        interface: String,
    },
    /// Answered by TCP RST or ICMP port unreachable, within the limit on answers, and counted.
    Rejected {
        /// The counter's name.
        reason: &'static str,
    },
    /// Dropped and counted.
    Dropped {
        /// The counter's name.
        reason: &'static str,
    },
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lookup {
    /// The client.
    pub client: SocketAddr,
    /// The VIP and the Service's port.
    pub vip: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The decisions, in their order.
    pub steps: Vec<Step>,
    /// What they lead to.
    pub outcome: Outcome,
}

impl From<DropReason> for Outcome {
    fn from(reason: DropReason) -> Self {
        Self::Dropped { reason: reason.name() }
    }
}

impl Endpoint {
    fn text(&self) -> String {
        let node = self.node.as_deref().unwrap_or("?");
        format!("{} on {node}", SocketAddr::new(self.address, self.port))
    }
}

impl Outcome {
    fn cell(&self) -> Cell {
        match self {
            Self::Passed => Cell::toned("passed to the stack, untouched", Tone::Plain),
            Self::Delivered { backend, direct } => {
                let how = if *direct { "as it came, for" } else { "translated to" };
                Cell::toned(format!("delivered here, {how} {}", backend.text()), Tone::Good)
            }
            Self::LeftToKernel => Cell::toned("left to the node's own stack, untouched", Tone::Plain),
            Self::HandedOver { backend, mac, source_mac, interface } => {
                let text = format!("handed over for {}: {source_mac} to {mac} by {interface}", backend.text());
                Cell::toned(text, Tone::Good)
            }
            Self::Rejected { reason } => Cell::toned(format!("rejected: {reason}"), Tone::Bad),
            Self::Dropped { reason } => Cell::toned(format!("dropped: {reason}"), Tone::Bad),
        }
    }
}

impl Report for Lookup {
    const KIND: &'static str = "lookup";

    fn print(&self, out: &mut impl Write, colour: Colour) -> io::Result<()> {
        let mut table = Table::new(&["STEP", "FINDING"]);
        for step in &self.steps {
            table.row([step.step, &step.finding]);
        }
        table.row(["verdict".into(), self.outcome.cell()]);
        table.print(out, colour)
    }
}

/// Why a MAC address could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no MAC address, such as 02:00:5e:10:20:30")]
pub struct BadMac(String);

/// Reads six hexadecimal bytes with colons between them.
pub fn parse_mac(text: &str) -> Result<Mac, BadMac> {
    let bad = || BadMac(text.to_owned());
    let byte = |part: &str| {
        let digits = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    bytes.map(Mac::new).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_six_bytes_in_hexadecimal() {
        assert_eq!(parse_mac("02:00:5e:10:20:aF"), Ok(Mac::new([2, 0, 0x5e, 0x10, 0x20, 0xaf])));
        for bad in
            ["", "02:00:5e:10:20", "02:00:5e:10:20:30:40", "02:00:5e:10:20:+3", "2:0:5e:10:20:30", "zz:00:5e:10:20:30"]
        {
            assert_eq!(parse_mac(bad), Err(BadMac(bad.to_owned())));
        }
    }
}
