//! The records of nodes in the store: evidence for a node that hears no majority, and the way to take VIPs
//! without one.
//!
//! ```text
//! a node without a majority                    another one, which finds it down and has no majority either
//!   swaps its record ── done ──► answers on      reads the record, and swaps it: challenged
//!         │ conflict                             waits as long as the node may answer without its record
//!         ▼                                      swaps it again: fenced ── done ──► takes its VIPs
//!   reads it: challenged ── swaps it again             │ conflict
//!             fenced ── suspends its VIPs              ▼
//!                                                  leaves its VIPs: the node is alive
//! ```
//!
//! So a node that can reach the store keeps its VIPs, whoever else cannot hear it, and a node that is
//! gone is followed by whoever is left. A majority takes VIPs as soon as it knows that their leader is
//! silent. It fences that leader at the same time, in case it is alive and reaches the store.
//!
//! A record says for how long its node answers after a write: its *promise*. As long as a majority
//! may be elsewhere, that is `--lease`. Half of the members need fear no majority.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Command, Election, HEARTBEAT, Lost, io::RecordOutcome, takeover_guard::MARGIN};
use crate::{
    lease::{NodeRecord, RecordContent, RecordStanding, Version},
    membership::{MemberStatus, Peers},
    mutation::Mutation,
};
use vipmux_model::NodeName;

/// The promise of a node that need not fear a majority elsewhere. A store that answers within half of it
/// suspends nothing.
const LONG_PROMISE: Duration = Duration::from_secs(2);
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
    /// The promise that it may have.
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
    Read,
    Confirm { promise: Duration },
}

/// The other nodes by their records.
#[derive(Debug, Default)]
pub(super) struct Fencings {
    /// The nodes whose VIPs this one is about to take.
    nodes: BTreeMap<NodeName, Fencing>,
    /// The promises of nodes that are not fenced, as a watch showed them last.
    promises: BTreeMap<NodeName, Duration>,
}

/// The progress of fencing a node.
#[derive(Debug)]
struct Fencing {
    stage: FencingStage,
    /// A majority takes its VIPs: it is not asked to answer.
    outright: bool,
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

impl Election {
    /// Reads this node's record, so that the first confirmation needs one request only.
    pub(super) fn read_own_record(&mut self) {
        if self.record.operation.is_none() {
            self.record.operation = Some(OwnOperation::Read);
            self.commands.push(Command::ReadRecord(self.local.clone()));
        }
    }

