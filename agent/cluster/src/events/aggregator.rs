//! Decides what becomes an Event of its own, is counted in an earlier one, or is dropped. Without
//! clock or I/O.

use std::{collections::BTreeMap, time::Duration};

use super::Regarding;
use vipmux_allocate::status::EventContent;

/// A repetition within this time is counted in the first Event.
const SERIES_WINDOW: Duration = Duration::from_mins(6);
/// The limit for one Service: so many at once, and one more in this time.
const SERVICE_LIMIT: EventLimit = EventLimit { burst: 10, each: Duration::from_secs(30) };
/// The limit for all Services together.
const TOTAL_LIMIT: EventLimit = EventLimit { burst: 100, each: Duration::from_millis(50) };

type EventKey = (Regarding, EventContent);

/// The action for an occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventAction {
    /// Create an Event whose name has this suffix.
    Create(String),
    /// Set the count of the Event with this suffix.
    Count(String, i32),
    /// Drop it: there were too many about this Service.
    Drop,
}

/// The recent Events, and the state of the limits.
#[derive(Debug, Default)]
pub(super) struct EventAggregator {
    series: BTreeMap<EventKey, EventSeries>,
    /// The time when the next Event would be due if each had waited for its time.
    due: Duration,
    due_by_service: BTreeMap<Regarding, Duration>,
    /// Counts Events, so that two at the same time have different names.
    count: u32,
}

#[derive(Debug)]
struct EventSeries {
    suffix: String,
    count: i32,
    at: Duration,
}

#[derive(Clone, Copy)]
struct EventLimit {
    burst: u32,
    each: Duration,
}

impl EventLimit {
    /// Returns the earliest time for another Event. `due`: when it would be due without a burst.
    fn earliest(self, due: Duration) -> Duration {
        due.saturating_sub(self.each * (self.burst - 1))
    }
}

impl EventAggregator {
    /// Returns how long to wait until the total limit allows another Event.
    pub(super) fn wait(&self, now: Duration) -> Duration {
        TOTAL_LIMIT.earliest(self.due).saturating_sub(now)
    }

    /// Decides what to do about an event at `now`.
    pub(super) fn next_action(&mut self, key: EventKey, now: Duration) -> EventAction {
        self.series.retain(|_, series| now.saturating_sub(series.at) < SERIES_WINDOW);
        self.due_by_service.retain(|_, due| *due > now);
        let due = self.due_by_service.entry(key.0.clone()).or_insert(now);
        if SERVICE_LIMIT.earliest(*due) > now {
            return EventAction::Drop;
        }
        *due += SERVICE_LIMIT.each;
        self.due = self.due.max(now) + TOTAL_LIMIT.each;
        if let Some(series) = self.series.get_mut(&key) {
            series.count = series.count.saturating_add(1);
            series.at = now;
            return EventAction::Count(series.suffix.clone(), series.count);
        }
        self.count = self.count.wrapping_add(1);
        let suffix = format!("{:x}{:04x}", now.as_nanos(), self.count & 0xffff);
        self.series.insert(key, EventSeries { suffix: suffix.clone(), count: 1, at: now });
        EventAction::Create(suffix)
    }

    /// Forgets the Event, since it may not exist: the next time a new one is created.
    pub(super) fn failed(&mut self, key: &EventKey) {
        self.series.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_allocate::status::EventType;

    fn key(name: &str, note: &str) -> EventKey {
        let regarding = Regarding { namespace: "shop".to_owned(), name: name.to_owned(), uid: "1".to_owned() };
        (regarding, EventContent::new(EventType::Warning, "PortConflict", note))
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn repeated_events_are_counted() {
        let mut aggregator = EventAggregator::default();
        let EventAction::Create(first) = aggregator.next_action(key("a", "x"), s(1)) else { panic!() };
        assert_eq!(aggregator.next_action(key("a", "x"), s(100)), EventAction::Count(first.clone(), 2));
        assert_eq!(aggregator.next_action(key("a", "x"), s(400)), EventAction::Count(first.clone(), 3), "it goes on");
        let EventAction::Create(second) = aggregator.next_action(key("a", "y"), s(400)) else { panic!() };
        let EventAction::Create(third) = aggregator.next_action(key("b", "x"), s(400)) else { panic!() };
        let EventAction::Create(fourth) = aggregator.next_action(key("a", "x"), s(800)) else {
            panic!("it was long ago")
        };
        aggregator.failed(&key("a", "x"));
        let EventAction::Create(fifth) = aggregator.next_action(key("a", "x"), s(801)) else {
            panic!("there was none")
        };
        let names = std::collections::BTreeSet::from([first, second, third, fourth, fifth]);
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn the_events_of_one_service_are_limited() {
        let mut aggregator = EventAggregator::default();
        let mut made = |now| aggregator.next_action(key("a", &now_text(now)), now) != EventAction::Drop;
        let at_once = (0..100).filter(|millis| made(s(1) + Duration::from_millis(*millis))).count();
        assert_eq!(at_once, 10);
        let later = (2..302).filter(|second| made(s(*second))).count();
        assert!((9..=10).contains(&later), "{later}");
    }

    #[test]
    fn all_events_together_are_limited() {
        let mut aggregator = EventAggregator::default();
        let mut now = s(1);
        for index in 0..1_000 {
            now += aggregator.wait(now);
            assert_ne!(aggregator.next_action(key(&format!("s{index}"), "x"), now), EventAction::Drop);
        }
        let took = now.as_millis() - 1_000;
        assert!((44_000..46_000).contains(&took), "{took} ms");
    }

    fn now_text(now: Duration) -> String {
        format!("{now:?}")
    }
}
