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

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hasher as _,
    time::Duration,
};

use twox_hash::XxHash64;

use super::{Command, Election, HEARTBEAT, Lost, io::RecordOutcome, lease_operations::HEDGE, takeover_guard::MARGIN};
use crate::{
    lease::{NodeRecord, RecordContent, RecordStanding, Version},
    membership::{MemberStatus, Peers},
    mutation::Mutation,
};
use vipmux_model::NodeName;

/// The promise of a node that need not fear a majority elsewhere. A store that answers within half of it
/// suspends nothing.
pub(super) const LONG_PROMISE: Duration = Duration::from_secs(2);
/// The time after which a minority no longer expects a majority elsewhere: it would have fenced this
/// node.
const UNDISPUTED: Duration = Duration::from_secs(5);
/// The longest time from a failure of the store to the next question for evidence.
const MOST_BACK_OFF: Duration = Duration::from_secs(1);
/// The time for which a node counts as fenced after its record said so.
const FENCED: Duration = Duration::from_secs(5);
/// The time for which a node that answered a challenge is left alone,
const ANSWERED: Duration = Duration::from_secs(10);
/// and one whose record could not be read or written.
const UNAVAILABLE: Duration = Duration::from_millis(200);

/// This node's record.
#[derive(Debug, Default)]
pub(super) struct OwnRecord {
    /// Its version; `None`: it does not exist.
    version: Option<Version>,
    /// The version is not known: the record must be read.
    unread: bool,
    /// It does not exist. It is created at the start, so that others can keep something in it.
    missing: bool,
    /// The promise that it is confirmed with, as it was written or read last.
    confirmed: Option<Duration>,
    /// The operation under way.
    operation: Option<OwnOperation>,
    /// Another node waits for a confirmation.
    challenged: bool,
    /// The operations in a row that failed. Nothing begins before `not_before`.
    failures: u32,
    not_before: Duration,
    /// The time since when this node hears no majority.
    alone_since: Option<Duration>,
    /// The time of the next confirmation, as far as it is known.
    seeks_at: Option<Duration>,
    /// The longest promise that it may have.
    promise: Duration,
}

impl OwnRecord {
    /// Returns when to look for evidence if no other input comes before.
    pub(super) const fn seeks_at(&self) -> Option<Duration> {
        self.seeks_at
    }
}

#[derive(Clone, Copy, Debug)]
enum OwnOperation {
    /// It is evidence for the shorter one of this promise and that in the record; `None`: for nothing.
    Read { promise: Option<Duration> },
    /// It is evidence for this promise; `None`: for nothing. What is written may be longer.
    Confirm { promise: Option<Duration>, written: Duration },
}

/// The other nodes by their records.
#[derive(Debug, Default)]
pub(super) struct Fencings {
    /// The nodes whose VIPs this one is about to take.
    nodes: BTreeMap<NodeName, Fencing>,
    /// When the records of other nodes were asked for that were read or swapped last.
    read: BTreeMap<NodeName, Duration>,
    /// The last time at which this node was cut off: promises may have changed meanwhile.
    cut_off: Option<Duration>,
    /// The promises of nodes that are not fenced, as their records were read or a watch showed them last.
    promises: BTreeMap<NodeName, Duration>,
}

/// The progress of fencing a node.
#[derive(Debug)]
struct Fencing {
    stage: FencingStage,
    aim: Aim,
    began: Duration,
}

/// What the record of another node is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Aim {
    /// To know its promise.
    Know,
    /// To fence it if it does not answer.
    Challenge,
    /// To fence it at once: a majority takes its VIPs.
    Displace,
}

#[derive(Clone, Debug)]
enum FencingStage {
    /// Its record is read. `challenged`: it had time to answer.
    Read { challenged: bool },
    /// A challenge is written.
    Challenge { promise: Duration },
    /// It may answer the challenge until then.
    Wait { version: Version, promise: Duration, until: Duration },
    /// Its record is written: it is fenced.
    Fence,
    /// It was fenced. That is believed until then.
    Fenced { until: Duration },
    /// It answered, or the store could not be used. Nothing is done until then.
    Pause { until: Duration },
}

