//! Predicts what happens to a packet, step by step: `inspect lookup`.

mod entries;
mod walk;

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;
use vipmux_common::abi::DropReason;

use self::entries::LookupMaps;
pub use self::walk::{FrameSource, LookupPacket, walk};
use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};

/// One decision about a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LookupStep {
    /// The question: `client`, `vip`, `fence`, `flow`, `service`, `ranges`, `kernel`, `affinity`,
    /// `table`, `backend`, `replies` or `node`.
    pub step: &'static str,
    /// The answer.
    pub finding: String,
}

/// The backend that a packet reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LookupEndpoint {
    /// Its index in `BACKENDS`.
    pub index: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its node; `None`: the node is gone.
    pub node: Option<String>,
}

/// The outcome for a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum LookupOutcome {
    /// Passed to the stack, unchanged.
    Passed,
    /// Delivered to the stack, with the backend as its destination.
    Delivered {
        /// The backend, on this node.
        backend: LookupEndpoint,
        /// The destination is still the VIP (direct server return).
        direct: bool,
    },
    /// Passed to the stack, unchanged, because the Service's packets are left to it.
    LeftToKernel,
    /// Handed over to the backend's node, on layer 2.
    HandedOver {
        /// The backend.
        backend: LookupEndpoint,
        /// The frame's new destination.
        mac: String,
        /// The frame's new source.
        source_mac: String,
        /// The interface it leaves by.
        interface: String,
    },
    /// Answered by TCP RST or ICMP port unreachable, within the rate limit, and counted.
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

/// The prediction for a [`LookupPacket`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lookup {
    /// The client.
    pub client: SocketAddr,
    /// The VIP and the Service's port.
    pub vip: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The decisions, in their order.
    pub steps: Vec<LookupStep>,
    /// The outcome.
    pub outcome: LookupOutcome,
}

impl From<DropReason> for LookupOutcome {
    fn from(reason: DropReason) -> Self {
        Self::Dropped { reason: reason.name() }
    }
}

impl LookupEndpoint {
    fn text(&self) -> String {
        let node = self.node.as_deref().unwrap_or("?");
        format!("{} on {node}", SocketAddr::new(self.address, self.port))
    }
}

impl LookupOutcome {
    fn cell(&self) -> Cell<'_> {
        match self {
            Self::Passed => Cell::toned("passed to the stack, unchanged", Tone::Plain),
            Self::Delivered { backend, direct } => {
                let how = if *direct { "unchanged, for" } else { "translated to" };
                Cell::toned(format!("delivered here, {how} {}", backend.text()), Tone::Good)
            }
            Self::LeftToKernel => Cell::toned("left to the node's own stack, unchanged", Tone::Plain),
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

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let mut table = Table::new(&["STEP", "FINDING"]);
        for step in &self.steps {
            table.row([step.step, &step.finding]);
        }
        table.row(["verdict".into(), self.outcome.cell()]);
        table.print(out, color)
    }
}
