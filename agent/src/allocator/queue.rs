//! What is to be written, in order and with measure: each object once, however often it changes; few at a time; so many a
//! second; what failed later and later. Without clock or I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher as _},
    time::Duration,
};

use twox_hash::XxHash64;

/// How much at once, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Writes under way.
    pub at_once: usize,
    /// From one write to the next.
    pub pace: Duration,
    /// So many may come before their time.
    pub burst: u32,
    /// The wait after a first failure; each further one doubles it.
    pub backoff: Duration,
    /// The longest one.
    pub backoff_max: Duration,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<K> {
    /// Write this one now.
    Begin(K),
    /// Nothing before this time.
    At(Duration),
    /// Nothing, until something is put in or done.
    Nothing,
}

/// See the module. Times are of one clock.
#[derive(Debug)]
pub struct Queue<K> {
    measure: Measure,
    waiting: BTreeMap<K, Waiting>,
    under_way: BTreeSet<K>,
    failed: BTreeMap<K, Failed>,
    /// When the next write would be in its time if each before it had waited for its own.
    due: Duration,
    /// Numbers what comes in.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    urgency: u8,
    number: u64,
    not_before: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    times: u32,
    until: Duration,
}

impl<K: Clone + Hash + Ord> Queue<K> {
    /// An empty one.
    pub fn new(measure: Measure) -> Self {
        Self {
            measure,
            waiting: BTreeMap::new(),
            under_way: BTreeSet::new(),
            failed: BTreeMap::new(),
            due: Duration::ZERO,
            count: 0,
        }
    }

    /// This one is to be written, not before that time; lower urgency goes first. One that waits already keeps its place, or
    /// gets a better one.
    pub fn put(&mut self, key: K, urgency: u8, not_before: Duration) {
        self.count += 1;
        let new = Waiting { urgency, number: self.count, not_before };
        let waiting = self.waiting.entry(key).or_insert(new);
        *waiting = Waiting {
            urgency: waiting.urgency.min(urgency),
            number: waiting.number,
            not_before: waiting.not_before.min(not_before),
        };
    }

    /// This one was to begin, and has nothing to be written any more: that is neither well nor failed.
    pub fn skip(&mut self, key: &K) {
        self.under_way.remove(key);
    }

    /// Those that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &K> {
        self.waiting.keys()
    }

    /// Whether a write of this one is under way.
    pub fn is_under_way(&self, key: &K) -> bool {
        self.under_way.contains(key)
    }

    /// How many writes are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// What is to be done next. What begins is to be [`done`](Self::done).
    pub fn next(&mut self, now: Duration) -> Next<K> {
        let next = self.peek(now);
        if let Next::Begin(key) = &next {
            self.due = self.due.max(now) + self.measure.pace;
            self.waiting.remove(key);
            self.under_way.insert(key.clone());
        }
        next
    }

    /// The same, without beginning it.
    pub fn peek(&self, now: Duration) -> Next<K> {
        if self.under_way.len() >= self.measure.at_once {
            return Next::Nothing;
        }
        let ready_at = |(key, waiting): &(&K, &Waiting)| {
            let failed = self.failed.get(*key).map_or(Duration::ZERO, |failed| failed.until);
            waiting.not_before.max(failed)
        };
        let free = self.waiting.iter().filter(|(key, _)| !self.under_way.contains(*key));
        let best = free.min_by_key(|entry| (ready_at(entry).saturating_sub(now), entry.1.urgency, entry.1.number));
        let Some(best) = best else { return Next::Nothing };
        let ahead = self.measure.pace * self.measure.burst;
        let at = ready_at(&best).max(self.due.saturating_sub(ahead));
        if at > now { Next::At(at) } else { Next::Begin(best.0.clone()) }
    }

    /// A write has ended well: or it failed, and the next one of the same is to wait.
    pub fn done(&mut self, key: &K, well: bool, now: Duration) {
        self.under_way.remove(key);
        if well {
            self.failed.remove(key);
            return;
        }
        let times = self.failed.get(key).map_or(0, |failed| failed.times);
        let backoff = (self.measure.backoff * 2_u32.saturating_pow(times.min(16))).min(self.measure.backoff_max);
        let failed = Failed { times: times + 1, until: now + backoff + spread(key, times, backoff / 4) };
        self.failed.insert(key.clone(), failed);
    }

    /// Nothing waits for those that `differs` denies, and of those that `exists` denies it is forgotten that they ever failed: what
    /// is overwritten by another time and again is as it should be in between.
    pub fn retain(&mut self, differs: impl Fn(&K) -> bool, exists: impl Fn(&K) -> bool) {
        self.waiting.retain(|key, _| differs(key));
        self.failed.retain(|key, _| exists(key));
    }
}

