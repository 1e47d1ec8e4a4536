//! Fencing leaders in their records, and what their promises mean for takeovers.

use super::*;
use crate::membership::{AgentInfo, WireVersions};

#[test]
fn without_a_majority_a_leader_has_time_to_answer_in_its_record() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.falls("c", MemberStatus::Down);
    bench.peers.majority = false;
    bench.ticks(1);
    assert_eq!(bench.recorded(), ["read b"]);
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    assert_eq!(bench.recorded(), ["challenge b (r1)"]);
    bench.record("b", RecordOutcome::Swapped(version("r2")));
    bench.ticks(20);
    assert_eq!(bench.recorded(), [""; 0], "elsewhere may be a majority, whose watches must show it");
    bench.ticks(1);
    assert_eq!((bench.recorded(), bench.said()), (vec!["fence b (r2)".to_owned()], Vec::new()));
    bench.record("b", RecordOutcome::Swapped(version("r3"))).ticks(1);
    assert_eq!(bench.said(), ["read"], "it is gone");
}

#[test]
fn a_leader_that_answers_in_its_record_is_left_alone_for_a_while() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.peers.members.remove(&node_name("c"));
    bench.peers.majority = false;
    bench.ticks(1).record("b", RecordOutcome::Read(None)).record("b", RecordOutcome::Swapped(version("r1"))).ticks(4);
    assert_eq!(bench.recorded(), ["read b", "challenge b (none)", "fence b (r1)"], "half need fear no majority");
    bench.record("b", RecordOutcome::Conflict);
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r2"))));
    assert_eq!(bench.recorded(), ["read b"]);
    bench.ticks(99);
    assert_eq!((bench.recorded(), bench.said()), (Vec::new(), Vec::new()));
    bench.ticks(2);
    assert_eq!(bench.recorded(), ["read b"]);
}

#[test]
fn of_two_nodes_that_challenge_a_leader_one_fences_it_for_both() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.peers.members.remove(&node_name("c"));
    bench.peers.majority = false;
    bench.ticks(1);
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Challenged(node_name("d")), "r1")))).ticks(4);
    assert_eq!(bench.recorded(), ["read b", "fence b (r1)"]);
    bench.record("b", RecordOutcome::Conflict);
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Fenced(node_name("d")), "r2"))));
    bench.ticks(1);
    assert_eq!((bench.recorded(), bench.said()), (vec!["read b".to_owned()], vec!["read".to_owned()]));
}

#[test]
fn a_majority_fences_the_leader_that_it_follows_and_waits_for_a_long_promise_only() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4);
    assert_eq!((bench.said(), bench.recorded()), (vec!["read".to_owned()], vec!["read b".to_owned()]));
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    assert_eq!(bench.recorded(), ["fence b (r1)"]);
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["swap v4 for 5"]);

    let mut bench = Bench::following();
    bench.recorded();
    let content = RecordContent { state: RecordState::Confirmed, promise: ms(2_000) };
    let long = NodeRecord { content, version: version("r1") };
    bench.give(Input::RecordChanged { node: node_name("b"), record: Some(long.clone()) });
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4);
    assert_eq!((bench.said(), bench.recorded()), (Vec::new(), vec!["read b".to_owned()]));
    bench.record("b", RecordOutcome::Read(Some(long))).record("b", RecordOutcome::Swapped(version("r2")));
    bench.ticks(20);
    assert_eq!((bench.said(), bench.recorded()), (Vec::new(), vec!["challenge b (r1)".to_owned()]));
    bench.ticks(1).record("b", RecordOutcome::Swapped(version("r3"))).ticks(1);
    assert_eq!(bench.said(), ["read"]);
}

/// The leader may be with a majority elsewhere by then.
#[test]
fn a_majority_that_is_lost_before_the_record_is_read_gives_the_leader_time_to_answer() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4);
    assert_eq!((bench.said(), bench.recorded()), (vec!["read".to_owned()], vec!["read b".to_owned()]));
    bench.falls("c", MemberStatus::Down);
    bench.peers.majority = false;
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    assert_eq!(bench.recorded(), ["challenge b (r1)"]);
    bench.record("b", RecordOutcome::Swapped(version("r2"))).ticks(20);
    assert_eq!(bench.recorded(), [""; 0]);
    bench.ticks(1);
    assert_eq!(bench.recorded(), ["fence b (r2)"]);
}

/// A node without a majority, which follows `b`. `b` and another node are down.
fn minority() -> Bench {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.falls("c", MemberStatus::Down);
    bench.peers.majority = false;
    bench.ticks(1);
    assert_eq!(bench.recorded(), ["read b"]);
    bench
}

