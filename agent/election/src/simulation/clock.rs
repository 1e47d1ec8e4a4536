//! A node's `CLOCK_BOOTTIME`.

use std::time::Duration;

/// A boot clock that began at some time, and is up to 1 % too fast or too slow. Nothing reads the
/// wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) offset: Duration,
    /// The millionths by which it is too fast; negative: too slow.
    pub(super) drift: i64,
}

const MILLION: i128 = 1_000_000;

fn nanoseconds(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

fn duration(nanoseconds: i128) -> Duration {
    u64::try_from(nanoseconds).map_or(Duration::ZERO, Duration::from_nanos)
}

impl Clock {
    /// Returns the clock's time at a time of the world.
    pub(super) fn local(self, world: Duration) -> Duration {
        self.offset + duration(nanoseconds(world) * (MILLION + i128::from(self.drift)) / MILLION)
    }

    /// Goes on where it stood still since this time of the world.
    pub(super) fn go_on(&mut self, since: Duration, now: Duration) {
        self.offset = self.offset.saturating_sub(self.local(now).saturating_sub(self.local(since)));
    }

    /// Returns the first time of the world, within some nanoseconds, at which the clock shows this
    /// or more.
    pub(super) fn world(self, local: Duration) -> Duration {
        let since = nanoseconds(local.saturating_sub(self.offset));
        duration(since * MILLION / (MILLION + i128::from(self.drift)) + 2)
    }
}
