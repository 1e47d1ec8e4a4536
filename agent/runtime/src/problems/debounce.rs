//! Finds when a condition begins and ends, so that each is logged once.

use std::time::Duration;

/// A condition that comes and goes. It begins when it has been there for a while, and ends when it
/// has been away for a while. So one that flaps is one that lasts.
#[derive(Debug)]
pub(crate) struct Debounce {
    /// The time that it must be there.
    begins_after: Duration,
    /// The time that it must be away.
    ends_after: Duration,
    /// Whether it was there at the last look.
    there: bool,
    /// The time since which `there` has its value.
    since: Duration,
    /// The time since which the condition that has begun is there.
    begun: Option<Duration>,
}

/// A change of a [`Debounce`] condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebounceChange {
    /// It has begun.
    Began,
    /// It has ended, after this time.
    Ended(Duration),
}

impl Debounce {
    /// Returns a condition that is not there.
    pub(crate) const fn new(begins_after: Duration, ends_after: Duration) -> Self {
        Self { begins_after, ends_after, there: false, since: Duration::ZERO, begun: None }
    }

    /// Takes a look at `now`, `CLOCK_BOOTTIME`.
    pub(crate) fn look(&mut self, there: bool, now: Duration) -> Option<DebounceChange> {
        if there != self.there {
            (self.there, self.since) = (there, now);
        }
        let lasts = now.saturating_sub(self.since);
        match self.begun {
            None if there && lasts >= self.begins_after => {
                self.begun = Some(self.since);
                Some(DebounceChange::Began)
            }
            Some(begun) if !there && lasts >= self.ends_after => {
                self.begun = None;
                Some(DebounceChange::Ended(self.since.saturating_sub(begun)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_condition_begins_and_ends_once_however_often_it_flaps() {
        let mut lasting = Debounce::new(Duration::ZERO, s(10));
        assert_eq!(lasting.look(false, s(100)), None);
        assert_eq!(lasting.look(true, s(101)), Some(DebounceChange::Began));
        for second in 102..150 {
            assert_eq!(lasting.look(second % 5 == 0, s(second)), None, "{second}");
        }
        assert_eq!(lasting.look(false, s(155)), None);
        assert_eq!(lasting.look(false, s(156)), Some(DebounceChange::Ended(s(45))));
        assert_eq!(lasting.look(false, s(200)), None);
        assert_eq!(lasting.look(true, s(201)), Some(DebounceChange::Began));
    }

    #[test]
    fn a_condition_that_is_short_never_begins() {
        let mut lasting = Debounce::new(s(60), Duration::ZERO);
        for second in 100..200 {
            assert_eq!(lasting.look(second % 30 != 0, s(second)), None, "{second}");
        }
        assert_eq!(lasting.look(true, s(240)), None, "away at 180");
        assert_eq!(lasting.look(true, s(241)), Some(DebounceChange::Began));
        assert_eq!(lasting.look(false, s(242)), Some(DebounceChange::Ended(s(61))));
    }
}
