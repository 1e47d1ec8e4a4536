//! Answering, from the start on: the fence, and making sure of what is this node's own after
//! doubts.

use super::*;

/// Another agent may have left its VIPs to a node that has not written the Lease yet.
#[test]
fn an_agent_that_came_back_goes_on_with_what_its_kernel_answers_for_and_asks_the_lan_about_the_rest() {
    for (led, waits, asks) in [(true, 0, false), (false, 0, true), (false, 30, false)] {
        let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
        bench.election.led_at_start.extend(led.then_some(vip4(1)));
        bench.ticks(waits);
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip4(1), lease("a", 3, "v3"))])) });
        bench.tick().later(ms(20)).give(Input::Peers).give(read(Some(lease("a", 3, "v3"))));
        let mut said = bench.said();
        said.retain(|said| said != "survey");
        if asks {
            assert_eq!(said, ["read", "ask the LAN"]);
            // Its kernel goes on without an agent, for 2 s at most.
            bench.give(probed(AddressOwner::Peer)).ticks(3);
            bench.give(read(Some(lease("a", 3, "v3"))));
            assert_eq!(bench.said(), ["read", "ask the LAN"]);
            bench.give(probed(AddressOwner::Nobody)).give(swapped("v4"));
            assert_eq!(bench.said(), ["swap v3 for 4", "claim 4", "lead 4: it led it before, and came back in time"]);
        } else {
            assert_eq!(said, ["read", "swap v3 for 3"], "led: {led}, after {waits} ticks");
            bench.give(swapped("v4"));
            assert_eq!(bench.said(), ["claim 3", "lead 3: it led it before, and came back in time"]);
        }
    }
}

#[test]
fn who_comes_back_hears_first_whether_another_took_it_while_the_store_was_away() {
    for claims in [true, false] {
        let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
        bench.want(&["a", "b", "c"]);
        bench.peer("b").current = None;
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip4(1), lease("a", 3, "v3"))])) });
        bench.tick().ticks(4);
        assert_eq!(bench.said(), ["survey"], "b may claim it");
        if claims {
            bench.claim("b", 4);
            bench.peer("b").current = Some(bench.now);
        }
        bench.ticks(2);
        assert_eq!(bench.said(), if claims { &[][..] } else { &["read"][..] }, "b claims it: {claims}");
    }
}

#[test]
fn nothing_is_begun_before_the_others_were_heard_of_or_had_time_to_be() {
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
    bench.peers.members.remove(&node_name("c"));
    bench.want(&["a", "b", "c"]);
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip4(1), lease("c", 3, "v3"))])) });
    bench.tick().ticks(28);
    assert_eq!(bench.said(), ["survey"]);
    bench.falls("b", MemberStatus::Left);
    bench.ticks(4).give(read(Some(lease("c", 3, "v3"))));
    assert_eq!(bench.said(), ["read", "ask the LAN"]);
    bench.give(probed(AddressOwner::Nobody)).give(swapped("v4"));
    assert_eq!(bench.said(), ["swap v3 for 4", "claim 4", "lead 4: c held it and was not heard of"]);
}

#[test]
fn a_leader_gives_way_to_a_higher_epoch_and_not_to_a_lower_one() {
    let mut bench = Bench::leading();
    bench.claim("b", 1);
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"], "of equals the Lease decides");
    bench.give(read(Some(lease("a", 1, "v1"))));
    assert!(bench.election.leads(vip4(1)));
    bench.claim("b", 2);
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["follow: b took it", "withdraw"]);
    assert_eq!(bench.leader(), Some("b"));
}

/// Each has a Lease of its own in a store of its own.
#[test]
fn of_two_nodes_whose_stores_differ_the_first_by_name_leads() {
    for (rival, stays) in [("b", true), ("1", false)] {
        let mut bench = Bench::leading();
        bench.peers.members.insert(node_name(rival), peer(MemberStatus::Alive, T));
        bench.claim(rival, 1);
        for _ in 0..40 {
            bench.ticks(1).give(read(Some(lease("a", 1, "v1"))));
        }
        let said = bench.said();
        assert_eq!(said.contains(&format!("follow: {rival} took it")), !stays, "{said:?}");
        assert_eq!(bench.leader(), Some(if stays { "a" } else { rival }));
        // Without the rival it is one node's again.
        bench.peer(rival).state.claims.clear();
        bench.falls(rival, MemberStatus::Left);
        for _ in 0..10 {
            bench.ticks(1).give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
        }
        assert_eq!(bench.leader(), Some("a"));
    }
}

