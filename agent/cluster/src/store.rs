//! Keeps each VIP's leader where all agents see it: in one `coordination.k8s.io/v1` Lease per VIP,
//! written by compare-and-swap. Likewise the record of each node that had no majority.
//!
//! A VIP's Lease is written only when leadership changes. It has no duration, since gossip tells whether
//! its holder is alive. [`StoreOperations`] runs the event loop's operations beside it. [`follow`]
//! reports what others write.
//! [`KubernetesStore`] keeps the Leases in a cluster, and [`DirectoryStore`] without one.

mod configured;
mod directory;
mod kubernetes;
mod lease_object;
mod lease_watch;
mod node_macs;
mod operations;
mod retry_after;

use std::{future::Future, io, sync::Arc};

use imbl::OrdMap;

pub use self::{
    configured::ConfiguredStore,
    directory::DirectoryStore,
    kubernetes::KubernetesStore,
    lease_object::{lease_name, record_name},
    lease_watch::{LeaseSnapshot, LeaseSnapshots, changes, follow, follow_api},
    node_macs::publish as publish_macs,
    operations::{StoreOperations, StoreOutcome, StoreReport},
};
pub use vipmux_election::{
    StoreOperation,
    lease::{Lease, NodeRecord, RecordContent, RecordState, StoreId, Version},
};
use vipmux_model::{NodeName, Vip};

/// The result of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The Lease was written, and has this version.
    Done(Version),
    /// The Lease has another version than expected. It is unchanged.
    Conflict,
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The Lease was deleted, or there was none.
    Done,
    /// The Lease has another version than expected. It is unchanged.
    Conflict,
}

/// All Leases, each as it was at some time since the survey was started. Copies cost nothing, and
/// the difference of two surveys costs what differs.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The Leases that could be read.
    pub leases: OrdMap<Vip, Lease>,
    /// The Leases that exist and could not be read. Nothing is known of these VIPs' leaders.
    pub faults: OrdMap<Vip, Arc<StoreError>>,
}

/// An operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store does not answer now. A swap or deletion may have been carried out: only reading
    /// tells.
    #[error("the store of Leases is unavailable: cannot {operation}")]
    Unavailable {
        /// The operation, and its object.
        operation: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The stored object is no Lease of this VIP or node. It is left as it is.
    #[error("{lease} is not a Lease: {message}; repair or delete it")]
    Malformed {
        /// Its path or name.
        lease: String,
        /// The defect.
        message: String,
    },
    /// No Lease can hold these values. Nothing was written.
    #[error("a Lease cannot name {holder} as leader in epoch {epoch}")]
    Inexpressible {
        /// The node that is to lead.
        holder: NodeName,
        /// The epoch: more than [`Lease::MAX_EPOCH`].
        epoch: u64,
    },
}

/// A store of Leases.
pub trait LeaseStore: Send + Sync + 'static {
    /// Runs an operation. One that is dropped may still be carried out.
    fn run(&self, operation: StoreOperation) -> impl Future<Output = Result<StoreOutcome, StoreError>> + Send;
}
