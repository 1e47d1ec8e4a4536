//! Taking over what nobody leads: who may, when, and by which words to the store and the LAN.

use std::cell::Cell;

use super::*;
use crate::rendezvous;

#[test]
fn the_first_leader_makes_the_lease_and_asks_the_lan_before_it_answers() {
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
    assert_eq!(bench.said(), ["survey"]);
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) });
    assert_eq!(bench.said(), [""; 0], "there is no evidence yet that it may lead");
    bench.tick();
    bench.later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(None));
    assert_eq!(bench.said(), ["create 1"]);
    bench.give(swapped("v1"));
    assert_eq!(bench.said(), ["claim 1", "detect"]);
    assert_eq!(bench.role(), Role::Detecting);
    bench.give(probed(AddressOwner::Nobody));
    assert_eq!(bench.said(), ["lead 1: nobody led it before"]);
    assert_eq!(bench.role(), Role::Leading);
}

#[test]
fn an_address_that_a_stranger_has_is_not_answered_for_and_asked_about_again() {
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) }).tick();
    bench.later(ms(20)).give(Input::Peers).give(read(None)).give(swapped("v1"));
    bench.said();
    bench.give(probed(AddressOwner::ForeignSpeaker(MAC)));
    assert_eq!(bench.said(), ["conflict"]);
    assert_eq!(bench.role(), Role::Conflicted);
    bench.ticks(99);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(2);
    assert_eq!(bench.said(), ["detect"]);
    bench.give(probed(AddressOwner::Nobody));
    assert_eq!(bench.said(), ["lead 1: nobody led it before"]);
}

/// It transfers the VIP, or its deadline passes.
#[test]
fn whether_a_leader_without_a_node_answers_is_asked_once_more_soon() {
    let mut bench = Bench::following();
    bench.peers.members.remove(&node_name("b"));
    bench.want(&["a", "c"]);
    bench.ticks(40);
    assert_eq!(bench.said(), ["read"], "it settles first, and waits for its turn");
    for pause in [5, 100] {
        bench.give(read(Some(lease("b", 4, "v4"))));
        assert_eq!(bench.said(), ["ask the LAN"]);
        bench.give(probed(AddressOwner::ForeignSpeaker(MAC)));
        assert_eq!(bench.said(), ["conflict"]);
        bench.ticks(pause - 1);
        assert_eq!(bench.said(), [""; 0], "not before {pause} heartbeats");
        bench.ticks(7);
        assert_eq!(bench.said(), ["read"]);
    }
}

#[test]
fn a_takeover_is_never_held_up_by_detection() {
    let mut bench = Bench::following();
    bench.election.settings.detect = true;
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4).knows_b();
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["swap v4 for 5"]);
    bench.give(swapped("v5"));
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
}

#[test]
fn a_holder_must_have_been_silent_for_longer_than_its_fence_may_hold() {
    let mut bench = Bench::following();
    bench.later(ms(200));
    bench.peer("b").heard = Some(T + ms(200));
    bench.falls("b", MemberStatus::Down);
    bench.tick();
    for _ in 0..32 {
        bench.later(ms(10)).tick().give(Input::Peers);
        assert_eq!(bench.said(), [""; 0], "{:?} after it was heard", bench.now.saturating_sub(T + ms(200)));
    }
    bench.later(ms(10)).tick().give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
}

#[test]
fn where_too_few_say_how_long_a_holder_was_silent_it_had_evidence_until_all_heard() {
    let mut bench = Bench::following();
    bench.later(ms(200)).falls("b", MemberStatus::Down);
    bench.peer("b").silent = None;
    let down = bench.now;
    bench.tick().ticks(4).later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), [""; 0], "{:?} after it was found down", bench.now.saturating_sub(down));
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
}

