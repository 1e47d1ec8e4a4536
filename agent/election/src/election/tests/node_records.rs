//! This node's record in the store: evidence, and promises of more or less.

use super::*;

/// The record of this node is as it wrote it.
fn confirmed(version: &str) -> RecordOutcome {
    RecordOutcome::Read(Some(record(RecordState::Confirmed, version)))
}

/// A leader of three nodes that no longer hears the others.
fn alone() -> Bench {
    let mut bench = Bench::leading();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.falls("c", MemberStatus::Down);
    (bench.peers.majority, bench.peers.evidence_since) = (false, None);
    bench.later(ms(100)).give(Input::Tick { carrier: true });
    bench
}

#[test]
fn without_a_majority_a_node_reads_its_record_and_answers_as_long_as_that_says() {
    let mut bench = alone();
    assert_eq!(bench.recorded(), ["read a"]);
    let asked = bench.now;
    bench.later(ms(120)).give(recorded("a", asked, confirmed("r0")));
    assert_eq!(bench.election.fence.deadline, Some(asked + LEASE));
    assert_eq!(bench.election.next(), Some(asked + LEASE / 2));
    bench.later(ms(30)).give(Input::Peers);
    assert_eq!(bench.recorded(), ["read a"]);
}

#[test]
fn an_operation_on_this_nodes_record_is_urgent_as_long_as_the_node_answers() {
    let urgent = |bench: &mut Bench| {
        let commands = std::mem::take(&mut bench.commands).into_iter();
        let operation = |command| if let Command::Store(operation) = command { Some(operation) } else { None };
        commands.filter_map(operation).map(|operation| operation.is_urgent()).collect::<Vec<_>>()
    };
    let mut bench = alone();
    assert_eq!(urgent(&mut bench), [true]);
    bench.give(recorded("a", bench.now, RecordOutcome::Unavailable));
    bench.later(LEASE * 2).give(Input::Tick { carrier: true }).want(&["a"]);
    bench.later(ms(200)).give(Input::Tick { carrier: true });
    assert_eq!(urgent(&mut bench), [false], "it has nothing to lose any more");
}

/// So that others can keep something in it.
#[test]
fn a_record_that_is_missing_is_created() {
    let mut bench = Bench::following();
    bench.recorded();
    bench.give(Input::RecordChanged { node: node_name("a"), record: None });
    bench.give(recorded("a", bench.now, RecordOutcome::Read(None)));
    assert_eq!(bench.recorded(), ["read a", "confirm a (none) for 300 ms"]);
    bench.give(recorded("a", bench.now, RecordOutcome::Swapped(version("r2")))).ticks(20);
    assert_eq!(bench.recorded(), [""; 0]);
}

/// It would suspend what it took as soon as it reads that it is fenced.
#[test]
fn a_node_takes_no_vip_before_it_has_read_its_record_and_confirmed_it() {
    let mut bench = Bench::following();
    bench.election.record = OwnRecord::default();
    let take = || told("b", TransferStep::Take, 5);
    assert_eq!(bench.give(take()).said(), ["b: declined 5"]);
    bench.give(Input::RecordChanged { node: node_name("a"), record: None });
    bench.give(recorded("a", bench.now, RecordOutcome::Read(Some(record(RecordState::Fenced(node_name("b")), "r1")))));
    assert_eq!(bench.recorded(), ["read a", "confirm a (r1) for 300 ms"], "though it leads nothing");
    assert_eq!(bench.give(take()).said(), ["b: declined 5"]);
    bench.give(recorded("a", bench.now, RecordOutcome::Swapped(version("r2")))).ticks(60).said();
    assert_eq!(bench.give(take()).said(), ["claim 5", "lead 5: b handed it over", "b: taken 5", "read"]);
}

/// A node that starts after this one has died knows its `--lease` by the record alone.
#[test]
fn a_node_whose_lease_was_raised_writes_that_before_it_takes_vips() {
    let mut bench = Bench::following();
    bench.election.record = OwnRecord::default();
    bench.give(Input::RecordChanged { node: node_name("a"), record: None });
    let content = RecordContent { state: RecordState::Confirmed, promise: LEASE / 2 };
    let earlier = NodeRecord { content, version: version("r1") };
    bench.give(recorded("a", bench.now, RecordOutcome::Read(Some(earlier))));
    assert_eq!(bench.recorded(), ["read a", "confirm a (r1) for 300 ms"]);
    let take = || told("b", TransferStep::Take, 5);
    assert_eq!(bench.give(take()).said(), ["b: declined 5"]);
    bench.give(recorded("a", bench.now, RecordOutcome::Swapped(version("r2")))).ticks(60).said();
    assert_eq!(bench.give(take()).said(), ["claim 5", "lead 5: b handed it over", "b: taken 5", "read"]);
    assert_eq!(bench.recorded(), [""; 0]);
}

