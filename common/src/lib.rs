//! What vipmux's agent and its BPF programs agree on.
//!
//! [`abi`] holds the map keys and values, the flags in them and the drop reasons; [`checksum`] RFC 1624 updates;
//! [`hash`] the packet hash that picks a backend, which must be equal on every node; [`table`] the slots of Maglev tables.
#![cfg_attr(not(feature = "user"), no_std)]
#![allow(clippy::inline_always, reason = "in a BPF program a call costs more than what these functions do")]

pub mod abi;
pub mod checksum;
pub mod hash;
pub mod table;
#[cfg(feature = "user")]
mod user;