/// A time up to `most` that differs from key to key, so that what failed at once does not come back at once.
fn spread<K: Hash>(key: &K, times: u32, most: Duration) -> Duration {
    let mut hasher = XxHash64::with_seed(u64::from(times));
    key.hash(&mut hasher);
    let share = u32::from(u8::try_from(hasher.finish() & 0xff).unwrap_or_default());
    most * share / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURE: Measure = Measure {
        at_once: 2,
        pace: Duration::from_millis(20),
        burst: 3,
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_mins(1),
    };

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn queue(at_once: usize) -> Queue<&'static str> {
        Queue::new(Measure { at_once, ..MEASURE })
    }

    #[test]
    fn what_is_urgent_goes_first_and_then_what_came_first() {
        let mut queue = queue(9);
        for (key, urgency) in [("a", 1), ("b", 0), ("c", 1), ("a", 1), ("c", 0)] {
            queue.put(key, urgency, ms(0));
        }
        let order: Vec<_> = (0..3).map(|_| queue.next(ms(1_000))).collect();
        assert_eq!(order, [Next::Begin("b"), Next::Begin("c"), Next::Begin("a")]);
        assert_eq!(queue.next(ms(1_000)), Next::Nothing);
    }

    #[test]
    fn an_object_is_written_by_one_at_a_time_and_few_objects_at_once() {
        let mut queue = queue(2);
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), Next::Begin("a"));
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), Next::Nothing, "its write is under way");
        queue.put("b", 0, ms(0));
        queue.put("c", 0, ms(0));
        assert_eq!((queue.next(ms(0)), queue.next(ms(0))), (Next::Begin("b"), Next::Nothing));
        queue.done(&"a", true, ms(1));
        assert_eq!(queue.next(ms(1)), Next::Begin("a"), "it came before c");
    }

    #[test]
    fn so_many_are_written_in_a_second() {
        let mut queue: Queue<u32> = Queue::new(Measure { at_once: 1, ..MEASURE });
        (0..1_000).for_each(|key| queue.put(key, 0, ms(0)));
        let (mut now, mut written) = (ms(5_000), 0);
        while now < ms(6_000) {
            match queue.next(now) {
                Next::Begin(key) => {
                    queue.done(&key, true, now);
                    written += 1;
                }
                Next::At(at) => now = at,
                Next::Nothing => unreachable!(),
            }
        }
        assert!((50..=50 + MEASURE.burst + 1).contains(&written), "{written}");
    }

    #[test]
    fn what_fails_waits_longer_and_longer_and_holds_nobody_up() {
        let mut queue = queue(2);
        let mut now = ms(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            queue.put("a", 0, now);
            assert_eq!(queue.next(now), Next::Begin("a"));
            queue.done(&"a", false, now);
            queue.put("a", 0, now);
            queue.put("b", 1, now);
            assert_eq!(queue.next(now), Next::Begin("b"));
            queue.done(&"b", true, now);
            let Next::At(at) = queue.next(now) else { panic!() };
            waits.push(at.saturating_sub(now).as_millis());
            now = at;
        }
        for (times, wait) in waits.iter().enumerate() {
            let backoff = (1_000 << times).min(60_000);
            assert!((backoff..=backoff * 5 / 4).contains(wait), "{waits:?}");
        }
        assert_eq!(queue.next(now), Next::Begin("a"));
        queue.done(&"a", true, now);
        queue.put("a", 0, now);
        assert_eq!(queue.next(now), Next::Begin("a"), "it is forgiven");
    }

    #[test]
    fn what_may_wait_waits_unless_it_becomes_urgent() {
        let mut queue = queue(2);
        queue.put("a", 1, ms(2_000));
        assert_eq!(queue.next(ms(0)), Next::At(ms(2_000)));
        queue.put("a", 1, ms(2_500));
        assert_eq!(queue.next(ms(0)), Next::At(ms(2_000)), "changes that follow do not put it off");
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), Next::Begin("a"));
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let mut queue = queue(2);
        queue.put("a", 0, ms(0));
        queue.put("b", 0, ms(0));
        assert_eq!(queue.next(ms(0)), Next::Begin("a"));
        queue.done(&"a", false, ms(0));
        queue.put("a", 0, ms(0));
        queue.retain(|key| *key == "b", |key| *key == "b");
        assert_eq!(queue.next(ms(0)), Next::Begin("b"));
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), Next::Begin("a"), "of that name there may be another now");
    }

    #[test]
    fn who_has_nothing_to_be_written_for_a_while_is_not_forgiven() {
        let mut queue = queue(2);
        queue.put("a", 0, ms(0));
        assert_eq!(queue.next(ms(0)), Next::Begin("a"));
        queue.done(&"a", false, ms(0));
        queue.put("a", 0, ms(0));
        queue.retain(|_| false, |_| true);
        assert_eq!(queue.next(ms(0)), Next::Nothing);
        queue.put("a", 0, ms(0));
        let Next::At(at) = queue.next(ms(0)) else { panic!() };
        assert!(at >= MEASURE.backoff, "{at:?}");
        assert_eq!(queue.next(at), Next::Begin("a"));
        queue.skip(&"a");
        queue.put("a", 0, at);
        assert_eq!(queue.next(at), Next::Begin("a"));
        queue.done(&"a", false, at);
        queue.put("a", 0, at);
        let Next::At(later) = queue.next(at) else { panic!() };
        assert!(later >= at + MEASURE.backoff * 2, "{at:?} {later:?}");
    }
}
