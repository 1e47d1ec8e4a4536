//! Serves the allocator's metrics and health checks by HTTP.

use std::{fmt, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use tokio::{net::TcpListener, sync::watch};

use super::health::AllocatorHealth;
use vipmux_cluster::clock::boottime;
use vipmux_supervisor::Supervisor;
use vipmux_telemetry::{
    http::{self, HealthzCheck, HttpEndpoints},
    metrics,
};

/// The allocator counts as hung if its loop did not run for this long.
const HUNG_AFTER: Duration = Duration::from_secs(30);

/// Serves until the tokio runtime ends. `until_settled`: it is not ready before all statuses are
/// written.
pub(super) fn serve(
    listener: TcpListener,
    health: &watch::Sender<AllocatorHealth>,
    until_settled: bool,
    supervisor: &Supervisor,
) {
    let mut registry = metrics::registry();
    registry.register_collector(Box::new(AllocatorMetrics(health.subscribe())));
    let (live, ready) = (health.subscribe(), health.subscribe());
    http::start(
        listener,
        HttpEndpoints {
            metrics: Box::new(move || Ok(metrics::encode([&registry])?)),
            live: Box::new(move || vec![loop_check(&live.borrow(), boottime())]),
            ready: Box::new(move || ready_checks(&ready.borrow(), until_settled)),
        },
        supervisor,
    );
}

fn ready_checks(health: &AllocatorHealth, until_settled: bool) -> Vec<HealthzCheck> {
    let unread = || "the Services, pools and Nodes have not been listed yet".to_owned();
    let mut checks = vec![loop_check(health, boottime()), HealthzCheck::new("source", health.synced, unread)];
    if until_settled {
        let unwritten = || format!("statuses are not written yet, {} of them wait", health.waiting);
        checks.push(HealthzCheck::new("statuses", health.settled, unwritten));
    }
    checks
}

/// Checks that the loop runs. Before its first run the allocator is starting, and may wait for the
/// API server.
fn loop_check(health: &AllocatorHealth, now: Duration) -> HealthzCheck {
    let silent = if health.last_loop.is_zero() { Duration::ZERO } else { now.saturating_sub(health.last_loop) };
    HealthzCheck::new("loop", silent < HUNG_AFTER, || format!("it has not run for {:.1} s", silent.as_secs_f64()))
}

/// The allocator's health as Prometheus metrics.
#[derive(Debug)]
struct AllocatorMetrics(watch::Receiver<AllocatorHealth>);

impl Collector for AllocatorMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let AllocatorHealth { leading, waiting, written, failed, services: (given, refused), .. } = *self.0.borrow();
        let mut gauge = |name: &str, help: &str, value: u64| {
            #[allow(clippy::cast_precision_loss, reason = "there are no 2^53 Services")]
            let value = ConstGauge::new(value as f64);
            value.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("vipmux_allocator_leading", "1 if this allocator is the one that writes", u64::from(leading))?;
        gauge("vipmux_allocator_waiting_writes", "Statuses that wait to be written", waiting as u64)?;
        gauge(
            "vipmux_allocator_allocated_services",
            "Services with addresses, on the allocator that writes",
            given as u64,
        )?;
        gauge(
            "vipmux_allocator_pending_services",
            "Services that wait for addresses, on the allocator that writes",
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
    fn an_allocator_that_hangs_differs_from_one_that_starts() {
        let failure =
            |last_loop, now| loop_check(&AllocatorHealth { last_loop, ..AllocatorHealth::default() }, now).failure;
        let then = Duration::from_mins(10);
        assert_eq!(failure(Duration::ZERO, then), None);
        assert_eq!(failure(then, then), None);
        assert_eq!(failure(then, then + HUNG_AFTER).as_deref(), Some("it has not run for 30.0 s"));
    }

    #[test]
    fn its_work_is_counted() {
        let health = AllocatorHealth {
            leading: true,
            waiting: 1,
            written: 2,
            failed: 3,
            services: (4, 5),
            ..AllocatorHealth::default()
        };
        let mut registry = metrics::registry();
        registry.register_collector(Box::new(AllocatorMetrics(watch::channel(health).1)));
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