#[test]
fn a_node_that_others_outrank_is_silent_at_once_and_begins_anew_when_they_are_gone() {
    let mut bench = Bench::leading();
    bench.give(Input::Outranked(true));
    let follow = "follow: nodes with another gossip key may lead it, and this one may not";
    assert_eq!(bench.said(), [follow, "renounce", "gather"]);
    bench.want(&["a"]);
    bench.ticks(40);
    assert_eq!((bench.said(), bench.election.fence.deadline), (vec![], None));
    bench.give(Input::Outranked(false));
    assert_eq!(bench.said(), ["renounce", "gather"]);
    bench.want(&["a"]);
    bench.tick().later(ms(10)).give(Input::Peers).give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.said(), ["read", "swap v1 for 1", "lead 1: nobody led it before"]);
}

#[test]
fn a_leader_yields_to_an_announcement_until_the_lease_is_seen_to_be_its_own() {
    let mut bench = Bench::leading();
    bench.ticks(20);
    bench.said();
    bench.give(Input::PeerAnnounced(announced(&bench, &[])));
    assert_eq!(bench.said(), ["follow: a peer announced it", "read"]);
    bench.give(read(Some(lease("a", 1, "v1"))));
    assert_eq!(bench.said(), ["swap v1 for 1"]);
    bench.give(swapped("v2"));
    assert_eq!(bench.said(), ["lead 1: nobody led it before"]);
    bench.later(ms(100));
    bench.give(Input::PeerAnnounced(announced(&bench, &[])));
    assert_eq!(bench.said(), ["follow: a peer announced it"], "twice in a second: it waits");
    bench.ticks(11);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease("c", 2, "v9"))));
    assert_eq!(bench.said(), ["withdraw"]);
    assert_eq!((bench.role(), bench.leader()), (Role::Following, Some("c")));
}

#[test]
fn a_deadline_that_passed_is_not_extended_before_everything_is_known_anew() {
    let mut bench = Bench::leading();
    bench.later(LEASE).give(Input::Tick { carrier: true });
    let woken = bench.now;
    assert_eq!(
        bench.said(),
        ["follow: the fence deadline passed: this node was stopped, or is cut off", "renounce", "gather"]
    );
    bench.peers.evidence = None;
    bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
    assert_eq!((bench.said(), bench.election.fence.deadline), (vec![], None), "nothing is known yet");
    bench.want(&["a"]);
    assert_eq!(bench.said(), [""; 0], "an announcement would not leave the node");
    bench.tick();
    assert_eq!(bench.election.fence.deadline, Some(bench.now + LEASE));
    bench.later(ms(5)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.said(), ["swap v1 for 1", "lead 1: nobody led it before"]);
    assert!(bench.now > woken);
}

#[test]
fn who_was_away_and_finds_another_in_its_place_follows() {
    let mut bench = Bench::leading();
    bench.later(LEASE).give(Input::Tick { carrier: true });
    bench.want(&["a"]);
    bench.ticks(1).said();
    bench.give(read(Some(lease("b", 2, "v2"))));
    assert_eq!(bench.said(), ["withdraw"]);
    assert_eq!((bench.role(), bench.leader()), (Role::Following, Some("b")));
}

#[test]
fn who_was_away_without_the_store_waits_until_all_peers_have_spoken() {
    let mut bench = Bench::leading();
    bench.later(LEASE).give(Input::Tick { carrier: true });
    let woken = bench.now;
    bench.want(&["a"]);
    bench.tick();
    bench.give(stored(LeaseOutcome::Unavailable));
    assert_eq!(bench.role(), Role::Suspended);
    for name in ["b", "c"] {
        bench.peer(name).current = Some(woken + ms(1));
    }
    bench.ticks(2).give(stored(LeaseOutcome::Unavailable));
    assert_eq!(bench.role(), Role::Leading);
}

#[test]
fn who_was_held_for_down_makes_sure_of_its_leases() {
    let mut bench = Bench::leading();
    bench.later(ms(50)).give(Input::Disowned);
    assert_eq!(bench.said(), ["follow: a peer held this node for down", "read"]);
    bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.role(), Role::Leading);
}

