//! Tests the election of the allocator's leader.

use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn record(holder: &str, version: &str) -> LeaseRecord {
    LeaseRecord { holder: holder.to_owned(), duration: LEASE_DURATION, transitions: 3, version: version.to_owned() }
}

fn update(election: &mut LeaderElection, now: Duration) -> LeaseUpdate {
    match election.step(now) {
        ElectionStep::Write(update) => update,
        other => panic!("{other:?}"),
    }
}

/// Returns an election that created the missing Lease at second 0.
fn holding() -> LeaderElection {
    let mut election = LeaderElection::new("a");
    assert_eq!(election.step(s(0)), ElectionStep::Read);
    election.read(ReadResult::NoLease, s(0));
    let made = update(&mut election, s(0));
    let expected = LeaseUpdate { expected: None, holder: "a".to_owned(), transitions: 0, acquires: true };
    assert_eq!(made, expected);
    election.wrote(&made, s(0), UpdateResult::Done("1".to_owned()), s(1));
    election
}

#[test]
fn a_free_lease_is_taken_at_once_and_renewed() {
    let mut election = holding();
    assert_eq!((election.until(s(1)), election.holder()), (Some(s(10)), Some("a")));
    assert_eq!(election.step(s(1)), ElectionStep::Wait(s(5)));
    let renewal = update(&mut election, s(5));
    assert_eq!((renewal.expected.as_deref(), renewal.transitions, renewal.acquires), (Some("1"), 0, false));
    // The start of the renewal counts: others may have seen it since then.
    election.wrote(&renewal, s(5), UpdateResult::Done("2".to_owned()), s(9));
    assert_eq!(election.until(s(9)), Some(s(15)));
}

#[test]
fn a_lease_of_another_is_taken_once_it_was_unchanged_for_its_duration() {
    for (holder, duration, free_at) in [("b", 15, 16), ("b", 5, 6), ("b", 0, 16), ("b", 86_400, 61), ("", 15, 1)] {
        let mut election = LeaderElection::new("a");
        let held = LeaseRecord { duration: s(duration), ..record(holder, "7") };
        let mut now = 1;
        let taken = loop {
            match election.step(s(now)) {
                ElectionStep::Wait(until) => now = until.as_secs(),
                ElectionStep::Read => election.read(ReadResult::Lease(held.clone()), s(now)),
                ElectionStep::Write(taken) => break taken,
            }
            assert_eq!(election.until(s(now)), None);
        };
        assert!((free_at..=free_at + 2).contains(&now), "{holder:?} {duration}: {now}");
        assert_eq!((taken.expected.as_deref(), taken.transitions, taken.acquires), (Some("7"), 4, true));
    }
}

#[test]
fn a_renewal_by_another_restarts_its_duration_and_is_noticed_without_reading() {
    let mut election = LeaderElection::new("a");
    assert_eq!(election.step(s(0)), ElectionStep::Read);
    election.read(ReadResult::Lease(record("b", "0")), s(0));
    for round in 1..50 {
        let now = s(round * 5);
        assert!(matches!(election.step(now), ElectionStep::Wait(_)), "{round}");
        election.noticed(ReadResult::Lease(record("b", &round.to_string())), None, now);
        assert_eq!((election.until(now), election.holder()), (None, Some("b")));
    }
    assert_eq!(election.step(s(49 * 5 + 14)), ElectionStep::Wait(s(49 * 5 + 15)));
    assert_eq!(update(&mut election, s(49 * 5 + 15)).expected.as_deref(), Some("49"));
}

#[test]
fn a_release_that_is_noticed_is_followed_at_once() {
    let mut election = LeaderElection::new("a");
    election.read(ReadResult::Lease(record("b", "7")), s(0));
    assert_eq!(election.step(s(1)), ElectionStep::Wait(s(15)));
    election.noticed(ReadResult::Lease(record("", "8")), Some("8"), s(1));
    let taken = update(&mut election, s(1));
    assert_eq!((taken.expected.as_deref(), taken.transitions, taken.acquires), (Some("8"), 4, true));
}

