//! The view of the other nodes.

use std::{collections::BTreeMap, time::Duration};

use super::items::State;
use vipmux_model::NodeName;

/// The other nodes, in the view of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// The Nodes of the cluster that were ever alive here, without this one.
    pub members: BTreeMap<NodeName, Peer>,
    /// A majority of the known members, this node included, answered heartbeats of this time or
    /// later. Of two members, the other one answered. Known members are in `members` and have not
    /// left. In a large cluster it is a majority of a sample, while SWIM considers a majority of
    /// all alive. `None`: never so far.
    pub evidence_since: Option<Duration>,
    /// More than half of the known members are alive, this node included. It is `false` where the
    /// cluster has other Nodes and none of them was ever alive here.
    pub majority: bool,
    /// The cluster has two Nodes, this one included. So only the other one can be a majority with this one.
    pub pair: bool,
}

impl Peers {
    /// Returns whether a node is a living peer.
    pub fn is_alive(&self, node: &NodeName) -> bool {
        self.members.get(node).is_some_and(|peer| peer.status.is_alive())
    }
}

/// Another node. Times are `CLOCK_BOOTTIME` of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its status.
    pub status: MemberStatus,
    /// The time since when it has this status.
    pub since: Duration,
    /// Its generation.
    pub generation: u64,
    /// The time at which its last message came.
    pub heard: Option<Duration>,
    /// For a peer that is down: the latest time at which evidence that it can have was asked for.
    /// `None`: not enough nodes confirmed it, or there are more nodes than are all asked.
    pub silent: Option<Duration>,
    /// For a peer that is down, or has left: a majority of the known members, this node included, considered it
    /// so when they answered heartbeats of this time or later. `None` as above.
    pub confirmed: Option<Duration>,
    /// The time of the last heartbeat that it answered.
    pub answered: Option<Duration>,
    /// The copy of its state is as new as this, or newer.
    pub current: Option<Duration>,
    /// The copy of its state.
    pub state: State,
}

/// The status of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberStatus {
    /// It is alive.
    Alive,
    /// A probe by this node failed, or a round of heartbeats, and the peer has not answered since. It still
    /// counts as alive.
    Suspected,
    /// It is down: one node found that, and all have heard it.
    Down,
    /// It left in order.
    #[default]
    Left,
}

impl MemberStatus {
    /// Returns whether the peer counts as alive.
    pub const fn is_alive(self) -> bool {
        matches!(self, Self::Alive | Self::Suspected)
    }
}

/// Returns the members that have not left.
pub(super) fn known(peers: &Peers) -> impl Iterator<Item = &NodeName> {
    peers.members.iter().filter(|(_, peer)| peer.status != MemberStatus::Left).map(|(name, _)| name)
}
