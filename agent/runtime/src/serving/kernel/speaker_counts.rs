//! Notices by the programs' counters that other hosts spoke for VIPs.

use vipmux_common::abi::Stat;
use vipmux_datapath::bpf::maps::{Maps, MapsError};

/// The counters of other hosts' announcements, as last read.
pub(super) struct SpeakerCounts {
    /// The number of times that a peer took a VIP.
    yields: u64,
    /// The number of times that another host spoke for a VIP and took nothing. `None`: speakers from
    /// before this agent started count as new.
    foreign: Option<u64>,
}

/// What other hosts did since the counters were read last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NewAnnouncements {
    /// The programs yielded VIPs to peers.
    pub(super) yielded: bool,
    /// Foreign speakers spoke for VIPs, or peers for VIPs that are assured.
    pub(super) foreign: bool,
}

impl SpeakerCounts {
    /// Reads the counters at the start.
    pub(super) fn read(maps: &Maps) -> Result<Self, MapsError> {
        let [yields, _] = counts(maps)?;
        Ok(Self { yields, foreign: None })
    }

    /// Reads the counters again. Returns what is new since the last time.
    pub(super) fn update(&mut self, maps: &Maps) -> Result<NewAnnouncements, MapsError> {
        let [yields, foreign] = counts(maps)?;
        let yielded = std::mem::replace(&mut self.yields, yields) != yields;
        let foreign = self.foreign.replace(foreign) != Some(foreign);
        Ok(NewAnnouncements { yielded, foreign })
    }
}

/// Returns how often a peer took a VIP, and how often another host spoke for one and took nothing.
fn counts(maps: &Maps) -> Result<[u64; 2], MapsError> {
    let stats = maps.read_stats()?;
    let packets = |wanted| stats.iter().find(|(stat, _)| *stat == wanted).map_or(0, |(_, count)| count.packets);
    Ok([Stat::Yielded, Stat::Foreign].map(packets))
}
