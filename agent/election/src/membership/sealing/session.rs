//! The admitted sessions, and the counters of their datagrams that were taken.

use std::{collections::BTreeMap, time::Duration};

use super::wire::SessionId;
use vipmux_model::NodeName;

/// The distance from the highest counter within which a datagram is still taken.
pub const WINDOW: u64 = 1_024;
/// The size of the window in words of 64 bits.
const WORDS: usize = 16;
const _: () = assert!(WINDOW == 64 * 16);
/// The time for which a session is heard after it answered a challenge.
pub const PROOF: Duration = Duration::from_secs(30);
/// The time after which it is challenged again: so early that nothing is lost.
const RENEWAL: Duration = Duration::from_secs(15);
/// The most sessions of one node.
const SESSIONS: usize = 2;

/// The admitted sessions of all nodes.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    nodes: BTreeMap<NodeName, Admitted>,
    /// The most admissions of a node that was forgotten. A node that comes back counts from here.
    floor: u64,
}

#[derive(Debug)]
struct Admitted {
    /// The number of sessions of this node that were ever admitted, plus [`Sessions::floor`].
    admissions: u64,
    /// The latest one comes last.
    sessions: Vec<Session>,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    window: Window,
    /// The time at which it answered a challenge last.
    proven: Duration,
}

/// The freshness of a datagram, by its session and counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// The session is admitted, and the counter new.
    Fresh,
    /// The same, and it is time for another challenge.
    ProofDue,
    /// The counter is new, but the session has not answered a challenge for so long that it must do
    /// so first.
    Lapsed,
    /// The session is or was admitted, and the counter is not new, or too old to tell.
    Replayed,
    /// The session is not known.
    Unknown,
}

impl Sessions {
    /// Returns a number that each admission of a session of the node raises.
    pub(super) fn admissions(&self, node: &NodeName) -> u64 {
        self.nodes.get(node).map_or(self.floor, |admitted| admitted.admissions)
    }

    /// Checks a datagram that was opened at `now`. It is fresh only once.
    pub(super) fn check(&mut self, node: &NodeName, id: SessionId, counter: u64, now: Duration) -> Freshness {
        let sessions = self.nodes.get_mut(node).map(|admitted| &mut admitted.sessions);
        let Some(session) = sessions.and_then(|sessions| sessions.iter_mut().find(|session| session.id == id)) else {
            return Freshness::Unknown;
        };
        if !session.window.take(counter) {
            return Freshness::Replayed;
        }
        match now.saturating_sub(session.proven) {
            age if age <= RENEWAL => Freshness::Fresh,
            age if age <= PROOF => Freshness::ProofDue,
            _ => Freshness::Lapsed,
        }
    }

    /// Admits a session from `counter` on. Earlier datagrams of it may have been recorded. If the
    /// node has two sessions, the older one goes. A session that is heard already keeps its window.
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

    /// Forgets nodes that are not to be kept.
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

/// The counters that were taken: a ring of bits, as in RFC 6479.
#[derive(Debug)]
struct Window {
    highest: u64,
    /// Bit `counter % WINDOW` for each of the [`WINDOW`] counters up to the highest.
    taken: [u64; WORDS],
}

impl Window {
    /// Creates a window in which all counters up to `counter` are taken.
    const fn after(counter: u64) -> Self {
        Self { highest: counter, taken: [u64::MAX; WORDS] }
    }

    /// Takes a counter. Returns whether it was not taken before.
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
