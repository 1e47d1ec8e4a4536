//! Finds out how this node reaches the other nodes on each of its segments. Pure: it returns the
//! addresses to ask.
//!
//! A carrier says nothing about what is behind the cable. So the kernels of a few other nodes are asked
//! by ARP or neighbor solicitations, for their addresses on the segment. An answer shows that frames
//! get through both ways.
//!
//! Each node asks those that follow it in the ring of all addresses, so each is asked by few others. As
//! long as none answers, the next ones are asked: those may have no path themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use tokio::time::Instant;
use vipmux_model::reach::SegmentReach;

/// The interval of asks.
const INTERVAL: Duration = Duration::from_millis(500);
/// The number of nodes that are asked at once on a segment.
const SAMPLE: usize = 4;
/// The time without an answer after which nobody answers.
const UNANSWERED: Duration = Duration::from_secs(2);
/// The time without a frame after which nothing comes in. A quiet segment has no frames for a while,
/// and that must not be taken for a cut.
const DEAF: Duration = Duration::from_secs(10);

/// The other nodes on a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPeers {
    /// This node's place in the ring: one of its addresses.
    pub own: IpAddr,
    /// The addresses of the others whose agents are alive.
    pub peers: BTreeSet<IpAddr>,
}

/// The other nodes on each segment, by the interface with this node's addresses.
pub type PeersBySegment = BTreeMap<u32, SegmentPeers>;

/// How this node reaches others, by the interface of the segment. It is missing where that is unknown.
pub type SegmentReaches = BTreeMap<u32, SegmentReach>;

/// The asks on all segments.
#[derive(Debug, Default)]
pub(super) struct SegmentProbes {
    segments: BTreeMap<u32, ProbedSegment>,
    next: Option<Instant>,
}

#[derive(Debug)]
struct ProbedSegment {
    peers: SegmentPeers,
    /// The place in the ring from which peers are asked.
    offset: usize,
    /// The peers that were asked last, and whether one of them answered.
    asked: Vec<IpAddr>,
    answered: bool,
    /// The time of the last answer; at first, the time of the first ask.
    last_answer: Instant,
    /// The number of frames that have come in, and the time at which it was found to grow.
    frames: u64,
    last_frame: Instant,
    reach: Option<SegmentReach>,
}

impl ProbedSegment {
    fn new(peers: SegmentPeers, now: Instant) -> Self {
        let (offset, asked, answered, frames, reach) = (0, Vec::new(), true, 0, None);
        Self { peers, offset, asked, answered, last_answer: now, frames, last_frame: now, reach }
    }

    /// Returns the peers to ask, from the place in the ring.
    fn choose(&mut self, can_ask: impl Fn(IpAddr) -> bool) -> Vec<IpAddr> {
        let SegmentPeers { own, peers } = &self.peers;
        let ring = peers.range(*own..).chain(peers.range(..*own));
        let ring: Vec<_> = ring.copied().filter(|peer| can_ask(*peer)).collect();
        if !self.answered {
            self.offset += SAMPLE;
        }
        self.offset %= ring.len().max(1);
        ring.iter().cycle().skip(self.offset).take(SAMPLE.min(ring.len())).copied().collect()
    }

    /// Asks the next peers, and updates how they are reached.
    fn poll(&mut self, frames: u64, can_ask: impl Fn(IpAddr) -> bool, now: Instant) {
        if frames != self.frames {
            (self.frames, self.last_frame) = (frames, now);
        }
        let chosen = self.choose(can_ask);
        if self.asked.is_empty() {
            // Nobody was asked before, so nobody could answer.
            (self.last_answer, self.last_frame) = (now, now);
            self.reach = None;
        } else if self.answered {
            self.reach = Some(SegmentReach::Answered);
        } else if self.last_answer + UNANSWERED <= now {
            let is_deaf = self.last_frame.max(self.last_answer) + DEAF <= now;
            self.reach = Some(if is_deaf { SegmentReach::Deaf } else { SegmentReach::Heard });
        }
        (self.asked, self.answered) = (chosen, false);
    }
}

impl SegmentProbes {
    /// Sets the segments to probe. One without peers is not probed.
    pub(super) fn set_segments(&mut self, segments: &PeersBySegment, now: Instant) {
        let probed = |ifindex: &u32| segments.get(ifindex).is_some_and(|segment| !segment.peers.is_empty());
        self.segments.retain(|ifindex, _| probed(ifindex));
        for (ifindex, peers) in segments.iter().filter(|(ifindex, _)| probed(ifindex)) {
            let segment = self.segments.entry(*ifindex).or_insert_with(|| ProbedSegment::new(peers.clone(), now));
            segment.peers.clone_from(peers);
        }
    }

    /// Returns when to call [`Self::poll`].
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        (!self.segments.is_empty()).then(|| self.next.unwrap_or(now))
    }

    /// Returns the interfaces of the probed segments.
    pub(super) fn interfaces(&self) -> impl Iterator<Item = u32> {
        self.segments.keys().copied()
    }

    /// Notes that a node's kernel answered. Only nodes that were asked count: the kernel also confirms
    /// entries for other reasons.
    pub(super) fn answered(&mut self, address: IpAddr, now: Instant) {
        for segment in self.segments.values_mut().filter(|segment| segment.asked.contains(&address)) {
            (segment.answered, segment.last_answer) = (true, now);
        }
    }

    /// Returns the addresses to ask now. `frames`: the number of frames that have come in on a segment.
    /// `can_ask`: whether an address can be asked.
    pub(super) fn poll(
        &mut self,
        frames: &BTreeMap<u32, u64>,
        can_ask: impl Fn(IpAddr) -> bool,
        now: Instant,
    ) -> Vec<IpAddr> {
        self.next = Some(now + INTERVAL);
        for (ifindex, segment) in &mut self.segments {
            segment.poll(frames.get(ifindex).copied().unwrap_or_default(), &can_ask, now);
        }
        self.segments.values().flat_map(|segment| segment.asked.iter().copied()).collect()
    }

    /// Returns how this node reaches others.
    pub(super) fn reaches(&self) -> SegmentReaches {
        self.segments.iter().filter_map(|(ifindex, segment)| Some((*ifindex, segment.reach?))).collect()
    }
}

#[cfg(test)]
mod tests;
