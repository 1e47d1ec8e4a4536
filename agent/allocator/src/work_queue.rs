//! Orders the writes and limits their rate. Without clock or I/O.
//!
//! Each object is queued once, however often it changes. Few writes run at a time, and only so many
//! start in a second. What failed is retried later and later.

#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher as _},
    time::Duration,
};

use twox_hash::XxHash64;

/// Limits of the writes.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    /// Writes in flight at a time.
    pub max_in_flight: usize,
    /// The time from one write to the next.
    pub interval: Duration,
    /// So many writes may start early.
    pub burst: u32,
    /// The back-off after a first failure. Each further failure doubles it.
    pub backoff: Duration,
    /// The longest back-off.
    pub backoff_max: Duration,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextWork<K> {
    /// Write this object now.
    Start(K),
    /// Nothing before this time.
    WaitUntil(Duration),
    /// Nothing until an object is put in or a write is done.
    Idle,
}

/// The result of a write, for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkResult {
    /// There is nothing to retry.
    Succeeded,
    /// The object has another version, or is gone. The next write of the object waits, unless
    /// [`WorkQueue::end_conflict`] tells that there is a newer version.
    Conflict,
    /// The next write of the object waits.
    Failed,
}

/// The queue of writes. All times are of one clock.
#[derive(Debug)]
pub struct WorkQueue<K> {
    rate_limit: RateLimit,
    waiting: BTreeMap<K, Queued>,
    in_flight: BTreeSet<K>,
    failed: BTreeMap<K, Backoff>,
    /// The time when the next write would start if each one before had waited for its own time.
    due: Duration,
    /// Counts what is put in, for the order.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    urgency: u8,
    number: u64,
    not_before: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Backoff {
    times: u32,
    until: Duration,
    /// The last result was a conflict.
    conflict: bool,
}

impl<K: Clone + Hash + Ord> WorkQueue<K> {
    /// Returns an empty queue.
    pub fn new(rate_limit: RateLimit) -> Self {
        Self {
            rate_limit,
            waiting: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            failed: BTreeMap::new(),
            due: Duration::ZERO,
            count: 0,
        }
    }

    /// Queues a write, not before that time. Lower urgency goes first. An object that waits already
    /// keeps its place or gets a better one.
    pub fn put(&mut self, key: K, urgency: u8, not_before: Duration) {
        self.count += 1;
        let new = Queued { urgency, number: self.count, not_before };
        let waiting = self.waiting.entry(key).or_insert(new);
        *waiting = Queued {
            urgency: waiting.urgency.min(urgency),
            number: waiting.number,
            not_before: waiting.not_before.min(not_before),
        };
    }

    /// Ends a write that was to start and has nothing to write any more. It counts neither as a
    /// success nor as a failure.
    pub fn skip(&mut self, key: &K) {
        self.in_flight.remove(key);
    }

    /// Returns the objects that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &K> {
        self.waiting.keys()
    }

    /// Returns whether a write of this object is in flight.
    pub fn is_in_flight(&self, key: &K) -> bool {
        self.in_flight.contains(key)
    }

    /// Returns the number of writes in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the next thing to do. What starts has to be reported to [`done`](Self::done).
    pub fn next(&mut self, now: Duration) -> NextWork<K> {
        let next = self.peek(now);
        if let NextWork::Start(key) = &next {
            self.due = self.due.max(now) + self.rate_limit.interval;
            self.waiting.remove(key);
            self.in_flight.insert(key.clone());
        }
        next
    }

    /// Returns the next thing to do without starting it.
    pub fn peek(&self, now: Duration) -> NextWork<K> {
        if self.in_flight.len() >= self.rate_limit.max_in_flight {
            return NextWork::Idle;
        }
        let ready_at = |(key, waiting): &(&K, &Queued)| {
            let failed = self.failed.get(*key).map_or(Duration::ZERO, |failed| failed.until);
            waiting.not_before.max(failed)
        };
        let free = self.waiting.iter().filter(|(key, _)| !self.in_flight.contains(*key));
        let best = free.min_by_key(|entry| (ready_at(entry).saturating_sub(now), entry.1.urgency, entry.1.number));
        let Some(best) = best else { return NextWork::Idle };
        let ahead = self.rate_limit.interval * self.rate_limit.burst;
        let at = ready_at(&best).max(self.due.saturating_sub(ahead));
        if at > now { NextWork::WaitUntil(at) } else { NextWork::Start(best.0.clone()) }
    }

