//! Many `LoadBalancer` Services behind one IP address, on bare-metal Kubernetes.
//!
//! Service and EndpointSlice -> [`source`] -> [`model`] -> [`allocate`] -> [`plan`] -> [`datapath`] -> the BPF programs.
//! Tick -> [`election`] -> commands -> fence, [`announce`].
//!
//! [`model`], [`allocate`], [`election`], [`hashing`], [`plan`] and [`status`] are pure: no clock, no I/O, no randomness, no hash
//! order; `cargo xtask lint` holds that line.

pub mod allocate;
pub mod allocator;
pub mod announce;
pub mod api;
pub mod assignments;
pub mod cli;
mod clock;
pub mod cluster;
pub mod control;
pub mod datapath;
mod durable;
pub mod election;
pub mod events;
pub mod explain;
#[cfg(test)]
mod fixture;
pub mod gossip;
pub mod hashing;
pub mod http;
pub mod inspect;
pub mod keeper;
pub mod link;
pub mod membership;
pub mod metrics;
pub mod model;
pub mod permissions;
pub mod plan;
pub mod preflight;
pub mod probe;
pub mod runtime;
pub mod snat;
pub mod source;
pub mod status;
mod stop;
pub mod store;
pub mod survey;
