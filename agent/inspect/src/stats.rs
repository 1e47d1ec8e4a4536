//! Reads and shows the counters: `inspect stats`.

use std::io::{self, Write};

use serde::Serialize;
use vipmux_common::abi::{Count, DropReason, Stat};

use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_datapath::{
    bpf::{
        maps::{Maps, MapsError},
        refusals::Refusal,
    },
    link::{Ethtool, interface_name},
};

/// One counter, summed over the CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// [`Stat::name`] or [`DropReason::name`].
    pub name: &'static str,
    /// Packets.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
}

/// The counters since the maps were created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Events.
    pub stats: Vec<Counter>,
    /// Drops by reason.
    pub drops: Vec<Counter>,
    /// Frames that the kernel refused after the program's verdict; [`Self::stats`] has them too.
    pub refused: Vec<RefusedFrames>,
}

/// Frames that the kernel refused, or a driver lost, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedFrames {
    /// Where they came in, by name. Of a driver: its interface.
    pub interface: String,
    /// The verdict: `redirect`, `tx`, `aborted`, `other`. `driver`: a driver lost them later, and counted them
    /// itself.
    pub action: &'static str,
    /// The kernel's error, as in errno(3); empty: it names none. Of a driver: the name of its counter.
    pub error: String,
    /// Their number.
    pub frames: u64,
}

/// Returns the numbers of frames that the kernel refused and that drivers lost, by interface and reason.
pub fn refused_frames(maps: &Maps) -> Result<Vec<RefusedFrames>, MapsError> {
    let refusals = maps.read_refusals()?.into_iter();
    let refused = refusals.map(|(key, frames)| {
        let interface = interface_name(key.ifindex);
        RefusedFrames { interface, action: Refusal(key).action(), error: Refusal(key).error(), frames }
    });
    let ports = maps.read_interfaces()?.into_iter().filter(|(_, interface)| interface.bit != 0);
    Ok(refused.chain(ports.flat_map(|(ifindex, _)| lost_frames(&interface_name(ifindex)))).collect())
}

/// Returns the numbers of frames that an interface's driver lost after the program's verdict. Empty as well if
/// the driver has no counters.
fn lost_frames(interface: &str) -> Vec<RefusedFrames> {
    let lost = Ethtool::open().and_then(|ethtool| ethtool.lost_by_xdp(interface)).unwrap_or_default().into_iter();
    lost.map(|(error, frames)| RefusedFrames { interface: interface.to_owned(), action: "driver", error, frames })
        .collect()
}

fn counters<T: Copy>(counts: Vec<(T, Count)>, name: impl Fn(T) -> &'static str, all: bool) -> Vec<Counter> {
    let counted = counts.into_iter().filter(|(_, count)| all || count.packets != 0);
    counted.map(|(what, count)| Counter { name: name(what), packets: count.packets, bytes: count.bytes }).collect()
}

impl Stats {
    /// Reads the counters that are not zero, or `all`.
    pub fn read(maps: &Maps, all: bool) -> Result<Self, MapsError> {
        Ok(Self {
            stats: counters(maps.read_stats()?, Stat::name, all),
            drops: counters(maps.read_drops()?, DropReason::name, all),
            refused: refused_frames(maps)?,
        })
    }
}

impl Report for Stats {
    const KIND: &'static str = "stats";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let mut table = Table::new(&["COUNTER", "PACKETS", "BYTES"]).right_aligned(&["PACKETS", "BYTES"]);
        for counter in &self.stats {
            table.row([counter.name.to_owned(), counter.packets.to_string(), counter.bytes.to_string()]);
        }
        for counter in &self.drops {
            table.row([
                Cell::toned(format!("drop:{}", counter.name), Tone::Warn),
                counter.packets.to_string().into(),
                counter.bytes.to_string().into(),
            ]);
        }
        for RefusedFrames { interface, action, error, frames } in &self.refused {
            let name = format!("refused:{action} {error} ({interface})");
            table.row([Cell::toned(name, Tone::Warn), frames.to_string().into(), String::new().into()]);
        }
        table.print(out, color)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_documented() {
        let document = include_str!("../../../docs/packets.md");
        for name in Stat::ALL.iter().map(|stat| stat.name()) {
            assert!(document.contains(&format!("`{name}`")), "{name} is not in docs/packets.md");
        }
        for reason in DropReason::ALL {
            let row = format!("\n| `{}` | {} | ", reason.name(), reason.text());
            assert!(document.contains(&row), "docs/packets.md has no row with{row}");
        }
    }

    #[test]
    fn verdicts_have_the_cause_that_their_reason_tells() {
        let document = include_str!("../../../docs/troubleshooting.md");
        let verdicts =
            document.lines().filter(|line| line.starts_with("| `rejected: ") || line.starts_with("| `dropped: "));
        let verdicts: Vec<_> = verdicts.collect();
        for row in &verdicts {
            let is_told = |reason: &&DropReason| row.contains(&format!(": {}` | {} | ", reason.name(), reason.text()));
            assert!(DropReason::ALL.iter().any(|reason| is_told(&reason)), "{row}");
        }
        assert!(verdicts.len() > 3, "{verdicts:?}");
    }
}