    /// Ends a write. After a failure or a conflict the next write of the object has to wait.
    pub fn done(&mut self, key: &K, result: WorkResult, now: Duration) {
        self.in_flight.remove(key);
        if result == WorkResult::Succeeded {
            self.failed.remove(key);
            return;
        }
        let times = self.failed.get(key).map_or(0, |failed| failed.times);
        let backoff = (self.rate_limit.backoff * 2_u32.saturating_pow(times.min(16))).min(self.rate_limit.backoff_max);
        let until = now + backoff + jitter(key, times, backoff / 4);
        let failed = Backoff { times: times + 1, until, conflict: result == WorkResult::Conflict };
        self.failed.insert(key.clone(), failed);
    }

    /// Ends the wait after a conflict.
    pub fn end_conflict(&mut self, key: &K) {
        if self.failed.get(key).is_some_and(|failed| failed.conflict) {
            self.failed.remove(key);
        }
    }

    /// Removes the waiting objects that `differs` denies, and the back-off of those that `exists`
    /// denies.
    ///
    /// An object that need not be written keeps its back-off: if another controller overwrites it
    /// again and again, it is as desired in between.
    pub fn retain(&mut self, differs: impl Fn(&K) -> bool, exists: impl Fn(&K) -> bool) {
        self.waiting.retain(|key, _| differs(key));
        self.failed.retain(|key, _| exists(key));
    }
}

