//! The leader's knowledge: decided statuses, the queue of writes, and the results so far.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::{
    decision::{StatusDecider, StatusDecision},
    initial_list::{InitialList, ListResult},
    status_writer::{StatusWriter, WriteTask},
    work_queue::{RateLimit, WorkQueue},
    write_cache::{CustomResource, CustomResourceStatus, WriteCache, WriteVerdict},
};
use vipmux_allocate::status::{DesiredStatus, Leaders, StatusDifference};
use vipmux_cluster::clock::boottime;
use vipmux_model::{ServiceName, objects::Objects};

/// Eight requests at once, and fifty a second, so that the API server sees no storm of writes.
const RATE_LIMIT: RateLimit = RateLimit {
    max_in_flight: 8,
    interval: Duration::from_millis(20),
    burst: 50,
    backoff: Duration::from_secs(1),
    backoff_max: Duration::from_mins(5),
};
/// A VIP's leader may change again at once. It is written after this time.
const LEADER_SETTLE_DELAY: Duration = Duration::from_secs(2);
/// The time from one write of a pool's status to the next.
const CUSTOM_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time from one decision to the next.
pub(super) const MIN_DECISION_INTERVAL: Duration = Duration::from_millis(50);
/// Lines of log for the problems that are new at once, and for those that are solved.
const MAX_LOG_LINES: usize = 100;

/// The object of a write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ObjectKey {
    /// A Service that is ours.
    Service(ServiceName),
    /// A Service that is not ours any more.
    Withdrawal(ServiceName),
    /// A pool or a policy.
    CustomResource(CustomResource),
}

/// State that exists while this allocator is the leader. It is dropped when leadership is lost.
pub(super) struct StatusReconciler {
    /// [`LeaderState::transitions`](crate::lease_elector::LeaderState::transitions).
    pub(super) transitions: i32,
    pub(super) decider: StatusDecider,
    pub(super) write_cache: WriteCache,
    pub(super) initial_list: InitialList,
    pub(super) queue: WorkQueue<ObjectKey>,
    pub(super) pending: PendingWrites,
    pub(super) logged: LoggedProblems,
    /// There is something new to decide on.
    pub(super) needs_decision: bool,
    /// The earliest time of the next decision.
    pub(super) next_decision: Duration,
    /// The time of the next decision if nothing changes before: an edit waits until then.
    pub(super) decides_again: Option<Duration>,
}

/// Writes that the last decision asks for.
#[derive(Default)]
pub(super) struct PendingWrites {
    pub(super) services: BTreeMap<ServiceName, (Arc<Service>, DesiredStatus, StatusDifference)>,
    pub(super) custom_resources: BTreeMap<CustomResource, (ObjectMeta, CustomResourceStatus)>,
    /// Services that are not ours any more, and may still have something of ours in their statuses.
    pub(super) withdrawals: BTreeSet<ServiceName>,
    /// The time when each pool and policy was written last.
    custom_written_at: BTreeMap<CustomResource, Duration>,
}

/// Problems that the log holds already.
#[derive(Default)]
pub(super) struct LoggedProblems {
    /// Why the API server denied a Service's status.
    pub(super) denied: BTreeMap<ServiceName, String>,
    /// Problems of objects that no status shows.
    problems: BTreeSet<String>,
    /// The time when a failed write was logged last; zero: never.
    pub(super) failure_logged_at: Duration,
}

impl StatusReconciler {
    /// Returns the state of an allocator that starts to lead at `now` with these Services.
    pub(super) fn new(writer: &StatusWriter, listed: ListResult, transitions: i32, now: Duration) -> Self {
        let ListResult { initial_list, departed, write_cache } = listed;
        Self {
            transitions,
            decider: StatusDecider::new(writer.options.clone(), writer.adopt),
            write_cache,
            initial_list,
            queue: WorkQueue::new(RATE_LIMIT),
            pending: PendingWrites { withdrawals: departed, ..PendingWrites::default() },
            logged: LoggedProblems::default(),
            needs_decision: true,
            next_decision: now,
            decides_again: None,
        }
    }

    /// Returns when to decide; `None`: there is no reason yet.
    pub(super) fn decision_due(&self) -> Option<Duration> {
        if self.needs_decision { Some(self.next_decision) } else { self.decides_again }
    }

    /// Decides which statuses to write. With thousands of Services this takes a while.
    pub(super) fn decide(&mut self, objects: &Objects, leaders: &Leaders) -> StatusDecision {
        let objects = self.initial_list.merge_into(objects);
        self.decider.decide(&objects, leaders, &mut self.write_cache, boottime())
    }

    /// Returns how many Services have addresses, and how many wait for some.
    pub(super) fn service_counts(&self) -> (usize, usize) {
        self.decider.counts()
    }

