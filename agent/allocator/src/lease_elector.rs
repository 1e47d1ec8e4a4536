//! Holds the Lease `vipmux-allocator` or waits for it, as [leader election](super::leader_election)
//! decides. The Lease is in a namespace where agents have no rights.

use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Error,
    api::PostParams,
    runtime::watcher::{self, Event},
};
use tokio::{
    select,
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

use super::{
    leader_election::{
        ElectionStep, LEASE_DURATION, LeaderElection, LeaseRecord, LeaseUpdate, ReadResult, UpdateResult,
    },
    write_result::FIELD_MANAGER,
};
use vipmux_cluster::{
    access::watch_config,
    clock::{boottime, wall},
    rollback::Rollbacks,
    watching,
};
use vipmux_model::permissions::{ALLOCATOR_LEASE as LEASE_NAME, allocator_namespace};

/// The time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The leader, as the Lease tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderState {
    /// Until when this allocator may start writes, `CLOCK_BOOTTIME`; `None`: it may not.
    pub until: Option<Duration>,
    /// `leaseTransitions`: another number whenever somebody else may have written in between.
    pub transitions: i32,
    /// The Lease's holder.
    pub holder: Option<String>,
}

impl LeaderState {
    /// Returns whether this allocator may write now.
    pub fn may_write(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns whether it may write now what it decided when the Lease had these `transitions`.
    pub fn may_write_in(&self, transitions: i32, now: Duration) -> bool {
        self.may_write(now) && self.transitions == transitions
    }
}

/// The task that reads and writes the Lease.
pub(super) struct LeaseElector {
    api: Api<Lease>,
    election: LeaderElection,
    leader_state: watch::Sender<LeaderState>,
    /// The time when the Lease was acquired. For people.
    acquired: Timestamp,
    /// The last failure. Each is logged once.
    logged: Option<String>,
    rollbacks: Rollbacks,
    /// The watch failed, and that was logged.
    watch_fails: bool,
    /// The list that the watch began with has the Lease.
    listed: bool,
}

impl LeaseElector {
    /// Returns an elector that has sent no request yet. `identity` is nobody else's. `namespace` is
    /// vipmux's own.
    pub(super) fn new(
        client: Client,
        namespace: &str,
        identity: &str,
        rollbacks: Rollbacks,
    ) -> (Self, watch::Receiver<LeaderState>) {
        let (leader_state, receiver) = watch::channel(LeaderState::default());
        let api = Api::namespaced(client, &allocator_namespace(namespace));
        let election = LeaderElection::new(identity);
        let (acquired, logged, watch_fails, listed) = (wall(), None, false, false);
        (Self { api, election, leader_state, acquired, logged, rollbacks, watch_fails, listed }, receiver)
    }

    /// Runs until it is asked to stop. Then it releases the Lease, if no write is in flight any
    /// more.
    ///
    /// If it is dropped earlier, the Lease has to expire.
    pub(super) async fn run(mut self, mut stop: oneshot::Receiver<ElectorStop>) {
        let config = watch_config().fields(&format!("metadata.name={LEASE_NAME}"));
        let mut lease_watch = watching::follow(self.api.clone(), config, self.rollbacks.clone());
        let how = loop {
            let now = boottime();
            match self.election.step(now) {
                ElectionStep::Wait(until) => select! {
                    () = sleep(until.saturating_sub(now)) => {}
                    Some(event) = lease_watch.next() => {
                        if let Some((found, version)) = self.found_by(event) {
                            self.election.noticed(found, version.as_deref(), boottime());
                        }
                    }
                    how = &mut stop => break how,
                },
                ElectionStep::Read => {
                    let found = self.read().await;
                    self.election.read(found, boottime());
                }
                ElectionStep::Write(update) => self.write(&update).await,
            }
            self.publish();
        };
        if how == Ok(ElectorStop::ReleaseLease)
            && let Some(update) = self.election.release(boottime())
        {
            self.write(&update).await;
        }
    }