#[test]
fn of_two_with_one_epoch_the_one_gives_way_that_did_not_write_the_lease() {
    for written in [true, false] {
        let mut bench = Bench::following();
        bench.falls("b", MemberStatus::Down);
        bench.ticks(4).knows_b().later(ms(30)).give(Input::Peers);
        bench.give(read(Some(lease("b", 4, "v4"))));
        let outcome = if written { LeaseOutcome::Swapped(version("v5")) } else { LeaseOutcome::Unavailable };
        bench.give(Input::Stored { vip: vip4(1), outcome: outcome.clone() });
        if !written {
            // A write that did not end is tried again, from a look at the Lease on.
            bench.ticks(3).give(Input::Stored { vip: vip4(1), outcome }).answer().answer();
        }
        assert_eq!(bench.role(), Role::Leading);
        bench.said();
        bench.claim("c", 5);
        bench.later(ms(20)).give(Input::Peers);
        let expected: &[&str] = if written { &["read"] } else { &["follow: c took it", "withdraw"] };
        assert_eq!(bench.said(), expected, "written: {written}");
    }
}

#[test]
fn one_that_left_in_order_is_followed_once_the_deadline_of_what_it_still_led_has_passed() {
    let mut bench = Bench::following();
    bench.later(ms(10));
    bench.peer("b").heard = Some(bench.now);
    bench.falls("b", MemberStatus::Left);
    bench.give(Input::Peers).ticks(3).later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), [""; 0]);
    bench.later(ms(6)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
}

/// The node that it handed the VIP over to may have died before it could say so.
#[test]
fn one_that_left_is_followed_after_the_longest_lease_of_all() {
    let mut bench = Bench::following();
    let wire = membership::WireVersions::OWN;
    bench.peer("c").state.agent = Some(membership::AgentInfo { version: "0".to_owned(), wire, lease: LEASE * 4 });
    bench.later(ms(10)).falls("b", MemberStatus::Left);
    bench.give(Input::Peers).ticks(12).later(ms(36)).give(Input::Peers);
    assert_eq!(bench.said(), [""; 0]);
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
}

/// Wants the VIP of three nodes, of which this one is nearly always the first by rendezvous.
fn want_first(bench: &mut Bench, first: &str) {
    let weigh = |name: &str| Candidate { weight: if name == first { u32::MAX } else { 1 }, ..candidate(name) };
    let candidates: Candidates = ["a", "b", "c"].map(weigh).into_iter().collect();
    bench.give(Input::Wanted(Arc::new([(vip4(1), candidates)].into())));
}

#[test]
fn who_is_not_first_waits_for_its_turn() {
    for first in ["a", "c"] {
        let mut bench = Bench::following();
        want_first(&mut bench, first);
        bench.falls("b", MemberStatus::Down);
        let mut waited = 0;
        while !bench.said().contains(&"read".to_owned()) {
            // Turns count from the first evaluation.
            bench.ticks(1).give(Input::Peers);
            waited += 1;
            assert!(waited < 20, "it never acted");
        }
        assert_eq!(waited > 6, first == "c", "{waited} heartbeats, and {first} is first");
    }
}

#[test]
fn a_living_node_that_just_got_the_lease_has_time_to_claim_its_vip() {
    let mut bench = Bench::following();
    bench.peer("b").state.claims.clear();
    bench.ticks(30).give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said().last().map(String::as_str), Some("ask the LAN"));
    bench.give(probed(AddressOwner::Peer));
    bench.give(Input::LeaseChanged { vip: vip4(1), lease: Some(lease("c", 5, "v5")) });
    bench.ticks(9);
    assert_eq!(bench.said(), [""; 0]);
}

#[test]
fn who_has_lapsed_has_no_turn() {
    for lapsed in [true, false] {
        let mut bench = Bench::following();
        want_first(&mut bench, "c");
        bench.peer("c").state.lapsed = lapsed;
        bench.falls("b", MemberStatus::Down);
        bench.ticks(4);
        assert_eq!(bench.said().contains(&"read".to_owned()), lapsed);
    }
}

