//! Parses a cluster's objects once into typed values that the other crates trust.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

pub mod advertisement;
pub mod api;
pub mod desired;
pub mod dialects;
pub mod endpoints;
#[cfg(test)]
mod fixture;
pub mod hashing;
pub mod health;
mod incremental;
mod ingest;
mod missing_keys;
pub mod name;
pub mod node;
pub mod objects;
pub mod permissions;
pub mod pod_ranges;
pub mod policy;
pub mod pool;
pub mod pools;
pub mod port;
pub mod prefix;
pub mod probe;
mod protocol;
pub mod published_status;
pub mod range;
pub mod reach;
pub mod reason;
pub mod request;
pub mod selector;
pub mod service;
pub mod serving;
pub mod tag;
mod vip;

pub use self::{
    incremental::Slices,
    ingest::{AddressLimits, IngestOptions, Model, is_ours},
    name::{NodeName, ServiceName},
    port::{PortClaim, PortNumber},
    protocol::{Protocol, UnknownProtocol},
    vip::{Family, Vip},
};
