//! The stability of this node: whether its deadline passes again and again.
//!
//! An unstable node transfers its VIPs to ready ones, and these come before it. If all nodes are
//! unstable, they lead as before.

use std::{collections::VecDeque, time::Duration};

use super::timing::{LAPSE_WINDOW, STABILITY_TIME};

/// The number of lapses within [`LAPSE_WINDOW`] from which a node is unstable. One fault causes up to two: a
/// switch that restarts cuts gossip off when it goes, and once more when it has just come.
pub(super) const LAPSES: usize = 3;

/// The lapses of this node's deadline.
#[derive(Debug, Default)]
pub(super) struct Stability {
    /// The last [`LAPSES`] of them.
    lapses: VecDeque<Duration>,
    unstable_until: Duration,
}

impl Stability {
    /// Notes that the deadline passed.
    pub(super) fn note_lapse(&mut self, now: Duration) {
        self.lapses.push_back(now);
        if self.lapses.len() > LAPSES {
            self.lapses.pop_front();
        }
        let repeats =
            self.lapses.len() == LAPSES && self.lapses.front().is_some_and(|first| now <= *first + LAPSE_WINDOW);
        if repeats || self.is_unstable(now) {
            self.unstable_until = now + STABILITY_TIME;
        }
    }

    /// Returns whether this node is unstable.
    pub(super) fn is_unstable(&self, now: Duration) -> bool {
        now < self.unstable_until
    }
}
