//! The schedule and the rate of repeated announcements.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

/// The times of a VIP's repeated announcements, as increasing offsets from the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncementSchedule(Vec<Duration>);

/// The offsets of an [`AnnouncementSchedule`] do not increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("announcement offsets must increase: {later:?} does not come after {earlier:?}")]
pub struct ScheduleError {
    /// An offset.
    pub earlier: Duration,
    /// The next offset, which is not greater.
    pub later: Duration,
}

impl AnnouncementSchedule {
    /// Creates a schedule of these offsets. Each must be above zero and greater than the one before
    /// it.
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

    /// Returns the time of the next round of a burst that began at `start` and has sent `sent`
    /// rounds. `None`: the burst is over.
    pub fn repeat(&self, start: Instant, sent: usize) -> Option<Instant> {
        match sent.checked_sub(1) {
            None => Some(start),
            Some(repeat) => self.0.get(repeat).map(|&offset| start + offset),
        }
    }
}

impl Default for AnnouncementSchedule {
    /// After 1, 3, 7 and 15 seconds.
    fn default() -> Self {
        Self([1, 3, 7, 15].map(Duration::from_secs).to_vec())
    }
}

/// The frames that leave an interface at once, as a time at its rate.
const AT_ONCE: Duration = Duration::from_millis(100);

/// An [`AnnouncementSchedule`], the repetition after its end, and the rate limits on one interface:
/// of all rounds, and of repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pacing {
    schedule: AnnouncementSchedule,
    /// The time from one frame of a repeat to the next,
    interval: Duration,
    /// and of any round.
    least: Duration,
    /// The pause between rounds after the end of the schedule. `None`: there are none.
    every: Option<Duration>,
}

impl Pacing {
    /// Limits repeats to `rate` frames per second on one interface.
    pub fn new(schedule: AnnouncementSchedule, rate: NonZeroU32) -> Self {
        Self { schedule, interval: Duration::from_secs(1) / rate.get(), ..Self::default() }
    }

    /// Limits all rounds to `rate` frames per second on one interface, after a tenth of that at once.
    #[must_use]
    pub fn limited(self, rate: NonZeroU32) -> Self {
        Self { least: Duration::from_secs(1) / rate.get(), ..self }
    }

    /// Adds rounds after the end of the schedule, at this interval, as long as a VIP is held. Zero:
    /// none. The rounds of many VIPs spread by themselves, since each interval starts when the
    /// round before it was sent.
    #[must_use]
    pub fn repeating(self, every: Duration) -> Self {
        Self { every: (!every.is_zero()).then_some(every), ..self }
    }

    /// Returns the time of the next round of a burst that began at `start` and has just sent its
    /// round number `sent`.
    pub(super) fn repeat(&self, start: Instant, sent: usize, now: Instant) -> Option<Instant> {
        self.schedule.repeat(start, sent).or_else(|| Some(now + self.every?))
    }

    /// Returns when the next round may leave if the limit is used up until `busy`.
    pub(super) fn room(busy: Instant) -> Instant {
        busy.checked_sub(AT_ONCE).unwrap_or(busy)
    }

    /// Returns until when the limit is used up after this many frames.
    pub(super) fn busy(&self, busy: Option<Instant>, frames: usize, now: Instant) -> Instant {
        busy.map_or(now, |busy| busy.max(now)) + self.least.saturating_mul(u32::try_from(frames).unwrap_or(u32::MAX))
    }

    /// Returns how long this many frames keep an interface busy.
    pub(super) fn cost(&self, frames: usize) -> Duration {
        self.interval.saturating_mul(u32::try_from(frames).unwrap_or(u32::MAX))
    }
}

impl Default for Pacing {
    /// The default schedule. Repeats at 10 frames a second, all rounds at 1,000.
    fn default() -> Self {
        let (interval, least) = (Duration::from_millis(100), Duration::from_millis(1));
        Self { schedule: AnnouncementSchedule::default(), interval, least, every: None }
    }
}

#[cfg(test)]
mod tests {
    use vipmux_testing::pages::{FAILOVER, assert_says};

    use super::*;

    #[test]
    fn a_schedule_starts_at_once_and_ends() {
        let start = Instant::now();
        let seconds = |n| Some(start + Duration::from_secs(n));
        let times: Vec<_> = (0..6).map(|sent| AnnouncementSchedule::default().repeat(start, sent)).collect();
        assert_eq!(times, [seconds(0), seconds(1), seconds(3), seconds(7), seconds(15), None]);
    }

    #[test]
    fn the_page_has_the_schedule_and_the_rates_of_the_code() {
        let Pacing { interval, least, .. } = Pacing::default();
        let rate = |time: Duration| Duration::from_secs(1).as_millis() / time.as_millis();
        let (all, at_once, repeats) = (rate(least), AT_ONCE.as_millis() / least.as_millis(), rate(interval));
        assert_eq!((all, AnnouncementSchedule::default().0.len()), (1_000, 4));
        for words in [
            "It repeats this after 1, 3, 7 and 15 seconds".to_owned(),
            format!("at most 1,000 frames a second (`--announce-rate`), and {at_once} at once"),
            format!("repeats have a limit of {repeats} frames a second"),
            format!("one round of 100 IPv4 VIPs takes {} seconds", 100 * 2 / repeats),
        ] {
            assert_says(FAILOVER, &words);
        }
    }

    #[test]
    fn offsets_that_do_not_grow_are_refused() {
        for offsets in [vec![0], vec![2, 2], vec![1, 3, 2]] {
            assert!(AnnouncementSchedule::new(offsets.into_iter().map(Duration::from_secs).collect()).is_err());
        }
        assert!(AnnouncementSchedule::new(vec![]).is_ok(), "a burst of one round");
    }
}
