//! What gets through between nodes: gossip and the LAN, each with faults of its own.

use std::collections::BTreeSet;

/// The state of both networks.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// Gossip that is lost, of a thousand,
    pub(super) loss: u64,
    /// that comes twice,
    pub(super) twice: u64,
    /// and longest delay, microseconds.
    pub(super) delay: u64,
    /// Announcements that are lost, of a thousand.
    pub(super) lan_loss: u64,
    /// From whom to whom gossip does not get through.
    pub(super) deaf: BTreeSet<(usize, usize)>,
    /// From whom to whom frames do not get through on the LAN, while clients reach both.
    pub(super) lan_deaf: BTreeSet<(usize, usize)>,
    /// Who has no carrier.
    pub(super) unplugged: BTreeSet<usize>,
    /// Who has one, but is cut off behind it.
    pub(super) cut: BTreeSet<usize>,
    /// Who is on the other side of a LAN in two parts.
    pub(super) aside: BTreeSet<usize>,
}

impl Network {
    /// A good one.
    pub(super) fn new() -> Self {
        Self { twice: 2, delay: 2000, ..Self::default() }
    }

    /// Somebody out there reaches the node.
    pub(super) fn is_on(&self, node: usize) -> bool {
        !self.unplugged.contains(&node) && !self.cut.contains(&node)
    }

    /// One client can reach both.
    pub(super) fn is_common(&self, one: usize, other: usize) -> bool {
        self.is_on(one) && self.is_on(other) && self.aside.contains(&one) == self.aside.contains(&other)
    }

    /// Frames get through on the LAN.
    pub(super) fn hears(&self, from: usize, to: usize) -> bool {
        self.is_common(from, to) && !self.lan_deaf.contains(&(from, to))
    }

    pub(super) fn gossips(&self, from: usize, to: usize) -> bool {
        self.is_on(from) && self.is_on(to) && !self.deaf.contains(&(from, to))
    }

    /// Everything that is sent may arrive, between those who are on at all.
    pub(super) fn is_whole(&self) -> bool {
        self.deaf.is_empty() && self.lan_deaf.is_empty() && self.aside.is_empty()
    }
}