#[test]
fn a_node_that_could_not_read_its_record_when_it_started_reads_it_later() {
    let mut bench = Bench::following();
    bench.election.record = OwnRecord::default();
    bench.give(Input::RecordChanged { node: node_name("a"), record: None });
    bench.give(recorded("a", bench.now, RecordOutcome::Unavailable)).recorded();
    let take = || told("b", TransferStep::Take, 5);
    assert_eq!(bench.give(take()).said(), ["b: declined 5"]);
    bench.ticks(60);
    assert_eq!(bench.recorded(), ["read a"], "though it leads nothing");
    bench.give(recorded("a", bench.now, confirmed("r0"))).said();
    assert_eq!(bench.give(take()).said(), ["claim 5", "lead 5: b handed it over", "b: taken 5", "read"]);
}

/// The challenger does not wait for what this node reads after the challenge.
#[test]
fn a_record_that_is_challenged_is_no_evidence() {
    let mut bench = alone();
    let (asked, before) = (bench.now, bench.election.fence.deadline);
    let challenged = record(RecordState::Challenged(node_name("b")), "r7");
    bench.later(ms(10)).give(recorded("a", asked, RecordOutcome::Read(Some(challenged))));
    assert_eq!(
        (bench.election.fence.deadline, bench.recorded().pop().unwrap().as_str()),
        (before, "confirm a (r7) for 300 ms")
    );
    let asked = bench.now;
    bench.later(ms(10)).give(recorded("a", asked, RecordOutcome::Swapped(version("r8"))));
    assert_eq!(bench.election.fence.deadline, Some(asked + LEASE));
}

/// Nobody waits for a promise that is not written.
#[test]
fn a_record_is_evidence_for_no_longer_than_it_says() {
    let mut half = alone();
    half.peers.members.remove(&node_name("c"));
    half.recorded();
    let asked = half.now;
    half.give(recorded("a", asked, confirmed("r0")));
    assert_eq!(half.election.fence.deadline, Some(asked + LEASE));
    half.later(LEASE / 2).give(Input::Peers);
    assert_eq!(half.recorded(), ["confirm a (r0) for 2000 ms"]);
    let asked = half.now;
    half.give(recorded("a", asked, RecordOutcome::Swapped(version("r1"))));
    assert_eq!(half.election.fence.deadline, Some(asked + ms(2_000)));
    half.later(ms(1_000)).give(Input::Tick { carrier: true });
    assert_eq!(half.recorded(), ["read a"]);
}

#[test]
fn a_node_knows_whether_only_its_record_says_that_it_may_answer() {
    let uses_store = |bench: &Bench| bench.election.uses_store_evidence(&bench.peers, bench.now);
    assert!(!uses_store(&Bench::leading()), "the peers answer");
    let mut bench = alone();
    let asked = bench.now;
    bench.give(recorded("a", asked, confirmed("r0")));
    assert!(uses_store(&bench), "nobody else says so");
    bench.later(HEARTBEAT).tick();
    assert!(!uses_store(&bench), "the peers answer again");
    bench.later(LEASE * 2);
    assert!(!uses_store(&bench), "it may not answer at all");
}

#[test]
fn one_round_of_heartbeats_without_a_majority_can_be_chance() {
    let mut bench = Bench::leading();
    bench.recorded();
    for expected in [&[] as &[&str], &["read a"]] {
        bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
        assert_eq!(bench.recorded(), expected);
    }
}

#[test]
fn a_node_that_leads_nothing_and_can_take_nothing_asks_the_store_for_no_evidence() {
    let mut bench = Bench::following();
    bench.recorded();
    (bench.peers.majority, bench.peers.evidence_since) = (false, None);
    for _ in 0..20 {
        bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
    }
    assert_eq!(bench.recorded(), [""; 0]);
}

