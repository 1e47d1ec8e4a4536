//! Tests the schedule of health probes.

use std::net::{IpAddr, SocketAddr};

use super::*;
use vipmux_model::probe::Check;

const INTERVAL: Duration = Duration::from_secs(10);
const START: Duration = Duration::from_secs(1_000);

fn key(n: u8) -> HealthKey {
    HealthKey { address: [10, 0, 0, n].into(), port: 8080, check: 1 }
}

/// `10.0.0.n`, down after two failures, each in a namespace.
fn checkups(of: &[(u8, &str)]) -> Checkups {
    let one = |(n, namespace): &(u8, &str)| {
        let to = SocketAddr::from(([10, 0, 0, *n], 8080));
        let checkup = Checkup { to, check: Check::Tcp, interval: INTERVAL, failures: 2 };
        (key(*n), (checkup, Arc::from(*namespace)))
    };
    Checkups { all: of.iter().map(one).collect(), ..Checkups::default() }
}

fn failure() -> Result<(), String> {
    Err("no connection".to_owned())
}

/// Makes the next attempt of the only checkup, in no time. Returns its time and the change.
fn attempt(schedule: &mut ProbeSchedule, outcome: Result<(), String>) -> (Duration, Option<HealthChange>) {
    let now = schedule.next().unwrap();
    assert_eq!(schedule.start(now.saturating_sub(Duration::from_nanos(1))), None, "too early");
    let attempt = schedule.start(now).unwrap();
    assert_eq!(schedule.next(), None, "two at a time");
    (now, schedule.finish(attempt.serial, outcome, now))
}

fn one() -> ProbeSchedule {
    let mut schedule = ProbeSchedule::new(7);
    schedule.want(&checkups(&[(1, "shop")]), START);
    schedule
}

#[test]
fn so_many_failures_in_a_row_bring_a_backend_down_and_one_success_brings_it_up() {
    let mut schedule = one();
    // Each attempt's success, the change that it causes, and the result that is known then.
    let known = |schedule: &ProbeSchedule| schedule.findings().get(&key(1)).map(|finding| finding.up);
    let expected = [
        (false, None, None),
        (true, None, Some(true)),
        (false, None, Some(true)),
        (true, None, Some(true)),
        (false, None, Some(true)),
        (false, Some("down"), Some(false)),
        (false, None, Some(false)),
        (true, Some("up"), Some(true)),
        (false, None, Some(true)),
        (false, Some("down"), Some(false)),
    ];
    for (i, (succeeds, change, then)) in expected.into_iter().enumerate() {
        let (_, changed) = attempt(&mut schedule, if succeeds { Ok(()) } else { failure() });
        let changed = changed.map(|change| if change.error.is_some() { "down" } else { "up" });
        assert_eq!((changed, known(&schedule)), (change, then), "attempt {i}");
    }
}

#[test]
fn a_backend_that_never_answered_is_down_after_as_many_failures_with_the_last_error() {
    let mut schedule = one();
    assert_eq!(attempt(&mut schedule, failure()).1, None);
    assert_eq!(schedule.findings().len(), 0, "it counts as up until then");
    let (since, change) = attempt(&mut schedule, failure());
    assert_eq!(change, Some(HealthChange { key: key(1), error: Some("no connection".to_owned()) }));
    attempt(&mut schedule, Err("status 503".to_owned()));
    let expected = CheckupResult { up: false, since, error: Some("status 503".to_owned()) };
    assert_eq!(schedule.findings().get(&key(1)), Some(&expected));
    let (since, _) = attempt(&mut schedule, Ok(()));
    assert_eq!(schedule.findings().get(&key(1)), Some(&CheckupResult { up: true, since, error: None }));
}

#[test]
fn first_attempts_are_spread_and_later_ones_an_interval_apart_a_tenth_more_or_less() {
    let mut schedule = ProbeSchedule::new(1);
    let all: Vec<_> = (0..100).map(|n| (n, "shop")).collect();
    schedule.want(&checkups(&all), START);
    let firsts: Vec<_> = schedule.queue.iter().map(|(due, _)| *due).collect();
    assert!(firsts.iter().all(|due| (START..START + INTERVAL).contains(due)));
    for tenth in 0..10 {
        let within = START + INTERVAL * tenth / 10..START + INTERVAL * (tenth + 1) / 10;
        assert!(firsts.iter().any(|due| within.contains(due)), "none in tenth {tenth}");
    }
    let mut schedule = one();
    let times: Vec<_> = (0..200).map(|_| attempt(&mut schedule, Ok(())).0).collect();
    let gaps: BTreeSet<_> = times.windows(2).map(|pair| pair[1].abs_diff(pair[0])).collect();
    assert!(*gaps.first().unwrap() >= INTERVAL * 9 / 10 && *gaps.last().unwrap() <= INTERVAL * 11 / 10, "{gaps:?}");
    assert!(gaps.len() > 50, "{gaps:?}");
    assert_ne!(ProbeSchedule::new(1).permille(0..1000), ProbeSchedule::new(2).permille(0..1000));
}

