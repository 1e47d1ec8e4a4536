//! The fence: until when the kernel may answer, and on which evidence.

use std::time::Duration;

use super::timing::EVIDENCE_GAP;
use crate::mutation::{Mutated, Mutation};

/// The number of confirmations within a promise, so that one may come late.
const CONFIRMATIONS: u32 = 2;

/// The fence deadline of this node, and what it rests on.
#[derive(Debug, Default)]
pub(super) struct FenceDeadline {
    /// The time that the kernel answers after the last evidence.
    lease: Duration,
    /// The deadline, as last extended. `None`: it has passed, or this agent never extended it.
    pub(super) deadline: Option<Duration>,
    /// The latest confirmation of this node's record.
    confirmed: Option<Confirmation>,
    /// The time at which there was evidence again, after none.
    back: Duration,
    /// The time of the questions that peers answered last,
    asked: Option<Duration>,
    /// and since when they answered without a gap of [`EVIDENCE_GAP`].
    pub(super) steady: Duration,
    /// The time at which the deadline passed last. Answers to earlier questions are no evidence.
    lapsed: Duration,
    /// At least one announcing interface had a carrier at the last tick.
    pub(super) carrier: bool,
    /// The wanted VIPs were given since the start, and since the deadline last passed.
    pub(super) informed: bool,
    mutated: Mutated,
}

/// This node's record was written without a conflict.
#[derive(Clone, Copy, Debug)]
struct Confirmation {
    asked: Duration,
    promise: Duration,
}

/// A later deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    pub(super) deadline: Duration,
    /// The fence was closed before.
    pub(super) opens: bool,
}

impl FenceDeadline {
    pub(super) fn new(lease: Duration, mutated: Mutated) -> Self {
        Self { lease, mutated, ..Self::default() }
    }

    /// Returns whether this node may answer now.
    pub(super) fn is_open(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| now < deadline)
    }

    /// Returns whether the deadline has passed.
    pub(super) fn is_past(&self, now: Duration) -> bool {
        !self.mutated.is(Mutation::ExtendsWhatHasPassed) && self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Returns whether the kernel has not answered for this time.
    pub(super) fn is_closed_for(&self, time: Duration, now: Duration) -> bool {
        now >= self.deadline.unwrap_or(self.lapsed) + time
    }

    /// Returns since when there is evidence without a gap; `now`: there is none.
    pub(super) fn back(&self, now: Duration) -> Duration {
        if self.is_open(now) { self.back } else { now }
    }

    /// Notes the evidence of peers.
    pub(super) fn note_evidence(&mut self, asked: Option<Duration>, now: Duration) {
        if asked > self.asked.map(|before| before + EVIDENCE_GAP) {
            self.steady = now;
        }
        self.asked = self.asked.max(asked);
    }

    /// Forgets a deadline that has passed, and all evidence from before.
    pub(super) const fn lapse(&mut self, now: Duration) {
        (self.deadline, self.informed, self.confirmed, self.lapsed) = (None, false, None, now);
    }

    /// Takes a write of this node's record, asked for at `asked`, as evidence for `promise`.
    pub(super) fn confirm(&mut self, asked: Duration, promise: Duration) {
        if asked >= self.lapsed {
            self.confirmed = Some(Confirmation { asked, promise });
        }
    }

    /// Forgets the confirmation: another node fenced this one.
    pub(super) const fn displace(&mut self) {
        self.confirmed = None;
    }

    /// Moves the deadline back to what the evidence of the peers allows. The promise of the record no
    /// longer counts, since a majority does not wait for it.
    pub(super) fn retract(&mut self, peers: Duration, now: Duration) -> Option<Duration> {
        self.confirmed = None;
        let deadline = peers + self.lease;
        let is_later = |before: Duration| now < before && deadline < before;
        self.deadline.is_some_and(is_later).then(|| *self.deadline.insert(deadline))
    }

    /// Returns when a confirmation of this node's record is due, if there is no other evidence.
    pub(super) fn confirmation_due(&self) -> Duration {
        self.confirmed.map_or(Duration::ZERO, |last| last.asked + last.promise / CONFIRMATIONS)
    }

    /// Returns whether the newest evidence is a confirmation.
    pub(super) fn rests_on_record(&self, peers: Option<Duration>) -> bool {
        self.confirmed.map(|last| last.asked) > peers
    }

    /// Moves the deadline to where the evidence allows. The next tick handles one that has passed.
    pub(super) fn extend(&mut self, peers: Option<Duration>, now: Duration) -> Option<Extension> {
        if !self.carrier || !self.informed || self.is_past(now) {
            return None;
        }
        let of_peers = peers.map(|asked| asked + self.lease);
        let deadline = of_peers.max(self.confirmed.map(|last| last.asked + last.promise))?;
        if deadline <= now || self.deadline.is_some_and(|before| before >= deadline) {
            return None;
        }
        let opens = self.deadline.is_none();
        if opens {
            self.back = now;
        }
        self.deadline = Some(deadline);
        Some(Extension { deadline, opens })
    }
}