/// It would not find out what it missed by creating the Lease.
#[test]
fn a_deletion_that_is_noticed_is_confirmed_by_reading() {
    let mut election = LeaderElection::new("a");
    election.read(ReadResult::Lease(record("b", "7")), s(0));
    election.noticed(ReadResult::NoLease, Some("8"), s(1));
    assert_eq!((election.step(s(2)), election.step(s(3))), (ElectionStep::Wait(s(3)), ElectionStep::Read));
}

#[test]
fn what_a_watch_shows_late_does_not_end_a_leadership() {
    let own = LeaseRecord { transitions: 0, ..record("a", "1") };
    for (found, version) in [
        (ReadResult::Lease(record("b", "0")), "0"),
        (ReadResult::Lease(record("", "0")), "0"),
        (ReadResult::NoLease, "0"),
        (ReadResult::Lease(own), "1"),
    ] {
        let mut election = holding();
        election.noticed(found, Some(version), s(2));
        assert_eq!((election.until(s(2)), election.holder()), (Some(s(10)), Some("a")));
        assert_eq!(update(&mut election, s(5)).expected.as_deref(), Some("1"));
    }
}

#[test]
fn a_leader_stops_at_once_if_a_watch_shows_that_its_lease_was_deleted_or_taken() {
    for (found, version) in [
        (ReadResult::NoLease, "2"),
        // An API server that does not count the deletion.
        (ReadResult::NoLease, "1"),
        (ReadResult::Lease(record("b", "2")), "2"),
        (ReadResult::Lease(record("", "10")), "10"),
    ] {
        let mut election = holding();
        election.noticed(found.clone(), Some(version), s(2));
        assert_eq!((election.until(s(2)), election.release(s(2))), (None, None), "{found:?}");
    }
}

#[test]
fn a_leader_whose_lease_is_deleted_creates_it_again_before_the_renewal_is_due() {
    let mut election = holding();
    election.noticed(ReadResult::NoLease, Some("2"), s(2));
    let again = update(&mut election, s(2));
    let expected = LeaseUpdate { expected: None, holder: "a".to_owned(), transitions: 1, acquires: true };
    assert_eq!(again, expected, "with another number: another allocator may have written in between");
    election.wrote(&again, s(2), UpdateResult::Conflict, s(2));
    election.read(ReadResult::Lease(record("b", "3")), s(2));
    assert_eq!((election.until(s(2)), election.step(s(2))), (None, ElectionStep::Wait(s(17))));
}

#[test]
fn a_leader_reads_its_lease_if_a_watch_does_not_show_the_age_of_a_change() {
    for (found, version) in [(ReadResult::NoLease, None), (ReadResult::Lease(record("b", "x")), Some("x"))] {
        let mut election = holding();
        election.noticed(found, version, s(2));
        assert_eq!((election.until(s(2)), election.step(s(2))), (Some(s(10)), ElectionStep::Read));
        election.read(ReadResult::Lease(LeaseRecord { transitions: 0, ..record("a", "1") }), s(2));
        assert_eq!(election.until(s(2)), Some(s(10)));
    }
}

#[test]
fn conflicts_without_another_writer_are_not_repeated_without_a_pause() {
    let mut election = holding();
    let (mut now, mut writes) = (s(5), 0);
    while now < s(15) {
        match election.step(now) {
            ElectionStep::Write(renewal) => {
                writes += 1;
                election.wrote(&renewal, now, UpdateResult::Conflict, now);
            }
            ElectionStep::Read => {
                election.read(ReadResult::Lease(LeaseRecord { transitions: 0, ..record("a", "1") }), now);
            }
            ElectionStep::Wait(until) => now = until,
        }
        assert!(writes <= 12, "{writes} by {now:?}");
    }
    assert!(writes > 5, "{writes}");
}