    /// Returns the Lease as an event of the watch shows it, and the version of the change: a hint, which may be
    /// older than what was read or written since.
    fn found_by(&mut self, event: watcher::Result<Event<Lease>>) -> Option<(ReadResult, Option<String>)> {
        if let Err(error) = &event
            && !std::mem::replace(&mut self.watch_fails, true)
        {
            tracing::warn!(%error, "cannot watch the allocator's lease, another holder's end is seen later");
        }
        match event {
            Ok(Event::Apply(lease) | Event::InitApply(lease)) => {
                self.listed = true;
                let version = lease.metadata.resource_version.clone();
                Some((ReadResult::Lease(record_of(lease)), version))
            }
            Ok(Event::Delete(lease)) => Some((ReadResult::NoLease, lease.metadata.resource_version)),
            Ok(Event::InitDone) => {
                self.watch_fails = false;
                (!self.listed).then_some((ReadResult::NoLease, None))
            }
            Ok(Event::Init) => {
                self.listed = false;
                None
            }
            Err(_) => None,
        }
    }

    async fn write(&mut self, update: &LeaseUpdate) {
        let begun = boottime();
        let written = self.put(update).await;
        self.election.wrote(update, begun, written, boottime());
    }

    /// Publishes who is the leader.
    fn publish(&self) {
        let leader_state = LeaderState {
            until: self.election.until(boottime()),
            transitions: self.election.transitions().unwrap_or_default(),
            holder: self.election.holder().map(str::to_owned),
        };
        self.leader_state.send_if_modified(|before| {
            if before.holder != leader_state.holder {
                tracing::info!(holder = leader_state.holder.as_deref().unwrap_or("nobody"), "leader changed");
            }
            let changed = *before != leader_state;
            *before = leader_state;
            changed
        });
    }

    async fn read(&mut self) -> ReadResult {
        match timeout(REQUEST_TIMEOUT, self.api.get_opt(LEASE_NAME)).await {
            Ok(Ok(Some(lease))) => {
                self.log_success();
                ReadResult::Lease(record_of(lease))
            }
            Ok(Ok(None)) => ReadResult::NoLease,
            Ok(Err(error)) => {
                self.log_failure(error.to_string());
                ReadResult::Unknown
            }
            Err(_) => {
                self.log_failure(format!("no answer within {REQUEST_TIMEOUT:?}"));
                ReadResult::Unknown
            }
        }
    }

    async fn put(&mut self, update: &LeaseUpdate) -> UpdateResult {
        if update.acquires {
            self.acquired = wall();
        }
        let lease = lease_of(update, self.acquired, wall());
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let request = async {
            match &update.expected {
                None => self.api.create(&params, &lease).await,
                Some(_) => self.api.replace(LEASE_NAME, &params, &lease).await,
            }
        };
        match timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(made)) => {
                self.log_success();
                UpdateResult::Done(made.metadata.resource_version.unwrap_or_default())
            }
            // Deleted or created by another allocator in between.
            Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) && !is_missing_namespace(&status) => {
                UpdateResult::Conflict
            }
            Ok(Err(error)) => {
                self.log_failure(error.to_string());
                UpdateResult::Unknown
            }
            Err(_) => {
                self.log_failure(format!("no answer within {REQUEST_TIMEOUT:?}"));
                UpdateResult::Unknown
            }
        }
    }

    fn log_success(&mut self) {
        if self.logged.take().is_some() {
            tracing::info!(lease = LEASE_NAME, "the allocator's lease can be read and written again");
        }
    }

    fn log_failure(&mut self, error: String) {
        if self.logged.as_ref() != Some(&error) {
            tracing::warn!(
                lease = LEASE_NAME,
                error,
                "cannot read or write the allocator's lease, statuses are not written without it"
            );
            self.logged = Some(error);
        }
    }
}

/// The action on the Lease at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElectorStop {
    /// Release it: all writes have ended, so another allocator may start.
    ReleaseLease,
    /// Let it expire: the API server may still carry out a write in flight.
    KeepLease,
}

/// Returns whether the Lease's namespace does not exist.
fn is_missing_namespace(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

fn record_of(lease: Lease) -> LeaseRecord {
    let spec = lease.spec.unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: lease.metadata.resource_version.unwrap_or_default(),
    }
}

fn lease_of(update: &LeaseUpdate, acquired: Timestamp, now: Timestamp) -> Lease {
    let seconds = i32::try_from(LEASE_DURATION.as_secs()).unwrap_or(i32::MAX);
    Lease {
        metadata: ObjectMeta {
            name: Some(LEASE_NAME.to_owned()),
            resource_version: update.expected.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(update.holder.clone()),
            lease_duration_seconds: Some(if update.holder.is_empty() { 1 } else { seconds }),
            lease_transitions: Some(update.transitions),
            acquire_time: Some(MicroTime(acquired)),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests;
