//! Runs the allocator's loop: reads the clock, asks for decisions, and starts the writes.
//!
//! [`StatusController`] owns the tasks and channels. [`StatusReconciler`] exists only while this
//! allocator is the leader; it knows which statuses to write.

mod reconciler;
mod results;

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    select,
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

use self::reconciler::{MIN_DECISION_INTERVAL, StatusReconciler};
use super::{
    health::AllocatorHealth,
    initial_list::{self, ListError, ListResult},
    leaders::KnownLeaders,
    lease_elector::LeaderState,
    status_writer::{StatusWriter, WRITE_TIMEOUT, WriteReport},
    work_queue::NextWork,
};
use vipmux_cluster::{clock::boottime, events::EventRecorder};
use vipmux_model::objects::Objects;

/// The loop runs at least this often.
const MAX_IDLE: Duration = Duration::from_secs(5);
/// The time from one attempt to start leading to the next.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The loop that writes statuses.
pub(super) struct StatusController {
    writer: StatusWriter,
    recorder: EventRecorder,
    leader_state: watch::Receiver<LeaderState>,
    leaders: watch::Receiver<KnownLeaders>,
    objects: watch::Receiver<Arc<Objects>>,
    health: Arc<watch::Sender<AllocatorHealth>>,
    /// Writes that were started. Each ends within [`WRITE_TIMEOUT`].
    in_flight: JoinSet<WriteReport>,
    /// `None`: another allocator is the leader, or none is.
    reconciler: Option<StatusReconciler>,
    /// The time to try again to start leading.
    retry_at: Duration,
}

impl StatusController {
    pub(super) fn new(
        writer: StatusWriter,
        recorder: EventRecorder,
        leader_state: watch::Receiver<LeaderState>,
        leaders: watch::Receiver<KnownLeaders>,
        objects: watch::Receiver<Arc<Objects>>,
        health: Arc<watch::Sender<AllocatorHealth>>,
    ) -> Self {
        let (in_flight, reconciler, retry_at) = (JoinSet::new(), None, Duration::ZERO);
        Self { writer, recorder, leader_state, leaders, objects, health, in_flight, reconciler, retry_at }
    }

    /// Runs until it is dropped. The supervisor ends the allocator if a source of its inputs is gone.
    ///
    /// Cancel-safe: only the decision in progress is dropped. Writes that were started go on; see
    /// [`finish`](Self::finish).
    pub(super) async fn run(&mut self) -> Infallible {
        loop {
            self.reconcile().await;
            self.start_writes();
            self.publish_health();
            let wake = self.wake_time().saturating_sub(boottime());
            select! {
                Ok(()) = self.objects.changed() => self.mark_changed(),
                Ok(()) = self.leaders.changed() => self.mark_changed(),
                Ok(()) = self.leader_state.changed() => {}
                Some(report) = self.in_flight.join_next() => match report {
                    Ok(report) => self.handle(report),
                    Err(error) => {
                        tracing::error!(%error, "status write panicked, starting over from the statuses");
                        (self.reconciler, self.retry_at) = (None, boottime() + RETRY_INTERVAL);
                    }
                },
                () = sleep(wake) => {}
            }
        }
    }

    /// Waits for the writes in flight. Returns whether all of them have ended.
    pub(super) async fn finish(&mut self) -> bool {
        let ended = async { while self.in_flight.join_next().await.is_some() {} };
        timeout(WRITE_TIMEOUT, ended).await.is_ok()
    }

    fn mark_changed(&mut self) {
        if let Some(reconciler) = &mut self.reconciler {
            reconciler.needs_decision = true;
        }
    }

    /// Starts or stops leading, and decides which statuses to write.
    async fn reconcile(&mut self) {
        let now = boottime();
        let leader_state = self.leader_state.borrow_and_update().clone();
        let lost = |reconciler: &mut StatusReconciler| !leader_state.may_write_in(reconciler.transitions, now);
        if self.reconciler.take_if(lost).is_some() {
            tracing::warn!("leadership lost, not writing any more");
        }
        if !leader_state.may_write(now) {
            return;
        }
        if self.may_start_leading() && now >= self.retry_at {
            self.start_leading(leader_state.transitions).await;
        }
        let relist_at = self.reconciler.as_ref().and_then(|reconciler| reconciler.initial_list.relist_at());
        if relist_at.is_some_and(|relist_at| now >= relist_at) {
            self.relist().await;
        }
        self.decide().await;
    }