#[test]
fn half_of_the_members_and_a_minority_after_a_while_need_to_confirm_less_often() {
    let mut bench = alone();
    let (mut said, mut promise) = (Vec::new(), LEASE);
    for beat in 0..80 {
        for line in bench.recorded() {
            let is_read = line == "read a";
            if !is_read {
                promise = ms(2_000);
            }
            let content = RecordContent { state: RecordState::Confirmed, promise };
            let read = RecordOutcome::Read(Some(NodeRecord { content, version: version("r0") }));
            said.push((beat, line));
            bench.give(recorded("a", bench.now, if is_read { read } else { RecordOutcome::Swapped(version("r0")) }));
        }
        bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
    }
    let written: Vec<_> = said.iter().filter(|(_, line)| line != "read a").collect();
    let [(at, line)] = written[..] else { panic!("{said:?}") };
    assert_eq!((line.as_str(), *at > 20), ("confirm a (r0) for 2000 ms", true), "a majority may be elsewhere before");
    let later = said.iter().filter(|(beat, _)| *beat > 60).count();
    assert!((1..=3).contains(&later), "{said:?}");
}

/// A leader that is half of the members, and has just promised 2 s in its record, `r1`.
fn half() -> Bench {
    let mut bench = alone();
    bench.peers.members.remove(&node_name("c"));
    bench.give(recorded("a", bench.now, confirmed("r0")));
    bench.later(LEASE / 2).give(Input::Peers);
    bench.give(recorded("a", bench.now, RecordOutcome::Swapped(version("r1"))));
    bench
}

/// Returns the deadlines that the kernel was given since the last call.
fn deadlines(bench: &mut Bench) -> Vec<Duration> {
    let deadlines = bench.commands.extract_if(.., |command| matches!(command, Command::Extend(_)));
    deadlines
        .filter_map(|command| if let Command::Extend(deadline) = command { Some(deadline) } else { None })
        .collect()
}

/// As [`half`], and the other half is alive again.
fn whole_again() -> Bench {
    let mut bench = half();
    assert_eq!(deadlines(&mut bench).last(), Some(&(bench.now + ms(2_000))));
    bench.recorded();
    bench.peer("b").status = MemberStatus::Alive;
    bench.peers.majority = true;
    bench
}

#[test]
fn a_majority_that_is_back_need_not_wait_for_a_long_promise() {
    let mut bench = whole_again();
    bench.ticks(1);
    let deadline = bench.now + LEASE;
    assert_eq!((deadlines(&mut bench), bench.election.fence.deadline), (vec![deadline], Some(deadline)));
    assert_eq!(bench.recorded(), ["confirm a (r1) for 300 ms"]);
    // The majority waits for what it heard, not for this.
    let asked = bench.now + ms(50);
    bench.later(ms(60)).give(recorded("a", asked, RecordOutcome::Swapped(version("r2"))));
    assert_eq!(bench.election.fence.deadline, Some(deadline));
    bench.later(ms(40)).tick();
    assert_eq!(deadlines(&mut bench), [bench.now + LEASE], "nor for the promise from before");
}

#[test]
fn a_majority_that_is_back_does_not_wait_for_a_store_that_is_slow() {
    let mut bench = half();
    bench.recorded();
    bench.later(ms(1_000)).give(Input::Tick { carrier: true });
    assert_eq!(bench.recorded(), ["read a"]);
    let asked = bench.now;
    bench.peer("b").status = MemberStatus::Alive;
    bench.peers.majority = true;
    bench.ticks(1);
    let deadline = Some(bench.now + LEASE);
    assert_eq!(bench.election.fence.deadline, deadline);
    // The next heartbeat is not answered yet, and may never be.
    bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
    let content = RecordContent { state: RecordState::Confirmed, promise: ms(2_000) };
    let late = RecordOutcome::Read(Some(NodeRecord { content, version: version("r1") }));
    bench.later(ms(50)).give(recorded("a", asked, late));
    assert_eq!(bench.election.fence.deadline, deadline);
}

/// So a store that answers within the other half of `--lease` suspends nothing.
#[test]
fn a_node_that_hears_no_majority_for_half_of_its_lease_reads_its_record() {
    let mut bench = Bench::leading();
    bench.recorded();
    let answered = bench.now;
    bench.peers.evidence_since = Some(answered);
    bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
    assert_eq!((bench.recorded(), bench.election.next()), (vec![], Some(answered + LEASE / 2)), "that may be chance");
    bench.later(ms(50)).give(Input::Peers);
    assert_eq!(bench.recorded(), ["read a"]);
}

