//! Who leads each VIP, where all agents see it: one `coordination.k8s.io/v1` Lease per VIP, taken by compare-and-swap.
//!
//! A Lease is written only when leadership changes; it has no duration, since whether its holder is alive is told by
//! gossip. [`Operations`] runs what the event loop asks for, beside it; [`Kubernetes`] keeps the Leases in a cluster, and
//! [`Directory`] without one.

mod directory;
mod kubernetes;
mod object;
mod operations;
mod place;

use std::{future::Future, io, sync::Arc};

use imbl::OrdMap;

pub use self::{
    directory::Directory,
    kubernetes::Kubernetes,
    object::leader,
    operations::{Operation, Operations, Outcome, Report},
    place::Place,
};
pub use crate::election::lease::{Lease, Version};
use crate::model::{NodeName, Vip};

/// What became of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The Lease is as it was asked for, and has this version.
    Done(Version),
    /// It had another version than was expected. It is as it was.
    Conflict,
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// There is no Lease any more, or there was none.
    Done,
    /// It has another version than was expected, and stays.
    Conflict,
}

/// All Leases, each as it was at some time since the survey was begun. Copies cost nothing, and the difference of two
/// costs what differs.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Those that could be read.
    pub leases: OrdMap<Vip, Lease>,
    /// Those that are there and could not: nothing is known of these VIPs.
    pub faults: OrdMap<Vip, Arc<StoreError>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store does not answer now. A swap or deletion may have been done nevertheless: only reading tells.
    #[error("the store of Leases is unavailable: cannot {doing}")]
    Unavailable {
        /// What cannot be done, and with what.
        doing: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is there is no Lease of this VIP. It is left as it is.
    #[error("{lease} is no Lease: {message}; repair or delete it")]
    Malformed {
        /// Where it is.
        lease: String,
        /// What is wrong.
        message: String,
    },
    /// No Lease can say what was asked for. Nothing was done.
    #[error("no Lease can say that {holder} leads in epoch {epoch}")]
    Inexpressible {
        /// No Node's name, or else the fault is the epoch's.
        holder: NodeName,
        /// More than [`Lease::MAX_EPOCH`], or else the fault is the holder's.
        epoch: u64,
    },
}

/// Where Leases are kept. An operation that is dropped may be carried out nevertheless.
pub trait Store: Send + Sync + 'static {
    /// The VIP's Lease; `None`: it has none.
    fn read(&self, vip: Vip) -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;

    /// Makes `holder` lead the VIP, if its Lease has the version `expected`; `None`: if it has none.
    fn swap(
        &self,
        vip: Vip,
        expected: Option<&Version>,
        holder: &NodeName,
        epoch: u64,
    ) -> impl Future<Output = Result<Swapped, StoreError>> + Send;

    /// Deletes the VIP's Lease, if it has this version.
    fn delete(&self, vip: Vip, version: &Version) -> impl Future<Output = Result<Deleted, StoreError>> + Send;

    /// All Leases. In files that costs little where none changed since the last time; an API server tells all of them.
    fn survey(&self) -> impl Future<Output = Result<Survey, StoreError>> + Send;
}
