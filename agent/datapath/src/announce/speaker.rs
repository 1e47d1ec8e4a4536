//! Reads who else speaks for a VIP on its segment: the entries that the XDP programs write to
//! `SPEAKERS`.
//!
//! The programs see all received frames, in every XDP mode and before any packet socket. They also
//! know on which interfaces and in which VLAN a VIP is announced. So the agent needs no socket that
//! listens.

use std::time::Duration;

use vipmux_common::abi::{Mac, Speaker, SpeakerKey};

use vipmux_model::Vip;

/// Another host that spoke for a VIP, or probed for it, on a segment where the VIP is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipSpeaker {
    /// The VIP.
    pub vip: Vip,
    /// Its MAC; never that of the interface that received the frame.
    pub mac: Mac,
    /// The interface that received the frame: a port of the segment.
    pub ifindex: u32,
    /// The last time it claimed the address (`CLOCK_BOOTTIME`).
    pub claimed: Option<Duration>,
    /// The last time it probed for the address (RFC 5227 address probe, or DAD), as a host that is
    /// about to take it.
    pub probed: Option<Duration>,
    /// The first option of its last probe, in wire format.
    pub option: Option<[u8; 8]>,
    /// It is a node of the cluster.
    pub peer: bool,
}

impl VipSpeaker {
    /// Converts an entry of `SPEAKERS`. `is_peer` returns whether a MAC belongs to another node.
    pub fn new(key: SpeakerKey, speaker: &Speaker, is_peer: impl Fn(Mac) -> bool) -> Self {
        let time = |nanoseconds: u64| (nanoseconds != 0).then(|| Duration::from_nanos(nanoseconds));
        Self {
            vip: Vip::new(key.vip.into()),
            mac: key.mac,
            ifindex: speaker.ifindex,
            claimed: time(speaker.claimed),
            probed: time(speaker.probed),
            option: (speaker.option != 0).then(|| speaker.option.to_ne_bytes()),
            peer: is_peer(key.mac),
        }
    }
}

#[cfg(test)]
mod tests;
