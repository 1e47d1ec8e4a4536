//! Asks and answers: the evidence that others hold us for alive.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    membership::{
        Identity, Membership, Peer, Standing, Timer,
        members::known,
        wire::{Answer, Ask, Gone, Wire},
    },
    model::NodeName,
};

/// Nanoseconds, as they stand in payloads: enough for 584 years.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How long it is told that somebody is down.
const LATELY: Duration = Duration::from_secs(10);

impl Membership {
    pub(super) fn question(&self, now: Duration) -> Ask {
        let generation = self.swim.identity().generation;
        Ask { asked: nanoseconds(now), generation, known: self.known as u64, at: self.publication.version() }
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
        if let Some(contact) = self.contacts.get_mut(from) {
            contact.asked = ask.asked;
            if disowned.is_none() {
                contact.assented = Some(now);
            }
        }
        let at = self.publication.version();
        self.send(from, &Wire::Answer(Answer { asked: ask.asked, at, disowned, gone: self.gone(now) }));
        self.pass_on_departed(from, ask.known, now);
        self.hear(from, ask.at, None, now);
    }

    /// Whom we hold for down, for those who wait until nobody can hold it for alive. More may have left than fit an answer.
    fn gone(&self, now: Duration) -> Vec<Gone> {
        if self.known > self.settings.sample {
            return Vec::new();
        }
        let gone = self.contacts.iter().filter_map(|(name, contact)| {
            let silent = now.saturating_sub(contact.assented.unwrap_or(self.started));
            let gone = Gone { node: Identity::key(name), generation: contact.down?, silent: nanoseconds(silent) };
            (silent < LATELY).then_some(gone)
        });
        gone.take(self.settings.sample).collect()
    }

    pub(super) fn answered(&mut self, from: &NodeName, answer: &Answer, now: Duration) {
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
        if contact.answered <= Some(asked) {
            contact.answered = Some(asked);
            let gone = answer.gone.iter().filter(|gone| self.nodes.contains_key(&gone.node));
            let last = |gone: &Gone| now.saturating_sub(Duration::from_nanos(gone.silent));
            contact.gone = gone.map(|gone| (gone.node, (gone.generation, last(gone)))).collect();
        }
        if peer.standing == Standing::Suspected && asked + self.settings.probe_period >= peer.since {
            (peer.standing, peer.since) = (Standing::Alive, now);
            self.happened.changed = true;
        }
        let (answers, of) = self.rounds.answered(asked, from);
        if self.known <= self.settings.sample {
            self.weigh(now);
            self.witness();
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

    /// Finds since when nobody who is down can have had evidence: a majority of the known members, ourselves included, hold
    /// it for down, and it takes one of those to be held for alive by a majority.
    pub(super) fn witness(&mut self) {
        if self.known > self.settings.sample {
            return;
        }
        let needed = (self.known + 1).div_ceil(2);
        for (name, peer) in &mut self.peers.members {
            let silent = if peer.standing == Standing::Down {
                let key = Identity::key(name);
                let own = self.contacts.get(name).and_then(|contact| contact.assented).unwrap_or(self.started);
                let others = self.contacts.values().filter_map(|contact| contact.gone.get(&key));
                let same = others.filter(|(generation, _)| *generation >= peer.generation).map(|(_, last)| *last);
                let mut last: Vec<_> = same.chain([own]).collect();
                last.sort_unstable();
                last.get(needed - 1).copied()
            } else {
                None
            };
            self.happened.changed |= std::mem::replace(&mut peer.silent, silent) != silent;
        }
    }

    /// Asks all whether they hold those for down too whom we do, until a majority does.
    pub(super) fn inquire(&mut self, left: u32, now: Duration) {
        let open = |peer: &Peer| peer.standing == Standing::Down && peer.silent.is_none();
        if self.known <= self.settings.sample && self.peers.members.values().any(open) {
            self.news(now);
            if left > 1 {
                self.set(now + self.settings.alarm, Timer::Inquire(left - 1));
            }
        }
    }
}
