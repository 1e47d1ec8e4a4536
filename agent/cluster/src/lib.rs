//! Connects agents and the allocator to what they share: objects, Leases, Events and the
//! assignments file.

#![forbid(unsafe_code)]

pub mod access;
pub mod assignments;
pub mod atomic_file;
pub mod clock;
pub mod events;
mod file_stamp;
pub mod gossip_secret;
pub mod rollback;
pub mod source;
pub mod store;
pub mod watching;