#[test]
fn a_leader_that_cannot_renew_stops_before_another_may_start() {
    for written in [UpdateResult::Unknown, UpdateResult::Conflict] {
        let mut election = holding();
        let mut now = s(5);
        while election.until(now).is_some() {
            match election.step(now) {
                ElectionStep::Write(renewal) => election.wrote(&renewal, now, written.clone(), now),
                ElectionStep::Read => election.read(ReadResult::Unknown, now),
                ElectionStep::Wait(until) => now = until,
            }
            assert!(now < LEASE_DURATION, "{written:?}");
        }
        assert!(now >= RENEW_DEADLINE && now < LEASE_DURATION, "{written:?}: {now:?}");
    }
}

#[test]
fn a_renewal_without_an_answer_that_was_made_after_all_is_found() {
    let mut election = holding();
    let renewal = update(&mut election, s(5));
    election.wrote(&renewal, s(5), UpdateResult::Unknown, s(7));
    let once_more = update(&mut election, s(8));
    assert_eq!(once_more, renewal);
    election.wrote(&once_more, s(8), UpdateResult::Conflict, s(8));
    assert_eq!(election.step(s(8)), ElectionStep::Read);
    election.read(ReadResult::Lease(LeaseRecord { transitions: 0, ..record("a", "2") }), s(8));
    assert_eq!(election.until(s(8)), Some(s(10)), "when it was made is not known");
    let again = update(&mut election, s(8));
    assert_eq!(again.expected.as_deref(), Some("2"));
    election.wrote(&again, s(8), UpdateResult::Done("3".to_owned()), s(8));
    assert_eq!(election.until(s(9)), Some(s(18)));
}

#[test]
fn a_leader_that_finds_another_in_its_place_stops_at_once() {
    for found in [ReadResult::Lease(record("b", "9")), ReadResult::Lease(record("", "9")), ReadResult::NoLease] {
        let mut election = holding();
        let renewal = update(&mut election, s(5));
        election.wrote(&renewal, s(5), UpdateResult::Conflict, s(5));
        assert_eq!(election.step(s(5)), ElectionStep::Read);
        election.read(found.clone(), s(5));
        assert_eq!(election.until(s(5)), None, "{found:?}");
    }
}

#[test]
fn a_leader_whose_lease_is_missing_creates_it_again_at_once() {
    let mut election = holding();
    let renewal = update(&mut election, s(5));
    election.wrote(&renewal, s(5), UpdateResult::Conflict, s(5));
    election.read(ReadResult::NoLease, s(5));
    assert_eq!((election.until(s(5)), election.holder()), (None, None));
    assert_eq!(election.release(s(5)), None);
    let again = update(&mut election, s(5));
    let expected = LeaseUpdate { expected: None, holder: "a".to_owned(), transitions: 1, acquires: true };
    assert_eq!(again, expected, "and the number is another one");
    election.wrote(&again, s(5), UpdateResult::Done("9".to_owned()), s(5));
    assert_eq!(election.until(s(6)), Some(s(15)));
}

#[test]
fn a_missing_lease_is_taken_once_its_last_holder_must_have_stopped() {
    let another = || {
        let mut election = LeaderElection::new("a");
        election.read(ReadResult::Lease(record("b", "7")), s(5));
        election
    };
    let given_back = || {
        let mut election = LeaderElection::new("a");
        election.read(ReadResult::Lease(LeaseRecord { duration: s(1), ..record("", "7") }), s(5));
        election
    };
    // Its own leadership has expired: the Lease may have been another's in between.
    let lapsed = || {
        let mut election = holding();
        election.read(ReadResult::Lease(record("a", "7")), s(5));
        election
    };
    for mut election in [another(), given_back(), lapsed()] {
        let mut now = 20;
        election.read(ReadResult::NoLease, s(now));
        let taken = loop {
            match election.step(s(now)) {
                ElectionStep::Wait(until) => now = until.as_secs(),
                ElectionStep::Read => election.read(ReadResult::NoLease, s(now)),
                ElectionStep::Write(taken) => break taken,
            }
            assert_eq!((election.until(s(now)), election.holder()), (None, None));
        };
        assert!((35..=37).contains(&now), "{now}");
        let expected = LeaseUpdate { expected: None, holder: "a".to_owned(), transitions: 4, acquires: true };
        assert_eq!(taken, expected);
    }
}

