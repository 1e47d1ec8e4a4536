//! Builds registries of metrics, encodes them for Prometheus, and encodes samples of values that are counted
//! elsewhere.

mod process;

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Registry,
};

use self::process::Process;

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
pub fn counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    values.into_iter().try_for_each(|(labels, value)| ConstCounter::new(value).encode(family.encode_family(&labels)?))
}

/// Writes a counter of seconds.
pub fn counters_of_seconds(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, seconds: f64) -> fmt::Result {
    let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(seconds).encode(family)
}

/// Writes a gauge: a value for each set of labels.
pub fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    values.into_iter().try_for_each(|(labels, value)| ConstGauge::new(value).encode(family.encode_family(&labels)?))
}

/// Writes a gauge without labels.
pub fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// Converts a number for a gauge: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "there are never so many")]
pub fn amount(count: usize) -> f64 {
    count as f64
}
