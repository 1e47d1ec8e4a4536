//! Elects the leader of each VIP, and knows which nodes are alive, as state machines without I/O.
//!
//! - [`Election`] decides which VIPs this node leads. Its inputs are gossip, Leases and time. Its
//!   commands extend the fence deadline, write Leases, and announce.
//! - [`Executor`] executes the commands, on a kernel and a store that are given to it.
//! - [`membership`] knows which peers are alive (SWIM), and distributes what each node publishes.
//! - [`placement`] and [`rendezvous`] choose which candidate should lead a VIP.
//! - `simulation` runs many of these state machines in a cluster with faults.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

mod election;
mod executor;
pub mod lease;
pub mod membership;
mod mutation;
pub mod placement;
pub mod rendezvous;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod store_operation;

pub use self::{
    election::{
        AddressOwner, Command, DRAIN_TIMEOUT, Election, ElectionSettings, HEARTBEAT, Input, LEASE, Leadership,
        LeaseOutcome, Lost, MAX_LEASE_OPERATIONS, Outcome, PeerAnnouncement, RecordOutcome, Role,
    },
    executor::{Executor, NodeIo},
    store_operation::StoreOperation,
};
