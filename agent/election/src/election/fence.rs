//! The fence: until when the kernel may answer, and on which evidence.

use std::time::Duration;

use crate::mutation::{Mutated, Mutation};

/// The fence deadline of this node, and what it rests on.
#[derive(Debug)]
pub(super) struct Fence {
    /// The time that the kernel answers after the last evidence.
    lease: Duration,
    /// The deadline, as last extended. `None`: it has passed, or this agent never extended it.
    pub(super) deadline: Option<Duration>,
    /// The time at which a survey was asked for that showed this node's Leases to be its own.
    surveyed: Option<Duration>,
    /// The time at which there was evidence again, after none.
    back: Duration,
    /// The time at which the deadline passed last. Answers to earlier questions are no evidence.
    lapsed: Duration,
    /// At least one announcing interface had a carrier at the last tick.
    carrier: bool,
    /// The wanted VIPs were given since the start, and since the deadline last passed.
    informed: bool,
    mutated: Mutated,
}

/// A later deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    pub(super) deadline: Duration,
    /// The fence was closed before.
    pub(super) opens: bool,
}

impl Fence {
    pub(super) fn new(lease: Duration, mutated: Mutated) -> Self {
        Self {
            lease,
            deadline: None,
            surveyed: None,
            back: Duration::ZERO,
            lapsed: Duration::ZERO,
            carrier: false,
            informed: false,
            mutated,
        }
    }

    /// Returns whether this node may answer now.
    pub(super) fn is_open(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| now < deadline)
    }

    /// Returns whether the deadline has passed.
    pub(super) fn is_past(&self, now: Duration) -> bool {
        !self.mutated.is(Mutation::ExtendsWhatHasPassed) && self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Returns whether the wanted VIPs are known.
    pub(super) const fn is_informed(&self) -> bool {
        self.informed
    }

    /// Returns since when there is evidence without a gap.
    pub(super) const fn back(&self) -> Duration {
        self.back
    }

    /// Notes that the wanted VIPs were given.
    pub(super) const fn inform(&mut self) {
        self.informed = true;
    }

    /// Notes whether an announcing interface has a carrier.
    pub(super) const fn set_carrier(&mut self, carrier: bool) {
        self.carrier = carrier;
    }

    /// Forgets a deadline that has passed, and all evidence from before.
    pub(super) const fn lapse(&mut self, now: Duration) {
        (self.deadline, self.informed, self.surveyed, self.lapsed) = (None, false, None, now);
    }

    /// Takes a survey of the Leases, asked for at `asked`, as evidence. Returns whether it is
    /// evidence.
    pub(super) fn survey(&mut self, asked: Duration) -> bool {
        let counts = asked >= self.lapsed;
        if counts {
            self.surveyed = self.surveyed.max(Some(asked));
        }
        counts
    }

    /// Returns when the newest evidence was asked for. `peers`: the evidence of the peers.
    pub(super) fn evidence(&self, peers: Option<Duration>) -> Option<Duration> {
        peers.max(self.surveyed)
    }

    /// Returns whether the newest evidence is a survey.
    pub(super) fn rests_on_survey(&self, peers: Option<Duration>) -> bool {
        self.surveyed > peers
    }

    /// Moves the deadline to where the evidence allows. The next tick handles one that has passed.
    pub(super) fn extend(&mut self, peers: Option<Duration>, now: Duration) -> Option<Extension> {
        if !self.carrier || !self.informed || self.is_past(now) {
            return None;
        }
        let deadline = self.evidence(peers)? + self.lease;
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
