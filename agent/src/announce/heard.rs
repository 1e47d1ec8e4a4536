//! Who else was heard on a VIP's segment: what the programs note in `SPEAKERS`.
//!
//! The XDP programs see what comes in wherever they are attached, in every mode and before any packet socket, and they know
//! on which interfaces and in which VLAN a VIP is announced. So nothing listens beside them.

use std::time::Duration;

use vipmux_common::abi::{Mac, Speaker, SpeakerKey};

use crate::model::Vip;

/// Somebody who spoke for a VIP, or asked whether anybody has it, where that VIP is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The VIP.
    pub vip: Vip,
    /// Who; never the MAC of the interface where it was heard.
    pub mac: Mac,
    /// That interface: a port of the segment, where its frames come in.
    pub ifindex: u32,
    /// When it last spoke as one that has the address (`CLOCK_BOOTTIME`).
    pub claimed: Option<Duration>,
    /// When it last asked everybody whether anybody has the address, as one does that is about to take it.
    pub probed: Option<Duration>,
    /// The first option of its last such question, as it lies in the message; zeros: none.
    pub option: [u8; 8],
    /// It is a node of the cluster.
    pub peer: bool,
}

impl Heard {
    /// What the programs noted; `is_peer` tells whether a MAC is that of another node.
    pub fn new(key: SpeakerKey, speaker: &Speaker, is_peer: impl Fn(Mac) -> bool) -> Self {
        let time = |nanoseconds: u64| (nanoseconds != 0).then(|| Duration::from_nanos(nanoseconds));
        Self {
            vip: Vip(key.vip.into()),
            mac: key.mac,
            ifindex: speaker.ifindex,
            claimed: time(speaker.claimed),
            probed: time(speaker.probed),
            option: speaker.option.to_ne_bytes(),
            peer: is_peer(key.mac),
        }
    }
}

#[cfg(test)]
mod tests;
