//! Reports to `/healthz` and `/readyz` whether the event loop runs, and how far the agent is.

use std::{
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::serving::kernel::{boottime, nanoseconds};
use vipmux_telemetry::http::HealthzCheck;

/// The time without the event loop after which the agent counts as hung. Gossip falls silent and
/// the fence closes long before. A restart is the last resort, and takes a while.
const HUNG: Duration = Duration::from_secs(10);

/// The state of the event loop, written by it and read beside it. Times are nanoseconds of
/// `CLOCK_BOOTTIME`; 0: never.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    /// The time when the event loop ran last.
    alive: AtomicU64,
    /// The fence deadline.
    deadline: AtomicU64,
    /// The Services and endpoints were read.
    source_read: AtomicBool,
    /// The programs are on at least one interface.
    attached: AtomicBool,
    /// The maps came to the desired state.
    synced: AtomicBool,
    /// The agent was asked to stop.
    stopping: AtomicBool,
    /// Why frames of the programs are lost; `None`: nothing shows that they are.
    loss: Mutex<Option<String>>,
    /// Somebody removed the pins, so the agent stops.
    unloaded: AtomicBool,
    /// Why this node must lead nothing: its gossip key is not that of others.
    silence: Mutex<Option<String>>,
    /// Why this node hears no other although there are others.
    solitude: Mutex<Option<String>>,
}

/// The agent's progress; see the fields of [`Liveness`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StartupProgress {
    pub(crate) source_read: bool,
    pub(crate) attached: bool,
    pub(crate) synced: bool,
}

impl Liveness {
    /// Notes that the event loop runs, or executes a plan.
    pub(crate) fn alive(&self, now: Duration, deadline: Duration) {
        self.alive.store(nanoseconds(now), Relaxed);
        self.deadline.store(nanoseconds(deadline), Relaxed);
    }

    /// Notes whether the agent was asked to stop.
    pub(crate) fn stop(&self, stopping: bool) {
        self.stopping.store(stopping, Relaxed);
    }

