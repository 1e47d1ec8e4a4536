//! Shows what a process does: its metrics, and the HTTP server that gives them to Prometheus and answers the
//! kubelet's probes.

#![forbid(unsafe_code)]

pub mod http;
pub mod metrics;
