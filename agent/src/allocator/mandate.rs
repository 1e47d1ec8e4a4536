//! Which allocator writes: the one that holds the Lease `vipmux-allocator`. A state machine without clock or I/O.
//!
//! ```text
//!               read: nobody's, or unchanged or gone for its duration  written
//!   Watching ───────────────────────────────────────────────► write ───────────► Holding ─┐ renewed every RENEW
//!      ▲  ▲       read: another's, changed since                 │ conflict          │  ▲──┘
//!      │  └──────────────────────────────────────────────────────┘                   │
//!      └──────────────────────── nothing written for TERM; taken by another ─────────┘
//! ```
//!
//! As client-go does it, only local clocks are used: another's Lease has run out when it was seen unchanged for its
//! duration. Its holder stops before that, [`TERM`] after it *began* the last renewal that was written; what it has begun by then is
//! given up within the rest of the duration.
//!
//! A Lease that somebody deleted is made again at once by who held it, and by others only when its holder must have noticed. Who
//! starts and has never seen one cannot tell that from a new cluster, and makes it.

use std::time::Duration;

/// `leaseDurationSeconds`.
pub const DURATION: Duration = Duration::from_secs(15);
/// How long after the beginning of a renewal its holder may begin to write.
pub const TERM: Duration = Duration::from_secs(10);
/// How often it is renewed.
const RENEW: Duration = Duration::from_secs(5);
/// How often what another holds is looked at, and what failed is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Another's duration counts up to this; nobody waits for a slip of the pen.
const LONGEST: Duration = Duration::from_mins(1);

/// What the Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `spec.holderIdentity`; empty: it was given back.
    pub holder: String,
    /// `spec.leaseDurationSeconds`.
    pub duration: Duration,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// `metadata.resourceVersion`.
    pub version: String,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this time.
    Wait(Duration),
    /// Read the Lease.
    Read,
    /// Write it.
    Write(Proposal),
}

/// A Lease that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The version that it has to have; `None`: it is to be made.
    pub expected: Option<String>,
    /// Who is to hold it; empty: nobody.
    pub holder: String,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// It is somebody else's so far, or nobody's.
    pub acquires: bool,
}

/// What came of reading the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It says this.
    There(Record),
    /// There is none.
    Nothing,
    /// There was no answer.
    Unknown,
}

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The Lease is so, with this version.
    Done(String),
    /// It has another version, or is there, or is gone.
    Conflict,
    /// There was no answer: it may have been written or not.
    Unknown,
}

/// See the module. Times are of one clock that never goes back and goes on while the machine sleeps.
#[derive(Debug)]
pub struct Mandate {
    identity: String,
    /// What was read or written last; `None`: no Lease was ever seen.
    seen: Option<Record>,
    /// That one is not there any more.
    missing: bool,
    /// When that was first seen so.
    since: Duration,
    /// When the last renewal that was written was begun.
    renewed: Option<Duration>,
    /// When to do something again.
    next: Duration,
    /// The Lease is to be read before anything else.
    stale: bool,
}

impl Mandate {
    /// Nobody else may have this identity: not the same Pod before it was restarted, either.
    pub fn new(identity: impl Into<String>) -> Self {
        let (since, next) = (Duration::ZERO, Duration::ZERO);
        Self { identity: identity.into(), seen: None, missing: false, since, renewed: None, next, stale: true }
    }

    /// Until when writes may begin; `None`: they may not.
    pub fn until(&self, now: Duration) -> Option<Duration> {
        self.renewed.map(|renewed| renewed + TERM).filter(|until| now < *until && !self.missing)
    }

    /// `leaseTransitions` of the Lease by what was read last: another holder, another number.
    pub fn transitions(&self) -> Option<i32> {
        self.seen.as_ref().map(|record| record.transitions)
    }

    /// Who holds the Lease by what was read last.
    pub fn holder(&self) -> Option<&str> {
        let record = self.seen.as_ref().filter(|_| !self.missing)?;
        Some(record.holder.as_str()).filter(|holder| !holder.is_empty())
    }

