//! Moves a live cluster from MetalLB, kube-vip or Cilium to vipmux: `vipmux migrate`.
//!
//! ```text
//! live (the API server) -> LiveCluster -> convert -> pools.yaml     \
//!                                      -> snapshot -> before.json    > plan
//!                                      -> allocation, commands      /
//! before.json, LiveCluster, lan (ARP, NDP) -> ready, verify -> Findings
//! ```
//!
//! [`live`] and [`lan`] do the I/O. They change nothing. The other modules decide, and do none.

pub mod commands;
pub mod convert;
pub mod lan;
pub mod live;
pub mod plan;
pub mod programs;
pub mod ready;
pub mod snapshot;
pub mod verify;
pub mod webhooks;

#[cfg(test)]
mod fixture;
