use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn record(holder: &str, version: &str) -> Record {
    Record { holder: holder.to_owned(), duration: DURATION, transitions: 3, version: version.to_owned() }
}

fn proposal(mandate: &mut Mandate, now: Duration) -> Proposal {
    match mandate.step(now) {
        Step::Write(proposal) => proposal,
        other => panic!("{other:?}"),
    }
}

/// One that took a Lease that was not there, at second 0.
fn holding() -> Mandate {
    let mut mandate = Mandate::new("a");
    assert_eq!(mandate.step(s(0)), Step::Read);
    mandate.read(Found::Nothing, s(0));
    let made = proposal(&mut mandate, s(0));
    let expected = Proposal { expected: None, holder: "a".to_owned(), transitions: 0, acquires: true };
    assert_eq!(made, expected);
    mandate.wrote(&made, s(0), Written::Done("1".to_owned()), s(1));
    mandate
}

#[test]
fn what_nobody_holds_is_taken_at_once_and_renewed() {
    let mut mandate = holding();
    assert_eq!((mandate.until(s(1)), mandate.holder()), (Some(s(10)), Some("a")));
    assert_eq!(mandate.step(s(1)), Step::Wait(s(5)));
    let renewal = proposal(&mut mandate, s(5));
    assert_eq!((renewal.expected.as_deref(), renewal.transitions, renewal.acquires), (Some("1"), 0, false));
    // It counts from when it was begun, since that is the earliest that anybody may have seen it.
    mandate.wrote(&renewal, s(5), Written::Done("2".to_owned()), s(9));
    assert_eq!(mandate.until(s(9)), Some(s(15)));
}

#[test]
fn what_another_holds_is_taken_once_it_was_unchanged_for_its_duration() {
    for (holder, duration, free_at) in [("b", 15, 16), ("b", 5, 6), ("b", 0, 16), ("b", 86_400, 61), ("", 15, 1)] {
        let mut mandate = Mandate::new("a");
        let held = Record { duration: s(duration), ..record(holder, "7") };
        let mut now = 1;
        let taken = loop {
            match mandate.step(s(now)) {
                Step::Wait(until) => now = until.as_secs(),
                Step::Read => mandate.read(Found::There(held.clone()), s(now)),
                Step::Write(taken) => break taken,
            }
            assert_eq!(mandate.until(s(now)), None);
        };
        assert!((free_at..=free_at + 2).contains(&now), "{holder:?} {duration}: {now}");
        assert_eq!((taken.expected.as_deref(), taken.transitions, taken.acquires), (Some("7"), 4, true));
    }
}

#[test]
fn a_renewal_by_another_begins_its_duration_anew() {
    let mut mandate = Mandate::new("a");
    for round in 0..50 {
        let now = s(round * 5);
        assert!(matches!(mandate.step(now), Step::Read | Step::Wait(_)), "{round}");
        mandate.read(Found::There(record("b", &round.to_string())), now);
        assert_eq!((mandate.until(now), mandate.holder()), (None, Some("b")));
    }
    assert!(matches!(mandate.step(s(49 * 5 + 14)), Step::Read));
}

#[test]
fn who_cannot_renew_stops_before_another_may_begin() {
    for written in [Written::Unknown, Written::Conflict] {
        let mut mandate = holding();
        let mut now = s(5);
        while mandate.until(now).is_some() {
            match mandate.step(now) {
                Step::Write(renewal) => mandate.wrote(&renewal, now, written.clone(), now),
                Step::Read => mandate.read(Found::Unknown, now),
                Step::Wait(until) => now = until,
            }
            assert!(now < DURATION, "{written:?}");
        }
        assert!(now >= TERM && now < DURATION, "{written:?}: {now:?}");
    }
}

#[test]
fn a_renewal_without_an_answer_that_was_made_after_all_is_found() {
    let mut mandate = holding();
    let renewal = proposal(&mut mandate, s(5));
    mandate.wrote(&renewal, s(5), Written::Unknown, s(7));
    let once_more = proposal(&mut mandate, s(8));
    assert_eq!(once_more, renewal);
    mandate.wrote(&once_more, s(8), Written::Conflict, s(8));
    assert_eq!(mandate.step(s(8)), Step::Read);
    mandate.read(Found::There(Record { transitions: 0, ..record("a", "2") }), s(8));
    assert_eq!(mandate.until(s(8)), Some(s(10)), "when it was made is not known");
    let again = proposal(&mut mandate, s(8));
    assert_eq!(again.expected.as_deref(), Some("2"));
    mandate.wrote(&again, s(8), Written::Done("3".to_owned()), s(8));
    assert_eq!(mandate.until(s(9)), Some(s(18)));
}

#[test]
fn who_finds_another_in_its_place_stops_at_once() {
    for found in [Found::There(record("b", "9")), Found::There(record("", "9")), Found::Nothing] {
        let mut mandate = holding();
        let renewal = proposal(&mut mandate, s(5));
        mandate.wrote(&renewal, s(5), Written::Conflict, s(5));
        assert_eq!(mandate.step(s(5)), Step::Read);
        mandate.read(found.clone(), s(5));
        assert_eq!(mandate.until(s(5)), None, "{found:?}");
    }
}