impl FencingStage {
    /// Returns whether an operation on the record is under way.
    const fn is_under_way(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Challenge { .. } | Self::Fence)
    }
}

impl Fencings {
    /// Returns whether a node has no evidence from its record, and gets none before it has seen to it
    /// that its VIPs are still its own.
    pub(super) fn is_fenced(&self, node: &NodeName, now: Duration) -> bool {
        let stage = self.nodes.get(node).map(|fencing| &fencing.stage);
        matches!(stage, Some(FencingStage::Fenced { until }) if now < *until)
    }

    /// Returns whether the record of a node is being read. A store that does not answer soon is not waited
    /// for.
    pub(super) fn is_reading(&self, node: &NodeName, now: Duration) -> bool {
        let fencing = self.nodes.get(node).filter(|fencing| now < fencing.began + HEDGE);
        fencing.is_some_and(|fencing| matches!(fencing.stage, FencingStage::Read { .. }))
    }

    /// Returns whether the promise of a node may have changed while this one was cut off.
    pub(super) fn is_unsure(&self, node: &NodeName) -> bool {
        self.cut_off.is_some() && self.read.get(node).copied() <= self.cut_off
    }

    /// Returns whether the record of a node that is down since this time has to be read.
    pub(super) fn has_to_read(&self, node: &NodeName, since: Duration) -> bool {
        self.read.get(node).copied() <= Some(since).max(self.cut_off)
    }

    /// Notes what a node promises in its record. A node that is fenced promises nothing.
    fn note_promise(&mut self, node: &NodeName, content: &RecordContent) {
        if matches!(content.standing, RecordStanding::Fenced(_)) {
            self.promises.remove(node);
        } else {
            self.promises.insert(node.clone(), content.promise);
        }
    }

    /// Forgets a node whose record is gone, as that of a Node that was deleted.
    fn forget(&mut self, node: &NodeName) {
        self.read.remove(node);
        self.promises.remove(node);
        self.nodes.retain(|fenced, fencing| fenced != node || fencing.stage.is_under_way());
    }

    /// Notes that this node was cut off.
    pub(super) const fn note_cut_off(&mut self, now: Duration) {
        self.cut_off = Some(now);
    }

    /// Returns whether a node may answer for longer than `lease` after its last evidence, by its record.
    pub(super) fn promises_more(&self, node: &NodeName, lease: Duration) -> bool {
        self.promises.get(node).is_some_and(|promise| *promise > lease)
    }
}

/// Returns whether exactly half of the known members are alive, this node included.
fn is_half(peers: &Peers) -> bool {
    let count =
        |status: fn(MemberStatus) -> bool| peers.members.values().filter(|peer| status(peer.status)).count() + 1;
    count(MemberStatus::is_alive) * 2 == count(|status| status != MemberStatus::Left)
}

/// Returns the time from a failure of the store to the next question: it doubles with each failure, and
/// is up to a quarter shorter, so that nodes that failed together do not ask together again.
fn back_off(node: &NodeName, failures: u32) -> Duration {
    let longest = (HEARTBEAT * (1 << failures.min(4))).min(MOST_BACK_OFF);
    let mut hasher = XxHash64::with_seed(failures.into());
    hasher.write(node.as_str().as_bytes());
    let percent = (hasher.finish() % 26) as u32;
    longest * (100 - percent) / 100
}

impl Election {
    /// Reads this node's record, to find out whether there is one and what others wrote.
    pub(super) fn read_own_record(&mut self) {
        self.begin_read(None);
    }

    fn begin_read(&mut self, promise: Option<Duration>) {
        if self.record.operation.is_none() {
            self.record.operation = Some(OwnOperation::Read { promise });
            self.commands.push(Command::ReadRecord(self.local.clone()));
        }
    }

    /// Returns when to look for evidence in the store; `None`: not before something else happens.
    fn seeks_evidence_at(&self, peers: &Peers) -> Option<Duration> {
        if self.retracts(peers) && self.record.operation.is_none() {
            return Some(self.record.not_before);
        }
        // A node that leads nothing, and could take nothing, needs no evidence.
        let needs = !self.index.own.is_empty() || !self.index.leaderless.is_empty() || self.record.missing;
        if self.record.operation.is_some() || !self.fence.seeks_evidence() || self.outranked || !needs {
            return None;
        }
        if self.record.challenged || self.record.missing {
            return Some(self.record.not_before);
        }
        (!self.has_answers(peers)).then(|| self.fence.confirmation_due().max(self.record.not_before))
    }

