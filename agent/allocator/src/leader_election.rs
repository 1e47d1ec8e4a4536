//! Decides which allocator is the leader: the one that holds the Lease `vipmux-allocator`. A state
//! machine without clock or I/O.
//!
//! ```text
//!             read: nobody's; or unchanged or gone for its duration        written
//!   Watching ───────────────────────────────────────────────► write ───────────► Holding ─┐ renewed
//!      ▲  ▲   read or noticed: another's, changed since         │ conflict          │  ▲──┘
//!      │  └─────────────────────────────────────────────────────┘                   │
//!      └─────────── nothing written for RENEW_DEADLINE, or taken by another ────────┘
//! ```
//!
//! As in client-go, only local clocks are used. Another's Lease has expired once it was seen
//! unchanged for its duration. Its holder stops earlier: [`RENEW_DEADLINE`] after it *started* the
//! last renewal that was written. Writes that it started by then are given up within the rest of
//! the duration.
//!
//! A watch shows what becomes of the Lease. What it shows may be old, so it is never the reason for
//! leadership: each write names the version that it replaces. The leader compares versions, and stops at
//! once if its Lease was deleted or taken after its last write.
//!
//! A deleted Lease is created again at once by the allocator that held it. Others wait until its
//! holder must have noticed. An allocator that starts and never saw one cannot tell that from a new
//! cluster, and creates it.

use std::time::Duration;

/// `leaseDurationSeconds`.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The leader may start writes until this time after the start of its last renewal.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The leader renews the Lease this often.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// A missing Lease is read this often, and a failure is retried after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// A longer duration of another holder counts as this, in case it is a typing error.
const MAX_FOREIGN_DURATION: Duration = Duration::from_mins(1);

/// The content of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// `spec.holderIdentity`; empty: it was released.
    pub holder: String,
    /// `spec.leaseDurationSeconds`.
    pub duration: Duration,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// `metadata.resourceVersion`.
    pub version: String,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionStep {
    /// Nothing before this time.
    Wait(Duration),
    /// Read the Lease.
    Read,
    /// Write it.
    Write(LeaseUpdate),
}

/// A write of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseUpdate {
    /// The version that the Lease must have; `None`: it is created.
    pub expected: Option<String>,
    /// The new holder; empty: nobody.
    pub holder: String,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// It is another's Lease so far, or nobody's.
    pub acquires: bool,
}

/// The result of reading the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// Its content.
    Lease(LeaseRecord),
    /// There is no Lease.
    NoLease,
    /// No answer.
    Unknown,
}

/// The result of a [`LeaseUpdate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// It was written. The Lease has this version now.
    Done(String),
    /// The Lease has another version, exists already, or is gone.
    Conflict,
    /// No answer: it may have been written or not.
    Unknown,
}

/// The state machine. All times are of one clock that never goes back and goes on while the machine
/// sleeps.
#[derive(Debug)]
pub struct LeaderElection {
    identity: String,
    /// The Lease as it was read or written last; `None`: none was ever seen.
    seen: Option<LeaseRecord>,
    /// That Lease does not exist any more.
    missing: bool,
    /// The time when it was first seen like that.
    since: Duration,
    /// The start of the last renewal that was written.
    renewed: Option<Duration>,
    /// The time to act again.
    next: Duration,
    /// The Lease has to be read before anything else.
    stale: bool,
    /// The last write was a conflict.
    conflict: bool,
}

impl LeaderElection {
    /// Returns the state machine of the allocator with this identity. Nobody else may have it, and
    /// neither may the same Pod before a restart.
    pub fn new(identity: impl Into<String>) -> Self {
        let (since, next) = (Duration::ZERO, Duration::ZERO);
        let (identity, seen, renewed) = (identity.into(), None, None);
        Self { identity, seen, missing: false, since, renewed, next, stale: true, conflict: false }
    }

    /// Returns until when writes may start; `None`: they may not.
    pub fn until(&self, now: Duration) -> Option<Duration> {
        self.renewed.map(|renewed| renewed + RENEW_DEADLINE).filter(|until| now < *until && !self.missing)
    }

    /// Returns `leaseTransitions` as read last. Another holder has another number.
    pub fn transitions(&self) -> Option<i32> {
        self.seen.as_ref().map(|record| record.transitions)
    }

    /// Returns the Lease's holder as read last.
    pub fn holder(&self) -> Option<&str> {
        let record = self.seen.as_ref().filter(|_| !self.missing)?;
        Some(record.holder.as_str()).filter(|holder| !holder.is_empty())
    }

    /// Returns the next step. Its result must be reported before the next call.
    pub fn step(&mut self, now: Duration) -> ElectionStep {
        self.renewed.take_if(|renewed| now >= *renewed + RENEW_DEADLINE);
        if now < self.next {
            return ElectionStep::Wait(self.next);
        }
        match &self.seen {
            _ if self.stale => ElectionStep::Read,
            None => ElectionStep::Write(self.update(None, 0, true)),
            Some(record) if self.is_own(record) => {
                ElectionStep::Write(self.update(Some(&record.version), record.transitions, false))
            }
            Some(record) if self.is_free(record, now) => {
                let expected = (!self.missing).then_some(&record.version);
                ElectionStep::Write(self.update(expected, record.transitions.saturating_add(1), true))
            }
            Some(_) => ElectionStep::Read,
        }
    }

