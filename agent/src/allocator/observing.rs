//! What is told of an allocator by HTTP.

use std::{fmt, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use tokio::{net::TcpListener, sync::watch};

use super::Pulse;
use crate::{
    clock::boottime,
    http::{self, Check, Site},
    metrics,
};

/// How long the loop may be away before the allocator counts as hung.
const HUNG: Duration = Duration::from_secs(30);

/// Serves it all, as long as the runtime is there.
pub(super) fn serve(listener: TcpListener, pulse: &watch::Sender<Pulse>) {
    let mut registry = metrics::registry();
    registry.register_collector(Box::new(AllocatorMetrics(pulse.subscribe())));
    let (live, ready) = (pulse.subscribe(), pulse.subscribe());
    http::start(
        listener,
        Site {
            metrics: Box::new(move || Ok(metrics::encode([&registry])?)),
            live: Box::new(move || vec![turns(&live.borrow(), boottime())]),
            ready: Box::new(move || {
                let pulse = ready.borrow();
                let unread = || "the Services, pools and Nodes have not been listed yet".to_owned();
                vec![turns(&pulse, boottime()), Check::new("source", pulse.synced, unread)]
            }),
        },
    );
}

/// Whether the loop turns. Before its first turn the allocator is starting, and may wait for the API server.
fn turns(pulse: &Pulse, now: Duration) -> Check {
    let silent = if pulse.turned.is_zero() { Duration::ZERO } else { now.saturating_sub(pulse.turned) };
    Check::new("loop", silent < HUNG, || format!("it has not turned for {:.1} s", silent.as_secs_f64()))
}

/// How it fares, for Prometheus.
#[derive(Debug)]
struct AllocatorMetrics(watch::Receiver<Pulse>);

impl Collector for AllocatorMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Pulse { writes, waiting, written, failed, services: (given, refused), .. } = *self.0.borrow();
        let mut gauge = |name: &str, help: &str, value: u64| {
            #[allow(clippy::cast_precision_loss, reason = "there are no 2^53 Services")]
            let value = ConstGauge::new(value as f64);
            value.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("vipmux_allocator_leading", "1 if this allocator is the one that writes", u64::from(writes))?;
        gauge("vipmux_allocator_waiting_writes", "Statuses that are to be written", waiting as u64)?;
        gauge("vipmux_allocator_allocated_services", "Services with addresses, where it writes", given as u64)?;
        gauge(
            "vipmux_allocator_pending_services",
            "Services that wait for addresses, where it writes",
            refused as u64,
        )?;
        let mut counter = |name: &str, help: &str, value: u64| {
            ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        };
        counter("vipmux_allocator_writes", "Statuses that were written", written)?;
        counter("vipmux_allocator_failed_writes", "Writes of statuses that failed or were refused", failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocator_that_hangs_is_told_from_one_that_starts() {
        let failure = |turned, now| turns(&Pulse { turned, ..Pulse::default() }, now).failure;
        let then = Duration::from_mins(10);
        assert_eq!(failure(Duration::ZERO, then), None);
        assert_eq!(failure(then, then), None);
        assert_eq!(failure(then, then + HUNG).as_deref(), Some("it has not turned for 30.0 s"));
    }

    #[test]
    fn what_it_does_is_counted() {
        let pulse = Pulse { writes: true, waiting: 1, written: 2, failed: 3, services: (4, 5), ..Pulse::default() };
        let mut registry = metrics::registry();
        registry.register_collector(Box::new(AllocatorMetrics(watch::channel(pulse).1)));
        let text = metrics::encode([&registry]).unwrap();
        let page = include_str!("../../../docs/metrics.md");
        for line in [
            "vipmux_allocator_leading 1.0",
            "vipmux_allocator_waiting_writes 1.0",
            "vipmux_allocator_allocated_services 4.0",
            "vipmux_allocator_pending_services 5.0",
            "vipmux_allocator_writes_total 2",
            "vipmux_allocator_failed_writes_total 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
            let (name, _) = line.split_once(' ').unwrap();
            assert!(page.contains(&format!("| `{name}` |")), "{name} is not in docs/metrics.md");
        }
    }
}
