//! The content of a Lease, in the API server or in a file: that of a VIP, and that of a node.

use std::{cmp::Ordering, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use vipmux_model::NodeName;

/// The record of a VIP's leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// `spec.holderIdentity`: the name of a Node.
    pub holder: NodeName,
    /// `spec.leaseTransitions`: the next one with each change of the holder, from 1 to
    /// [`Lease::MAX_EPOCH`] and around.
    pub epoch: u64,
    /// Changes with every write.
    pub version: Version,
}

impl Lease {
    /// The greatest epoch of a Lease: `spec.leaseTransitions` is a signed number of 32 bits.
    pub const MAX_EPOCH: u64 = i32::MAX as u64;
}

/// Returns the epoch after this one. After [`Lease::MAX_EPOCH`] comes 1: somebody may write any epoch
/// into a Lease, and none may be the last one.
pub(crate) const fn next_epoch(epoch: u64) -> u64 {
    if epoch >= Lease::MAX_EPOCH { 1 } else { epoch + 1 }
}

/// Compares epochs up to [`Lease::MAX_EPOCH`] as serial numbers (RFC 1982, 3.2): of two different
/// ones, that one is later which the other one reaches in fewer steps. 0 is none, and before all.
pub(crate) fn compare_epochs(one: u64, other: u64) -> Ordering {
    if one == 0 || other == 0 {
        return one.cmp(&other);
    }
    let steps = (one % Lease::MAX_EPOCH + Lease::MAX_EPOCH - other % Lease::MAX_EPOCH) % Lease::MAX_EPOCH;
    match steps {
        0 => Ordering::Equal,
        steps if steps <= Lease::MAX_EPOCH / 2 => Ordering::Greater,
        _ => Ordering::Less,
    }
}

/// Returns whether the first epoch is later than the second.
pub(crate) fn is_later(one: u64, other: u64) -> bool {
    compare_epochs(one, other).is_gt()
}

/// Returns the later one of two epochs.
pub(crate) fn later_epoch(one: u64, other: u64) -> u64 {
    if is_later(other, one) { other } else { one }
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
    pub standing: RecordStanding,
    /// The time for which the node's kernel may answer after the node began to write or read
    /// [`RecordStanding::Confirmed`] last.
    pub promise: Duration,
}

/// The standing of a node by its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordStanding {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_go_around() {
        const MAX: u64 = Lease::MAX_EPOCH;
        assert_eq!([0, 1, MAX - 1, MAX].map(next_epoch), [1, 2, MAX, 1]);
        for epoch in [1, 2, 1 << 30, MAX - 1, MAX] {
            assert!(is_later(next_epoch(epoch), epoch) && !is_later(epoch, next_epoch(epoch)), "{epoch}");
            assert!(is_later(epoch, 0) && !is_later(0, epoch) && !is_later(epoch, epoch), "{epoch}");
        }
        for (later, earlier) in [(5, 4), (1, MAX), (3, MAX - 7), (1 << 30, 1), (1, (1 << 30) + 1)] {
            assert!(is_later(later, earlier) && !is_later(earlier, later), "{later} and {earlier}");
            assert_eq!((later_epoch(later, earlier), later_epoch(earlier, later)), (later, later));
        }
        assert_eq!(compare_epochs(7, 7), Ordering::Equal);
    }
}
