//! Types and algorithms that vipmux's agent and its BPF programs share.
//!
//! [`abi`] has the map keys and values, their flags and the drop reasons. [`backend_nodes`] has the
//! node of each backend. [`checksum`] has RFC 1624 updates. [`flow_table`] has the layout of the
//! table of flows. [`hash`] has the packet hash that selects a backend, which must be equal on every
//! node. [`maps!`] has the table of all maps. [`service_index`] has the copies of Services that new
//! flows read. [`table`] has the slots of tables. [`wrapper`]
//! is for the bench.
#![cfg_attr(not(feature = "std"), no_std)]
#![allow(clippy::inline_always, reason = "in a BPF program a call costs more than what these functions do")]

pub mod abi;
pub mod backend_nodes;
pub mod budget;
pub mod checksum;
pub mod flow_table;
pub mod hash;
pub mod maps;
pub mod service_index;
pub mod table;
#[cfg(feature = "std")]
mod user_space;
pub mod wrapper;

#[cfg(feature = "std")]
pub use self::user_space::InvalidMac;
