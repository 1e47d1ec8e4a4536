//! Checks a node before the agent runs on it: `vipmux check`.
//!
//! ```text
//! collect (the kernel, netlink, /proc, the API server) -> Observations -> assess -> Findings
//! ```
//!
//! [`collect`] does all I/O. [`findings`] decides, and does none.

pub mod collect;
pub mod dry_run;
pub mod findings;