#[test]
fn a_leader_that_slept_does_not_lead_when_it_wakes() {
    let mut election = holding();
    assert_eq!(election.until(s(3_600)), None);
    let renewal = update(&mut election, s(3_600));
    assert!(!renewal.acquires, "it is its own by what it knows, and the version tells");
    election.wrote(&renewal, s(3_600), UpdateResult::Conflict, s(3_600));
    election.read(ReadResult::Lease(record("b", "9")), s(3_600));
    assert_eq!((election.until(s(3_600)), election.step(s(3_601))), (None, ElectionStep::Wait(s(3_615))));
}

#[test]
fn a_released_lease_has_no_holder() {
    let mut election = holding();
    let release = election.release(s(4)).unwrap();
    assert_eq!((release.expected.as_deref(), release.holder.as_str()), (Some("1"), ""));
    assert_eq!(election.until(s(4)), None);
    election.wrote(&release, s(4), UpdateResult::Done("2".to_owned()), s(4));
    assert_eq!((election.until(s(4)), election.holder()), (None, None));
    assert_eq!(election.release(s(4)), None);
    assert!(LeaderElection::new("b").release(s(0)).is_none());
}

#[test]
fn two_never_hold_it_at_once_whatever_happens() {
    use proptest::prelude::*;

    /// The time that a write of a leader may take.
    const WRITE: Duration = Duration::from_secs(4);

    // At each event the clock goes on and one of the two runs. Sometimes its answer is lost, a watch
    // shows it the Lease as it was some changes ago, or the Lease is deleted, but only once both have
    // seen its holder.
    let deleted = proptest::bool::weighted(0.05);
    let noticed = proptest::option::of(0..4_usize);
    let events = proptest::collection::vec((0..2_usize, 0..4_000_u64, 0..4_u8, noticed, deleted), 1..400);
    proptest!(|(events in events)| {
        let mut all = [LeaderElection::new("a"), LeaderElection::new("b")];
        let (mut lease, mut version, mut now) = (None::<LeaseRecord>, 0_u32, s(10));
        let mut changes = Vec::new();
        let mut ended = [s(0); 2];
        for (who, later, fate, noticed, deleted) in events {
            now += Duration::from_millis(later);
            let is_seen = |record: &mut LeaseRecord| all.iter().all(|one| one.holder() == Some(&record.holder));
            if deleted && lease.take_if(is_seen).is_some() {
                version += 1;
            }
            if changes.last().is_none_or(|(_, last)| *last != version) {
                changes.push((lease.clone(), version));
            }
            if let Some((shown, version)) = noticed.and_then(|ago| changes.iter().rev().nth(ago)) {
                let found = shown.clone().map_or(ReadResult::NoLease, ReadResult::Lease);
                all[who].noticed(found, Some(&version.to_string()), now);
            }
            match all[who].step(now) {
                ElectionStep::Wait(_) => {}
                ElectionStep::Read if fate == 0 => all[who].read(ReadResult::Unknown, now),
                ElectionStep::Read => all[who].read(lease.clone().map_or(ReadResult::NoLease, ReadResult::Lease), now),
                ElectionStep::Write(wanted) => {
                    let fits = wanted.expected.as_ref() == lease.as_ref().map(|record| &record.version);
                    let arrives = fate != 0;
                    if arrives && fits {
                        version += 1;
                        let holder = wanted.holder.clone();
                        let transitions = wanted.transitions;
                        lease = Some(LeaseRecord { holder, duration: LEASE_DURATION, transitions, version: version.to_string() });
                    }
                    let written = match (arrives, fits, fate) {
                        (false, _, _) | (_, _, 1) => UpdateResult::Unknown,
                        (_, true, _) => UpdateResult::Done(version.to_string()),
                        (_, false, _) => UpdateResult::Conflict,
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
