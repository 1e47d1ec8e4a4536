//! The identity of a member for SWIM.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;
use vipmux_model::NodeName;

/// A member, as two integers. They make packets small and comparisons quick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct MemberId {
    /// [`MemberId::key`] of the node's name.
    pub(super) node: u64,
    /// Only the highest of a node's generations is alive. A node that was considered down takes the
    /// next one.
    pub(super) generation: u64,
}

impl MemberId {
    /// Returns XxHash64, seed 0, of a node's name. Of two Nodes with equal hashes only one would be
    /// a member. That is too unlikely to happen.
    pub(super) fn key(name: &NodeName) -> u64 {
        XxHash64::oneshot(0, name.as_str().as_bytes())
    }
}

impl foca::Identity for MemberId {
    type Addr = u64;

    fn renew(&self) -> Option<Self> {
        self.generation.checked_add(1).map(|generation| Self { generation, ..*self })
    }

    fn addr(&self) -> u64 {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.generation > adversary.generation
    }
}