#[test]
fn the_deadline_counts_from_when_the_evidence_was_asked_for() {
    let mut bench = Bench::leading();
    bench.later(ms(250));
    bench.peers.evidence = Some(T + ms(60));
    bench.give(Input::Tick { carrier: true });
    assert_eq!(bench.election.fence.deadline, Some(T + ms(60) + LEASE));
}

#[test]
fn without_a_carrier_the_deadline_stands_still() {
    let mut bench = Bench::leading();
    let before = bench.election.fence.deadline;
    bench.later(ms(100));
    bench.peers.evidence = Some(bench.now);
    bench.give(Input::Tick { carrier: false });
    assert_eq!(bench.election.fence.deadline, before);
}

/// The record of this node is as it wrote it.
fn confirmed(version: &str) -> RecordOutcome {
    RecordOutcome::Read(Some(record(RecordStanding::Confirmed, version)))
}

/// A leader of three nodes that no longer hears the others.
fn alone() -> Bench {
    let mut bench = Bench::leading();
    bench.recorded();
    bench.falls("b", MemberStatus::Down);
    bench.falls("c", MemberStatus::Down);
    (bench.peers.majority, bench.peers.evidence) = (false, None);
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

/// The challenger does not wait for what this node reads after the challenge.
#[test]
fn a_record_that_is_challenged_is_no_evidence() {
    let mut bench = alone();
    let (asked, before) = (bench.now, bench.election.fence.deadline);
    let challenged = record(RecordStanding::Challenged(node_name("b")), "r7");
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
    (bench.peers.majority, bench.peers.evidence) = (false, None);
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
            let content = RecordContent { standing: RecordStanding::Confirmed, promise };
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

#[test]
fn a_majority_that_is_back_need_not_wait_for_a_long_promise() {
    let mut bench = half();
    assert_eq!(bench.election.fence.deadline, Some(bench.now + ms(2_000)));
    bench.recorded();
    bench.peer("b").status = MemberStatus::Alive;
    bench.peers.majority = true;
    bench.ticks(1);
    assert_eq!(bench.election.fence.deadline, Some(bench.now + LEASE));
    assert_eq!(bench.recorded(), ["confirm a (r1) for 300 ms"]);
    // The majority waits for what it heard, not for this.
    let (before, asked) = (bench.election.fence.deadline, bench.now + ms(50));
    bench.later(ms(60)).give(recorded("a", asked, RecordOutcome::Swapped(version("r2"))));
    assert_eq!(bench.election.fence.deadline, before);
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
    let content = RecordContent { standing: RecordStanding::Confirmed, promise: ms(2_000) };
    let late = RecordOutcome::Read(Some(NodeRecord { content, version: version("r1") }));
    bench.later(ms(50)).give(recorded("a", asked, late));
    assert_eq!(bench.election.fence.deadline, deadline);
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
    let challenged = RecordContent { standing: RecordStanding::Challenged(node_name("b")), promise: ms(2_000) };
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
    let challenged = record(RecordStanding::Challenged(node_name("b")), "r7");
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
    let fenced = record(RecordStanding::Fenced(node_name("b")), "r7");
    bench.give(recorded("a", bench.now, RecordOutcome::Read(Some(fenced))));
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["follow: this node did not answer in its record, b may take it", "read"]);
    bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.role(), Role::Leading);
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
fn nothing_is_led_while_the_fence_is_closed() {
    let mut bench = Bench::ready();
    bench.give(read(None));
    bench.later(LEASE * 2).give(swapped("v1"));
    assert_eq!(bench.role(), Role::Suspended);
    assert!(!bench.said().iter().any(|said| said.starts_with("lead")));
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
        assert!(bench.election.may_answer(next));
        bench.give(Input::Peers);
        assert_eq!(bench.recorded(), ["read a"]);
        let content = RecordContent { standing: RecordStanding::Confirmed, promise };
        let record = NodeRecord { content, version: version("r1") };
        bench.give(recorded("a", next, RecordOutcome::Read(Some(record))));
        assert_eq!(bench.election.fence.deadline, Some(next + promise));
        assert_eq!(bench.role(), Role::Leading);
    }
}