#[test]
fn a_node_in_its_hold_down_takes_at_once_what_no_other_node_can() {
    let settings = ElectionSettings { detect: false, ..ElectionSettings::default() };
    // By rendezvous it is nearly always the first.
    let first = Candidate { weight: u32::MAX, ..candidate("a") };
    let candidates: Candidates = [first, candidate("b")].into_iter().collect();
    for (other, takes) in [(MemberStatus::Alive, false), (MemberStatus::Down, true)] {
        for hold_down in [Duration::ZERO, settings.hold_down] {
            let mut bench = Bench::new(ElectionSettings { hold_down, ..settings });
            bench.falls("b", other);
            bench.give(Input::Wanted(Arc::new([(vip4(1), candidates.clone())].into())));
            bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) });
            bench.tick().later(ms(20)).give(Input::Peers);
            let expected = takes || hold_down.is_zero();
            assert_eq!(bench.said().contains(&"read".to_owned()), expected, "{other:?}, {hold_down:?}");
        }
    }
}

#[test]
fn a_hold_down_ends_after_a_minute() {
    let mut bench = Bench::new(ElectionSettings::default());
    let ready = |bench: &Bench| bench.commands.contains(&Command::Publish(Item::Ready(true)));
    bench.ticks(599);
    assert!(!ready(&bench));
    bench.ticks(1);
    assert!(ready(&bench));
}

#[test]
fn a_holder_whose_end_no_majority_saw_is_looked_for_on_the_lan() {
    for (found, expected) in [
        (AddressOwner::Nobody, vec!["swap v4 for 5"]),
        (AddressOwner::ForeignSpeaker(MAC), vec!["conflict"]),
        (AddressOwner::Unknown, vec![]),
        (AddressOwner::Peer, vec![]),
    ] {
        let mut bench = Bench::following();
        bench.peers.members.remove(&node_name("c"));
        bench.falls("b", MemberStatus::Down);
        bench.peers.majority = false;
        bench.ticks(1).fence("b").give(read(Some(lease("b", 4, "v4"))));
        assert_eq!(bench.said(), ["read", "ask the LAN"]);
        bench.give(probed(found.clone()));
        assert_eq!(bench.said(), expected, "{found:?}");
        if found == AddressOwner::Unknown {
            bench.ticks(3);
            assert_eq!(bench.said(), ["read"], "it may be cut off, and looks again soon");
        } else if found != AddressOwner::Nobody {
            bench.ticks(98);
            assert_eq!(bench.said(), [""; 0], "it is left alone");
            let fenced = record(RecordState::Fenced(node_name("a")), "r2");
            bench.ticks(5).record("b", RecordOutcome::Read(Some(fenced))).ticks(1);
            assert_eq!(bench.said(), ["read"], "but not for ever");
        }
    }
}

#[test]
fn a_holder_that_answered_on_the_lan_and_came_back_is_followed_at_once_when_it_ends() {
    for comes_back_first in [false, true] {
        let mut bench = Bench::following();
        bench.falls("b", MemberStatus::Down);
        bench.peers.majority = false;
        bench.ticks(1).fence("b").give(read(Some(lease("b", 4, "v4"))));
        assert_eq!(bench.said(), ["read", "ask the LAN"]);
        if comes_back_first {
            bench.falls("b", MemberStatus::Alive);
            bench.give(Input::Peers);
        }
        bench.give(probed(AddressOwner::Peer));
        bench.falls("b", MemberStatus::Alive);
        bench.peers.majority = true;
        bench.give(Input::Peers).ticks(3);
        assert_eq!(bench.said(), [""; 0]);
        bench.falls("b", MemberStatus::Down);
        bench.give(Input::Peers).ticks(4).answer();
        assert_eq!(bench.said(), ["read", "claim 5", "lead 5: b was down"], "{comes_back_first}");
    }
}