/// As [`minority`], and it has challenged `b` a tick ago.
fn challenged() -> Bench {
    let mut bench = minority();
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    bench.record("b", RecordOutcome::Swapped(version("r2"))).ticks(1);
    assert_eq!(bench.recorded(), ["challenge b (r1)"]);
    bench
}

#[test]
fn a_leader_that_is_alive_again_is_neither_challenged_nor_fenced() {
    let mut bench = challenged();
    bench.falls("b", MemberStatus::Alive);
    bench.give(Input::Peers).ticks(30);
    assert_eq!(bench.recorded(), [""; 0]);

    let mut bench = minority();
    bench.falls("b", MemberStatus::Alive);
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1")))).ticks(30);
    assert_eq!(bench.recorded(), [""; 0]);
}

#[test]
fn one_operation_on_the_record_of_a_leader_is_under_way_at_most() {
    let mut bench = minority();
    bench.falls("b", MemberStatus::Alive);
    bench.give(Input::Peers).ticks(1).falls("b", MemberStatus::Down);
    bench.give(Input::Peers).ticks(1);
    bench.give(Input::RecordChanged { node: node_name("b"), record: None }).ticks(1);
    assert_eq!(bench.recorded(), [""; 0]);
    bench.record("b", RecordOutcome::Read(None));
    assert_eq!(bench.recorded(), ["challenge b (none)"]);
}

#[test]
fn a_majority_that_is_back_does_not_wait_for_a_challenge() {
    let mut bench = challenged();
    bench.falls("c", MemberStatus::Alive);
    bench.peers.majority = true;
    bench.give(Input::Peers).ticks(4).answer();
    assert_eq!(bench.recorded(), ["fence b (r2)"]);
    assert_eq!(bench.said(), ["read", "claim 5", "lead 5: b was down"]);
}

#[test]
fn a_majority_that_is_back_challenges_nobody_whose_promise_is_short() {
    let mut bench = minority();
    bench.falls("c", MemberStatus::Alive);
    bench.peers.majority = true;
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    assert_eq!(bench.recorded(), [""; 0]);
}

#[test]
fn a_leader_has_answered_only_what_it_wrote_after_the_challenge() {
    let mut bench = minority();
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    bench.record("b", RecordOutcome::Conflict);
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r2"))));
    assert_eq!(bench.recorded(), ["challenge b (r1)", "read b", "challenge b (r2)"]);
}

#[test]
fn a_majority_fences_a_leader_that_confirms_its_record_meanwhile() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4).record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    bench.record("b", RecordOutcome::Conflict);
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r2"))));
    assert_eq!(bench.recorded(), ["read b", "fence b (r1)", "read b", "fence b (r2)"]);
}

/// Its record may be from before it was started with another `--lease`.
#[test]
fn a_leader_has_as_long_to_answer_as_its_own_lease() {
    let mut bench = minority();
    bench.peers.members.remove(&node_name("c"));
    let agent = AgentInfo { version: "0.1.0".to_owned(), wire: WireVersions::OWN, lease: ms(900) };
    bench.peer("b").state.agent = Some(agent);
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    bench.record("b", RecordOutcome::Swapped(version("r2"))).ticks(9);
    assert_eq!(bench.recorded(), ["challenge b (r1)"]);
    bench.ticks(1);
    assert_eq!(bench.recorded(), ["fence b (r2)"]);
}

#[test]
fn what_a_record_said_of_a_leader_is_believed_for_five_seconds_and_as_long_as_it_says_so() {
    let confirmed = Some(record(RecordState::Confirmed, "r4"));
    for (changed, waits) in [(None, 2), (Some(confirmed), 2), (Some(None), 2), (None, 55)] {
        let mut bench = minority();
        bench.give(Input::Unable([vip4(1)].into()));
        let fenced = record(RecordState::Fenced(node_name("d")), "r1");
        bench.record("b", RecordOutcome::Read(Some(fenced))).ticks(1);
        let is_believed = changed.is_none() && waits < 50;
        if let Some(record) = changed {
            bench.give(Input::RecordChanged { node: node_name("b"), record });
        }
        bench.ticks(waits);
        let expected: &[&str] = if is_believed { &[] } else { &["read b"] };
        assert_eq!(bench.recorded(), expected, "after {waits} ticks");
    }
}