    /// Notes why frames of the programs are lost.
    pub(crate) fn frames_lost(&self, why: Option<String>) {
        *self.loss.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Notes that somebody removed the pins, so that the agent stops.
    pub(crate) fn unload(&self) {
        self.unloaded.store(true, Relaxed);
    }

    /// Notes why this node must lead nothing; `None`: it may lead.
    pub(crate) fn silence(&self, why: Option<String>) {
        *self.silence.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Notes why this node hears no other although there are others; `None`: it hears them.
    pub(crate) fn solitude(&self, why: Option<String>) {
        *self.solitude.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Notes how far the agent is.
    pub(crate) fn progress(&self, StartupProgress { source_read, attached, synced }: StartupProgress) {
        self.source_read.store(source_read, Relaxed);
        self.attached.store(attached, Relaxed);
        self.synced.store(synced, Relaxed);
    }

    /// Checks whether the event loop runs. Before it runs, the agent is starting.
    pub(crate) fn live(&self) -> Vec<HealthzCheck> {
        self.live_at(boottime().unwrap_or_default())
    }

    /// Checks whether the agent is attached, in sync, and able to answer.
    pub(crate) fn ready(&self) -> Vec<HealthzCheck> {
        self.ready_at(boottime().unwrap_or_default())
    }

    fn live_at(&self, now: Duration) -> Vec<HealthzCheck> {
        let silent = self.silent(now).unwrap_or_default();
        let failure = || format!("it has not run for {:.1} s", silent.as_secs_f64());
        vec![HealthzCheck::new("event-loop", silent < HUNG, failure)]
    }

    fn ready_at(&self, now: Duration) -> Vec<HealthzCheck> {
        let is = |flag: &AtomicBool| flag.load(Relaxed);
        let deadline = Duration::from_nanos(self.deadline.load(Relaxed));
        let fence = || match now.checked_sub(deadline).filter(|_| !deadline.is_zero()) {
            Some(since) => format!(
                "the fence deadline passed {:.1} s ago: neither peers nor the Leases say that this node may answer for its VIPs",
                since.as_secs_f64()
            ),
            None => "nothing says yet that this node may answer for its VIPs: neither peers nor the Leases".to_owned(),
        };
        let text = |text: &'static str| move || text.to_owned();
        let loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let staying = if is(&self.unloaded) {
            "somebody removed vipmux from the kernel: the agent stops, and transfers the VIPs that it leads"
        } else {
            "the agent is stopping, and transfers the VIPs that it leads"
        };
        let silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let solitude = self.solitude.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut checks = self.live_at(now);
        checks.extend([
            HealthzCheck::new(
                "source",
                is(&self.source_read),
                text("the Services and endpoints have not been read yet"),
            ),
            HealthzCheck::new(
                "attached",
                is(&self.attached),
                text("the programs are on no interface: see the log, and --interface"),
            ),
            HealthzCheck::new("sending", loss.is_none(), || loss.unwrap_or_default()),
            HealthzCheck::new("synced", is(&self.synced), text("the maps are not in sync yet")),
            HealthzCheck { name: "gossip-key", failure: silence },
            HealthzCheck { name: "peers", failure: solitude },
            HealthzCheck::new("fence", deadline > now, fence),
            HealthzCheck::new("staying", !is(&self.stopping) && !is(&self.unloaded), text(staying)),
        ]);
        checks
    }

    /// Returns for how long the event loop has not run; `None`: it has not begun.
    fn silent(&self, now: Duration) -> Option<Duration> {
        let alive = Duration::from_nanos(self.alive.load(Relaxed));
        (!alive.is_zero()).then(|| now.saturating_sub(alive))
    }
}

impl Collector for Liveness {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let now = boottime().unwrap_or_default();
        let mut gauge = |name: &str, help: &str, value: f64| {
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        let ready = self.ready_at(now).iter().all(|check| check.failure.is_none());
        gauge("vipmux_ready", "1 if /readyz passes", f64::from(u8::from(ready)))?;
        let silent = self.silent(now).unwrap_or_default().as_secs_f64();
        gauge("vipmux_event_loop_silent_seconds", "Time since the event loop last ran, in seconds", silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(1_000);
    const LEASE: Duration = Duration::from_millis(300);

    fn failing(checks: &[HealthzCheck]) -> Vec<&str> {
        checks.iter().filter(|check| check.failure.is_some()).map(|check| check.name).collect()
    }

    #[test]
    fn an_agent_that_starts_is_alive_and_not_ready() {
        let liveness = Liveness::default();
        assert_eq!(failing(&liveness.live_at(T)), Vec::<&str>::new());
        assert_eq!(failing(&liveness.ready_at(T)), ["source", "attached", "synced", "fence"]);
    }

    #[test]
    fn an_agent_that_serves_is_ready_until_its_deadline_passes_or_it_stops() {
        let liveness = Liveness::default();
        liveness.progress(StartupProgress { source_read: true, attached: true, synced: true });
        liveness.alive(T, T + LEASE);
        assert_eq!(failing(&liveness.ready_at(T)), Vec::<&str>::new());
        let late = liveness.ready_at(T + LEASE + Duration::from_secs(2));
        assert_eq!(failing(&late), ["fence"]);
        let failure = late.iter().find_map(|check| check.failure.clone()).unwrap();
        assert!(failure.starts_with("the fence deadline passed 2.0 s ago"), "{failure}");
        liveness.silence(Some("its gossip key is not that of n1".to_owned()));
        assert_eq!(failing(&liveness.ready_at(T)), ["gossip-key"]);
        liveness.silence(None);
        liveness.solitude(Some("it hears no other".to_owned()));
        assert_eq!(failing(&liveness.ready_at(T)), ["peers"]);
        liveness.solitude(None);
        liveness.stop(true);
        assert_eq!(failing(&liveness.ready_at(T)), ["staying"]);
        liveness.stop(false);
        liveness.frames_lost(Some("they are lost on eth0".to_owned()));
        assert_eq!(failing(&liveness.ready_at(T)), ["sending"]);
        liveness.frames_lost(None);
        assert_eq!(failing(&liveness.ready_at(T)), Vec::<&str>::new());
        liveness.unload();
        let unloaded = liveness.ready_at(T);
        assert_eq!(failing(&unloaded), ["staying"]);
        let failure = unloaded.iter().find_map(|check| check.failure.clone()).unwrap();
        assert!(failure.starts_with("somebody removed vipmux from the kernel"), "{failure}");
    }

    #[test]
    fn an_agent_whose_event_loop_hangs_is_neither_alive_nor_ready() {
        let liveness = Liveness::default();
        liveness.alive(T, T + LEASE);
        assert_eq!(failing(&liveness.live_at(T + HUNG / 2)), Vec::<&str>::new());
        let hung = liveness.live_at(T + HUNG);
        assert_eq!(hung[0].failure.as_deref(), Some("it has not run for 10.0 s"));
        assert!(failing(&liveness.ready_at(T + HUNG)).contains(&"event-loop"));
    }
}
