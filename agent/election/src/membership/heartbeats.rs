//! Heartbeats and acks: the evidence that others consider this node alive.

use std::{cmp::Reverse, collections::BTreeSet, ops::Bound, time::Duration};

use crate::membership::{
    MemberId, MemberStatus, Membership, Peer, Timer,
    wire::{Ack, Gone, Heartbeat, Wire},
};
use vipmux_model::NodeName;

/// Returns nanoseconds, as payloads have them: enough for 584 years.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Membership {
    pub(super) fn heartbeat(&self, now: Duration) -> Heartbeat {
        let generation = self.swim.identity().generation;
        Heartbeat { asked: nanoseconds(now), generation, known: self.view.known as u64, at: self.local_state.version() }
    }

    /// Begins a round of heartbeats.
    pub(super) fn begin_round(&mut self, whom: BTreeSet<NodeName>, now: Duration) {
        self.send_to_all(&whom, self.heartbeat(now));
        self.evidence.rounds.begin(now, whom);
        self.set(now + self.settings.again, Timer::Again(now));
        self.update_evidence(now);
    }

    /// Repeats the heartbeats of the round `asked` that were not answered.
    pub(super) fn ask_again(&mut self, asked: Duration, now: Duration) {
        let silent: Vec<_> = self.evidence.rounds.silent(asked).cloned().collect();
        if silent.is_empty() {
            return;
        }
        self.send_to_all(&silent, Heartbeat { asked: nanoseconds(asked), ..self.heartbeat(now) });
        let second = asked + self.settings.again * 2;
        if now < second {
            self.set(second, Timer::Again(asked));
        }
    }

    fn send_to_all<'a>(&mut self, whom: impl IntoIterator<Item = &'a NodeName>, ask: Heartbeat) {
        // No payload that is sent is too long.
        if let Ok(payload) = Wire::Heartbeat(ask).encode() {
            whom.into_iter().for_each(|name| self.post(name, payload.clone()));
        }
    }

    /// Announces a change of this node's state to all peers, beginning now or as soon as it may.
    pub(super) fn state_changed(&mut self, now: Duration) {
        self.pace.unannounced = usize::MAX;
        if let Some(from) = self.pace.state_from.take().filter(|_| !self.left) {
            self.set(from.max(now), Timer::AnnounceState);
        }
    }

    /// Announces the state to the next peers. A change meanwhile goes around once more.
    pub(super) fn announce_state(&mut self, now: Duration) {
        let next = match &self.pace.announced {
            Some(last) => self.peers.members.range::<NodeName, _>((Bound::Excluded(last), Bound::Unbounded)),
            None => self.peers.members.range::<NodeName, _>(..),
        };
        let around = next.chain(&self.peers.members).filter(|(_, peer)| peer.status != MemberStatus::Left);
        let left = self.pace.unannounced.min(self.view.known);
        let whom: Vec<_> = around.map(|(name, _)| name.clone()).take(left.min(self.settings.announced)).collect();
        self.pace.unannounced = left - whom.len();
        self.pace.announced = whom.last().cloned().or(self.pace.announced.take());
        let from = now + self.settings.news;
        if self.pace.unannounced > 0 {
            self.set(from, Timer::AnnounceState);
        } else {
            self.pace.state_from = Some(from);
        }
        self.begin_round(whom.into_iter().collect(), now);
    }

    /// Answers a heartbeat.
    pub(super) fn receive_heartbeat(&mut self, from: &NodeName, ask: Heartbeat, now: Duration) {
        let held = self.peers.members.get(from).zip(self.records.get(from)).map(|(peer, record)| {
            let newer = peer.generation > ask.generation;
            let disowned = record.down.or(newer.then_some(peer.generation)).filter(|held| *held >= ask.generation);
            (disowned, peer.status.is_alive() && peer.generation == ask.generation)
        });
        let (mut disowned, member) = held.unwrap_or((None, false));
        if disowned.is_none() && !member {
            let identity = MemberId { node: MemberId::key(from), generation: ask.generation };
            let _ = self.swim.learn(identity, foca::State::Alive, true);
            self.process_swim(now);
            // SWIM heard that it is down while it was no member here, and says nothing of that.
            let there = self.peers.members.get(from).is_some_and(|peer| peer.status.is_alive());
            if let Some(record) = self.records.get_mut(from).filter(|_| !there) {
                (record.down, disowned) = (Some(ask.generation), Some(ask.generation));
            }
        }
        if let Some(record) = self.records.get_mut(from) {
            record.asked = ask.asked;
            if disowned.is_none() {
                record.assented = Some(now);
            }
        }
        let at = self.local_state.version();
        self.send(from, &Wire::Ack(Ack { asked: ask.asked, at, disowned, gone: self.gone(now) }));
        self.pass_on_departed(from, ask.known, now);
        self.learn_version(from, ask.at, None, now);
    }

    /// Returns the nodes that this one considers down, for peers that wait until no node can
    /// consider them alive. More may be down than fit an ack.
    fn gone(&self, now: Duration) -> Vec<Gone> {
        if self.view.known > self.settings.sample {
            return Vec::new();
        }
        let gone = self.records.iter().filter_map(|(name, record)| {
            let silent = now.saturating_sub(record.assented.unwrap_or(self.evidence.since));
            Some(Gone { node: MemberId::key(name), generation: record.down?, silent: nanoseconds(silent) })
        });
        gone.take(self.settings.sample).collect()
    }

    pub(super) fn receive_ack(&mut self, from: &NodeName, answer: &Ack, now: Duration) {
        let asked = Duration::from_nanos(answer.asked);
        if asked > now || asked < self.evidence.discarded {
            return;
        }
        if let Some(held) = answer.disowned {
            if held >= self.swim.identity().generation && self.swim.outdo(held).is_ok() {
                self.disowned(now);
                self.process_swim(now);
            }
            return;
        }
        let (Some(peer), Some(record)) = (self.peers.members.get_mut(from), self.records.get_mut(from)) else {
            return;
        };
        peer.answered = peer.answered.max(Some(asked));
        if record.answered <= Some(asked) {
            record.answered = Some(asked);
            let gone = answer.gone.iter().filter(|gone| self.nodes.contains_key(&gone.node));
            let last = |gone: &Gone| now.saturating_sub(Duration::from_nanos(gone.silent));
            record.gone = gone.map(|gone| (gone.node, (gone.generation, last(gone)))).collect();
        }
        if peer.status == MemberStatus::Suspected && asked + self.settings.probe_period >= peer.since {
            (peer.status, peer.since) = (MemberStatus::Alive, now);
            self.output.changed = true;
        }
        let (answers, of) = self.evidence.rounds.answered(asked, from);
        if answers == of {
            self.timers.due.retain(|_, timer| !matches!(timer, Timer::Again(round) if *round == asked));
        }
        if self.view.known <= self.settings.sample {
            self.update_evidence(now);
            self.update_silence();
        } else if self.peers.majority {
            if answers * 2 > of {
                self.peers.evidence_since = self.peers.evidence_since.max(Some(asked));
            }
            if answers * 3 > of * 2 {
                self.evidence.assent = self.evidence.assent.max(Some(asked));
            }
        }
        self.learn_version(from, answer.at, Some(asked), now);
    }

    /// Updates the evidence in a cluster whose members are all asked.
    pub(super) fn update_evidence(&mut self, now: Duration) {
        if self.view.known > self.settings.sample {
            return;
        }
        // The number of others that are more than half together with this node.
        let needed = self.view.known.div_ceil(2);
        let others = self.peers.members.values().filter(|peer| peer.status != MemberStatus::Left);
        let mut answered: Vec<_> = others.map(|peer| peer.answered).collect();
        answered.sort_unstable();
        self.peers.evidence_since = match needed {
            0 => Some(now),
            needed => answered.len().checked_sub(needed).and_then(|at| answered[at]),
        };
        self.evidence.assent = self.peers.evidence_since;
    }

    /// Updates the time since which the nodes that are down can have had no evidence, and the time of the latest
    /// heartbeats whose answers confirm that. A majority of the known members, this node included, considers
    /// such a node down. A majority that considers it alive would need one of them.
    pub(super) fn update_silence(&mut self) {
        if self.view.known > self.settings.sample {
            return;
        }
        let needed = (self.view.known + 1).div_ceil(2);
        let is_alive = |name: &NodeName| self.peers.members.get(name).is_some_and(|peer| peer.status.is_alive());
        // Of one that is down itself, the list may be old.
        let lists: Vec<_> = self.records.iter().filter(|(name, _)| is_alive(name)).map(|(_, record)| record).collect();
        for (name, peer) in &mut self.peers.members {
            let (mut last, mut answered) = (Vec::new(), Vec::new());
            if !peer.status.is_alive() {
                let key = MemberId::key(name);
                last.push(self.records.get(name).and_then(|record| record.assented).unwrap_or(self.evidence.since));
                answered.push(Some(Duration::MAX));
                let same = |gone: &&(u64, Duration)| gone.0 >= peer.generation;
                for record in &lists {
                    if let Some((_, silent)) = record.gone.get(&key).filter(same) {
                        last.push(*silent);
                        answered.push(record.answered);
                    }
                }
            }
            last.sort_unstable();
            answered.sort_unstable_by_key(|at| Reverse(*at));
            let silent = last.get(needed - 1).copied().filter(|_| peer.status == MemberStatus::Down);
            self.output.changed |= std::mem::replace(&mut peer.silent, silent) != silent;
            peer.confirmed = answered.get(needed - 1).copied().flatten();
        }
    }

    /// Asks all peers whether they also consider the nodes down that this one does, until a
    /// majority does.
    pub(super) fn confirm_down(&mut self, left: u32, now: Duration) {
        let open = |peer: &Peer| peer.status == MemberStatus::Down && peer.silent.is_none();
        if self.view.known <= self.settings.sample && self.peers.members.values().any(open) {
            self.state_changed(now);
            if left > 1 {
                self.set(now + self.settings.alarm, Timer::ConfirmDown(left - 1));
            }
        }
    }
}