    /// Returns whether the Lease exists and this allocator holds it.
    fn is_own(&self, record: &LeaseRecord) -> bool {
        !self.missing && record.holder == self.identity
    }

    /// Returns whether nobody can be leader by this Lease, which another allocator holds or held.
    fn is_free(&self, record: &LeaseRecord, now: Duration) -> bool {
        let released = if self.missing {
            // Its own leadership would still last, so nobody else can have held it.
            self.renewed.is_some()
        } else {
            record.holder.is_empty()
        };
        released || now.saturating_sub(self.since) >= self.duration(record)
    }

    /// Returns how long the Lease has to be unchanged, or missing, until it has expired.
    fn duration(&self, record: &LeaseRecord) -> Duration {
        if self.missing || record.duration.is_zero() {
            LEASE_DURATION
        } else {
            record.duration.min(MAX_FOREIGN_DURATION)
        }
    }

    fn update(&self, expected: Option<&String>, transitions: i32, acquires: bool) -> LeaseUpdate {
        LeaseUpdate { expected: expected.cloned(), holder: self.identity.clone(), transitions, acquires }
    }

    /// Takes in the result of reading the Lease.
    pub fn read(&mut self, found: ReadResult, now: Duration) {
        let (record, missing) = match found {
            ReadResult::Lease(record) => (Some(record), false),
            ReadResult::NoLease => (self.seen.clone(), self.seen.is_some()),
            ReadResult::Unknown => {
                self.next = now + RETRY_INTERVAL;
                return;
            }
        };
        if (&self.seen, self.missing) != (&record, missing) {
            (self.seen, self.missing, self.since) = (record, missing, now);
        }
        self.renewed.take_if(|renewed| now >= *renewed + RENEW_DEADLINE);
        if self.seen.as_ref().is_some_and(|record| record.holder != self.identity) {
            self.renewed = None;
        }
        let held = self.seen.as_ref().filter(|record| !self.is_own(record) && !self.is_free(record, now));
        // A free Lease is taken at once, a held one when it has expired. Only reading tells whether a
        // missing one was created again: creating it names no version.
        self.stale = self.missing && held.is_some();
        self.next = match held {
            Some(_) if self.missing => now + RETRY_INTERVAL,
            Some(record) => self.since + self.duration(record),
            None => now,
        };
    }

    /// Takes in what a watch shows. `version`: the `resourceVersion` of the change; `None`: it is unknown.
    ///
    /// While this allocator leads, only another holder and a deletion count, and only if they are newer than
    /// its last write. If that is unknown, the Lease is read.
    pub fn noticed(&mut self, found: ReadResult, version: Option<&str>, now: Duration) {
        let Some(own) = self.seen.as_ref().filter(|_| self.renewed.is_some()) else { return self.read(found, now) };
        let is_newer = |version: u64, own: u64| match &found {
            ReadResult::Lease(record) => record.holder != self.identity && version > own,
            ReadResult::NoLease => version >= own,
            ReadResult::Unknown => false,
        };
        // Versions of one kind can be compared as numbers (KEP-5504).
        match (version.and_then(|version| version.parse().ok()), own.version.parse().ok()) {
            (Some(version), Some(own)) if is_newer(version, own) => self.read(found, now),
            (Some(_), Some(_)) => {}
            _ => (self.stale, self.next) = (true, now),
        }
    }

    /// Takes in the result of a write that was started at `begun`.
    pub fn wrote(&mut self, update: &LeaseUpdate, begun: Duration, written: UpdateResult, now: Duration) {
        match written {
            UpdateResult::Done(version) => {
                let LeaseUpdate { holder, transitions, .. } = update.clone();
                let held = !holder.is_empty();
                self.seen = Some(LeaseRecord { holder, duration: LEASE_DURATION, transitions, version });
                (self.missing, self.since) = (false, now);
                self.renewed = held.then_some(begun);
                self.conflict = false;
                self.next = if held { begun + RENEW_INTERVAL } else { now + LEASE_DURATION };
            }
            // A second conflict in a row is none of another allocator's write: read later.
            UpdateResult::Conflict => {
                let pause = if self.conflict { RETRY_INTERVAL / 2 } else { Duration::ZERO };
                (self.stale, self.conflict, self.next) = (true, true, now + pause);
            }
            // Write the same again. If it was written after all, the version differs, and the
            // conflict shows that.
            UpdateResult::Unknown => self.next = now + RETRY_INTERVAL / 2,
        }
    }

    /// Returns the write that releases the Lease; `None`: it is not held. After this, nothing may
    /// be written.
    pub fn release(&mut self, now: Duration) -> Option<LeaseUpdate> {
        self.until(now)?;
        self.renewed = None;
        let record = self.seen.as_ref().filter(|record| self.is_own(record))?;
        let (expected, transitions) = (Some(record.version.clone()), record.transitions);
        Some(LeaseUpdate { expected, holder: String::new(), transitions, acquires: false })
    }
}

#[cfg(test)]
mod tests;
