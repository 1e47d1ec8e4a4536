//! The records of nodes in the store: evidence for a node that hears no majority, and the way to take VIPs
//! without one.
//!
//! ```text
//! a node without a majority                    another one, which finds it down and has no majority either
//!   reads its record                             reads the record, and swaps it: challenged
//!     │ confirmed ──► answers on                 waits as long as the node may answer without its record
//!     │ challenged ── swaps it: confirmed        swaps it again: fenced ── done ──► takes its VIPs
//!     ▼                                                │ conflict
//!   fenced: suspends its VIPs                          ▼
//!                                                leaves its VIPs: the node is alive
//! ```
//!
//! A read that finds what the node itself wrote last is as good as a swap: nobody has challenged the node
//! until then. It costs the API server no write, and the watches of all nodes no event.
//!
//! So a node that can reach the store keeps its VIPs, whoever else cannot hear it, and a node that is
//! gone is followed by whoever is left. A majority takes VIPs as soon as it knows that their leader is
//! silent. It fences that leader at the same time, in case it is alive and reaches the store.
//!
//! A record says for how long its node answers after a swap or read: its *promise*. As long as a majority
//! may be elsewhere, that is `--lease`. Half of the members need fear no majority. Another promise must be
//! written before it counts.
//!
//! This module has the node's own record, and [`fencings`](super::fencings) those of the others.

use std::{hash::Hasher as _, time::Duration};

use twox_hash::XxHash64;

use super::{
    Command, Election, Lost,
    io::RecordOutcome,
    timing::{HEARTBEAT, LONG_PROMISE, MAX_RECORD_BACKOFF, MINORITY_WAIT},
};
use crate::{
    lease::{NodeRecord, RecordContent, RecordState, Version},
    membership::{MemberStatus, Peers},
    store_operation::StoreOperation,
};
use vipmux_model::NodeName;

/// This node's record.
#[derive(Debug, Default)]
pub(super) struct OwnRecord {
    /// Its version; `None`: it does not exist.
    version: Option<Version>,
    /// The version is not known: the record must be read.
    unread: bool,
    /// It does not exist. It is created at the start, so that others can keep something in it.
    missing: bool,
    /// The promise that it is confirmed with, as it was written or read last. `None`: another node wrote it last.
    confirmed: Option<Duration>,
    /// The operation under way.
    operation: Option<OwnOperation>,
    /// The operations in a row that failed. Nothing begins before `not_before`.
    failures: u32,
    not_before: Duration,
    /// The time since when this node hears no majority.
    alone_since: Option<Duration>,
    /// The time of the next confirmation, as far as it is known.
    pub(super) seeks_at: Option<Duration>,
    /// The longest promise that it may have.
    promise: Duration,
}

impl OwnRecord {
    /// Returns whether this node knows that it wrote the record last, with this lease, or that there is none.
    /// Otherwise it may find that it is fenced, and would suspend what it has just taken.
    pub(super) fn is_undisputed(&self, lease: Duration) -> bool {
        self.missing || self.confirmed >= Some(lease)
    }

    /// Returns whether another node wrote it last. That node waits for a confirmation, or any node may take the VIPs
    /// of this one.
    const fn is_disputed(&self) -> bool {
        self.version.is_some() && self.confirmed.is_none()
    }
}

/// An operation on this node's record.
#[derive(Clone, Copy, Debug)]
struct OwnOperation {
    /// The promise that it writes; `None`: it reads.
    written: Option<Duration>,
    /// It is evidence for the shorter one of this promise and that in the record; `None`: for nothing.
    promise: Option<Duration>,
}

/// Returns whether exactly half of the known members are alive, this node included.
pub(super) fn is_half(peers: &Peers) -> bool {
    let count =
        |status: fn(MemberStatus) -> bool| peers.members.values().filter(|peer| status(peer.status)).count() + 1;
    count(MemberStatus::is_alive) * 2 == count(|status| status != MemberStatus::Left)
}

/// Returns the time from a failure of the store to the next question: it doubles with each failure, and
/// is up to a quarter shorter, so that nodes that failed together do not ask together again.
fn back_off(node: &NodeName, failures: u32) -> Duration {
    let longest = (HEARTBEAT * (1 << failures.min(4))).min(MAX_RECORD_BACKOFF);
    let mut hasher = XxHash64::with_seed(failures.into());
    hasher.write(node.as_str().as_bytes());
    let percent = (hasher.finish() % 26) as u32;
    longest * (100 - percent) / 100
}