/// Returns a time up to `most` that differs from key to key, so that objects that failed together
/// do not come back together.
fn jitter<K: Hash>(key: &K, times: u32, most: Duration) -> Duration {
    let mut hasher = XxHash64::with_seed(u64::from(times));
    key.hash(&mut hasher);
    let share = u32::from(u8::try_from(hasher.finish() & 0xff).unwrap_or_default());
    most * share / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE_LIMIT: RateLimit = RateLimit {
        max_in_flight: 2,
        interval: Duration::from_millis(20),
        burst: 3,
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_mins(1),
    };

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn queue(max_in_flight: usize) -> WorkQueue<&'static str> {
        WorkQueue::new(RateLimit { max_in_flight, ..RATE_LIMIT })
    }

    #[test]
    fn urgent_objects_go_first_and_then_the_oldest() {
        let mut queue = queue(9);
        for (key, urgency) in [("a", 1), ("b", 0), ("c", 1), ("a", 1), ("c", 0)] {
            queue.put(key, urgency, ms(0));
        }
        let order: Vec<_> = (0..3).map(|_| queue.next(ms(1_000))).collect();
        assert_eq!(order, [NextWork::Start("b"), NextWork::Start("c"), NextWork::Start("a")]);
        assert_eq!(queue.next(ms(1_000)), NextWork::Idle);
    }

    #[test]
    fn an_object_has_one_write_at_a_time_and_few_writes_run_at_once() {
        let mut queue = queue(2);
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), NextWork::Start("a"));
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), NextWork::Idle, "its write is under way");
        queue.put("b", 0, ms(0));
        queue.put("c", 0, ms(0));
        assert_eq!((queue.next(ms(0)), queue.next(ms(0))), (NextWork::Start("b"), NextWork::Idle));
        queue.done(&"a", WorkResult::Succeeded, ms(1));
        assert_eq!(queue.next(ms(1)), NextWork::Start("a"), "it came before c");
    }

    #[test]
    fn the_rate_of_writes_is_limited() {
        let mut queue: WorkQueue<u32> = WorkQueue::new(RateLimit { max_in_flight: 1, ..RATE_LIMIT });
        (0..1_000).for_each(|key| queue.put(key, 0, ms(0)));
        let (mut now, mut written) = (ms(5_000), 0);
        while now < ms(6_000) {
            match queue.next(now) {
                NextWork::Start(key) => {
                    queue.done(&key, WorkResult::Succeeded, now);
                    written += 1;
                }
                NextWork::WaitUntil(at) => now = at,
                NextWork::Idle => unreachable!(),
            }
        }
        assert!((50..=50 + RATE_LIMIT.burst + 1).contains(&written), "{written}");
    }

    #[test]
    fn an_object_that_fails_waits_longer_and_longer_and_blocks_no_other() {
        let mut queue = queue(2);
        let mut now = ms(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            queue.put("a", 0, now);
            assert_eq!(queue.next(now), NextWork::Start("a"));
            queue.done(&"a", WorkResult::Failed, now);
            queue.put("a", 0, now);
            queue.put("b", 1, now);
            assert_eq!(queue.next(now), NextWork::Start("b"));
            queue.done(&"b", WorkResult::Succeeded, now);
            let NextWork::WaitUntil(at) = queue.next(now) else { panic!() };
            waits.push(at.saturating_sub(now).as_millis());
            now = at;
        }
        for (times, wait) in waits.iter().enumerate() {
            let backoff = (1_000 << times).min(60_000);
            assert!((backoff..=backoff * 5 / 4).contains(wait), "{waits:?}");
        }
        assert_eq!(queue.next(now), NextWork::Start("a"));
        queue.done(&"a", WorkResult::Succeeded, now);
        queue.put("a", 0, now);
        assert_eq!(queue.next(now), NextWork::Start("a"), "it is forgiven");
    }

    #[test]
    fn an_object_that_may_wait_waits_unless_it_becomes_urgent() {
        let mut queue = queue(2);
        queue.put("a", 1, ms(2_000));
        assert_eq!(queue.next(ms(0)), NextWork::WaitUntil(ms(2_000)));
        queue.put("a", 1, ms(2_500));
        assert_eq!(queue.next(ms(0)), NextWork::WaitUntil(ms(2_000)), "changes that follow do not put it off");
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), NextWork::Start("a"));
    }

    #[test]
    fn an_object_that_is_gone_is_forgotten() {
        let mut queue = queue(2);
        queue.put("a", 0, ms(0));
        queue.put("b", 0, ms(0));
        assert_eq!(queue.next(ms(0)), NextWork::Start("a"));
        queue.done(&"a", WorkResult::Failed, ms(0));
        queue.put("a", 0, ms(0));
        queue.retain(|key| *key == "b", |key| *key == "b");
        assert_eq!(queue.next(ms(0)), NextWork::Start("b"));
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), NextWork::Start("a"), "of that name there may be another now");
    }

    #[test]
    fn an_object_without_a_write_for_a_while_keeps_its_back_off() {
        let mut queue = queue(2);
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), NextWork::Start("a"));
        queue.done(&"a", WorkResult::Failed, ms(0));
        queue.put("a", 0, ms(0));
        queue.retain(|_| false, |_| true);
        assert_eq!(queue.next(ms(0)), NextWork::Idle);
        queue.put("a", 0, ms(0));
        let NextWork::WaitUntil(at) = queue.next(ms(0)) else { panic!() };
        assert!(at >= RATE_LIMIT.backoff, "{at:?}");
        assert_eq!(queue.next(at), NextWork::Start("a"));
        queue.skip(&"a");
        queue.put("a", 0, at);
        assert_eq!(queue.next(at), NextWork::Start("a"));
        queue.done(&"a", WorkResult::Failed, at);
        queue.put("a", 0, at);
        let NextWork::WaitUntil(later) = queue.next(at) else { panic!() };
        assert!(later >= at + RATE_LIMIT.backoff * 2, "{at:?} {later:?}");
    }

    #[test]
    fn an_object_with_a_conflict_waits_unless_there_is_a_newer_version() {
        let mut queue = queue(2);
        for result in [WorkResult::Conflict, WorkResult::Failed] {
            queue.put("a", 0, ms(0));
            assert_eq!(queue.next(ms(0)), NextWork::Start("a"));
            queue.done(&"a", result, ms(0));
            queue.put("a", 0, ms(0));
            assert!(matches!(queue.peek(ms(0)), NextWork::WaitUntil(at) if at >= RATE_LIMIT.backoff));
            queue.end_conflict(&"a");
            let waits = matches!(queue.peek(ms(0)), NextWork::WaitUntil(_));
            assert_eq!(waits, result == WorkResult::Failed, "{result:?}");
        }
    }
}
