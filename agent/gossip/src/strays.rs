//! Decides how many datagrams from addresses of no Node are opened: a few, so that the log can say
//! what they are. To open one costs far more than to drop it.

use std::time::Duration;

/// At most so many are opened in a [`PERIOD`].
pub(super) const MOST: u32 = 100;
const PERIOD: Duration = Duration::from_secs(1);

/// The datagrams from addresses of no Node.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// The start of the current period.
    begins: Duration,
    /// The number that was opened in the current period.
    opened: u32,
}

impl Strays {
    /// Returns whether to open another datagram at `now` (`CLOCK_BOOTTIME`).
    pub(super) fn take(&mut self, now: Duration) -> bool {
        if now >= self.begins + PERIOD {
            *self = Self { begins: now, opened: 0 };
        }
        let is_taken = self.opened < MOST;
        self.opened += u32::from(is_taken);
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_are_opened_in_each_second() {
        let mut strays = Strays::default();
        let mut opened = |from: u64| (from..from + 1_000).filter(|at| strays.take(Duration::from_millis(*at))).count();
        assert_eq!([opened(5_000), opened(5_500), opened(7_000)], [100, 100, 100]);
    }
}