#[test]
fn who_finds_its_own_missing_makes_it_again_at_once() {
    let mut mandate = holding();
    let renewal = proposal(&mut mandate, s(5));
    mandate.wrote(&renewal, s(5), Written::Conflict, s(5));
    mandate.read(Found::Nothing, s(5));
    assert_eq!((mandate.until(s(5)), mandate.holder()), (None, None));
    assert_eq!(mandate.release(s(5)), None);
    let again = proposal(&mut mandate, s(5));
    let expected = Proposal { expected: None, holder: "a".to_owned(), transitions: 1, acquires: true };
    assert_eq!(again, expected, "and it is another term");
    mandate.wrote(&again, s(5), Written::Done("9".to_owned()), s(5));
    assert_eq!(mandate.until(s(6)), Some(s(15)));
}

#[test]
fn what_is_missing_is_taken_once_its_last_holder_must_have_stopped() {
    let another = || {
        let mut mandate = Mandate::new("a");
        mandate.read(Found::There(record("b", "7")), s(5));
        mandate
    };
    let given_back = || {
        let mut mandate = Mandate::new("a");
        mandate.read(Found::There(Record { duration: s(1), ..record("", "7") }), s(5));
        mandate
    };
    // Its own mandate has lapsed: it may have been another's meanwhile.
    let lapsed = || {
        let mut mandate = holding();
        mandate.read(Found::There(record("a", "7")), s(5));
        mandate
    };
    for mut mandate in [another(), given_back(), lapsed()] {
        let mut now = 20;
        mandate.read(Found::Nothing, s(now));
        let taken = loop {
            match mandate.step(s(now)) {
                Step::Wait(until) => now = until.as_secs(),
                Step::Read => mandate.read(Found::Nothing, s(now)),
                Step::Write(taken) => break taken,
            }
            assert_eq!((mandate.until(s(now)), mandate.holder()), (None, None));
        };
        assert!((35..=37).contains(&now), "{now}");
        let expected = Proposal { expected: None, holder: "a".to_owned(), transitions: 4, acquires: true };
        assert_eq!(taken, expected);
    }
}

#[test]
fn who_slept_has_no_mandate_when_it_wakes() {
    let mut mandate = holding();
    assert_eq!(mandate.until(s(3_600)), None);
    let renewal = proposal(&mut mandate, s(3_600));
    assert!(!renewal.acquires, "it is its own by what it knows, and the version tells");
    mandate.wrote(&renewal, s(3_600), Written::Conflict, s(3_600));
    mandate.read(Found::There(record("b", "9")), s(3_600));
    assert_eq!((mandate.until(s(3_600)), mandate.step(s(3_601))), (None, Step::Wait(s(3_602))));
}

#[test]
fn what_is_given_back_is_nobodys() {
    let mut mandate = holding();
    let release = mandate.release(s(4)).unwrap();
    assert_eq!((release.expected.as_deref(), release.holder.as_str()), (Some("1"), ""));
    assert_eq!(mandate.until(s(4)), None);
    mandate.wrote(&release, s(4), Written::Done("2".to_owned()), s(4));
    assert_eq!((mandate.until(s(4)), mandate.holder()), (None, None));
    assert_eq!(mandate.release(s(4)), None);
    assert!(Mandate::new("b").release(s(0)).is_none());
}

#[test]
fn two_never_hold_it_at_once_whatever_happens() {
    use proptest::prelude::*;

    /// How long a write that was begun under a mandate may take.
    const WRITE: Duration = Duration::from_secs(4);

    // Each is scheduled at times, its answers are lost at times, and the clock goes on; the store is one Lease, which somebody
    // deletes at times, once each has seen who holds it.
    let deleted = proptest::bool::weighted(0.05);
    let events = proptest::collection::vec((0..2_usize, 0..4_000_u64, 0..4_u8, deleted), 1..400);
    proptest!(|(events in events)| {
        let mut all = [Mandate::new("a"), Mandate::new("b")];
        let (mut lease, mut version, mut now) = (None::<Record>, 0_u32, s(10));
        let mut ended = [s(0); 2];
        for (who, later, fate, deleted) in events {
            now += Duration::from_millis(later);
            lease.take_if(|record| deleted && all.iter().all(|one| one.holder() == Some(&record.holder)));
            match all[who].step(now) {
                Step::Wait(_) => {}
                Step::Read if fate == 0 => all[who].read(Found::Unknown, now),
                Step::Read => all[who].read(lease.clone().map_or(Found::Nothing, Found::There), now),
                Step::Write(wanted) => {
                    let fits = wanted.expected.as_ref() == lease.as_ref().map(|record| &record.version);
                    let arrives = fate != 0;
                    if arrives && fits {
                        version += 1;
                        let holder = wanted.holder.clone();
                        let transitions = wanted.transitions;
                        lease = Some(Record { holder, duration: DURATION, transitions, version: version.to_string() });
                    }
                    let written = match (arrives, fits, fate) {
                        (false, _, _) | (_, _, 1) => Written::Unknown,
                        (_, true, _) => Written::Done(version.to_string()),
                        (_, false, _) => Written::Conflict,
                    };
                    all[who].wrote(&wanted, now, written, now);
                }
            }
            for (one, ended) in all.iter().zip(&mut ended) {
                *ended = one.until(now).unwrap_or((*ended).min(now));
            }
            for one in 0..2 {
                prop_assert!(all[one].until(now).is_none() || ended[1 - one] + WRITE <= now, "{ended:?} {now:?}");
            }
        }
    });
}
