//! Notices by the programs' counters that other hosts spoke for VIPs.

use vipmux_common::abi::Stat;
use vipmux_datapath::bpf::maps::{Maps, MapsError};

/// The counters of other hosts' announcements, as last read.
pub(super) struct SpeakerCounts {
    /// The number of times that a peer took a VIP.
    yields: u64,
    /// The number of times that a foreign speaker spoke for a VIP.
    foreign: u64,
    /// A foreign speaker spoke since [`Self::clear_new`] was called last.
    has_new: bool,
}

impl SpeakerCounts {
    /// Reads the counters at the start.
    pub(super) fn read(maps: &Maps) -> Result<Self, MapsError> {
        let [yields, foreign] = counts(maps)?;
        // True at the start: speakers from before this agent started count as new.
        Ok(Self { yields, foreign, has_new: true })
    }

    /// Reads the counters again. Returns whether peers took VIPs since the last time.
    pub(super) fn update(&mut self, maps: &Maps) -> Result<bool, MapsError> {
        let [yields, foreign] = counts(maps)?;
        self.has_new |= foreign != self.foreign;
        self.foreign = foreign;
        let has_yielded = yields != self.yields;
        self.yields = yields;
        Ok(has_yielded)
    }

    /// Returns whether a foreign speaker spoke since [`Self::clear_new`].
    pub(super) fn has_new(&self) -> bool {
        self.has_new
    }

    /// Notes that the speakers were read.
    pub(super) fn clear_new(&mut self) {
        self.has_new = false;
    }
}

/// Returns how often a peer took a VIP, and how often a foreign speaker spoke for one.
fn counts(maps: &Maps) -> Result<[u64; 2], MapsError> {
    let stats = maps.read_stats()?;
    let packets = |wanted| stats.iter().find(|(stat, _)| *stat == wanted).map_or(0, |(_, count)| count.packets);
    Ok([Stat::Yielded, Stat::Foreign].map(packets))
}
