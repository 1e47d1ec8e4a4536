//! The content of a Lease, in the API server or in a file: that of a VIP, and that of a node.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use vipmux_model::NodeName;

/// The record of a VIP's leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// `spec.holderIdentity`: the name of a Node.
    pub holder: NodeName,
    /// `spec.leaseTransitions`: one more with each change of the holder; at most [`Lease::MAX_CREDIBLE`].
    pub epoch: u64,
    /// Changes with every write.
    pub version: Version,
}

impl Lease {
    /// The greatest epoch of a Lease: `spec.leaseTransitions` is a signed number of 32 bits.
    pub const MAX_EPOCH: u64 = i32::MAX as u64;
    /// The greatest epoch that a Lease is read with. With a change of the leader each second, agents need 34 years
    /// to write it. A greater one was written by hand, and soon none could follow.
    pub const MAX_CREDIBLE: u64 = 1 << 30;
}

/// The record of a node. It is created when the node starts for the first time. It is written only while the
/// node hears no majority of its peers, or after another node wrote it, and by nodes that take its VIPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// The content.
    pub content: RecordContent,
    /// Changes with every write.
    pub version: Version,
}

/// The content of a node's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordContent {
    /// Who wrote it last, and what for.
    pub state: RecordState,
    /// The time for which the node's kernel may answer after the node began to write or read
    /// [`RecordState::Confirmed`] last.
    pub promise: Duration,
}

/// The state of a node by its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// The node itself wrote it.
    Confirmed,
    /// This other node asks it to confirm.
    Challenged(NodeName),
    /// This other node may take its VIPs. The node may answer for each of them only once it has
    /// written the VIP's Lease again.
    Fenced(NodeName),
}

/// The id of a directory of Leases. Nodes that have one id share the directory. It was drawn when the directory was
/// first used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreId(pub u64);

/// `metadata.resourceVersion`: differs for each state of a Lease, and says nothing else. A Lease
/// that was deleted and created again has a version that it never had before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(String);

impl Version {
    /// Returns the version with this text. It only allows comparison for equality.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the version as the API has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