impl Election {
    /// Reads this node's record, to find out whether there is one and what others wrote. It is evidence for
    /// `promise`, at most.
    pub(super) fn read_own_record(&mut self, promise: Option<Duration>, now: Duration) {
        if self.record.operation.is_none() {
            self.record.operation = Some(OwnOperation { written: None, promise });
            let (node, urgent) = (self.local.clone(), self.fence.is_open(now));
            self.commands.push(Command::Store(StoreOperation::ReadRecord { node, urgent }));
        }
    }

    /// Returns when to look for evidence in the store; `None`: not before something else happens.
    fn seeks_evidence_at(&self, peers: &Peers) -> Option<Duration> {
        if self.retracts(peers) && self.record.operation.is_none() {
            return Some(self.record.not_before);
        }
        if self.record.operation.is_some() || !self.fence.carrier || !self.fence.informed {
            return None;
        }
        // A node that may not answer now has something else to see to first. One that does not know its record
        // declines VIPs.
        let is_disputed = self.record.is_disputed() && self.fence.deadline.is_some();
        // An earlier run of this node had a shorter `--lease`. A node that starts later knows no other.
        let is_short = self.record.confirmed.is_some_and(|confirmed| confirmed < self.settings.lease);
        if is_disputed || is_short || self.record.missing || self.record.unread {
            return Some(self.record.not_before);
        }
        // A node that leads nothing, and could take nothing, needs no evidence.
        if self.index.own.is_empty() && self.index.leaderless.is_empty() {
            return None;
        }
        let lacking = self.lacks_answers_at(peers);
        lacking.map(|at| at.max(self.fence.confirmation_due()).max(self.record.not_before))
    }

    /// Returns when the peers give no evidence any more; `None`: they answered the last heartbeats, and no
    /// majority answers the next ones. Then the record can still be evidence before the deadline, if the store
    /// answers within half of `--lease`. An answer of a majority that comes a little late is chance.
    fn lacks_answers_at(&self, peers: &Peers) -> Option<Duration> {
        let answered = peers.evidence_since.filter(|_| peers.majority).map(|asked| asked + self.settings.lease / 2);
        let open = peers.evidence_since < Some(self.ticked);
        answered.or_else(|| open.then_some(Duration::ZERO))
    }

    /// Returns whether the peers give evidence.
    fn has_answers(&self, peers: &Peers, now: Duration) -> bool {
        self.lacks_answers_at(peers).is_none_or(|at| now < at)
    }

    /// Returns whether a majority is back, and need not wait for this node's long promise.
    fn retracts(&self, peers: &Peers) -> bool {
        peers.majority && peers.evidence_since >= Some(self.ticked) && self.record.promise > self.settings.lease
    }

    /// Confirms this node's record if other evidence grows old.
    pub(super) fn seek_evidence(&mut self, peers: &Peers, now: Duration) {
        if peers.majority {
            self.record.alone_since = None;
        }
        let retracts = self.retracts(peers);
        if let Some(evidence) = peers.evidence_since.filter(|_| retracts) {
            if let Some(deadline) = self.fence.retract(evidence, now) {
                self.commands.push(Command::Extend(deadline));
            }
            // What the store answers late is no evidence any more.
            if let Some(operation) = &mut self.record.operation {
                operation.promise = None;
            }
        }
        self.record.seeks_at = self.seeks_evidence_at(peers).filter(|at| *at > now);
        if self.seeks_evidence_at(peers).is_none_or(|at| at > now) {
            return;
        }
        let alone_since = *self.record.alone_since.get_or_insert(now);
        let undisputed = is_half(peers) || !peers.majority && now >= alone_since + MINORITY_WAIT;
        // Nobody can challenge this node in a store of its own.
        let undisputed = undisputed && !self.stores_differ;
        let promise = if undisputed { LONG_PROMISE.max(self.settings.lease) } else { self.settings.lease };
        // A majority waits for no record of a node that it answers.
        let evidence = (!self.has_answers(peers, now)).then_some(promise);
        let suffices = self.record.confirmed >= Some(promise) && !retracts;
        if self.record.unread || suffices {
            return self.read_own_record(evidence, now);
        }
        // The kernel may still answer by a longer one.
        let written = if retracts { promise } else { promise.max(self.record.promise) };
        self.record.operation = Some(OwnOperation { written: Some(written), promise: evidence });
        self.record.promise = self.record.promise.max(written);
        self.commands.push(Command::Store(StoreOperation::SwapRecord {
            node: self.local.clone(),
            urgent: self.fence.is_open(now),
            expected: self.record.version.clone(),
            content: RecordContent { state: RecordState::Confirmed, promise: written },
        }));
    }

