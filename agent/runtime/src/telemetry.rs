//! Counts and logs what the event loop does, and reports how far the agent is.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    metrics::Meters,
    problems::{
        leadership_faults::LeadershipFaults,
        liveness::{Liveness, StartupProgress},
        log_limit::LogLimit,
        peer_versions::{PeerVersions, VersionCounts},
    },
    serving::{
        Applied,
        pipeline::{ServingState, Timing},
    },
};
use vipmux_cluster::store::{StoreError, StoreOperation, StoreOutcome};
use vipmux_election::{Lost, membership::Why};
use vipmux_model::{NodeName, Vip};

/// The event loop's metrics, liveness and log limits.
pub(crate) struct Telemetry {
    pub(crate) meters: Meters,
    /// Read by `/healthz` and `/readyz`, beside the event loop.
    liveness: Arc<Liveness>,
    /// The timing of the serving state that was counted last.
    timing: Timing,
    /// The lapses of the fence that were counted.
    lapses: u64,
    versions: PeerVersions,
    faults: LeadershipFaults,
    log_limit: LogLimit,
}

impl Telemetry {
    pub(crate) fn new(meters: Meters, liveness: Arc<Liveness>) -> Self {
        let (timing, lapses, versions, faults, log_limit) = Default::default();
        Self { meters, liveness, timing, lapses, versions, faults, log_limit }
    }

    /// Notes that the event loop runs. `deadline`: the fence deadline, `CLOCK_BOOTTIME`.
    pub(crate) fn alive(&self, now: Duration, deadline: Duration) {
        self.liveness.alive(now, deadline);
    }

    /// Notes that somebody removed the pins, so that the agent stops.
    pub(crate) fn unloaded(&self) {
        self.liveness.unload();
    }

    /// Notes why this node leads nothing, although it is attached and in sync; `None`: it may lead.
    pub(crate) fn silence(&self, why: Option<String>) {
        self.liveness.silence(why);
    }

    /// Notes why this node hears no other although there are others; `None`: it hears them.
    pub(crate) fn solitude(&self, why: Option<String>) {
        self.liveness.solitude(why);
    }

    /// Notes which versions the living agents run.
    pub(crate) fn versions(&mut self, counts: &VersionCounts) {
        self.meters.versions(counts);
        self.versions.log_changes(counts);
    }

    /// Notes how far the agent is.
    pub(crate) fn progress(&self, progress: StartupProgress, stopping: bool) {
        self.liveness.progress(progress);
        self.liveness.stop(stopping);
    }

    /// Notes how often the fence deadline passed since the start, and whether it is ahead.
    pub(crate) fn fence(&mut self, lapses: u64, ahead: bool, now: Duration) {
        let new = lapses - std::mem::replace(&mut self.lapses, lapses);
        self.meters.fence_lapsed(new);
        self.faults.fence(new, ahead, now);
    }

    /// Notes whether this node is unstable: its deadline passes again and again.
    pub(crate) fn unstable(&mut self, unstable: bool, now: Duration) {
        self.meters.unstable(unstable);
        self.faults.unstable(unstable, now);
    }

    /// Notes which Nodes have no living agent, and whether this node may answer only because the
    /// Leases say so. Called once a second.
    pub(crate) fn leadership(&mut self, missing: &[NodeName], store_evidence: bool, now: Duration) {
        self.meters.store_evidence(store_evidence);
        self.faults.members(missing, now);
        self.faults.store_evidence(store_evidence, now);
        self.faults.tick(now);
    }

    /// Notes the result of an operation on the Leases.
    pub(crate) fn lease_operation(
        &mut self,
        operation: &StoreOperation,
        result: &Result<StoreOutcome, StoreError>,
        now: Duration,
    ) {
        self.meters.lease_operation(operation, result);
        self.faults.lease_operation(operation, result, now);
    }

    /// Notes on how many interfaces this node gives no answers, since frames of the programs are lost or
    /// frames bypass the programs, and why.
    pub(crate) fn answers_lost(&self, (lossy, bypassed): (usize, usize), why: Option<String>) {
        self.meters.lossy(lossy);
        self.meters.bypassed(bypassed);
        self.liveness.frames_lost(why);
    }

    /// This node leads a VIP now.
    pub(crate) fn leading(&mut self, vip: Vip, epoch: u64, why: &Why) {
        self.meters.gained(why);
        if self.log_limit.take(Instant::now()) {
            tracing::info!(%vip, epoch, why = %why, "leading");
        }
    }

    /// This node no longer leads a VIP.
    pub(crate) fn no_longer_leading(&mut self, vip: Vip, why: &Lost) {
        self.meters.lost(why);
        if self.log_limit.take(Instant::now()) {
            tracing::info!(%vip, why = %why, "no longer leading");
        }
    }

    /// Counts an executed plan. Counts the serving state that it brought to the maps, once.
    pub(crate) fn applied(&mut self, state: &ServingState, applied: &Applied) {
        self.meters.applied(applied.synced.steps, applied.synced.refused.len(), applied.duration);
        let timing = state.timing;
        if timing == self.timing {
            return;
        }
        self.timing = timing;
        self.meters.pipeline_run(timing.took);
        self.meters.services(&state.service_counts);
        self.meters.nodes(state.nodes.len());
        if let Some(since) = timing.since {
            self.meters.event_to_kernel(since.elapsed());
        }
    }

    /// Logs how many lines were left out.
    pub(crate) fn log_omitted(&mut self, now: Instant) {
        if let Some(omitted) = self.log_limit.end(now) {
            tracing::info!(untold = omitted, "more changes of leadership, `vipmux inspect vips` shows all");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::kernel::Synced;
    use vipmux_telemetry::metrics;

    fn text(meters: &Meters) -> String {
        let mut registry = metrics::registry();
        meters.register(&mut registry);
        metrics::encode([&registry]).unwrap()
    }

    #[test]
    fn a_serving_state_is_counted_once_however_often_it_is_applied() {
        let meters = Meters::default();
        let mut telemetry = Telemetry::new(meters.clone(), Arc::default());
        let timing = Timing { since: Some(Instant::now()), took: Duration::from_millis(5) };
        let state = ServingState { timing, ..ServingState::default() };
        let synced = || Synced { refused: Vec::new(), unreachable: Vec::new(), leftovers: false, steps: 2 };
        for _ in 0..3 {
            telemetry.applied(&state, &Applied { synced: synced(), duration: Duration::from_millis(1) });
        }
        let text = text(&meters);
        for line in [
            "vipmux_plan_steps_total 6",
            "vipmux_apply_duration_seconds_count 3",
            "vipmux_settle_duration_seconds_count 1",
            "vipmux_event_to_kernel_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn each_lapse_of_the_fence_is_counted_once() {
        let meters = Meters::default();
        let mut telemetry = Telemetry::new(meters.clone(), Arc::default());
        for lapses in [0, 1, 1, 3] {
            telemetry.fence(lapses, true, Duration::from_secs(1_000));
        }
        assert!(text(&meters).contains("vipmux_fence_lapses_total 3\n"));
    }
}
