//! What is known of a peer beside what others may see; and the copying of its state.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    membership::{
        Membership, Timer,
        asks::nanoseconds,
        replica::{Progress, Replica},
        wire::{Delta, Malformed, Version, Wire},
    },
    model::NodeName,
};

/// A peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Contact {
    /// SWIM holds this generation of it for down.
    pub(super) down: Option<u64>,
    /// When that was asked which it answered last; unlike [`crate::membership::Peer::answered`], never renounced.
    pub(super) answered: Option<Duration>,
    /// What it asked us last, by its clock.
    pub(super) asked: u64,
    /// When we last answered it as a living one.
    pub(super) assented: Option<Duration>,
    /// Whom it holds for down, as of `answered`: the generation, and when it can have answered it last, by
    /// [`Identity::key`](super::Identity::key).
    pub(super) gone: BTreeMap<u64, (u64, Duration)>,
    /// From when on it may be told again who has left.
    pub(super) tell_departed: Duration,
    replica: Replica,
    /// Heard of while it is pulled.
    newest: Option<Version>,
    pulling: Option<Pulling>,
}

/// A pull that was not answered yet.
#[derive(Clone, Copy, Debug)]
struct Pulling {
    asked: Duration,
    tries: u32,
}

impl Contact {
    /// Forgets how far the copy of its state has come.
    pub(super) fn restart(&mut self) {
        (self.replica, self.newest, self.pulling) = (Replica::default(), None, None);
        self.gone.clear();
    }

    /// When to give up waiting.
    fn waited(pulling: Pulling, wait: Duration) -> Duration {
        pulling.asked + wait * (1 << pulling.tries.min(5))
    }
}

impl Membership {
    /// Hears how new a peer's state is; `asked` is given where that answers something.
    pub(super) fn hear(&mut self, from: &NodeName, at: Version, asked: Option<Duration>, now: Duration) {
        let (Some(peer), Some(contact)) = (self.peers.members.get_mut(from), self.contacts.get_mut(from)) else {
            return;
        };
        if contact.replica.covers(at) {
            peer.current = peer.current.max(asked);
            return;
        }
        contact.newest = Some(at);
        // What is heard of answers, so that there is no use in waiting longer.
        match contact.pulling {
            None => self.pull(from, 0, now),
            Some(pulling) if pulling.asked + self.settings.pull <= now => self.pull(from, pulling.tries, now),
            Some(_) => {}
        }
    }

    /// Asks for what is new of a peer's state, for the first time or after so many tries.
    pub(super) fn pull(&mut self, from: &NodeName, tries: u32, now: Duration) {
        let Some(contact) = self.contacts.get_mut(from) else { return };
        let pulling = Pulling { asked: now, tries };
        contact.pulling = Some(pulling);
        let pull = contact.replica.pull(nanoseconds(now));
        self.send(from, &Wire::Pull(pull));
        self.set(Contact::waited(pulling, self.settings.pull), Timer::Pull(from.clone()));
    }

    pub(super) fn pull_again(&mut self, from: &NodeName, now: Duration) {
        let alive = self.peers.members.get(from).is_some_and(|peer| peer.standing.lives());
        let Some(contact) = self.contacts.get_mut(from) else { return };
        match contact.pulling {
            // It has not answered, or one was answered meanwhile and this timer is another's.
            Some(pulling) if alive && Contact::waited(pulling, self.settings.pull) <= now => {
                self.pull(from, pulling.tries + 1, now);
            }
            Some(_) if !alive => contact.pulling = None,
            _ => {}
        }
    }

    /// Takes what came of a pull.
    pub(super) fn advance(&mut self, from: &NodeName, delta: Delta, now: Duration) -> Result<(), Malformed> {
        let (Some(peer), Some(contact)) = (self.peers.members.get_mut(from), self.contacts.get_mut(from)) else {
            return Ok(());
        };
        let Some(pulling) = contact.pulling.filter(|pulling| nanoseconds(pulling.asked) == delta.asked) else {
            return Ok(());
        };
        let (progress, changed) = contact.replica.apply(delta, &mut peer.state, now)?;
        self.happened.changed |= changed;
        match progress {
            Progress::Stale => {}
            Progress::More => self.pull(from, 0, now),
            Progress::Whole => {
                peer.current = peer.current.max(Some(pulling.asked));
                contact.pulling = None;
                // Heard of meanwhile. Not at once, since it need not be true.
                if contact.newest.take().is_some_and(|newest| !contact.replica.covers(newest)) {
                    let pulling = Pulling { asked: now, tries: 0 };
                    contact.pulling = Some(pulling);
                    self.set(Contact::waited(pulling, self.settings.pull), Timer::Pull(from.clone()));
                }
            }
        }
        Ok(())
    }
}
