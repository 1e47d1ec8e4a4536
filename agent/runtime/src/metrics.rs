//! Metrics for Prometheus. docs/metrics.md says what each metric means, and a test compares the
//! names.
//!
//! The event loop counts in [`Meters`], which a scrape reads beside it. A scrape reads the
//! programs' counters, and the state that the agent publishes, from the [maps](MapMetrics). So a
//! scrape never waits for the event loop, and the loop never waits for a scrape.
//!
//! No label has a client, a backend or a message. So there are as many series as Service ports,
//! VIPs and reasons.

mod map_metrics;
mod meters;
mod sources;

pub use self::{
    map_metrics::MapMetrics,
    meters::{MapUsage, Meters, ServiceCounts},
    sources::{GossipMetrics, ProbeMetrics},
};

#[cfg(test)]
mod tests;
