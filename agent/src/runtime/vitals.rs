//! How the agent fares, as probes ask it beside the event loop, which says at each turn how far it is.

use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::{
    Agent,
    kernel::{boottime, nanoseconds},
};
use crate::http::Check;

/// How long the event loop may be away before the agent counts as hung. Gossip falls silent and the fence closes long
/// before; being started again is the last resort, and one that takes a while.
const HUNG: Duration = Duration::from_secs(10);

/// See the module. Times are nanoseconds of `CLOCK_BOOTTIME`; 0: never.
#[derive(Debug, Default)]
pub(super) struct Vitals {
    /// The event loop's last turn.
    turned: AtomicU64,
    /// The fence's deadline.
    deadline: AtomicU64,
    /// It is known what is to be served.
    settled: AtomicBool,
    /// The programs are on at least one interface.
    attached: AtomicBool,
    /// The maps came to what is to be served.
    synced: AtomicBool,
    /// The agent was told to stop.
    stopping: AtomicBool,
}

/// How far the agent is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) settled: bool,
    pub(super) attached: bool,
    pub(super) synced: bool,
}

impl Vitals {
    /// The event loop turned, or would have, were a plan not being carried out.
    pub(super) fn turn(&self, now: Duration, deadline: Duration) {
        self.turned.store(nanoseconds(now), Relaxed);
        self.deadline.store(nanoseconds(deadline), Relaxed);
    }

    /// The agent was told to stop, or was not.
    pub(super) fn stop(&self, stopping: bool) {
        self.stopping.store(stopping, Relaxed);
    }

    /// The agent is that far.
    pub(super) fn progress(&self, Progress { settled, attached, synced }: Progress) {
        self.settled.store(settled, Relaxed);
        self.attached.store(attached, Relaxed);
        self.synced.store(synced, Relaxed);
    }

    /// Whether the event loop turns. Before its first turn the agent is starting.
    pub(super) fn live(&self) -> Vec<Check> {
        self.live_at(boottime().unwrap_or_default())
    }

    /// Whether it is attached, in sync, and able to answer.
    pub(super) fn ready(&self) -> Vec<Check> {
        self.ready_at(boottime().unwrap_or_default())
    }

    fn live_at(&self, now: Duration) -> Vec<Check> {
        let silent = self.silent(now).unwrap_or_default();
        let failure = || format!("it has not turned for {:.1} s", silent.as_secs_f64());
        vec![Check::new("event-loop", silent < HUNG, failure)]
    }

    fn ready_at(&self, now: Duration) -> Vec<Check> {
        let is = |flag: &AtomicBool| flag.load(Relaxed);
        let deadline = Duration::from_nanos(self.deadline.load(Relaxed));
        let fence = || match now.checked_sub(deadline).filter(|_| !deadline.is_zero()) {
            Some(since) => format!(
                "the deadline passed {:.1} s ago: neither peers nor the Leases say that this node may answer for its VIPs",
                since.as_secs_f64()
            ),
            None => "nothing says yet that this node may answer: neither peers nor the Leases".to_owned(),
        };
        let text = |text: &'static str| move || text.to_owned();
        let mut checks = self.live_at(now);
        checks.extend([
            Check::new("source", is(&self.settled), text("the Services and endpoints have not been read yet")),
            Check::new(
                "attached",
                is(&self.attached),
                text("the programs are on no interface: see the log, and --interface"),
            ),
            Check::new("synced", is(&self.synced), text("the maps are not yet as they are to be")),
            Check::new("fence", deadline > now, fence),
            Check::new(
                "staying",
                !is(&self.stopping),
                text("the agent was told to stop, and hands over what it leads"),
            ),
        ]);
        checks
    }

    /// How long the event loop has not turned; `None`: it has not begun.
    fn silent(&self, now: Duration) -> Option<Duration> {
        let turned = Duration::from_nanos(self.turned.load(Relaxed));
        (!turned.is_zero()).then(|| now.saturating_sub(turned))
    }
}

impl Collector for Vitals {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let now = boottime().unwrap_or_default();
        let mut gauge = |name: &str, help: &str, value: f64| {
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        let ready = self.ready_at(now).iter().all(|check| check.failure.is_none());
        gauge("vipmux_ready", "1 if /readyz passes", f64::from(u8::from(ready)))?;
        let silent = self.silent(now).unwrap_or_default().as_secs_f64();
        gauge("vipmux_event_loop_silent_seconds", "Time since the event loop last turned, in seconds", silent)
    }
}

impl Agent {
    /// Says how far the agent is, for who asks beside the loop.
    pub(super) fn show_vitals(&mut self, now: Duration, settled: bool) {
        self.vitals.turn(now, self.kernel.deadline());
        let attached = !self.interfaces.attached.is_empty();
        self.vitals.progress(Progress { settled, attached, synced: self.ready });
        self.vitals.stop(self.stops());
        for _ in std::mem::replace(&mut self.lapses, self.kernel.lapses())..self.lapses {
            self.meters.lapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(1_000);
    const LEASE: Duration = Duration::from_millis(300);

    fn failing(checks: &[Check]) -> Vec<&str> {
        checks.iter().filter(|check| check.failure.is_some()).map(|check| check.name).collect()
    }

    #[test]
    fn an_agent_that_starts_is_alive_and_lacks_all_that_it_is_to_be_ready_for() {
        let vitals = Vitals::default();
        assert_eq!(failing(&vitals.live_at(T)), Vec::<&str>::new());
        assert_eq!(failing(&vitals.ready_at(T)), ["source", "attached", "synced", "fence"]);
    }

    #[test]
    fn one_that_serves_is_ready_until_its_deadline_or_its_end() {
        let vitals = Vitals::default();
        vitals.progress(Progress { settled: true, attached: true, synced: true });
        vitals.turn(T, T + LEASE);
        assert_eq!(failing(&vitals.ready_at(T)), Vec::<&str>::new());
        let late = vitals.ready_at(T + LEASE + Duration::from_secs(2));
        assert_eq!(failing(&late), ["fence"]);
        let told = late.iter().find_map(|check| check.failure.clone()).unwrap();
        assert!(told.starts_with("the deadline passed 2.0 s ago"), "{told}");
        vitals.stop(true);
        assert_eq!(failing(&vitals.ready_at(T)), ["staying"]);
    }

    #[test]
    fn one_whose_loop_hangs_is_neither_alive_nor_ready() {
        let vitals = Vitals::default();
        vitals.turn(T, T + LEASE);
        assert_eq!(failing(&vitals.live_at(T + HUNG / 2)), Vec::<&str>::new());
        let hung = vitals.live_at(T + HUNG);
        assert_eq!(hung[0].failure.as_deref(), Some("it has not turned for 10.0 s"));
        assert!(failing(&vitals.ready_at(T + HUNG)).contains(&"event-loop"));
    }
}
