//! Reads and shows the members of the gossip: `inspect members`.

use std::io::{self, Write};

use serde::Serialize;
use vipmux_common::abi::{MEMBER_DRAINING, MEMBER_READY, Mac, Member, Node, NodeLabel, Standing};

use super::{
    clock::Clock,
    leadership::{Code, span},
};
use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_datapath::bpf::maps::{Maps, MapsError};

/// A node, as known from gossip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberView {
    /// Its index in `NODES`.
    pub index: u32,
    /// The Node's name.
    pub node: String,
    /// Its standing; `None`: its agent was never heard of.
    pub standing: Option<Code<Standing>>,
    /// Seconds since it has this standing.
    pub since_s: Option<u64>,
    /// Milliseconds since its last message; `None`: never, or it is this node.
    pub heard_ms: Option<u64>,
    /// It may lead: its maps are in sync, and its hold-down is over.
    pub ready: bool,
    /// It gives up its VIPs and takes no others: it drains if it is ready, and is unstable otherwise.
    pub draining: bool,
    /// The number of VIPs that it says it leads.
    pub vips: u32,
    /// How often it was declared down and came back.
    pub generation: u64,
    /// Its MAC on the segment; `None`: not resolved.
    pub mac: Option<String>,
}

/// All nodes by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Members {
    /// The nodes.
    pub members: Vec<MemberView>,
}

impl Members {
    /// Reads the members.
    pub fn read(maps: &Maps, clock: &Clock) -> Result<Self, MapsError> {
        let found = maps.read_members()?;
        let view = |(index, (label, node)): (u32, (NodeLabel, Node))| {
            let member = found.get(&index);
            let Member { generation, heard, since, standing, flags, claims, reserved: _ } =
                member.copied().unwrap_or_default();
            MemberView {
                index,
                node: label.to_string(),
                standing: member.map(|_| Code(Standing::of(standing))),
                since_s: member.map(|_| clock.passed(since).as_secs()),
                heard_ms: (heard != 0).then(|| u64::try_from(clock.passed(heard).as_millis()).unwrap_or(u64::MAX)),
                ready: flags & MEMBER_READY != 0,
                draining: flags & MEMBER_DRAINING != 0,
                vips: claims,
                generation,
                mac: (node.mac != Mac::default()).then(|| node.mac.to_string()),
            }
        };
        let mut members: Vec<_> = maps.read_nodes()?.into_iter().map(view).collect();
        members.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(Self { members })
    }
}

impl MemberView {
    fn standing(&self) -> Cell<'_> {
        match self.standing {
            None => Cell::toned("not heard of", Tone::Warn),
            Some(Code(Ok(Standing::Own))) => Cell::from("this node"),
            Some(Code(Ok(Standing::OtherKey))) => Cell::toned("other key", Tone::Bad),
            Some(code) => {
                let tone = match code.0 {
                    Ok(Standing::Alive) => Tone::Good,
                    Ok(Standing::Suspected) => Tone::Warn,
                    Ok(Standing::Down) => Tone::Bad,
                    Ok(_) | Err(_) => Tone::Plain,
                };
                Cell::toned(code.to_string(), tone)
            }
        }
    }

    fn heard(&self) -> String {
        match self.heard_ms {
            None => String::new(),
            Some(ms @ 0..10_000) => format!("{ms} ms ago"),
            Some(ms) => format!("{} ago", span(ms / 1000)),
        }
    }

    /// Returns whether it may lead; empty if it is not alive.
    fn readiness(&self) -> Cell<'_> {
        let there = matches!(self.standing, Some(Code(Ok(Standing::Alive | Standing::Suspected | Standing::Own))));
        match (there, self.draining, self.ready) {
            (false, ..) => Cell::from(""),
            (true, true, true) => Cell::toned("draining", Tone::Warn),
            (true, true, false) => Cell::toned("unstable", Tone::Warn),
            (true, false, true) => Cell::toned("yes", Tone::Good),
            (true, false, false) => Cell::toned("hold-down", Tone::Warn),
        }
    }
}

impl Report for Members {
    const KIND: &'static str = "members";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let header = ["NODE", "STANDING", "SINCE", "HEARD", "READY", "VIPS", "GENERATION", "MAC"];
        let mut table = Table::new(&header).right_aligned(&["SINCE", "HEARD", "VIPS", "GENERATION"]);
        for member in &self.members {
            table.row([
                member.node.as_str().into(),
                member.standing(),
                member.since_s.map(span).unwrap_or_default().into(),
                member.heard().into(),
                member.readiness(),
                member.vips.to_string().into(),
                member.generation.to_string().into(),
                member.mac.as_deref().unwrap_or_default().into(),
            ]);
        }
        table.print(out, color)
    }
}