/// Gossip may say that a majority is alive before it answers, or when it answers no longer.
#[test]
fn a_long_promise_stands_until_a_majority_answers_the_latest_heartbeat() {
    let mut bench = whole_again();
    let before = bench.election.fence.deadline;
    bench.peers.evidence_since = Some(bench.now);
    bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
    assert_eq!((deadlines(&mut bench), bench.election.fence.deadline), (vec![], before));
}

#[test]
fn a_promise_that_is_retracted_moves_no_deadline_forward() {
    let mut bench = whole_again();
    bench.ticks(1);
    assert_eq!(bench.recorded(), ["confirm a (r1) for 300 ms"], "until that is written, the promise is a long one");
    deadlines(&mut bench);
    bench.later(HEARTBEAT);
    bench.peers.evidence_since = Some(bench.now);
    bench.give(Input::Tick { carrier: false });
    assert_eq!(deadlines(&mut bench), [Duration::ZERO; 0], "without a carrier the deadline stands still");
}

/// The peers would believe that this node answers again.
#[test]
fn a_promise_that_is_retracted_moves_no_deadline_that_has_passed() {
    let mut bench = whole_again();
    bench.peers.evidence_since = Some(bench.election.ticked);
    bench.later(ms(2_000)).give(Input::Peers);
    assert_eq!(deadlines(&mut bench), [Duration::ZERO; 0]);
    bench.said();
    bench.tick();
    assert_eq!(bench.said()[1..], ["renounce", "gather"]);
}

/// Its kernel may still answer by it.
#[test]
fn a_long_promise_stays_in_the_record_until_a_majority_is_back() {
    let mut bench = half();
    bench.recorded();
    // A third of the members need not be all that are alive.
    bench.peers.members.insert(node_name("c"), peer(MemberStatus::Down, T));
    bench.later(ms(1_000)).give(Input::Tick { carrier: true });
    assert_eq!(bench.recorded(), ["read a"]);
    let challenged = RecordContent { state: RecordState::Challenged(node_name("b")), promise: ms(2_000) };
    let challenged = NodeRecord { content: challenged, version: version("r2") };
    bench.give(recorded("a", bench.now, RecordOutcome::Read(Some(challenged))));
    assert_eq!(bench.recorded(), ["confirm a (r2) for 2000 ms"]);
    bench.later(ms(990));
    let (asked, before) = (bench.now, bench.election.fence.deadline);
    bench.give(recorded("a", asked, RecordOutcome::Swapped(version("r3"))));
    assert_eq!(bench.election.fence.deadline, before.max(Some(asked + LEASE)), "it counts for less");
}

#[test]
fn a_node_that_is_challenged_confirms_its_record_at_once() {
    let mut bench = Bench::leading();
    bench.recorded();
    let challenged = record(RecordState::Challenged(node_name("b")), "r7");
    bench.give(Input::RecordChanged { node: node_name("a"), record: Some(challenged.clone()) });
    assert_eq!(bench.recorded(), ["read a"], "a watch may be late");
    bench.give(recorded("a", bench.now, RecordOutcome::Read(Some(challenged))));
    assert_eq!(bench.recorded(), ["confirm a (r7) for 300 ms"]);
    assert_eq!(bench.role(), Role::Leading);
}

#[test]
fn a_node_that_is_fenced_leads_again_what_is_still_its_own() {
    let mut bench = alone();
    bench.said();
    let fenced = record(RecordState::Fenced(node_name("b")), "r7");
    bench.give(recorded("a", bench.now, RecordOutcome::Read(Some(fenced))));
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["follow: this node did not answer in its record, b may take it", "read"]);
    bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.role(), Role::Leading);
}

