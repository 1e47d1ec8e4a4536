//! Keeps the Lease `vipmux-allocator`, or waits for it: what the [mandate](super::mandate) says.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, Error, api::PostParams};
use tokio::{
    select,
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

use super::{
    answer::MANAGER,
    mandate::{DURATION, Found, Mandate, Proposal, Record, Step, Written},
};
use crate::clock::{boottime, wall};

/// The Lease's name.
pub const LEASE: &str = "vipmux-allocator";
/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(3);

/// Who writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenure {
    /// Until when this allocator may begin to write, `CLOCK_BOOTTIME`; `None`: it may not.
    pub until: Option<Duration>,
    /// Which of all terms it is: another one whenever somebody else may have written meanwhile.
    pub term: i32,
    /// Who holds the Lease.
    pub holder: Option<String>,
}

impl Tenure {
    /// Whether this allocator may write now.
    pub fn is_ours(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether it may now go on with what it decided in this term.
    pub fn lets_write_in(&self, term: i32, now: Duration) -> bool {
        self.is_ours(now) && self.term == term
    }
}

/// See the module.
pub(super) struct Keeper {
    api: Api<Lease>,
    mandate: Mandate,
    tenure: watch::Sender<Tenure>,
    /// When the Lease was taken, for people.
    acquired: Timestamp,
    /// What failed last; told once.
    told: Option<String>,
}

impl Keeper {
    /// One that has asked for nothing yet. `identity` is nobody else's.
    pub(super) fn new(client: Client, namespace: &str, identity: &str) -> (Self, watch::Receiver<Tenure>) {
        let (tenure, receiver) = watch::channel(Tenure::default());
        let (api, mandate) = (Api::namespaced(client, namespace), Mandate::new(identity));
        (Self { api, mandate, tenure, acquired: wall(), told: None }, receiver)
    }

    /// Runs until it is told to stop, and gives the Lease back then if it may: if nothing is under way any more that was begun
    /// under it.
    ///
    /// Not to be dropped before, or the Lease has to run out.
    pub(super) async fn run(mut self, mut stop: oneshot::Receiver<Stop>) {
        let how = loop {
            let now = boottime();
            match self.mandate.step(now) {
                Step::Wait(until) => select! {
                    () = sleep(until.saturating_sub(now)) => {}
                    how = &mut stop => break how,
                },
                Step::Read => {
                    let found = self.read().await;
                    self.mandate.read(found, boottime());
                }
                Step::Write(proposal) => self.write(&proposal).await,
            }
            self.tell();
        };
        if how == Ok(Stop::GivingBack)
            && let Some(proposal) = self.mandate.release(boottime())
        {
            self.write(&proposal).await;
        }
    }

    async fn write(&mut self, proposal: &Proposal) {
        let begun = boottime();
        let written = self.put(proposal).await;
        self.mandate.wrote(proposal, begun, written, boottime());
    }

    /// Tells those who write.
    fn tell(&self) {
        let tenure = Tenure {
            until: self.mandate.until(boottime()),
            term: self.mandate.transitions().unwrap_or_default(),
            holder: self.mandate.holder().map(str::to_owned),
        };
        self.tenure.send_if_modified(|before| {
            if before.holder != tenure.holder {
                tracing::info!(holder = tenure.holder.as_deref().unwrap_or("nobody"), "who allocates");
            }
            let changed = *before != tenure;
            *before = tenure;
            changed
        });
    }

    async fn read(&mut self) -> Found {
        match timeout(LIMIT, self.api.get_opt(LEASE)).await {
            Ok(Ok(Some(lease))) => {
                self.told = None;
                Found::There(record(lease))
            }
            Ok(Ok(None)) => Found::Nothing,
            Ok(Err(error)) => {
                self.complain(error.to_string());
                Found::Unknown
            }
            Err(_) => {
                self.complain(format!("no answer within {LIMIT:?}"));
                Found::Unknown
            }
        }
    }

    async fn put(&mut self, proposal: &Proposal) -> Written {
        if proposal.acquires {
            self.acquired = wall();
        }
        let lease = object(proposal, self.acquired, wall());
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let request = async {
            match &proposal.expected {
                None => self.api.create(&params, &lease).await,
                Some(_) => self.api.replace(LEASE, &params, &lease).await,
            }
        };
        match timeout(LIMIT, request).await {
            Ok(Ok(made)) => {
                self.told = None;
                Written::Done(made.metadata.resource_version.unwrap_or_default())
            }
            // Deleted meanwhile, or made by another.
            Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) && !is_missing_namespace(&status) => {
                Written::Conflict
            }
            Ok(Err(error)) => {
                self.complain(error.to_string());
                Written::Unknown
            }
            Err(_) => {
                self.complain(format!("no answer within {LIMIT:?}"));
                Written::Unknown
            }
        }
    }

    fn complain(&mut self, error: String) {
        if self.told.as_ref() != Some(&error) {
            tracing::warn!(lease = LEASE, error, "the Lease cannot be read or written; nothing is written without it");
            self.told = Some(error);
        }
    }
}

/// How the keeper stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Everything that was begun has ended: another allocator may begin.
    GivingBack,
    /// Something may still come of what was begun: the Lease has to run out.
    Abruptly,
}

/// A Lease that cannot be made since there is nowhere to make it.
fn is_missing_namespace(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

fn record(lease: Lease) -> Record {
    let spec = lease.spec.unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: lease.metadata.resource_version.unwrap_or_default(),
    }
}

fn object(proposal: &Proposal, acquired: Timestamp, now: Timestamp) -> Lease {
    let seconds = i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX);
    Lease {
        metadata: ObjectMeta {
            name: Some(LEASE.to_owned()),
            resource_version: proposal.expected.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(proposal.holder.clone()),
            lease_duration_seconds: Some(if proposal.holder.is_empty() { 1 } else { seconds }),
            lease_transitions: Some(proposal.transitions),
            acquire_time: Some(MicroTime(acquired)),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}