    /// Handles the result of an operation on a record, asked for at `asked`.
    pub(super) fn recorded(
        &mut self,
        node: &NodeName,
        asked: Duration,
        outcome: RecordOutcome,
        peers: &Peers,
        now: Duration,
    ) {
        if *node != self.local {
            // Who could swap a record knew it.
            if matches!(outcome, RecordOutcome::Read(_) | RecordOutcome::Swapped(_)) {
                self.fencings.note_read(node, asked);
            }
            if let RecordOutcome::Read(Some(record)) = &outcome {
                self.fencings.note_content(node, &record.content, now);
            }
            return self.fencing_progressed(node, outcome, peers, now);
        }
        let Some(OwnOperation { written, promise }) = self.record.operation.take() else { return };
        let record = &mut self.record;
        match (written, outcome) {
            (Some(written), RecordOutcome::Swapped(version)) => {
                (record.version, record.confirmed, record.promise) = (Some(version), Some(written), written);
                record.missing = false;
            }
            (None, RecordOutcome::Read(record)) => self.take_in_own_record(record, peers, now),
            (_, RecordOutcome::Conflict) => {
                record.unread = true;
                return;
            }
            // The store may have written it all the same.
            _ => {
                record.not_before = now + back_off(&self.local, record.failures);
                (record.failures, record.unread) = (record.failures.saturating_add(1), true);
                return;
            }
        }
        self.record.failures = 0;
        if let (Some(promise), Some(confirmed)) = (promise, self.record.confirmed) {
            self.fence.confirm(asked, promise.min(confirmed));
            self.extend(peers, now);
        }
    }

    fn take_in_own_record(&mut self, record: Option<NodeRecord>, peers: &Peers, now: Duration) {
        (self.record.unread, self.record.missing, self.record.confirmed) = (false, record.is_none(), None);
        let Some(NodeRecord { content, version }) = record else {
            // It may have said that this node is fenced, which the peers' answers do not.
            if self.record.version.take().is_some() && !self.has_answers(peers, now) {
                self.lose_record(&Lost::Unrecorded, now);
            }
            self.record.promise = Duration::ZERO;
            return;
        };
        self.record.promise = content.promise;
        let is_new = self.record.version.replace(version.clone()) != Some(version);
        match content.state {
            RecordState::Fenced(by) if is_new => self.lose_record(&Lost::Displaced(by), now),
            RecordState::Confirmed => self.record.confirmed = Some(content.promise),
            RecordState::Challenged(_) | RecordState::Fenced(_) => {}
        }
    }

    /// Suspends all VIPs: the Lease of each one says whether it is still this node's own.
    fn lose_record(&mut self, why: &Lost, now: Duration) {
        self.fence.displace();
        self.suspend(why, now);
        self.schedule.dirty = true;
    }

    /// Takes in a record as a watch shows it. It may be older than what this node knows.
    pub(super) fn record_changed(&mut self, node: &NodeName, record: Option<&NodeRecord>, now: Duration) {
        let Some(record) = record else {
            if *node == self.local {
                self.read_own_record(None, now);
            } else {
                self.fencings.forget(node);
            }
            return;
        };
        if *node == self.local {
            // An operation that is under way finds out by itself. What this node wrote says nothing.
            let is_own = record.content.state == RecordState::Confirmed;
            if self.record.operation.is_none() && !is_own && self.record.version.as_ref() != Some(&record.version) {
                self.read_own_record(None, now);
            }
            return;
        }
        self.fencings.note_content(node, &record.content, now);
        if matches!(record.content.state, RecordState::Fenced(_)) {
            return;
        }
        // The record is read again before anything more is taken.
        self.fencings.doubt(node, now);
    }
}