/// With a majority it needs no record. A minority elsewhere would take its VIPs later, and not challenge it.
#[test]
fn a_node_with_a_majority_confirms_what_another_one_wrote_into_its_record() {
    for state in [RecordState::Fenced, RecordState::Challenged] {
        let mut bench = Bench::leading();
        let other = record(state(node_name("b")), "r7");
        bench.give(Input::RecordChanged { node: node_name("a"), record: Some(other.clone()) });
        bench.recorded();
        bench.give(recorded("a", bench.now, RecordOutcome::Read(Some(other.clone()))));
        assert_eq!(bench.recorded(), ["confirm a (r7) for 300 ms"]);

        let mut bench = alone();
        bench.later(LEASE).give(Input::Tick { carrier: true });
        bench.recorded();
        bench.give(recorded("a", bench.now, RecordOutcome::Read(Some(other))));
        assert_eq!(bench.recorded(), [""; 0], "it may not answer yet");
        bench.falls("b", MemberStatus::Alive);
        bench.peers.majority = true;
        bench.want(&["a"]);
        bench.tick();
        assert_eq!(bench.recorded(), ["confirm a (r7) for 300 ms"]);
    }
}

/// It may have said that this node is fenced.
#[test]
fn a_node_whose_record_is_gone_leads_again_what_is_still_its_own() {
    let mut bench = alone();
    bench.give(recorded("a", bench.now, confirmed("r0")));
    bench.said();
    bench.later(LEASE / 2).give(Input::Peers);
    bench.give(recorded("a", bench.now, RecordOutcome::Read(None)));
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["follow: its Lease or this node's record is gone or was changed", "read"]);
    bench.give(recorded("a", bench.now, RecordOutcome::Swapped(version("r9"))));
    bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.role(), Role::Leading);
}

#[test]
fn a_confirmation_that_was_asked_for_before_the_deadline_passed_is_no_evidence() {
    let mut bench = alone();
    let asked = bench.now;
    bench.later(LEASE).give(Input::Tick { carrier: true });
    bench.give(recorded("a", asked, confirmed("r0")));
    bench.want(&["a"]);
    bench.give(Input::Tick { carrier: true });
    assert_eq!(bench.election.fence.deadline, None);
}

#[test]
fn a_store_that_refuses_is_asked_for_evidence_less_and_less_often() {
    let mut bench = alone();
    let mut asked = Vec::new();
    for beat in 0..80_u32 {
        if !bench.recorded().is_empty() {
            asked.push(beat);
            bench.give(recorded("a", bench.now, RecordOutcome::Unavailable));
        }
        if bench.election.fence.deadline.is_none() {
            bench.want(&["a"]);
        }
        bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
    }
    let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let last = &pauses[pauses.len() - 4..];
    assert!(last.iter().all(|pause| (8..=10).contains(pause)), "heartbeats between questions: {pauses:?}");
    assert!(pauses[..4].is_sorted(), "{pauses:?}");
}

/// An API server that has too much to do refuses a request now and then (429).
#[test]
fn a_refused_confirmation_is_repeated_before_the_evidence_lapses() {
    for (mut bench, promise) in [(alone(), LEASE), (half(), ms(2_000))] {
        if promise == LEASE {
            bench.give(recorded("a", bench.now, confirmed("r0")));
        }
        bench.recorded();
        let deadline = bench.election.fence.deadline.unwrap();
        assert_eq!(deadline, bench.now + promise);
        bench.later(promise / 2).give(Input::Tick { carrier: true });
        assert_eq!(bench.recorded(), ["read a"]);
        bench.give(recorded("a", bench.now, RecordOutcome::Unavailable));
        let next = bench.election.next().unwrap();
        assert!(next > bench.now && next + LEASE / 6 <= deadline, "{promise:?}: it has time to be answered");
        bench.now = next;
        assert!(bench.election.fence.is_open(next));
        bench.give(Input::Peers);
        assert_eq!(bench.recorded(), ["read a"]);
        let content = RecordContent { state: RecordState::Confirmed, promise };
        let record = NodeRecord { content, version: version("r1") };
        bench.give(recorded("a", next, RecordOutcome::Read(Some(record))));
        assert_eq!(bench.election.fence.deadline, Some(next + promise));
        assert_eq!(bench.role(), Role::Leading);
    }
}

/// Nobody can challenge it there.
#[test]
fn half_of_the_members_promise_no_more_than_the_lease_in_a_store_of_their_own() {
    let mut half = alone();
    half.peers.members.remove(&node_name("c"));
    half.differs("b").recorded();
    half.give(recorded("a", half.now, confirmed("r0")));
    half.later(LEASE / 2).give(Input::Peers);
    assert_eq!(half.recorded(), ["read a"], "it writes no longer promise");
}
