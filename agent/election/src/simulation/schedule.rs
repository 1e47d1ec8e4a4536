//! The clock of the world, and its events in their order.

use std::{collections::BTreeMap, time::Duration};

use super::WorldEvent;

/// The events that are still to come. Events of one time keep the order in which they were added.
pub(super) struct Schedule {
    pub(super) now: Duration,
    /// The end of the run.
    until: Duration,
    sequence: u64,
    queue: BTreeMap<(Duration, u64), WorldEvent>,
}

impl Schedule {
    pub(super) fn new(until: Duration) -> Self {
        Self { now: Duration::ZERO, until, sequence: 0, queue: BTreeMap::new() }
    }

    /// Returns a number that no event and no other caller has.
    pub(super) fn unique(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn at(&mut self, at: Duration, event: WorldEvent) {
        let number = self.unique();
        self.queue.insert((at, number), event);
    }

    pub(super) fn after(&mut self, after: Duration, event: WorldEvent) {
        self.at(self.now + after, event);
    }

    /// Takes the next event and its time.
    pub(super) fn pop(&mut self) -> Option<(Duration, WorldEvent)> {
        self.queue.pop_first().map(|((at, _), event)| (at, event))
    }

    /// Sets the clock to this time. Returns `false` and changes nothing if the run ends before it.
    pub(super) fn advance(&mut self, at: Duration) -> bool {
        let goes_on = at <= self.until;
        if goes_on {
            self.now = at;
        }
        goes_on
    }
}
