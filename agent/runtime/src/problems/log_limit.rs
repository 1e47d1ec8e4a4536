//! Limits the rate of log lines of one kind.

use std::time::{Duration, Instant};

/// Most lines of one kind within a [`PERIOD`].
const MOST_LINES: u32 = 100;
/// The time that [`MOST_LINES`] counts for.
const PERIOD: Duration = Duration::from_secs(10);

/// The lines of one kind in the current period.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    start: Option<Instant>,
    written: u32,
    omitted: u64,
}

impl LogLimit {
    /// Returns whether one more line may be written.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        if self.start.is_none() {
            self.start = Some(now);
        }
        let room = self.written < MOST_LINES;
        if room {
            self.written += 1;
        } else {
            self.omitted += 1;
        }
        room
    }

    /// Ends a period that is over. Returns how many of its lines were left out, if any.
    pub(crate) fn end(&mut self, now: Instant) -> Option<u64> {
        let over = self.start.is_some_and(|start| now >= start + PERIOD);
        let omitted = std::mem::take(if over { self } else { return None }).omitted;
        (omitted > 0).then_some(omitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_the_first_are_written_and_the_others_counted() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.end(start), None);
        let written = (0..250).filter(|_| limit.take(start)).count();
        assert_eq!((written, limit.end(start + PERIOD / 2)), (100, None));
        assert_eq!((limit.end(start + PERIOD), limit.end(start + PERIOD)), (Some(150), None));
        assert!(limit.take(start + PERIOD), "the next period has room again");
        assert_eq!(limit.end(start + 2 * PERIOD), None);
    }
}
