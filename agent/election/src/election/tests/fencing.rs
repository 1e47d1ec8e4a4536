//! Fencing leaders in their records, and what their promises mean for takeovers.

use super::*;

#[test]
fn without_a_majority_a_leader_has_time_to_answer_in_its_record() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.falls("c", MemberStatus::Down);
    bench.peers.majority = false;
    bench.ticks(1);
    assert_eq!(bench.recorded(), ["read b"]);
    bench.record("b", RecordOutcome::Read(Some(record(RecordStanding::Confirmed, "r1"))));
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
    bench.record("b", RecordOutcome::Read(Some(record(RecordStanding::Confirmed, "r2"))));
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
    bench.record("b", RecordOutcome::Read(Some(record(RecordStanding::Challenged(node_name("d")), "r1")))).ticks(4);
    assert_eq!(bench.recorded(), ["read b", "fence b (r1)"]);
    bench.record("b", RecordOutcome::Conflict);
    bench.record("b", RecordOutcome::Read(Some(record(RecordStanding::Fenced(node_name("d")), "r2"))));
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
    bench.record("b", RecordOutcome::Read(Some(record(RecordStanding::Confirmed, "r1"))));
    assert_eq!(bench.recorded(), ["fence b (r1)"]);
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["swap v4 for 5"]);

    let mut bench = Bench::following();
    bench.recorded();
    let content = RecordContent { standing: RecordStanding::Confirmed, promise: ms(2_000) };
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

#[test]
fn promises_are_kept_as_long_as_there_is_a_record() {
    let mut bench = Bench::following();
    let content = RecordContent { standing: RecordStanding::Confirmed, promise: ms(2_000) };
    let long = NodeRecord { content, version: version("r1") };
    bench.record("b", RecordOutcome::Read(Some(long)));
    assert!(bench.election.fencings.promises_more(&node_name("b"), LEASE), "also while the node is alive");
    bench.give(Input::RecordChanged { node: node_name("b"), record: None });
    assert!(!bench.election.fencings.promises_more(&node_name("b"), LEASE));
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
    let content = RecordContent { standing: RecordStanding::Confirmed, promise: ms(2_000) };
    bench.record("b", RecordOutcome::Read(Some(NodeRecord { content, version: version("r1") })));
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!((bench.said(), bench.recorded()), (Vec::new(), vec!["challenge b (r1)".to_owned()]), "a long promise");

    let mut bench = Bench::following();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4).later(ms(100)).give(read(Some(lease("b", 4, "v4"))));
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
        let record = RecordOutcome::Read(Some(record(RecordStanding::Confirmed, "r1")));
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
    bench.ticks(1).record("b", RecordOutcome::Read(Some(record(RecordStanding::Confirmed, "r1"))));
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
    let fenced = record(RecordStanding::Fenced(node_name("a")), "r3");
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
    let confirmed =
        Input::RecordChanged { node: node_name("b"), record: Some(record(RecordStanding::Confirmed, "r4")) };
    assert_eq!(
        answered_twice(2, "b", |bench| {
            bench.give(confirmed.clone());
        }),
        [""; 0],
        "it was alive since"
    );
}