    /// Returns the write for this object; `None`: nothing is left to write.
    pub(super) fn task(&mut self, key: &ObjectKey) -> Option<WriteTask> {
        let is_due = |verdict: WriteVerdict| verdict.is_due().then_some(());
        match key {
            ObjectKey::Service(name) => {
                let (base, statement, _) = self.pending.services.get(name)?;
                is_due(self.write_cache.verdict(name, base, statement))?;
                Some(WriteTask::Service { name: name.clone(), base: Arc::clone(base), statement: statement.clone() })
            }
            ObjectKey::Withdrawal(name) => {
                self.pending.withdrawals.contains(name).then(|| WriteTask::Withdrawal { name: name.clone() })
            }
            ObjectKey::CustomResource(object) => {
                let (base, status) = self.pending.custom_resources.get(object)?;
                is_due(self.write_cache.custom_verdict(object, base, status))?;
                let (base, status) = (Box::new(base.clone()), status.clone());
                self.pending.custom_written_at.insert(object.clone(), boottime());
                Some(WriteTask::CustomResource { object: object.clone(), base, status })
            }
        }
    }

    /// Replaces the pending writes by those of a decision that was begun at `began`.
    pub(super) fn with_decision(mut self, decision: StatusDecision, began: Duration) -> Self {
        let now = boottime();
        // A decision on ten thousand Services takes a while. Half of the time is for other things.
        self.next_decision = now + MIN_DECISION_INTERVAL.max(now.saturating_sub(began));
        (self.needs_decision, self.decides_again) = (false, decision.again);
        self.pending.replace(decision.services, decision.custom_resources, decision.departed, &self.decider);
        self.logged.denied.retain(|name, _| self.pending.services.contains_key(name));
        self.fill_queue(now);
        self.logged.update(decision.problems);
        self
    }

    /// Queues what is pending, and nothing else.
    fn fill_queue(&mut self, now: Duration) {
        let Self { pending, decider, queue, write_cache, .. } = self;
        let is_pending = |key: &ObjectKey| match key {
            ObjectKey::Service(name) => pending.services.contains_key(name),
            ObjectKey::Withdrawal(name) => pending.withdrawals.contains(name),
            ObjectKey::CustomResource(object) => pending.custom_resources.contains_key(object),
        };
        let exists = |key: &ObjectKey| match key {
            ObjectKey::Service(name) => decider.serves(name),
            ObjectKey::Withdrawal(name) => pending.withdrawals.contains(name),
            ObjectKey::CustomResource(object) => decider.knows(object),
        };
        queue.retain(is_pending, exists);
        for (name, (base, statement, difference)) in &pending.services {
            let (urgency, not_before) = match difference {
                StatusDifference::Outcome => (0, now),
                StatusDifference::Announcement => (1, now + LEADER_SETTLE_DELAY),
            };
            let key = ObjectKey::Service(name.clone());
            if write_cache.verdict(name, base, statement) == WriteVerdict::Write {
                queue.end_conflict(&key);
            }
            queue.put(key, urgency, not_before);
        }
        for name in &pending.withdrawals {
            queue.put(ObjectKey::Withdrawal(name.clone()), 0, now);
        }
        for object in pending.custom_resources.keys() {
            let spaced = pending.custom_written_at.get(object).map_or(now, |written| *written + CUSTOM_WRITE_INTERVAL);
            queue.put(ObjectKey::CustomResource(object.clone()), 2, spaced.max(now + LEADER_SETTLE_DELAY));
        }
    }
}

impl PendingWrites {
    /// Takes over a decision. Withdrawals that are not done yet stay.
    fn replace(
        &mut self,
        services: BTreeMap<ServiceName, (Arc<Service>, DesiredStatus, StatusDifference)>,
        custom_resources: BTreeMap<CustomResource, (ObjectMeta, CustomResourceStatus)>,
        departed: BTreeSet<ServiceName>,
        decider: &StatusDecider,
    ) {
        (self.services, self.custom_resources) = (services, custom_resources);
        self.withdrawals.extend(departed);
        self.withdrawals.retain(|name| !decider.serves(name));
        self.custom_written_at.retain(|object, _| decider.knows(object));
    }
}

impl LoggedProblems {
    /// Logs the problems that are new and those that are solved: of thousands at once, the first.
    fn update(&mut self, problems: BTreeSet<String>) {
        for problem in problems.difference(&self.problems).take(MAX_LOG_LINES) {
            tracing::warn!(%problem, "problem found");
        }
        for problem in self.problems.difference(&problems).take(MAX_LOG_LINES) {
            tracing::info!(%problem, "problem solved");
        }
        self.problems = problems;
    }
}
