//! The records of other nodes: what they promise, and how a node is fenced whose VIPs this one takes
//! ([`node_records`](super::node_records)).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Command, Election,
    io::RecordOutcome,
    node_records::is_half,
    timing::{CHALLENGE_PAUSE, FENCING_LIFETIME, HEDGE_DELAY, LONG_PROMISE, RECORD_RETRY, past},
};
use crate::{
    lease::{NodeRecord, RecordContent, RecordState, Version},
    membership::Peers,
    mutation::Mutation,
    store_operation::StoreOperation,
};
use vipmux_model::NodeName;

/// The other nodes by their records.
#[derive(Debug, Default)]
pub(super) struct Fencings {
    /// The nodes whose VIPs this one is about to take.
    nodes: BTreeMap<NodeName, Fencing>,
    /// What is known of the records of all nodes.
    records: BTreeMap<NodeName, KnownRecord>,
    /// The last time at which this node was cut off: promises may have changed meanwhile.
    cut_off: Option<Duration>,
}

/// What this node knows of the record of another one.
#[derive(Debug, Default)]
struct KnownRecord {
    /// When it was asked for that was read or swapped last.
    read: Option<Duration>,
    /// The promise, as it was read or a watch showed it last. A node that is fenced promises nothing.
    promise: Option<Duration>,
    /// The time since when it says that the node is fenced, as far as this node has seen it.
    fenced_since: Option<Duration>,
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
pub(super) enum Aim {
    /// To know its promise.
    Know,
    /// To fence it if it does not answer.
    Challenge,
    /// To fence it at once: a majority takes its VIPs, and waits for nothing.
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
        let fencing = self.nodes.get(node).filter(|fencing| now < fencing.began + HEDGE_DELAY);
        fencing.is_some_and(|fencing| matches!(fencing.stage, FencingStage::Read { .. }))
    }

    /// Returns whether the promise of a node may have changed while this one was cut off.
    pub(super) fn is_unsure(&self, node: &NodeName) -> bool {
        self.cut_off.is_some() && self.has_to_read(node, Duration::ZERO)
    }

    /// Returns whether the record of a node that is down since this time has to be read.
    pub(super) fn has_to_read(&self, node: &NodeName, since: Duration) -> bool {
        self.records.get(node).and_then(|record| record.read) <= Some(since).max(self.cut_off)
    }

    /// Notes that the record of a node, asked for at `asked`, was read or swapped.
    pub(super) fn note_read(&mut self, node: &NodeName, asked: Duration) {
        self.records.entry(node.clone()).or_default().read = Some(asked);
    }

    /// Notes the content of a node's record.
    pub(super) fn note_content(&mut self, node: &NodeName, content: &RecordContent, now: Duration) {
        let record = self.records.entry(node.clone()).or_default();
        if matches!(content.state, RecordState::Fenced(_)) {
            record.promise = None;
            record.fenced_since.get_or_insert(now);
        } else {
            (record.promise, record.fenced_since) = (Some(content.promise), None);
        }
    }

    /// Returns whether a node is fenced, and has been for this time.
    pub(super) fn is_fenced_for(&self, node: &NodeName, time: Duration, now: Duration) -> bool {
        let since = self.records.get(node).and_then(|record| record.fenced_since);
        self.nodes.contains_key(node) && since.is_some_and(|since| now >= since + time)
    }

    /// Forgets a node whose record is gone, as that of a Node that was deleted.
    pub(super) fn forget(&mut self, node: &NodeName) {
        self.records.remove(node);
        self.nodes.retain(|fenced, fencing| fenced != node || fencing.stage.is_under_way());
    }

    /// Believes no longer that a node is fenced, if it was: its record says something else.
    pub(super) fn doubt(&mut self, node: &NodeName, now: Duration) {
        if let Some(Fencing { stage: FencingStage::Fenced { until }, .. }) = self.nodes.get_mut(node) {
            *until = now;
        }
    }

    /// Notes that this node was cut off.
    pub(super) const fn note_cut_off(&mut self, now: Duration) {
        self.cut_off = Some(now);
    }

    /// Returns whether a node may answer for longer than `lease` after its last evidence, by its record.
    pub(super) fn promises_more(&self, node: &NodeName, lease: Duration) -> bool {
        self.records.get(node).and_then(|record| record.promise) > Some(lease)
    }
}

/// Returns the command to read the record of another node.
const fn read_record(node: NodeName) -> Command {
    Command::Store(StoreOperation::ReadRecord { node, urgent: false })
}

/// Returns the command to write it.
const fn swap_record(node: NodeName, expected: Option<Version>, content: RecordContent) -> Command {
    Command::Store(StoreOperation::SwapRecord { node, urgent: false, expected, content })
}

