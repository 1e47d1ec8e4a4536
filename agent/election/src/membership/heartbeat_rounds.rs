//! Rounds of heartbeats: the nodes that were asked at one time, and those that answered.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use vipmux_model::NodeName;

/// The number of rounds that are remembered. They cover three seconds of heartbeats alone, and a
/// third of a second while changes of the state are announced as often as they may.
const MOST_ROUNDS: usize = 32;

/// The latest rounds, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct HeartbeatRounds(VecDeque<Round>);

#[derive(Clone, Debug)]
struct Round {
    asked: Duration,
    size: usize,
    silent: BTreeSet<NodeName>,
}

impl HeartbeatRounds {
    pub(super) fn begin(&mut self, asked: Duration, whom: BTreeSet<NodeName>) {
        if self.0.len() == MOST_ROUNDS {
            self.0.pop_front();
        }
        self.0.push_back(Round { asked, size: whom.len(), silent: whom });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the nodes of the round `asked` that have not answered.
    pub(super) fn silent(&self, asked: Duration) -> impl Iterator<Item = &NodeName> {
        self.0.iter().filter(move |round| round.asked == asked).flat_map(|round| &round.silent)
    }

    /// Takes an ack to a heartbeat of the round `asked`. Returns the number of acks, and of
    /// heartbeats.
    pub(super) fn answered(&mut self, asked: Duration, by: &NodeName) -> (usize, usize) {
        let (mut answers, mut of) = (0, 0);
        for round in self.0.iter_mut().filter(|round| round.asked == asked) {
            round.silent.remove(by);
            answers += round.size - round.silent.len();
            of += round.size;
        }
        (answers, of)
    }
}
