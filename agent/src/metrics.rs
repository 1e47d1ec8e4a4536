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
mod process;
mod sources;

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Registry,
};

use self::process::Process;
pub use self::{
    map_metrics::MapMetrics,
    meters::{MapUsage, Meters, ServiceCounts},
    sources::{GossipMetrics, ProbeMetrics},
};

/// Returns a registry with the metrics of every vipmux process.
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("vipmux_build", "The running version", version);
    registry.register_collector(Box::new(Process));
    registry
}

/// Encodes all these registries as OpenMetrics text. No metric may be in two of them.
pub fn encode<'a>(registries: impl IntoIterator<Item = &'a Registry>) -> Result<String, fmt::Error> {
    let mut text = String::new();
    for registry in registries {
        text::encode_registry(&mut text, registry)?;
    }
    text::encode_eof(&mut text)?;
    Ok(text)
}

/// Writes a counter: a value for each set of labels. `name`: without `_total`.
fn counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    values.into_iter().try_for_each(|(labels, value)| ConstCounter::new(value).encode(family.encode_family(&labels)?))
}

/// Writes a counter of seconds.
fn counters_of_seconds(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, seconds: f64) -> fmt::Result {
    let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(seconds).encode(family)
}

/// Writes a gauge: a value for each set of labels.
fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    values.into_iter().try_for_each(|(labels, value)| ConstGauge::new(value).encode(family.encode_family(&labels)?))
}

/// Writes a gauge without labels.
fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// Converts a number for a gauge: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "there are never so many")]
fn amount(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;
