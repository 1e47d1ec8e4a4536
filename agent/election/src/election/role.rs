//! The roles of a node for a VIP, and why a role ends.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::membership::Why;
use vipmux_model::NodeName;

/// A node's role for a VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Another node leads the VIP, or no node does.
    #[default]
    Following,
    /// The node has the Lease. It asks the LAN for another owner before it first uses the address.
    Detecting,
    /// The node has the Lease, and a foreign speaker has the address.
    Conflicted,
    /// The node answers.
    Leading,
    /// The node stopped answering since a peer announced the VIP.
    Yielded,
    /// The node stopped answering until it knows that the VIP is still its own.
    Suspended,
    /// The node stopped answering, so that its successor can begin.
    Handing,
}

/// The latest leader, by a Lease or a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LatestLeader {
    pub(super) node: NodeName,
    pub(super) epoch: u64,
    pub(super) since: Duration,
    /// `None`: known by the Lease alone.
    pub(super) why: Option<Why>,
}

/// The reason why a node no longer answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The node transferred leadership to this one.
    Handed(NodeName),
    /// This node has the Lease or a higher epoch.
    Taken(NodeName),
    /// A peer announced the VIP.
    Announced,
    /// The fence deadline passed.
    Fenced,
    /// A peer considered this node down.
    Disowned,
    /// This node did not confirm its record in time. The other one may take its VIPs.
    Displaced(NodeName),
    /// No Service has the VIP any more.
    Unwanted,
    /// Only the store says whether this node may answer, and the VIP's Lease or the node's record is
    /// gone, or the Lease is of another epoch.
    Unrecorded,
    /// Neither this node nor another living one may announce the VIP.
    Forbidden,
    /// This node cannot announce the VIP, and another one can.
    Unable,
    /// The answers of this node are lost, and no other node can take the VIP.
    Lossy,
    /// Nodes with another gossip key may lead rather than this one.
    Outranked,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handed(node) => write!(f, "handed over to {node}"),
            Self::Taken(node) => write!(f, "{node} took it"),
            Self::Announced => f.write_str("a peer announced it"),
            Self::Fenced => f.write_str("the fence deadline passed: this node was stopped, or is cut off"),
            Self::Disowned => f.write_str("a peer held this node for down"),
            Self::Displaced(node) => write!(f, "this node did not answer in its record, {node} may take it"),
            Self::Unwanted => f.write_str("no Service has it any more"),
            Self::Unrecorded => f.write_str("its Lease or this node's record is gone or was changed"),
            Self::Forbidden => f.write_str("this node may not announce it any more"),
            Self::Unable => f.write_str("this node cannot announce it, and another one can"),
            Self::Lossy => f.write_str("the answers of this node are lost"),
            Self::Outranked => f.write_str("nodes with another gossip key may lead it, and this one may not"),
        }
    }
}

/// The leader of a VIP, as far as a node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The role of the node that answers this question.
    pub role: Role,
    /// The leader; `None`: no leader is known.
    pub leader: Option<NodeName>,
    /// The leader's epoch; 0 without a leader.
    pub epoch: u64,
    /// The time since when it leads, `CLOCK_BOOTTIME`. Of another node: when this one learned of
    /// it.
    pub since: Duration,
    /// The reason why it leads.
    pub why: Option<Why>,
    /// The leader is not heard, and another machine answers for the VIP on the LAN. So this node leaves it alone.
    pub answered: bool,
}
