//! Rounds of asks: whom was asked at what time, and who has answered.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use crate::model::NodeName;

/// Rounds that are remembered: of the last three seconds with asks alone, and of a third of one while news are told as
/// often as that may be.
const MOST_ROUNDS: usize = 32;

/// The latest rounds, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds(VecDeque<Round>);

#[derive(Clone, Debug)]
struct Round {
    asked: Duration,
    size: usize,
    silent: BTreeSet<NodeName>,
}

impl Rounds {
    pub(super) fn begin(&mut self, asked: Duration, whom: BTreeSet<NodeName>) {
        if self.0.len() == MOST_ROUNDS {
            self.0.pop_front();
        }
        self.0.push_back(Round { asked, size: whom.len(), silent: whom });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Those that were asked then and have not answered.
    pub(super) fn silent(&self, asked: Duration) -> impl Iterator<Item = &NodeName> {
        self.0.iter().filter(move |round| round.asked == asked).flat_map(|round| &round.silent)
    }

    /// Takes an answer to what was asked then. How many answers came of how many that were asked.
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