    /// Decides again if something changed and the last decision was long enough ago.
    async fn decide(&mut self) {
        let now = boottime();
        let is_due = |reconciler: &mut StatusReconciler| reconciler.decision_due().is_some_and(|due| now >= due);
        let Some(mut reconciler) = self.reconciler.take_if(is_due) else { return };
        let leaders = self.leaders.borrow_and_update().clone().unwrap_or_default();
        let objects = Arc::clone(&self.objects.borrow_and_update());
        let decided = spawn_blocking(move || {
            let decision = reconciler.decide(&objects, &leaders);
            (reconciler, decision)
        });
        if let Ok((reconciler, decision)) = decided.await {
            self.reconciler = Some(reconciler.with_decision(decision, now));
        } else {
            self.retry_at = boottime() + RETRY_INTERVAL;
            tracing::error!("decision panicked, starting over from the statuses");
        }
    }

    /// Returns whether this allocator may start to lead once it holds the Lease.
    ///
    /// Requires known leaders of VIPs and no writes in flight from an earlier leadership: the API
    /// server may carry them out after all Services have been listed.
    fn may_start_leading(&self) -> bool {
        self.reconciler.is_none() && self.in_flight.is_empty() && self.leaders.borrow().is_some()
    }

    async fn start_leading(&mut self, transitions: i32) {
        let listed = self.list_services().await;
        let now = boottime();
        self.retry_at = now + RETRY_INTERVAL;
        match listed {
            Ok(listed) => {
                tracing::info!("started leading, this allocator writes statuses");
                self.reconciler = Some(StatusReconciler::new(&self.writer, listed, transitions, now));
            }
            Err(error) => tracing::warn!(%error, "cannot start leading"),
        }
    }

    /// Lists the Services again, because the watch does not show all listed Services. Either the
    /// watch is late, or a Service is gone.
    async fn relist(&mut self) {
        let listed = self.list_services().await;
        let Some(reconciler) = &mut self.reconciler else { return };
        match listed {
            Ok(ListResult { initial_list, .. }) => {
                (reconciler.initial_list, reconciler.needs_decision) = (initial_list, true);
            }
            Err(error) => {
                tracing::warn!(%error, "watch is late and the Services cannot be listed");
                reconciler.initial_list.postpone(boottime() + RETRY_INTERVAL);
            }
        }
    }

    async fn list_services(&self) -> Result<ListResult, ListError> {
        let on_page = || self.health.send_modify(|health| health.last_loop = boottime());
        initial_list::list(&self.writer.client, &self.writer.options, on_page).await
    }

    /// Starts the writes that may start now.
    fn start_writes(&mut self) {
        while let Some(reconciler) = &mut self.reconciler
            && self.leader_state.borrow().may_write_in(reconciler.transitions, boottime())
            && let NextWork::Start(key) = reconciler.queue.next(boottime())
        {
            match reconciler.task(&key) {
                Some(task) => drop(self.in_flight.spawn(task.run(self.writer.clone()))),
                None => reconciler.queue.skip(&key),
            }
        }
    }

    /// Returns when there is something to do although nothing is received.
    fn wake_time(&self) -> Duration {
        let now = boottime();
        let mut wake = now + MAX_IDLE;
        let leads_until = self.leader_state.borrow().until;
        match &self.reconciler {
            Some(reconciler) => {
                wake = wake.min(reconciler.decision_due().unwrap_or(wake));
                match reconciler.queue.peek(now) {
                    NextWork::Start(_) => wake = now,
                    NextWork::WaitUntil(at) => wake = wake.min(at),
                    NextWork::Idle => {}
                }
                wake =
                    [leads_until, reconciler.initial_list.relist_at()].into_iter().flatten().fold(wake, Duration::min);
            }
            None if leads_until.is_some() && self.may_start_leading() => {
                wake = wake.min(self.retry_at.max(now + MIN_DECISION_INTERVAL));
            }
            None => {}
        }
        wake
    }

    fn publish_health(&self) {
        self.health.send_modify(|health| {
            health.synced = true;
            health.last_loop = boottime();
            health.leading = self.reconciler.is_some();
            health.waiting = self.reconciler.as_ref().map_or(0, |reconciler| reconciler.queue.waiting().count());
            let has_decided = self.reconciler.as_ref().is_some_and(|reconciler| !reconciler.needs_decision);
            health.settled = has_decided && health.waiting == 0 && self.in_flight.is_empty();
            health.services = self.reconciler.as_ref().map_or((0, 0), StatusReconciler::service_counts);
        });
    }
}

#[cfg(test)]
mod tests;
