//! The sessions that are admitted, and which of their datagrams were taken.

use std::{collections::BTreeMap, time::Duration};

use super::wire::SessionId;
use crate::model::NodeName;

/// How many counters back from the highest one a datagram is still taken.
pub const WINDOW: u64 = 1_024;
/// In words of 64 bits.
const WORDS: usize = 16;
const _: () = assert!(WINDOW == 64 * 16);
/// How long a session is heard after it has answered a challenge.
pub const PROOF: Duration = Duration::from_secs(30);
/// How long after it has answered one it is challenged again: so early that nothing is lost.
const RENEWAL: Duration = Duration::from_secs(15);
/// Sessions of one node.
const SESSIONS: usize = 2;

/// The admitted sessions of all nodes.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    nodes: BTreeMap<NodeName, Admitted>,
    /// No node that is forgotten had more admissions, so none that comes back counts from fewer.
    floor: u64,
}

#[derive(Debug)]
struct Admitted {
    /// How many sessions of this node were ever admitted, [`Sessions::floor`] aside.
    admissions: u64,
    /// The latest one comes last.
    sessions: Vec<Session>,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    window: Window,
    /// When it answered a challenge last.
    proven: Duration,
}

/// What to think of a datagram by its session and counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The session is admitted, and the counter new.
    Fresh,
    /// It is, too; and it is time for another challenge.
    Due,
    /// The counter is new, but the session has not answered a challenge for so long that it must do so first.
    Lapsed,
    /// The session is or was admitted, and the counter is not new, or too old to tell.
    Old,
    /// The session is not known.
    Unknown,
}

impl Sessions {
    /// A number that each admission of a session of the node raises.
    pub(super) fn admissions(&self, node: &NodeName) -> u64 {
        self.nodes.get(node).map_or(self.floor, |admitted| admitted.admissions)
    }

    /// Judges a datagram that was opened at `now`. What is fresh is so only once.
    pub(super) fn judge(&mut self, node: &NodeName, id: SessionId, counter: u64, now: Duration) -> Verdict {
        let sessions = self.nodes.get_mut(node).map(|admitted| &mut admitted.sessions);
        let Some(session) = sessions.and_then(|sessions| sessions.iter_mut().find(|session| session.id == id)) else {
            return Verdict::Unknown;
        };
        if !session.window.take(counter) {
            return Verdict::Old;
        }
        match now.saturating_sub(session.proven) {
            age if age <= RENEWAL => Verdict::Fresh,
            age if age <= PROOF => Verdict::Due,
            _ => Verdict::Lapsed,
        }
    }

    /// Admits a session from `counter` on: what it sealed before may have been recorded before. It pushes out the node's
    /// oldest one, where there are two. One that is heard already is heard on.
    pub(super) fn admit(&mut self, node: &NodeName, id: SessionId, counter: u64, now: Duration) {
        let new = || Admitted { admissions: self.floor, sessions: Vec::new() };
        let admitted = self.nodes.entry(node.clone()).or_insert_with(new);
        admitted.admissions += 1;
        let known = admitted.sessions.iter().position(|session| session.id == id);
        let window = match known.map(|at| admitted.sessions.remove(at)) {
            Some(session) if now.saturating_sub(session.proven) <= PROOF => session.window,
            _ => Window::after(counter),
        };
        if admitted.sessions.len() == SESSIONS {
            admitted.sessions.remove(0);
        }
        admitted.sessions.push(Session { id, window, proven: now });
    }

    /// Forgets the other nodes.
    pub(super) fn retain(&mut self, keep: impl Fn(&NodeName) -> bool) {
        self.nodes.retain(|node, admitted| {
            let kept = keep(node);
            if !kept {
                self.floor = self.floor.max(admitted.admissions);
            }
            kept
        });
    }
}

/// Which counters were taken: a ring of bits, as RFC 6479 has it.
#[derive(Debug)]
struct Window {
    highest: u64,
    /// Bit `counter % WINDOW`, of the [`WINDOW`] counters up to the highest.
    taken: [u64; WORDS],
}

impl Window {
    /// All up to `counter` are taken.
    const fn after(counter: u64) -> Self {
        Self { highest: counter, taken: [u64::MAX; WORDS] }
    }

    /// Whether the counter was not taken before; it is then.
    fn take(&mut self, counter: u64) -> bool {
        if counter > self.highest {
            // A jump over the whole ring clears each bit once.
            for skipped in (self.highest + 1..=counter).take(64 * WORDS) {
                *self.word(skipped) &= !Self::bit(skipped);
            }
            self.highest = counter;
        } else if self.highest - counter >= WINDOW {
            return false;
        }
        let (word, bit) = (self.word(counter), Self::bit(counter));
        let taken = *word & bit != 0;
        *word |= bit;
        !taken
    }

    const fn word(&mut self, counter: u64) -> &mut u64 {
        &mut self.taken[(counter % WINDOW / 64) as usize]
    }

    const fn bit(counter: u64) -> u64 {
        1 << (counter % 64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_counter_is_taken_once_and_only_within_the_window(
            start in prop_oneof![0..10_u64, Just(u64::MAX - 5_000)],
            steps in prop::collection::vec(prop_oneof![8 => 0..1_500_u64, 1 => 0..5_000_u64], 1..400),
        ) {
            let mut window = Window::after(start);
            let (mut taken, mut highest) = (BTreeSet::new(), start);
            for step in steps {
                // Most lie around the highest one.
                let counter = (highest.saturating_sub(1_200)).saturating_add(step);
                let fresh = counter > start
                    && (counter > highest || highest - counter < WINDOW)
                    && taken.insert(counter);
                highest = highest.max(counter);
                prop_assert_eq!(window.take(counter), fresh, "{} of {}", counter, highest);
            }
        }
    }
}
