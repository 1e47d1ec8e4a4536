//! What a Lease says, wherever it is kept.

use std::fmt;

use crate::model::NodeName;

/// Who leads a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// `spec.holderIdentity`: a Node.
    pub holder: NodeName,
    /// `spec.leaseTransitions`: grows with each change of the holder; at most [`Lease::MAX_EPOCH`].
    pub epoch: u64,
    /// Changes with every writing.
    pub version: Version,
}

impl Lease {
    /// The greatest epoch that a Lease can say: `spec.leaseTransitions` is a signed number of 32 bits.
    pub const MAX_EPOCH: u64 = i32::MAX as u64;
}

/// `metadata.resourceVersion`: tells one state of a Lease from every other, and nothing else. A Lease that was deleted
/// and made again has another than ever before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub String);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