    /// Returns whether the peers give evidence. As long as there is a majority, a round of heartbeats
    /// without its answers can be chance.
    fn has_answers(&self, peers: &Peers) -> bool {
        peers.evidence >= Some(self.ticked) || peers.majority && !self.unanswered
    }

    /// Returns whether a majority is back, and need not wait for this node's long promise.
    fn retracts(&self, peers: &Peers) -> bool {
        peers.majority && peers.evidence >= Some(self.ticked) && self.record.promise > self.settings.lease
    }

    /// Confirms this node's record if other evidence grows old.
    pub(super) fn seek_evidence(&mut self, peers: &Peers, now: Duration) {
        if peers.majority {
            self.record.alone_since = None;
        }
        let retracts = self.retracts(peers);
        if let Some(evidence) = peers.evidence.filter(|_| retracts) {
            if let Some(deadline) = self.fence.retract(evidence, now) {
                self.commands.push(Command::Extend(deadline));
            }
            // What the store answers late is no evidence any more.
            if let Some(OwnOperation::Read { promise } | OwnOperation::Confirm { promise, .. }) =
                &mut self.record.operation
            {
                *promise = None;
            }
        }
        self.record.seeks_at = self.seeks_evidence_at(peers).filter(|at| *at > now);
        if self.seeks_evidence_at(peers).is_none_or(|at| at > now) {
            return;
        }
        let alone_since = *self.record.alone_since.get_or_insert(now);
        let undisputed = is_half(peers) || !peers.majority && now >= alone_since + UNDISPUTED;
        let promise = if undisputed { LONG_PROMISE.max(self.settings.lease) } else { self.settings.lease };
        // A majority waits for no record of a node that it answers.
        let evidence = (!self.has_answers(peers)).then_some(promise);
        let suffices = self.record.confirmed >= Some(promise) && !retracts;
        if self.record.unread || suffices {
            return self.begin_read(evidence);
        }
        // The kernel may still answer by a longer one.
        let written = if retracts { promise } else { promise.max(self.record.promise) };
        self.record.operation = Some(OwnOperation::Confirm { promise: evidence, written });
        self.record.promise = self.record.promise.max(written);
        self.commands.push(Command::SwapRecord {
            node: self.local.clone(),
            expected: self.record.version.clone(),
            content: RecordContent { standing: RecordStanding::Confirmed, promise: written },
        });
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
                self.fencings.read.insert(node.clone(), asked);
            }
            if let RecordOutcome::Read(Some(record)) = &outcome {
                self.fencings.note_promise(node, &record.content);
            }
            return self.fencing_progressed(node, outcome, peers, now);
        }
        let operation = self.record.operation.take();
        match (operation, outcome) {
            (Some(OwnOperation::Confirm { promise, written }), RecordOutcome::Swapped(version)) => {
                let record = &mut self.record;
                (record.version, record.confirmed, record.promise) = (Some(version), Some(written), written);
                (record.failures, record.challenged, record.missing) = (0, false, false);
                if let Some(promise) = promise {
                    self.fence.confirm(asked, promise);
                    self.extend(peers, now);
                }
            }
            (Some(OwnOperation::Read { promise }), RecordOutcome::Read(record)) => {
                self.record.failures = 0;
                self.take_in_own_record(record, peers, now);
                if let (Some(promise), Some(confirmed)) = (promise, self.record.confirmed) {
                    self.fence.confirm(asked, promise.min(confirmed));
                    self.extend(peers, now);
                }
            }
            (None, _) => {}
            (_, RecordOutcome::Conflict) => self.record.unread = true,
            // The store may have written it all the same.
            _ => {
                let pause = back_off(&self.local, self.record.failures);
                let record = &mut self.record;
                (record.failures, record.unread) = (record.failures.saturating_add(1), true);
                record.not_before = now + pause;
            }
        }
    }

    fn take_in_own_record(&mut self, record: Option<NodeRecord>, peers: &Peers, now: Duration) {
        (self.record.unread, self.record.missing, self.record.confirmed) = (false, record.is_none(), None);
        let Some(NodeRecord { content, version }) = record else {
            // It may have said that this node is fenced, which the peers' answers do not.
            if self.record.version.take().is_some() && !self.has_answers(peers) {
                self.lose_record(&Lost::Unrecorded, now);
            }
            self.record.promise = Duration::ZERO;
            return;
        };
        self.record.promise = content.promise;
        let is_new = self.record.version.replace(version.clone()) != Some(version);
        match content.standing {
            // A node that answers for nothing now has something else to see to first.
            RecordStanding::Challenged(_) => self.record.challenged = self.fence.is_open(now),
            RecordStanding::Fenced(by) if is_new => self.lose_record(&Lost::Displaced(by), now),
            RecordStanding::Confirmed => self.record.confirmed = Some(content.promise),
            RecordStanding::Fenced(_) => {}
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
                self.read_own_record();
            } else {
                self.fencings.forget(node);
            }
            return;
        };
        if *node == self.local {
            // An operation that is under way finds out by itself. What this node wrote says nothing.
            let is_own = record.content.standing == RecordStanding::Confirmed;
            if self.record.operation.is_none() && !is_own && self.record.version.as_ref() != Some(&record.version) {
                self.read_own_record();
            }
            return;
        }
        self.fencings.note_promise(node, &record.content);
        if matches!(record.content.standing, RecordStanding::Fenced(_)) {
            return;
        }
        if let Some(Fencing { stage: FencingStage::Fenced { until }, .. }) = self.fencings.nodes.get_mut(node) {
            // The record is read again before anything more is taken.
            *until = now;
        }
    }

    /// Begins to fence nodes, with time to answer. Called again and again as long as VIPs wait for it.
    pub(super) fn challenge(&mut self, nodes: BTreeSet<NodeName>, peers: &Peers, now: Duration) {
        for node in nodes {
            self.begin_fencing(&node, Aim::Challenge, now);
        }
        self.continue_fencing(peers, now);
    }

    /// Reads the records of nodes, to know their promises.
    pub(super) fn read_promises(&mut self, nodes: BTreeSet<NodeName>, peers: &Peers, now: Duration) {
        for node in nodes {
            self.begin_fencing(&node, Aim::Know, now);
        }
        self.continue_fencing(peers, now);
    }

    /// Begins to fence nodes whose VIPs a majority takes. Nobody waits for it.
    pub(super) fn displace(&mut self, nodes: BTreeSet<NodeName>, peers: &Peers, now: Duration) {
        for node in nodes {
            let is_alive = peers.members.get(&node).is_some_and(|peer| peer.status.is_alive());
            if node != self.local && !is_alive {
                self.begin_fencing(&node, Aim::Displace, now);
            }
        }
        self.continue_fencing(peers, now);
    }

    fn begin_fencing(&mut self, node: &NodeName, aim: Aim, now: Duration) {
        let begins = match self.fencings.nodes.get_mut(node) {
            None => true,
            Some(fencing) => {
                fencing.aim = fencing.aim.max(aim);
                match fencing.stage {
                    FencingStage::Fenced { until } | FencingStage::Pause { until } => now >= until,
                    _ => false,
                }
            }
        };
        if begins {
            self.fencings
                .nodes
                .insert(node.clone(), Fencing { stage: FencingStage::Read { challenged: false }, aim, began: now });
            self.commands.push(Command::ReadRecord(node.clone()));
        }
    }

    /// Fences the nodes that had time to answer, and forgets those that are alive.
    pub(super) fn continue_fencing(&mut self, peers: &Peers, now: Duration) {
        let is_alive = |node: &NodeName| peers.members.get(node).is_some_and(|peer| peer.status.is_alive());
        // An operation that is under way ends first.
        self.fencings.nodes.retain(|node, fencing| fencing.stage.is_under_way() || !is_alive(node));
        for (node, fencing) in &mut self.fencings.nodes {
            match fencing.stage.clone() {
                FencingStage::Wait { version, promise, until } if now >= until || fencing.aim == Aim::Displace => {
                    fencing.stage = FencingStage::Fence;
                    let standing = RecordStanding::Fenced(self.local.clone());
                    self.commands.push(Command::SwapRecord {
                        node: node.clone(),
                        expected: Some(version),
                        content: RecordContent { standing, promise },
                    });
                }
                FencingStage::Wait { until, .. } => self.schedule.wake_at(until),
                FencingStage::Pause { until } | FencingStage::Fenced { until } if until > now => {
                    self.schedule.wake_at(until);
                }
                _ => {}
            }
        }
    }

    /// Handles the result of an operation on the record of a node that is to be fenced.
    fn fencing_progressed(&mut self, node: &NodeName, outcome: RecordOutcome, peers: &Peers, now: Duration) {
        self.schedule.dirty = true;
        let peer = peers.members.get(node);
        if peer.is_some_and(|peer| peer.status.is_alive()) {
            self.fencings.nodes.remove(node);
        }
        let Some(fencing) = self.fencings.nodes.get_mut(node) else { return };
        let agent = peer.and_then(|peer| peer.state.agent.as_ref());
        let lease = agent.map_or(self.settings.lease, |agent| agent.lease);
        // Elsewhere may be a majority, whose watches must have time to show the challenge.
        let time_to_answer = |promise: Duration| {
            let promise = if is_half(peers) { promise } else { promise.max(LONG_PROMISE) };
            if self.mutated.is(Mutation::FencesAtOnce) { Duration::ZERO } else { promise + promise / 50 + MARGIN }
        };
        let displaces = fencing.aim == Aim::Displace;
        let stage = match (fencing.stage.clone(), outcome) {
            (FencingStage::Read { challenged }, RecordOutcome::Read(record)) => {
                let (standing, promise, version) = match record {
                    Some(NodeRecord { content: RecordContent { standing, promise }, version }) => {
                        (Some(standing), promise.max(lease), Some(version))
                    }
                    None => (None, lease, None),
                };
                let is_fenced = matches!(standing, Some(RecordStanding::Fenced(_)));
                if displaces && promise > lease && !is_fenced {
                    // It was no majority either, and need not have noticed that there is one.
                    fencing.aim = Aim::Challenge;
                }
                match (standing, version) {
                    (Some(RecordStanding::Fenced(_)), _) => Some(FencingStage::Fenced { until: now + FENCED }),
                    // A majority need not wait for its record.
                    _ if fencing.aim == Aim::Know || !displaces && peers.majority && promise <= lease => None,
                    (Some(RecordStanding::Challenged(_)), Some(version)) => {
                        Some(FencingStage::Wait { version, promise, until: now + time_to_answer(promise) })
                    }
                    (Some(RecordStanding::Confirmed), _) if challenged && !displaces => {
                        Some(FencingStage::Pause { until: now + ANSWERED })
                    }
                    (_, expected) => {
                        let (standing, stage) = if fencing.aim == Aim::Displace {
                            (RecordStanding::Fenced(self.local.clone()), FencingStage::Fence)
                        } else {
                            (RecordStanding::Challenged(self.local.clone()), FencingStage::Challenge { promise })
                        };
                        let content = RecordContent { standing, promise };
                        self.commands.push(Command::SwapRecord { node: node.clone(), expected, content });
                        Some(stage)
                    }
                }
            }
            (FencingStage::Challenge { promise }, RecordOutcome::Swapped(version)) => {
                Some(FencingStage::Wait { version, promise, until: now + time_to_answer(promise) })
            }
            (FencingStage::Fence, RecordOutcome::Swapped(_)) => Some(FencingStage::Fenced { until: now + FENCED }),
            (stage, RecordOutcome::Conflict) => {
                self.commands.push(Command::ReadRecord(node.clone()));
                Some(FencingStage::Read { challenged: matches!(stage, FencingStage::Fence) })
            }
            _ => Some(FencingStage::Pause { until: now + UNAVAILABLE }),
        };
        match stage {
            Some(stage) => fencing.stage = stage,
            None => drop(self.fencings.nodes.remove(node)),
        }
    }
}