/// What it knows of the holder is from before it stood still itself.
#[test]
fn who_stood_still_since_does_not_take_over_from_a_holder_that_had_lapsed() {
    for (stands_still, expected) in [(false, vec!["swap v4 for 5"]), (true, vec![])] {
        let mut bench = Bench::following();
        bench.ticks(20);
        bench.peer("b").state.lapsed = true;
        bench.give(Input::Peers);
        assert_eq!(bench.said(), ["read"]);
        if stands_still {
            bench.later(LEASE).give(Input::Tick { carrier: true }).said();
        }
        bench.give(read(Some(lease("b", 4, "v4"))));
        assert_eq!(bench.said(), expected);
    }
}

#[test]
fn a_holder_that_acted_after_it_was_declared_down_is_looked_for_on_the_lan() {
    let mut bench = Bench::following();
    bench.falls("c", MemberStatus::Down);
    bench.falls("b", MemberStatus::Down);
    bench.peer("c").confirmed = None;
    bench.ticks(4);
    bench.give(read(Some(lease("c", 7, "v7"))));
    assert_eq!(bench.said(), ["read"]);
    bench.ticks(11);
    assert_eq!(bench.said(), ["read"], "it had time to be heard of");
    bench.give(read(Some(lease("c", 7, "v7"))));
    assert_eq!(bench.said(), ["ask the LAN"]);
}

/// It crashed after it had written the Lease, before anybody heard its claim.
#[test]
fn a_successor_that_fails_at_once_is_followed_as_soon_as_a_majority_has_found_it_down() {
    let mut bench = Bench::following();
    bench.falls("c", MemberStatus::Down);
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4);
    bench.give(read(Some(lease("c", 7, "v7"))));
    assert_eq!(bench.said(), ["read", "swap v7 for 8"]);
}

#[test]
fn who_is_cut_off_from_all_others_takes_nothing_back_from_who_followed_it() {
    let mut bench = Bench::leading();
    bench.falls("b", MemberStatus::Down);
    bench.falls("c", MemberStatus::Down);
    bench.peers.majority = false;
    let leases = Some(OrdMap::from_iter([(vip4(1), lease("c", 2, "v2"))]));
    bench.later(ms(10));
    bench.give(Input::Surveyed { asked: bench.now, leases });
    assert_eq!(bench.said(), ["follow: c took it", "withdraw"]);
    bench.ticks(290);
    assert_eq!(bench.said(), [""; 0]);
    bench.fence("c");
    assert_eq!(bench.said(), ["read"], "it does not answer in its record");
}

/// The other nodes count them, too.
#[test]
fn a_node_that_waits_for_the_store_counts_the_vips_that_it_is_about_to_take() {
    let (a, c) = (node_name("a"), node_name("c"));
    let prefers_a = |vip: &Vip| rendezvous::first(*vip, [(&a, 1), (&c, 1)], 1) == [0];
    let vips: Vec<_> = (1..=100).map(vip4).filter(prefers_a).take(8).collect();
    let candidates: Candidates = ["a", "c"].into_iter().map(candidate).collect();
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
    bench.give(Input::Wanted(Arc::new(vips.iter().map(|vip| (*vip, candidates.clone())).collect())));
    let leases = vips.iter().map(|vip| (*vip, lease("b", 4, "v4"))).collect();
    bench.give(Input::Surveyed { asked: T, leases: Some(leases) }).tick();
    bench.falls("b", MemberStatus::Down);
    bench.said();
    bench.ticks(4).knows_b();
    assert_eq!(bench.said(), ["read"; 5], "half of the VIPs, and one more");
    bench.later(ms(50)).give(Input::Peers);
    assert_eq!(bench.said(), [""; 0], "the others are c's");
}

/// By its claim, which its own copy or that of its state has.
#[test]
fn who_knew_the_claim_of_a_holder_witnessed_its_end() {
    for heard in [true, false] {
        let mut bench = Bench::following();
        if heard {
            bench.later(ms(10)).give(Input::Peers);
            bench.peer("b").state.claims.clear();
        }
        assert_eq!(bench.election.states[&vip4(1)].latest.as_ref().unwrap().why.is_some(), heard);
        bench.falls("b", MemberStatus::Down);
        bench.peer("b").confirmed = None;
        bench.ticks(4).knows_b().give(read(Some(lease("b", 4, "v4"))));
        assert_eq!(bench.said(), ["read", "swap v4 for 5"], "heard: {heard}");
    }
}

