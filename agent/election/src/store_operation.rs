//! The operations on the store of Leases.

use crate::lease::{RecordContent, Version};
use vipmux_model::{NodeName, Vip};

/// An operation on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOperation {
    /// Returns the VIP's Lease.
    Read(Vip),
    /// Makes `holder` the VIP's leader, if its Lease has the version `expected`.
    Swap {
        /// The VIP.
        vip: Vip,
        /// The version that its Lease must have; `None`: it must have no Lease.
        expected: Option<Version>,
        /// The new leader.
        holder: NodeName,
        /// The new epoch.
        epoch: u64,
    },
    /// Deletes the VIP's Lease, if it has this version.
    Delete {
        /// The VIP.
        vip: Vip,
        /// The version that its Lease must have.
        version: Version,
    },
    /// Returns a node's record.
    ReadRecord {
        /// The node.
        node: NodeName,
        /// It is this node's own record, and may be what the node answers by after its deadline. Once the deadline
        /// has passed, the operation saves nothing.
        urgent: bool,
    },
    /// Writes a node's record, if it has the version `expected`.
    SwapRecord {
        /// The node.
        node: NodeName,
        /// As in [`StoreOperation::ReadRecord`].
        urgent: bool,
        /// The version that its record must have; `None`: it must have none.
        expected: Option<Version>,
        /// The new content.
        content: RecordContent,
    },
    /// Returns all Leases. With files that costs little if none changed since the last time. An API
    /// server sends all of them.
    Survey,
}

impl StoreOperation {
    /// Returns whether the operation waits neither for others nor for the time that an API server asks for.
    pub const fn is_urgent(&self) -> bool {
        matches!(self, Self::ReadRecord { urgent: true, .. } | Self::SwapRecord { urgent: true, .. })
    }
}