    /// What is to be done now. Whatever it is has to be reported before the next step is asked for.
    pub fn step(&mut self, now: Duration) -> Step {
        self.renewed.take_if(|renewed| now >= *renewed + TERM);
        if now < self.next {
            return Step::Wait(self.next);
        }
        match &self.seen {
            _ if self.stale => Step::Read,
            None => Step::Write(self.proposal(None, 0, true)),
            Some(record) if self.is_own(record) => {
                Step::Write(self.proposal(Some(&record.version), record.transitions, false))
            }
            Some(record) if self.is_free(record, now) => {
                let expected = (!self.missing).then_some(&record.version);
                Step::Write(self.proposal(expected, record.transitions.saturating_add(1), true))
            }
            Some(_) => Step::Read,
        }
    }

    /// Whether the Lease is there and this one's.
    fn is_own(&self, record: &Record) -> bool {
        !self.missing && record.holder == self.identity
    }

    /// Whether nobody can hold a mandate by the Lease, which is not this one's.
    fn is_free(&self, record: &Record, now: Duration) -> bool {
        let unchanged = now.saturating_sub(self.since);
        if self.missing {
            // While its own mandate would still last it cannot have been anybody else's.
            self.renewed.is_some() || unchanged >= DURATION
        } else {
            record.holder.is_empty() || unchanged >= waits(record)
        }
    }

    fn proposal(&self, expected: Option<&String>, transitions: i32, acquires: bool) -> Proposal {
        Proposal { expected: expected.cloned(), holder: self.identity.clone(), transitions, acquires }
    }

    /// The Lease was read.
    pub fn read(&mut self, found: Found, now: Duration) {
        let (record, missing) = match found {
            Found::There(record) => (Some(record), false),
            Found::Nothing => (self.seen.clone(), self.seen.is_some()),
            Found::Unknown => {
                self.next = now + RETRY;
                return;
            }
        };
        if (&self.seen, self.missing) != (&record, missing) {
            (self.seen, self.missing, self.since) = (record, missing, now);
        }
        self.renewed.take_if(|renewed| now >= *renewed + TERM);
        if self.seen.as_ref().is_some_and(|record| record.holder != self.identity) {
            self.renewed = None;
        }
        // What is free is taken at once; what is held is looked at again.
        let free = self.seen.as_ref().is_none_or(|record| self.is_own(record) || self.is_free(record, now));
        self.next = if free { now } else { now + RETRY };
        // Nothing but a look tells whether it was made again: whoever makes one names no version.
        self.stale = self.missing && !free;
    }

    /// What became of a proposal that was begun at `begun`.
    pub fn wrote(&mut self, proposal: &Proposal, begun: Duration, written: Written, now: Duration) {
        match written {
            Written::Done(version) => {
                let Proposal { holder, transitions, .. } = proposal.clone();
                let held = !holder.is_empty();
                self.seen = Some(Record { holder, duration: DURATION, transitions, version });
                (self.missing, self.since) = (false, now);
                self.renewed = held.then_some(begun);
                self.next = if held { begun + RENEW } else { now + DURATION };
            }
            Written::Conflict => (self.stale, self.next) = (true, now),
            // The same once more: if it was written after all, the version is another one, and that is found out.
            Written::Unknown => self.next = now + RETRY / 2,
        }
    }

    /// How the Lease is given back; `None`: it is not held. Nothing may be written any more.
    pub fn release(&mut self, now: Duration) -> Option<Proposal> {
        self.until(now)?;
        self.renewed = None;
        let record = self.seen.as_ref().filter(|record| self.is_own(record))?;
        let (expected, transitions) = (Some(record.version.clone()), record.transitions);
        Some(Proposal { expected, holder: String::new(), transitions, acquires: false })
    }
}

/// How long it has to be unchanged until it has run out.
fn waits(record: &Record) -> Duration {
    if record.duration.is_zero() { DURATION } else { record.duration.min(LONGEST) }
}

#[cfg(test)]
mod tests;
