//! Keeps the log short where very much happens at once.

use std::time::{Duration, Instant};

use super::Agent;

/// Lines of a kind that are written within [`PERIOD`].
const MOST_LINES: u32 = 100;
/// See [`MOST_LINES`].
const PERIOD: Duration = Duration::from_secs(10);

/// Lines of one kind.
#[derive(Debug, Default)]
pub(super) struct Quota {
    begun: Option<Instant>,
    told: u32,
    untold: u64,
}

impl Quota {
    /// Whether one more is to be written.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.begun.is_none() {
            self.begun = Some(now);
        }
        let room = self.told < MOST_LINES;
        if room {
            self.told += 1;
        } else {
            self.untold += 1;
        }
        room
    }

    /// Ends a period that is over: how many lines were not written in it, if any.
    pub(super) fn end(&mut self, now: Instant) -> Option<u64> {
        let over = self.begun.is_some_and(|begun| now >= begun + PERIOD);
        let untold = std::mem::take(if over { self } else { return None }).untold;
        (untold > 0).then_some(untold)
    }
}

impl Agent {
    /// Tells how much was not told.
    pub(super) fn tell_untold(&mut self) {
        let now = Instant::now();
        if let Some(untold) = self.leaderships.end(now) {
            tracing::info!(untold, "more VIPs came or went; `vipmux inspect vips` shows all");
        }
        if let Some(untold) = self.strangers.end(now) {
            tracing::warn!(untold, "strangers have more addresses; they are not announced");
        }
        if let Some(untold) = self.failures.end(now) {
            tracing::warn!(untold, "more announcements were not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_the_first_are_written_and_the_others_counted() {
        let (mut quota, start) = (Quota::default(), Instant::now());
        assert_eq!(quota.end(start), None);
        let written = (0..250).filter(|_| quota.take(start)).count();
        assert_eq!((written, quota.end(start + PERIOD / 2)), (100, None));
        assert_eq!((quota.end(start + PERIOD), quota.end(start + PERIOD)), (Some(150), None));
        assert!(quota.take(start + PERIOD), "the next period begins anew");
        assert_eq!(quota.end(start + 2 * PERIOD), None);
    }
}