    /// Returns when to look for evidence in the store; `None`: not before something else happens.
    fn seeks_evidence_at(&self, peers: &Peers) -> Option<Duration> {
        if self.retracts(peers) && self.record.operation.is_none() {
            return Some(self.record.not_before);
        }
        // A node that leads nothing, and could take nothing, needs no evidence.
        let needs = !self.index.own.is_empty() || !self.index.leaderless.is_empty();
        if self.record.operation.is_some() || !self.fence.seeks_evidence() || self.outranked || !needs {
            return None;
        }
        if self.record.challenged {
            return Some(self.record.not_before);
        }
        // As long as there is a majority, a round of heartbeats without its answers can be chance.
        let has_other = peers.evidence >= Some(self.ticked) || peers.majority && !self.unanswered;
        (!has_other).then(|| self.fence.confirmation_due().max(self.record.not_before))
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
        self.record.seeks_at = self.seeks_evidence_at(peers).filter(|at| *at > now);
        if self.seeks_evidence_at(peers).is_none_or(|at| at > now) {
            return;
        }
        if self.record.unread {
            return self.read_own_record();
        }
        if let Some(evidence) = peers.evidence.filter(|_| self.retracts(peers))
            && let Some(deadline) = self.fence.retract(evidence)
        {
            self.commands.push(Command::Extend(deadline));
        }
        let alone_since = *self.record.alone_since.get_or_insert(now);
        let undisputed = is_half(peers) || !peers.majority && now >= alone_since + UNDISPUTED;
        let promise = if undisputed { LONG_PROMISE.max(self.settings.lease) } else { self.settings.lease };
        self.record.operation = Some(OwnOperation::Confirm { promise });
        self.record.promise = self.record.promise.max(promise);
        self.commands.push(Command::SwapRecord {
            node: self.local.clone(),
            expected: self.record.version.clone(),
            content: RecordContent { standing: RecordStanding::Confirmed, promise },
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
            return self.fencing_progressed(node, outcome, peers, now);
        }
        let operation = self.record.operation.take();
        match (operation, outcome) {
            (Some(OwnOperation::Confirm { promise }), RecordOutcome::Swapped(version)) => {
                self.record.version = Some(version);
                (self.record.failures, self.record.challenged, self.record.promise) = (0, false, promise);
                self.fence.confirm(asked, promise);
                self.extend(peers, now);
            }
            (Some(OwnOperation::Read), RecordOutcome::Read(record)) => {
                self.record.failures = 0;
                self.take_in_own_record(record, now);
            }
            (None, _) => {}
            (_, RecordOutcome::Conflict) => self.record.unread = true,
            // The store may have written it all the same.
            _ => {
                let pause = HEARTBEAT * (1 << self.record.failures.min(4));
                let record = &mut self.record;
                (record.failures, record.unread) = (record.failures.saturating_add(1), true);
                record.not_before = now + pause.min(MOST_BACK_OFF);
            }
        }
    }

    fn take_in_own_record(&mut self, record: Option<NodeRecord>, now: Duration) {
        self.record.unread = false;
        let Some(NodeRecord { content, version }) = record else {
            (self.record.version, self.record.promise) = (None, Duration::ZERO);
            return;
        };
        self.record.promise = content.promise;
        let is_new = self.record.version.replace(version.clone()) != Some(version);
        match content.standing {
            // A node that answers for nothing now has something else to see to first.
            RecordStanding::Challenged(_) => self.record.challenged = self.fence.is_open(now),
            RecordStanding::Fenced(by) if is_new => {
                self.fence.displace();
                self.suspend(&Lost::Displaced(by), now);
                self.schedule.dirty = true;
            }
            RecordStanding::Confirmed | RecordStanding::Fenced(_) => {}
        }
    }

    /// Takes in a record as a watch shows it. It may be older than what this node knows.
    pub(super) fn record_changed(&mut self, node: &NodeName, record: &NodeRecord, now: Duration) {
        let is_fenced = matches!(record.content.standing, RecordStanding::Fenced(_));
        if *node == self.local {
            // An operation that is under way finds out by itself. What this node wrote says nothing.
            let is_own = record.content.standing == RecordStanding::Confirmed;
            if self.record.operation.is_none() && !is_own && self.record.version.as_ref() != Some(&record.version) {
                self.read_own_record();
            }
            return;
        }
        if is_fenced {
            self.fencings.promises.remove(node);
            return;
        }
        self.fencings.promises.insert(node.clone(), record.content.promise);
        if let Some(Fencing { stage: FencingStage::Fenced { until }, .. }) = self.fencings.nodes.get_mut(node) {
            // The record is read again before anything more is taken.
            *until = now;
        }
    }

    /// Begins to fence nodes, with time to answer. Called again and again as long as VIPs wait for it.
    pub(super) fn challenge(&mut self, nodes: BTreeSet<NodeName>, peers: &Peers, now: Duration) {
        for node in nodes {
            self.begin_fencing(&node, false, peers, now);
        }
    }

    /// Begins to fence nodes whose VIPs a majority takes. Nobody waits for it.
    pub(super) fn displace(&mut self, nodes: BTreeSet<NodeName>, peers: &Peers, now: Duration) {
        for node in nodes {
            let is_alive = peers.members.get(&node).is_some_and(|peer| peer.status.is_alive());
            if node != self.local && !is_alive {
                self.begin_fencing(&node, true, peers, now);
            }
        }
    }

    fn begin_fencing(&mut self, node: &NodeName, outright: bool, peers: &Peers, now: Duration) {
        let begins = match self.fencings.nodes.get_mut(node) {
            None => true,
            Some(fencing) => {
                fencing.outright |= outright;
                match fencing.stage {
                    FencingStage::Fenced { until } | FencingStage::Pause { until } => now >= until,
                    _ => false,
                }
            }
        };
        if begins {
            self.fencings
                .nodes
                .insert(node.clone(), Fencing { stage: FencingStage::Read { challenged: false }, outright });
            self.commands.push(Command::ReadRecord(node.clone()));
        }
        self.continue_fencing(peers, now);
    }

    /// Fences the nodes that had time to answer, and forgets those that are alive.
    pub(super) fn continue_fencing(&mut self, peers: &Peers, now: Duration) {
        let is_alive = |node: &NodeName| peers.members.get(node).is_some_and(|peer| peer.status.is_alive());
        // An operation that is under way ends first.
        self.fencings.nodes.retain(|node, fencing| fencing.stage.is_under_way() || !is_alive(node));
        for (node, fencing) in &mut self.fencings.nodes {
            match fencing.stage.clone() {
                FencingStage::Wait { version, promise, until } if now >= until || fencing.outright => {
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
        fencing.stage = match (fencing.stage.clone(), outcome) {
            (FencingStage::Read { challenged }, RecordOutcome::Read(record)) => {
                let (standing, promise, version) = match record {
                    Some(NodeRecord { content: RecordContent { standing, promise }, version }) => {
                        (Some(standing), promise.max(lease), Some(version))
                    }
                    None => (None, lease, None),
                };
                match (standing, version) {
                    (Some(RecordStanding::Fenced(_)), _) => FencingStage::Fenced { until: now + FENCED },
                    (Some(RecordStanding::Challenged(_)), Some(version)) => {
                        FencingStage::Wait { version, promise, until: now + time_to_answer(promise) }
                    }
                    (Some(RecordStanding::Confirmed), _) if challenged && !fencing.outright => {
                        FencingStage::Pause { until: now + ANSWERED }
                    }
                    (_, expected) => {
                        let (standing, stage) = if fencing.outright {
                            (RecordStanding::Fenced(self.local.clone()), FencingStage::Fence)
                        } else {
                            (RecordStanding::Challenged(self.local.clone()), FencingStage::Challenge { promise })
                        };
                        let content = RecordContent { standing, promise };
                        self.commands.push(Command::SwapRecord { node: node.clone(), expected, content });
                        stage
                    }
                }
            }
            (FencingStage::Challenge { promise }, RecordOutcome::Swapped(version)) => {
                FencingStage::Wait { version, promise, until: now + time_to_answer(promise) }
            }
            (FencingStage::Fence, RecordOutcome::Swapped(_)) => FencingStage::Fenced { until: now + FENCED },
            (stage, RecordOutcome::Conflict) => {
                self.commands.push(Command::ReadRecord(node.clone()));
                FencingStage::Read { challenged: matches!(stage, FencingStage::Fence) }
            }
            _ => FencingStage::Pause { until: now + UNAVAILABLE },
        };
    }
}
