//! Asks and answers: the evidence that others hold us for alive.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    membership::{
        Identity, Membership, Standing, Timer,
        members::known,
        wire::{Answer, Ask, Wire},
    },
    model::NodeName,
};

/// Nanoseconds, as they stand in payloads: enough for 584 years.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Membership {
    pub(super) fn question(&self, now: Duration) -> Ask {
        let generation = self.swim.identity().generation;
        Ask { asked: nanoseconds(now), generation, at: self.publication.version() }
    }

    /// Begins a round.
    pub(super) fn begin(&mut self, whom: BTreeSet<NodeName>, now: Duration) {
        self.put(&whom, self.question(now));
        self.rounds.begin(now, whom);
        self.set(now + self.settings.again, Timer::Again(now));
        self.set(now + self.settings.again * 2, Timer::Again(now));
        self.weigh(now);
    }

    /// Asks those again who have not answered what was `asked` then.
    pub(super) fn ask_again(&mut self, asked: Duration, now: Duration) {
        let silent: Vec<_> = self.rounds.silent(asked).cloned().collect();
        self.put(&silent, Ask { asked: nanoseconds(asked), ..self.question(now) });
    }

    fn put<'a>(&mut self, whom: impl IntoIterator<Item = &'a NodeName>, ask: Ask) {
        // Nothing that is sent is longer than a payload may be.
        if let Ok(payload) = Wire::Ask(ask).encode() {
            whom.into_iter().for_each(|name| self.post(name, payload.clone()));
        }
    }

    /// Tells of a change of our state, now or as soon as it may be.
    pub(super) fn news(&mut self, now: Duration) {
        if let Some(from) = self.news_from.take().filter(|_| !self.left) {
            self.set(from.max(now), Timer::News);
        }
    }

    pub(super) fn tell_news(&mut self, now: Duration) {
        let each = self.settings.news_each * u32::try_from(self.known).unwrap_or(u32::MAX);
        self.news_from = Some(now + each.max(self.settings.news));
        self.begin(known(&self.peers).cloned().collect(), now);
    }

    /// Answers.
    pub(super) fn asked(&mut self, from: &NodeName, ask: Ask, now: Duration) {
        let held = self.peers.members.get(from).zip(self.contacts.get(from)).map(|(peer, contact)| {
            let newer = peer.generation > ask.generation;
            let disowned = contact.down.or(newer.then_some(peer.generation)).filter(|held| *held >= ask.generation);
            (disowned, peer.standing.lives() && peer.generation == ask.generation)
        });
        let (disowned, member) = held.unwrap_or((None, false));
        if disowned.is_none() && !member {
            let identity = Identity { node: Identity::key(from), generation: ask.generation };
            let _ = self.swim.learn(identity, foca::State::Alive, true);
            self.settle(now);
        }
        self.send(from, &Wire::Answer(Answer { asked: ask.asked, at: self.publication.version(), disowned }));
        self.hear(from, ask.at, None, now);
    }

    pub(super) fn answered(&mut self, from: &NodeName, answer: Answer, now: Duration) {
        let asked = Duration::from_nanos(answer.asked);
        if asked > now || asked < self.renounced {
            return;
        }
        if let Some(held) = answer.disowned {
            if held >= self.swim.identity().generation && self.swim.outdo(held).is_ok() {
                self.disowned(now);
                self.settle(now);
            }
            return;
        }
        let (Some(peer), Some(contact)) = (self.peers.members.get_mut(from), self.contacts.get_mut(from)) else {
            return;
        };
        peer.answered = peer.answered.max(Some(asked));
        contact.answered = contact.answered.max(Some(asked));
        if peer.standing == Standing::Suspected && asked + self.settings.probe_period >= peer.since {
            (peer.standing, peer.since) = (Standing::Alive, now);
            self.happened.changed = true;
        }
        let (answers, of) = self.rounds.answered(asked, from);
        if self.known <= self.settings.sample {
            self.weigh(now);
        } else if self.peers.majority {
            if answers * 2 > of {
                self.peers.evidence = self.peers.evidence.max(Some(asked));
            }
            if answers * 3 > of * 2 {
                self.assent = self.assent.max(Some(asked));
            }
        }
        self.hear(from, answer.at, Some(asked), now);
    }

    /// Finds the evidence of a cluster of which all are asked.
    pub(super) fn weigh(&mut self, now: Duration) {
        if self.known > self.settings.sample {
            return;
        }
        // Of the others: with ourselves they are more than half.
        let needed = self.known.div_ceil(2);
        let others = self.peers.members.values().filter(|peer| peer.standing != Standing::Left);
        let mut answered: Vec<_> = others.map(|peer| peer.answered).collect();
        answered.sort_unstable();
        self.peers.evidence = match needed {
            0 => Some(now),
            needed => answered.len().checked_sub(needed).and_then(|at| answered[at]),
        };
        self.assent = self.peers.evidence;
    }
}
