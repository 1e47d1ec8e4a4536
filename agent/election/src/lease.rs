//! The content of a Lease, in the API server or in a file.

use std::fmt;

use vipmux_model::NodeName;

/// The record of a VIP's leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// `spec.holderIdentity`: the name of a Node.
    pub holder: NodeName,
    /// `spec.leaseTransitions`: grows with each change of the holder; at most [`Lease::MAX_EPOCH`].
    pub epoch: u64,
    /// Changes with every write.
    pub version: Version,
}

impl Lease {
    /// The greatest epoch of a Lease: `spec.leaseTransitions` is a signed number of 32 bits.
    pub const MAX_EPOCH: u64 = i32::MAX as u64;
}

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