impl Election {
    /// Begins to read the records of nodes for an aim. Called again and again as long as VIPs wait for it.
    pub(super) fn read_records(&mut self, nodes: BTreeSet<NodeName>, aim: Aim, peers: &Peers, now: Duration) {
        for node in nodes.into_iter().filter(|node| *node != self.local && !peers.is_alive(node)) {
            let begins = self.fencings.nodes.get_mut(&node).is_none_or(|fencing| {
                fencing.aim = fencing.aim.max(aim);
                let (FencingStage::Fenced { until } | FencingStage::Pause { until }) = fencing.stage else {
                    return false;
                };
                now >= until
            });
            if begins {
                self.commands.push(read_record(node.clone()));
                let stage = FencingStage::Read { challenged: false };
                self.fencings.nodes.insert(node, Fencing { stage, aim, began: now });
            }
        }
        self.continue_fencing(peers, now);
    }

    /// Fences the nodes that had time to answer, and forgets those that are alive.
    pub(super) fn continue_fencing(&mut self, peers: &Peers, now: Duration) {
        // An operation that is under way ends first.
        self.fencings.nodes.retain(|node, fencing| fencing.stage.is_under_way() || !peers.is_alive(node));
        for (node, fencing) in &mut self.fencings.nodes {
            match fencing.stage.clone() {
                FencingStage::Wait { version, promise, until } if now >= until || fencing.aim == Aim::Displace => {
                    fencing.stage = FencingStage::Fence;
                    let state = RecordState::Fenced(self.local.clone());
                    let content = RecordContent { state, promise };
                    self.commands.push(swap_record(node.clone(), Some(version), content));
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
    pub(super) fn fencing_progressed(&mut self, node: &NodeName, outcome: RecordOutcome, peers: &Peers, now: Duration) {
        self.schedule.dirty = true;
        let fencing = self.fencings.nodes.remove(node).filter(|_| !peers.is_alive(node));
        let Some(Fencing { stage, mut aim, began }) = fencing else { return };
        let stage = match (stage, outcome) {
            (FencingStage::Read { challenged }, RecordOutcome::Read(record)) => {
                self.after_read(node, record, challenged, &mut aim, peers, now)
            }
            (FencingStage::Challenge { promise }, RecordOutcome::Swapped(version)) => {
                Some(FencingStage::Wait { version, promise, until: self.may_answer_until(promise, peers, now) })
            }
            (FencingStage::Fence, RecordOutcome::Swapped(_)) => {
                Some(FencingStage::Fenced { until: now + FENCING_LIFETIME })
            }
            (stage, RecordOutcome::Conflict) => {
                self.commands.push(read_record(node.clone()));
                Some(FencingStage::Read { challenged: matches!(stage, FencingStage::Fence) })
            }
            _ => Some(FencingStage::Pause { until: now + RECORD_RETRY }),
        };
        let Some(stage) = stage else { return };
        if matches!(stage, FencingStage::Fenced { .. }) {
            self.fencings.records.entry(node.clone()).or_default().fenced_since.get_or_insert(now);
        }
        self.fencings.nodes.insert(node.clone(), Fencing { stage, aim, began });
    }

    /// Returns until when a node may answer a challenge of now. Elsewhere may be a majority, whose watches
    /// must have time to show it.
    fn may_answer_until(&self, promise: Duration, peers: &Peers, now: Duration) -> Duration {
        if self.mutated.is(Mutation::FencesAtOnce) {
            return now;
        }
        past(if is_half(peers) { promise } else { promise.max(LONG_PROMISE) }, now)
    }

    /// Returns the next stage after a node's record was read; `None`: nothing more is to be done. `challenged`: the
    /// node had time to answer.
    fn after_read(
        &mut self,
        node: &NodeName,
        record: Option<NodeRecord>,
        challenged: bool,
        aim: &mut Aim,
        peers: &Peers,
        now: Duration,
    ) -> Option<FencingStage> {
        let agent = peers.members.get(node).and_then(|peer| peer.state.agent.as_ref());
        let lease = agent.map_or(self.settings.lease, |agent| agent.lease);
        let (state, promise, version) = match record {
            Some(NodeRecord { content: RecordContent { state, promise }, version }) => {
                (Some(state), promise.max(lease), Some(version))
            }
            None => (None, lease, None),
        };
        if matches!(state, Some(RecordState::Fenced(_))) {
            return Some(FencingStage::Fenced { until: now + FENCING_LIFETIME });
        }
        let (displaces, is_long) = (*aim == Aim::Displace, promise > lease);
        if displaces && (is_long || !peers.majority) {
            // It was no majority either, and need not have noticed that there is one. Or a majority may be elsewhere.
            *aim = Aim::Challenge;
        }
        // A majority need not wait for its record.
        if *aim == Aim::Know || !displaces && peers.majority && !is_long {
            return None;
        }
        let by = self.local.clone();
        let (next, state) = match (state, &version) {
            (Some(RecordState::Challenged(_)), Some(version)) => {
                let until = self.may_answer_until(promise, peers, now);
                return Some(FencingStage::Wait { version: version.clone(), promise, until });
            }
            (Some(RecordState::Confirmed), _) if challenged && !displaces => {
                return Some(FencingStage::Pause { until: now + CHALLENGE_PAUSE });
            }
            _ if *aim == Aim::Displace => (FencingStage::Fence, RecordState::Fenced(by)),
            _ => (FencingStage::Challenge { promise }, RecordState::Challenged(by)),
        };
        self.commands.push(swap_record(node.clone(), version, RecordContent { state, promise }));
        Some(next)
    }
}