#[test]
fn a_minority_fences_a_leader_that_left_only_if_it_promised_more() {
    for promise in [LEASE, ms(2_000)] {
        let mut bench = Bench::following();
        bench.recorded();
        let content = RecordContent { state: RecordState::Confirmed, promise };
        let record = NodeRecord { content, version: version("r1") };
        bench.give(Input::RecordChanged { node: node_name("b"), record: Some(record.clone()) });
        bench.falls("b", MemberStatus::Left);
        bench.falls("c", MemberStatus::Down);
        bench.peers.majority = false;
        bench.ticks(5);
        if promise == LEASE {
            assert_eq!((bench.said(), bench.recorded()), (vec!["read".to_owned()], vec![]));
            continue;
        }
        bench.record("b", RecordOutcome::Read(Some(record)));
        assert_eq!(bench.recorded(), ["read b", "challenge b (r1)"]);
        bench.record("b", RecordOutcome::Swapped(version("r2"))).ticks(21);
        bench.record("b", RecordOutcome::Swapped(version("r3")));
        assert_eq!(bench.said(), [""; 0]);
        assert_eq!(bench.ticks(1).said(), ["read"]);
    }
}

#[test]
fn a_minority_that_was_cut_off_only_reads_the_record_of_a_leader_that_left() {
    let mut bench = Bench::following();
    bench.later(LEASE * 2).give(Input::Tick { carrier: true });
    bench.falls("b", MemberStatus::Left);
    bench.falls("c", MemberStatus::Down);
    bench.peers.majority = false;
    bench.recorded();
    bench.want(&["a"]);
    bench.ticks(1).record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1")))).ticks(10);
    let of_b: Vec<_> = bench.recorded().into_iter().filter(|line| line.contains(" b")).collect();
    assert_eq!(of_b, ["read b"]);
}

#[test]
fn a_leader_that_a_minority_never_heard_of_is_fenced_once_it_had_time_to_be_heard_of() {
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
    bench.peers.members.remove(&node_name("c"));
    bench.falls("b", MemberStatus::Down);
    bench.peers.majority = false;
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip4(1), lease("c", 3, "v3"))])) });
    bench.recorded();
    bench.tick().ticks(28);
    assert_eq!((bench.said(), bench.recorded()), (vec!["survey".to_owned()], vec![]));
    bench.ticks(4);
    assert_eq!((bench.said(), bench.recorded()), (vec![], vec!["read c".to_owned()]));
    bench.fence("c").ticks(1);
    assert_eq!(bench.said(), ["read"]);
}

/// Hundreds of nodes may be gone, and each of the others would read hundreds of records.
#[test]
fn a_node_that_was_cut_off_reads_the_records_of_few_leaders_at_once() {
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
    let leaders: BTreeMap<Vip, String> = (1..=40).map(|last| (vip4(last), format!("n{last}"))).collect();
    for name in leaders.values() {
        bench.peers.members.insert(node_name(name), peer(MemberStatus::Down, T));
    }
    let wanted = || leaders.keys().map(|vip| (*vip, [candidate("a")].into_iter().collect())).collect();
    bench.give(Input::Wanted(Arc::new(wanted())));
    let leases = leaders.iter().map(|(vip, name)| (*vip, lease(name, 4, "v4"))).collect();
    bench.give(Input::Surveyed { asked: T, leases: Some(leases) }).tick();
    bench.later(LEASE * 2).give(Input::Tick { carrier: true });
    bench.recorded();
    bench.give(Input::Wanted(Arc::new(wanted()))).ticks(5);
    let asked: Vec<_> = bench.recorded().into_iter().filter(|line| line != "read a").collect();
    assert_eq!(asked.len(), 16, "{asked:?}");
}

#[test]
fn promises_are_kept_as_long_as_there_is_a_record() {
    let mut bench = Bench::following();
    let content = RecordContent { state: RecordState::Confirmed, promise: ms(2_000) };
    let long = NodeRecord { content, version: version("r1") };
    bench.record("b", RecordOutcome::Read(Some(long.clone())));
    assert!(bench.election.fencings.promises_more(&node_name("b"), LEASE), "also while the node is alive");
    bench.give(Input::RecordChanged { node: node_name("b"), record: None });
    assert!(!bench.election.fencings.promises_more(&node_name("b"), LEASE));
    bench.record("b", RecordOutcome::Read(Some(long)));
    assert!(bench.election.fencings.promises_more(&node_name("b"), LEASE));
    bench.record("b", RecordOutcome::Read(Some(record(RecordState::Fenced(node_name("c")), "r2"))));
    assert!(!bench.election.fencings.promises_more(&node_name("b"), LEASE), "a node that is fenced promises nothing");
}

/// A watch may not have shown it.
#[test]
fn a_majority_reads_the_record_of_a_leader_that_is_down_before_it_takes_anything() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4);
    assert_eq!((bench.said(), bench.recorded()), (vec!["read".to_owned()], vec!["read b".to_owned()]));
    bench.give(read(Some(lease("b", 4, "v4")))).later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"], "it waits for the record");
    let content = RecordContent { state: RecordState::Confirmed, promise: ms(2_000) };
    bench.record("b", RecordOutcome::Read(Some(NodeRecord { content, version: version("r1") })));
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!((bench.said(), bench.recorded()), (Vec::new(), vec!["challenge b (r1)".to_owned()]), "a long promise");

    let mut bench = Bench::following();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4).later(ms(100)).give(read(Some(lease("b", 4, "v4")))).answer().answer();
    let said = ["read", "swap v4 for 5", "claim 5", "lead 5: b was down"];
    assert_eq!(bench.said(), said, "a store that does not answer is not waited for");
}

