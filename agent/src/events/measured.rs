//! How many Events, and which of them are one. Without clock or I/O.

use std::{collections::BTreeMap, time::Duration};

use super::Regarding;
use crate::status::News;

/// What is said again within this time is counted in the Event that said it.
const SERIES: Duration = Duration::from_mins(6);
/// Events of one Service: so many at once, and one more in this time.
const OF_ONE: Bucket = Bucket { burst: 10, each: Duration::from_secs(30) };
/// Of all together.
const OF_ALL: Bucket = Bucket { burst: 100, each: Duration::from_millis(50) };

type Key = (Regarding, News);

/// What to do about something that is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Make an Event whose name ends so.
    Make(String),
    /// Say of that one that it came so often.
    Count(String, i32),
    /// It was told too often.
    LeaveOut,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Measured {
    recent: BTreeMap<Key, Recent>,
    /// When the next Event would be in its time.
    due: Duration,
    due_of: BTreeMap<Regarding, Duration>,
    /// Numbers Events, so that two at one time have two names.
    count: u32,
}

#[derive(Debug)]
struct Recent {
    suffix: String,
    count: i32,
    at: Duration,
}

#[derive(Clone, Copy)]
struct Bucket {
    burst: u32,
    each: Duration,
}

impl Bucket {
    /// When there is room for another, by when the next one is due.
    fn at(self, due: Duration) -> Duration {
        due.saturating_sub(self.each * (self.burst - 1))
    }
}

impl Measured {
    /// How long to wait until there is room for another.
    pub(super) fn wait(&self, now: Duration) -> Duration {
        OF_ALL.at(self.due).saturating_sub(now)
    }

    /// What to do about this.
    pub(super) fn step(&mut self, key: Key, now: Duration) -> Step {
        self.recent.retain(|_, recent| now.saturating_sub(recent.at) < SERIES);
        self.due_of.retain(|_, due| *due > now);
        let due = self.due_of.entry(key.0.clone()).or_insert(now);
        if OF_ONE.at(*due) > now {
            return Step::LeaveOut;
        }
        *due += OF_ONE.each;
        self.due = self.due.max(now) + OF_ALL.each;
        if let Some(recent) = self.recent.get_mut(&key) {
            recent.count = recent.count.saturating_add(1);
            recent.at = now;
            return Step::Count(recent.suffix.clone(), recent.count);
        }
        self.count = self.count.wrapping_add(1);
        let suffix = format!("{:x}{:04x}", now.as_nanos(), self.count & 0xffff);
        self.recent.insert(key, Recent { suffix: suffix.clone(), count: 1, at: now });
        Step::Make(suffix)
    }

    /// There is no such Event, for all that is known: the next one is made anew.
    pub(super) fn failed(&mut self, key: &Key) {
        self.recent.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Weight;

    fn key(name: &str, note: &str) -> Key {
        let regarding = Regarding { namespace: "shop".to_owned(), name: name.to_owned(), uid: "1".to_owned() };
        (regarding, News::new(Weight::Warning, "PortConflict", note))
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_said_again_is_counted() {
        let mut measured = Measured::default();
        let Step::Make(first) = measured.step(key("a", "x"), s(1)) else { panic!() };
        assert_eq!(measured.step(key("a", "x"), s(100)), Step::Count(first.clone(), 2));
        assert_eq!(measured.step(key("a", "x"), s(400)), Step::Count(first.clone(), 3), "it goes on");
        let Step::Make(second) = measured.step(key("a", "y"), s(400)) else { panic!() };
        let Step::Make(third) = measured.step(key("b", "x"), s(400)) else { panic!() };
        let Step::Make(fourth) = measured.step(key("a", "x"), s(800)) else { panic!("it was long ago") };
        measured.failed(&key("a", "x"));
        let Step::Make(fifth) = measured.step(key("a", "x"), s(801)) else { panic!("there was none") };
        let names = std::collections::BTreeSet::from([first, second, third, fourth, fifth]);
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn one_service_makes_so_many_and_no_more() {
        let mut measured = Measured::default();
        let mut made = |now| measured.step(key("a", &now_text(now)), now) != Step::LeaveOut;
        let at_once = (0..100).filter(|millis| made(s(1) + Duration::from_millis(*millis))).count();
        assert_eq!(at_once, 10);
        let later = (2..302).filter(|second| made(s(*second))).count();
        assert!((9..=10).contains(&later), "{later}");
    }

    #[test]
    fn all_together_wait_for_their_turn() {
        let mut measured = Measured::default();
        let mut now = s(1);
        for index in 0..1_000 {
            now += measured.wait(now);
            assert_ne!(measured.step(key(&format!("s{index}"), "x"), now), Step::LeaveOut);
        }
        let took = now.as_millis() - 1_000;
        assert!((44_000..46_000).contains(&took), "{took} ms");
    }

    fn now_text(now: Duration) -> String {
        format!("{now:?}")
    }
}