#[test]
fn a_vip_that_nobody_led_is_not_taken_before_all_candidates_were_heard_of() {
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
    bench.peers.members.remove(&node_name("c"));
    bench.want(&["a", "c"]);
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) });
    bench.tick().ticks(28);
    assert_eq!(bench.said(), ["survey"]);
    bench.ticks(4);
    assert_eq!(bench.said(), ["read"]);
}

#[test]
fn a_lease_whose_holder_is_there_is_left_to_it_for_a_while() {
    let mut bench = Bench::ready();
    bench.said();
    bench.recorded();
    bench.give(read(Some(lease("b", 3, "v3"))));
    assert_eq!(bench.leader(), Some("b"));
    bench.ticks(8);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(4);
    assert_eq!(bench.said(), ["read"], "it never claimed it");
    bench.give(read(Some(lease("b", 3, "v3"))));
    assert_eq!((bench.said(), bench.recorded()), (vec!["ask the LAN".to_owned()], vec![]), "it is alive");
}

/// Nobody could know its claims meanwhile.
#[test]
fn a_holder_that_comes_back_has_a_second_to_claim_what_it_led() {
    let mut bench = Bench::following();
    for name in ["b", "c"] {
        bench.falls(name, MemberStatus::Down);
    }
    bench.peers.majority = false;
    bench.ticks(30);
    assert_eq!(bench.said(), [""; 0], "its record does not say that it is gone");
    for name in ["b", "c"] {
        bench.falls(name, MemberStatus::Alive);
    }
    bench.peer("b").state.claims.clear();
    bench.peers.majority = true;
    bench.give(Input::Peers).ticks(9);
    assert_eq!(bench.said(), [""; 0], "b may claim it at any time");
    bench.ticks(3);
    assert_eq!(bench.said(), ["read"]);
}

#[test]
fn who_is_slower_than_another_reads_again() {
    let mut bench = Bench::following();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4).give(read(Some(lease("b", 4, "v4")))).give(stored(LeaseOutcome::Conflict));
    bench.said();
    bench.ticks(1);
    assert_eq!(bench.said(), ["read"]);
    bench.claim("c", 5);
    bench.give(read(Some(lease("c", 5, "v5"))));
    bench.ticks(3);
    assert_eq!(bench.said(), [""; 0]);
    assert_eq!(bench.leader(), Some("c"));
}

/// Its gossip may be blocked while the others lead.
#[test]
fn who_hears_nobody_knows_of_the_leaders_that_it_should_hear() {
    let mut bench = Bench::ready();
    bench.peers = Peers { evidence_since: Some(T), majority: false, ..Peers::default() };
    let leases = Some(OrdMap::from_iter([(vip4(1), lease("c", 2, "v2"))]));
    bench.give(Input::Surveyed { asked: bench.now, leases });
    let unheard = |bench: &Bench| bench.election.unheard_leaders(&bench.peers, bench.now).len();
    assert_eq!(unheard(&bench), 0, "it has just started");
    bench.ticks(120);
    assert_eq!(unheard(&bench), 1);
    bench.peers.members.insert(node_name("b"), peer(MemberStatus::Down, bench.now));
    assert_eq!(unheard(&bench), 0, "it has heard b");
}

/// Its event loop hangs, and its gossip says so.
#[test]
fn the_vips_of_a_leader_that_has_lapsed_are_taken_at_once() {
    let mut bench = Bench::following();
    bench.ticks(11);
    bench.peer("b").state.lapsed = true;
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["swap v4 for 5"]);
}

/// All were cut off, and have lapsed. Each leads again what is its own.
#[test]
fn a_node_that_was_cut_off_itself_gives_a_leader_that_has_lapsed_a_second_to_come_back() {
    let mut bench = Bench::following();
    bench.peer("b").state.lapsed = true;
    bench.ticks(9);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(3);
    assert_eq!(bench.said(), ["read"]);
}

