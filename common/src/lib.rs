//! What vipmux's agent and its BPF programs agree on.
//!
//! [`abi`] holds the map keys and values, the flags in them and the drop reasons; [`checksum`] RFC 1624 updates;
//! [`hash`] the packet hash that picks a backend, which must be equal on every node.
#![cfg_attr(not(feature = "user"), no_std)]
// BPF programs are built of this: a call that is not inlined costs 8 ns, or has more arguments than BPF allows.
#![allow(clippy::inline_always)]
// Wire arithmetic in `const fn`, where `From` cannot be used; folding truncates by design.
#![allow(clippy::cast_lossless, clippy::cast_possible_truncation)]

pub mod abi;
pub mod checksum;
pub mod hash;
#[cfg(feature = "user")]
mod user;
