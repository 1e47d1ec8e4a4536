//! When an announcement is repeated, and how fast.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

/// When a VIP's announcement is repeated after the first, which leaves at once: offsets from the start, growing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(Vec<Duration>);

/// The offsets of a [`Schedule`] do not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("announcements are repeated at growing offsets: {later:?} does not come after {earlier:?}")]
pub struct ScheduleError {
    /// An offset.
    pub earlier: Duration,
    /// The one after it; at most as great.
    pub later: Duration,
}

impl Schedule {
    /// Repeats at these offsets from the start: each above zero and greater than the one before it.
    pub fn new(repeats: Vec<Duration>) -> Result<Self, ScheduleError> {
        let mut earlier = Duration::ZERO;
        for &later in &repeats {
            if later <= earlier {
                return Err(ScheduleError { earlier, later });
            }
            earlier = later;
        }
        Ok(Self(repeats))
    }

    /// When a burst that began at `start` goes on after `sent` rounds; `None`: it is over. 0 gives the start.
    pub fn repeat(&self, start: Instant, sent: usize) -> Option<Instant> {
        match sent.checked_sub(1) {
            None => Some(start),
            Some(repeat) => self.0.get(repeat).map(|&offset| start + offset),
        }
    }
}

impl Default for Schedule {
    /// After 1, 3, 7 and 15 seconds.
    fn default() -> Self {
        Self([1, 3, 7, 15].map(Duration::from_secs).to_vec())
    }
}

/// A [`Schedule`], what follows it, and how many frames a second repeats may send on one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pacing {
    schedule: Schedule,
    interval: Duration,
    /// How long after a round the next one follows once the schedule is at its end; `None`: there is none.
    every: Option<Duration>,
}

impl Pacing {
    /// At most `rate` frames a second on one interface, the first rounds not counted.
    pub fn new(schedule: Schedule, rate: NonZeroU32) -> Self {
        Self { schedule, interval: Duration::from_secs(1) / rate.get(), every: None }
    }

    /// With a round so long after each other when the schedule is at its end, for as long as a VIP is held; zero: none.
    /// They spread by themselves: each counts from when the one before it found its turn.
    #[must_use]
    pub fn repeating(self, every: Duration) -> Self {
        Self { every: (!every.is_zero()).then_some(every), ..self }
    }

    /// When a burst that began at `start` goes on after `sent` rounds, the last of them now.
    pub(super) fn repeat(&self, start: Instant, sent: usize, now: Instant) -> Option<Instant> {
        self.schedule.repeat(start, sent).or_else(|| Some(now + self.every?))
    }

    /// For how long an interface is taken by this many frames.
    pub(super) fn cost(&self, frames: usize) -> Duration {
        self.interval.saturating_mul(u32::try_from(frames).unwrap_or(u32::MAX))
    }
}

impl Default for Pacing {
    /// The default schedule at 10 frames a second.
    fn default() -> Self {
        Self { schedule: Schedule::default(), interval: Duration::from_millis(100), every: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_starts_at_once_and_ends() {
        let start = Instant::now();
        let seconds = |n| Some(start + Duration::from_secs(n));
        let times: Vec<_> = (0..6).map(|sent| Schedule::default().repeat(start, sent)).collect();
        assert_eq!(times, [seconds(0), seconds(1), seconds(3), seconds(7), seconds(15), None]);
    }

    #[test]
    fn offsets_that_do_not_grow_are_refused() {
        for offsets in [vec![0], vec![2, 2], vec![1, 3, 2]] {
            assert!(Schedule::new(offsets.into_iter().map(Duration::from_secs).collect()).is_err());
        }
        assert!(Schedule::new(vec![]).is_ok(), "a burst of one round");
    }
}
