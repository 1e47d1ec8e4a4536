//! The networks between nodes: gossip and the LAN, each with faults of its own.

use std::collections::BTreeSet;

/// The state of both networks.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// The gossip that is lost, of a thousand,
    pub(super) loss: u64,
    /// the gossip that comes twice, of a thousand,
    pub(super) twice: u64,
    /// and its longest delay, microseconds.
    pub(super) delay: u64,
    /// The announcements that are lost, of a thousand, for each node and for the clients.
    pub(super) lan_loss: u64,
    /// Pairs of nodes: gossip does not get through from the first to the second.
    pub(super) deaf: BTreeSet<(usize, usize)>,
    /// Pairs of nodes: LAN frames do not get through from the first to the second, while clients
    /// reach both.
    pub(super) lan_deaf: BTreeSet<(usize, usize)>,
    /// Nodes without a carrier.
    pub(super) unplugged: BTreeSet<usize>,
    /// Nodes with a carrier that are cut off behind it.
    pub(super) cut: BTreeSet<usize>,
    /// Nodes on the other side of a LAN in two parts.
    pub(super) aside: BTreeSet<usize>,
}

impl Network {
    /// Creates good networks.
    pub(super) fn new() -> Self {
        Self { twice: 2, delay: 2000, ..Self::default() }
    }

    /// Returns whether the node is reachable at all.
    pub(super) fn is_on(&self, node: usize) -> bool {
        !self.unplugged.contains(&node) && !self.cut.contains(&node)
    }

    /// Returns whether one client can reach both nodes.
    pub(super) fn is_common(&self, one: usize, other: usize) -> bool {
        self.is_on(one) && self.is_on(other) && self.aside.contains(&one) == self.aside.contains(&other)
    }

    /// Returns whether frames get through on the LAN.
    pub(super) fn hears(&self, from: usize, to: usize) -> bool {
        self.is_common(from, to) && !self.lan_deaf.contains(&(from, to))
    }

    pub(super) fn gossips(&self, from: usize, to: usize) -> bool {
        self.is_on(from) && self.is_on(to) && !self.deaf.contains(&(from, to))
    }

    /// Returns whether everything that is sent may arrive, between nodes that are reachable at all.
    pub(super) fn is_whole(&self) -> bool {
        self.deaf.is_empty() && self.lan_deaf.is_empty() && self.aside.is_empty()
    }
}
