//! Parses a cluster's objects once into typed values that the other crates trust.
//!
//! | modules | contents |
//! | --- | --- |
//! | [`api`], [`objects`] | custom resources with their schemas; kinds of objects, their validation, their problems |
//! | [`name`], `vip`, `protocol`, [`port`], [`prefix`], [`range`], [`selector`] | values that cannot be invalid |
//! | [`dialects`], [`tag`], [`request`], [`policy`], [`probe`] | annotations: what a Service asks for |
//! | [`pool`], [`pools`], [`address_names`], [`service`], [`advertisement`], [`endpoints`], [`node`], [`pod_ranges`], [`reach`] | parts of the model |
//! | `ingest`, `missing_keys`, `incremental` | objects become the [`Model`], whole, or after changes of EndpointSlices alone |
//! | [`health`] | results of health probes of all nodes |
//! | [`hashing`], [`desired`], [`serving`] | the desired state of the data plane, for each claim of a port |
//! | [`reason`], [`published_status`] | why a Service is refused, and what its status says |
//! | [`permissions`] | the rights of each account on the API server |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

pub mod address_names;
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