#[test]
fn the_next_attempt_waits_for_the_end_of_a_slow_one() {
    let mut schedule = one();
    let begin = schedule.next().unwrap();
    let slow = schedule.start(begin).unwrap();
    let end = begin + INTERVAL * 3;
    assert_eq!(schedule.start(end), None);
    schedule.finish(slow.serial, Ok(()), end);
    assert_eq!(schedule.next(), Some(end));
}

#[test]
fn new_checkups_leave_those_that_stay_as_they_are() {
    let mut schedule = one();
    (0..2).for_each(|_| drop(attempt(&mut schedule, failure())));
    let next = schedule.next();
    schedule.want(&checkups(&[(1, "shop"), (2, "shop")]), START);
    assert_eq!(schedule.findings().get(&key(1)).map(|finding| finding.up), Some(false));
    schedule.want(&checkups(&[(1, "other")]), START);
    assert_eq!(schedule.next(), next);
    schedule.want(&Checkups::default(), START);
    assert_eq!((schedule.next(), schedule.findings().len()), (None, 0));
}

#[test]
fn an_attempt_of_a_removed_checkup_has_no_effect_on_its_successor() {
    let mut schedule = one();
    attempt(&mut schedule, failure());
    let begin = schedule.next().unwrap();
    let old = schedule.start(begin).unwrap();
    schedule.want(&Checkups::default(), begin);
    schedule.want(&checkups(&[(1, "shop")]), begin);
    assert_eq!(schedule.running.len(), 1, "it takes a place as long as it runs");
    let new = schedule.start(begin + INTERVAL).unwrap();
    assert_eq!(schedule.finish(old.serial, failure(), begin + INTERVAL), None);
    assert_eq!(schedule.finish(new.serial, failure(), begin + INTERVAL), None, "it is the first failure");
    assert_eq!(schedule.finish(new.serial, failure(), begin + INTERVAL), None, "nothing has this number any more");
    assert!(schedule.findings().is_empty() && schedule.running.is_empty());
}

#[test]
fn attempts_under_way_are_bounded_for_each_namespace_and_in_all() {
    let mut schedule = ProbeSchedule::new(3);
    let slow: Vec<_> = (0..100).map(|n| (n, "slow")).collect();
    schedule.want(&checkups(&slow), START);
    let late = START + INTERVAL;
    let running: Vec<_> = std::iter::from_fn(|| schedule.start(late)).collect();
    assert_eq!((running.len(), schedule.next()), (MOST_OF_NAMESPACE, None));
    let others = (100..200).map(|n| (n, if n % 2 == 0 { "even" } else { "odd" }));
    let all: Vec<_> = slow.iter().copied().chain(others).collect();
    schedule.want(&checkups(&all), START);
    let others: Vec<_> = std::iter::from_fn(|| schedule.start(late)).collect();
    assert_eq!(others.len(), MOST_ATTEMPTS - MOST_OF_NAMESPACE);
    assert!(others.iter().all(|attempt| attempt.checkup.to.ip() >= IpAddr::from([10, 0, 0, 100])));
    assert_eq!(schedule.next(), None);
    schedule.finish(others[0].serial, Ok(()), late);
    assert!(schedule.start(late).unwrap().checkup.to.ip() >= IpAddr::from([10, 0, 0, 100]));
}

#[test]
fn the_checkup_that_waits_longest_goes_first() {
    let mut schedule = ProbeSchedule::new(9);
    let all: Vec<_> = (0..20).map(|n| (n, "shop")).collect();
    schedule.want(&checkups(&all), START);
    let expected: Vec<_> = schedule.queue.iter().map(|(_, key)| key.address).collect();
    let late = START + INTERVAL;
    let order: Vec<_> = std::iter::from_fn(|| schedule.start(late)).map(|attempt| attempt.checkup.to.ip()).collect();
    assert_eq!(order, expected);
}