/// It may have missed that a leader promised more.
#[test]
fn a_node_that_was_cut_off_waits_for_the_longest_promise_if_the_store_does_not_answer() {
    for (answers, is_silent_for_long, expected) in
        [(true, false, 4), (false, false, 21), (true, true, 1), (false, true, 21)]
    {
        let mut bench = Bench::following();
        bench.later(LEASE * 2).give(Input::Tick { carrier: true });
        bench.want(&["a"]);
        bench.ticks(1);
        // What the others saw says nothing of a promise.
        bench.peer("b").heard = Some(if is_silent_for_long { T } else { bench.now });
        bench.said();
        bench.falls("b", MemberStatus::Down);
        bench.ticks(1);
        let record = RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1")));
        bench.record("b", if answers { record } else { RecordOutcome::Unavailable });
        let mut waited = 1;
        while !bench.said().contains(&"read".to_owned()) {
            bench.ticks(1);
            waited += 1;
            assert!(waited < 40, "it never acted");
        }
        assert_eq!(waited, expected, "the store answers: {answers}, long: {is_silent_for_long}");
    }
}

/// It wrote the record since, so nobody else can have written a longer promise.
#[test]
fn a_node_that_was_cut_off_does_not_wait_for_the_longest_promise_of_one_that_it_fenced() {
    let mut bench = Bench::following();
    bench.peer("b").heard = Some(T);
    bench.falls("b", MemberStatus::Down);
    bench.peers.members.remove(&node_name("c"));
    bench.peers.majority = false;
    bench.ticks(1).record("b", RecordOutcome::Read(None)).record("b", RecordOutcome::Swapped(version("r1")));
    bench.recorded();
    bench.later(LEASE * 2).give(Input::Tick { carrier: true });
    bench.want(&["a"]);
    bench.ticks(1);
    assert_eq!(bench.recorded(), ["fence b (r1)", "confirm a (r0) for 2000 ms"]);
    bench.said();
    bench.record("b", RecordOutcome::Swapped(version("r2"))).ticks(1);
    assert_eq!(bench.said(), ["read"]);
}

/// Lets `b` be fenced, and the LAN answer twice for its VIP. Returns what the node says after that.
/// `between`: what happens before the second answer.
fn answered_twice(alone_of: usize, holder: &str, between: impl Fn(&mut Bench)) -> Vec<String> {
    let mut bench = Bench::following();
    bench.falls("b", MemberStatus::Down);
    bench.falls("c", MemberStatus::Down);
    if alone_of == 2 {
        bench.peers.members.remove(&node_name("c"));
        bench.peers.pair = true;
    }
    bench.peers.majority = false;
    bench.ticks(1).record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))));
    bench.record("b", RecordOutcome::Swapped(version("r2"))).ticks(25);
    bench.record("b", RecordOutcome::Swapped(version("r3"))).ticks(1);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease(holder, 4, "v4"))));
    assert_eq!(bench.said(), ["ask the LAN"]);
    bench.give(probed(AddressOwner::Peer));
    assert_eq!(bench.said(), [""; 0], "it may be the leader");
    assert!(bench.election.leadership(vip4(1)).unwrap().answered);
    between(&mut bench);
    bench.ticks(101);
    let fenced = record(RecordState::Fenced(node_name("a")), "r3");
    bench.record("b", RecordOutcome::Read(Some(fenced))).ticks(1);
    bench.give(read(Some(lease(holder, 4, "v4"))));
    assert_eq!(bench.said(), ["read", "ask the LAN"]);
    bench.give(probed(AddressOwner::Peer));
    bench.said()
}

/// By proxy ARP, or from a table of stations.
#[test]
fn half_of_the_members_take_over_from_a_fenced_leader_in_whose_name_the_network_answers() {
    assert_eq!(answered_twice(2, "b", |_| {}), ["swap v4 for 5"]);
    assert_eq!(answered_twice(3, "b", |_| {}), [""; 0], "elsewhere may be a majority without the store");
    let confirmed = Input::RecordChanged { node: node_name("b"), record: Some(record(RecordState::Confirmed, "r4")) };
    assert_eq!(
        answered_twice(2, "b", |bench| {
            bench.give(confirmed.clone());
        }),
        [""; 0],
        "it was alive since"
    );
}