#[test]
fn what_answers_is_not_down() {
    let mut bench = Bench::following();
    bench.falls("b", MemberStatus::Down);
    for _ in 0..9 {
        let now = bench.ticks(1).now;
        bench.peer("b").answered = Some(now);
    }
    bench.knows_b();
    assert_eq!(bench.said(), [] as [&str; 0]);
    bench.ticks(4);
    assert_eq!(bench.said(), ["read"]);
}

/// Two nodes are cut off from each other, and both reach the store.
#[test]
fn of_two_nodes_neither_takes_back_at_once_what_the_other_has_taken() {
    let mut bench = Bench::leading();
    bench.peers.members.remove(&node_name("c"));
    bench.falls("b", MemberStatus::Down);
    bench.peers.majority = false;
    bench.ticks(4).said();
    bench.give(Input::LeaseChanged { vip: vip4(1), lease: Some(lease("b", 2, "v2")) });
    assert_eq!(bench.said(), ["follow: b took it", "withdraw"]);
    bench.ticks(250);
    assert_eq!(bench.said(), [] as [&str; 0], "b may be alive");
    bench.fence("b");
    assert_eq!(bench.said(), ["read"], "it does not answer in its record");
}

#[test]
fn where_stores_differ_a_node_waits_for_other_claims_before_it_answers() {
    for claimed in [false, true] {
        let mut bench = Bench::ready();
        bench.differs("b").give(read(None));
        assert_eq!(bench.said().last().map(String::as_str), Some("ask the LAN"), "a store of its own knows no leader");
        bench.give(probed(AddressOwner::Nobody)).give(swapped("v1"));
        assert_eq!(bench.said(), ["create 1", "claim 1"]);
        if claimed {
            bench.claim("b", 2);
        }
        bench.later(ms(30)).give(Input::Peers).give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
        let leads = ["read", "swap v1 for 1", "lead 1: nobody led it before"];
        assert_eq!(bench.said(), if claimed { vec!["withdraw"] } else { leads.to_vec() });
    }
}

#[test]
fn where_stores_differ_a_swap_does_not_count_beside_a_claim() {
    let mut bench = Bench::ready();
    bench.differs("b").give(read(None)).give(probed(AddressOwner::Nobody));
    bench.claim("b", 1);
    bench.give(swapped("v1")).later(ms(30)).give(Input::Peers);
    assert_eq!((bench.leader(), bench.role()), (Some("b"), Role::Following));
}

#[test]
fn where_stores_differ_the_leader_is_who_claims_the_vip_and_not_who_led_in_a_later_epoch() {
    for (differs, leader) in [(false, "c"), (true, "b")] {
        let mut bench = Bench::following();
        bench.peer("b").state.claims.clear();
        bench.claim("c", 7);
        bench.later(ms(20)).give(Input::Peers).peer("c").state.claims.clear();
        if differs {
            bench.differs("b");
        }
        bench.claim("b", 4);
        bench.later(ms(20)).give(Input::Peers);
        assert_eq!(bench.leader(), Some(leader));
    }
}

/// Else 10,000 VIPs of two pools with 1,000 nodes cost ten million comparisons at each evaluation of a start.
#[test]
fn each_list_of_candidates_is_read_once_however_the_vips_alternate() {
    let mut bench = Bench::following();
    let lists: [Candidates; 2] = ["b", "c"].map(|name| ["a", name].into_iter().map(candidate).collect());
    let wanted = (1..=100).map(|number| (vip4(number), lists[usize::from(number % 2)].clone())).collect();
    bench.give(Input::Wanted(Arc::new(wanted)));
    let questions = Cell::new(0);
    let count = |_: &_| {
        questions.set(questions.get() + 1);
        true
    };
    assert!(bench.election.all_candidates(&bench.peers, count));
    assert_eq!(questions.get(), 2);
}
