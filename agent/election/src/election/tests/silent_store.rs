//! Taking over while the store fails, or does not answer.

use super::*;

#[test]
fn without_the_store_a_majority_that_saw_the_holder_go_is_enough() {
    for (majority, leads) in [(true, true), (false, false)] {
        let mut bench = Bench::following();
        bench.falls("b", MemberStatus::Down);
        bench.peers.majority = majority;
        bench.ticks(4).give(stored(LeaseOutcome::Unavailable)).answer().answer();
        let expected: &[&str] = if leads { &["read", "claim 5", "lead 5: b was down"] } else { &[] };
        assert_eq!(bench.said(), expected);
    }
}

/// It may have been cut off since, and the leader may have come back.
#[test]
fn who_has_no_evidence_since_it_asked_the_store_does_not_act_without_its_answer() {
    let mut bench = Bench::following();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(3).later(ms(30)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
    bench.later(ms(100)).give(Input::Peers);
    assert!(bench.only_asks());
    bench.peers.evidence_since = Some(bench.now);
    bench.later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), [""; 0]);
    bench.peer("b").confirmed = bench.peers.evidence_since;
    bench.answer().answer().answer().answer();
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
}

/// Others may lead the VIP since.
#[test]
fn who_has_no_evidence_since_it_asked_the_store_takes_no_vip_without_a_leader() {
    let mut bench = Bench::ready();
    bench.said();
    bench.peers.evidence_since = bench.now.checked_sub(ms(1));
    bench.later(ms(20)).give(stored(LeaseOutcome::Unavailable));
    assert!(bench.only_asks());
    bench.answer().answer();
    assert_eq!(bench.said(), ["claim 1", "lead 1: nobody led it, and the Leases could not be read"]);
}

/// Not all members are asked, so nobody says that a majority considers the leader down.
#[test]
fn in_a_large_cluster_evidence_since_the_store_was_asked_is_enough() {
    let mut bench = Bench::following();
    for number in 0..membership::SAMPLE {
        bench.peers.members.insert(node_name(format!("n{number}")), peer(MemberStatus::Alive, T));
    }
    bench.falls("b", MemberStatus::Down);
    (bench.peer("b").silent, bench.peer("b").confirmed) = (None, None);
    bench.later(ms(10)).give(Input::Peers).ticks(3).later(ms(30)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
    bench.later(ms(100)).give(Input::Peers);
    assert!(bench.only_asks());
    bench.answer().later(ms(30)).give(Input::Peers);
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
}

/// In a large cluster it leads at once, and the peers have nothing to decide.
#[test]
fn a_store_that_refuses_is_asked_again_soon_by_a_node_that_took_a_vip_without_it() {
    for others in [0, membership::SAMPLE] {
        let mut bench = Bench::following();
        for number in 0..others {
            bench.peers.members.insert(node_name(format!("n{number}")), peer(MemberStatus::Alive, T));
        }
        bench.falls("b", MemberStatus::Down);
        bench.ticks(4).answer().answer().give(stored(LeaseOutcome::Unavailable)).answer().answer();
        assert_eq!(bench.said(), ["read", "claim 5", "lead 5: b was down"], "{others} others");
        bench.ticks(4);
        assert_eq!(bench.said(), ["read"], "{others} others");
    }
}

#[test]
fn what_was_taken_without_the_store_is_written_down_or_given_up_when_it_is_back() {
    for (found, expected) in [
        (Some(lease("b", 4, "v4")), "swap v4 for 5"),
        (None, "create 5"),
        (Some(lease("c", 5, "v5")), "follow: c took it"),
        (Some(lease("c", 6, "v6")), "follow: c took it"),
    ] {
        let mut bench = Bench::following();
        bench.falls("b", MemberStatus::Down);
        bench.ticks(4).give(stored(LeaseOutcome::Unavailable)).answer().answer();
        bench.ticks(11);
        bench.said();
        bench.give(read(found.clone()));
        assert_eq!(bench.said().first().map(String::as_str), Some(expected), "{found:?}");
        assert_eq!(bench.election.leads(vip4(1)), !expected.starts_with("follow"));
    }
}

/// The leader may have its Lease in a store that this node cannot reach.
#[test]
fn who_hears_nobody_takes_nothing_without_the_store() {
    let mut bench = Bench::ready();
    bench.peers = Peers { evidence_since: Some(T), majority: false, ..Peers::default() };
    bench.ticks(50);
    assert_eq!(bench.said().last().unwrap(), "read");
    bench.give(stored(LeaseOutcome::Unavailable));
    assert_eq!((bench.said(), bench.role()), (vec![], Role::Following));
}

/// `b`, whose end a majority saw, led `.1` in epoch 4, and the Lease is being read.
fn waiting_for_the_store() -> Bench {
    let mut bench = Bench::following();
    bench.falls("b", MemberStatus::Down);
    bench.ticks(4).knows_b();
    assert_eq!(bench.said(), ["read"]);
    bench
}

#[test]
fn a_majority_that_saw_the_leaders_end_does_not_wait_for_a_store_that_is_silent() {
    let mut bench = waiting_for_the_store();
    bench.ticks(1).answer();
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
    // The answer comes at last, and shows nothing that this node did not know.
    bench.ticks(8).give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["swap v4 for 5"]);
    bench.give(swapped("v5")).ticks(20);
    assert_eq!(bench.said(), [] as [&str; 0]);
}

#[test]
fn a_silent_store_allows_nothing_after_the_others_no_longer_say_that_the_leader_is_down() {
    let mut bench = waiting_for_the_store();
    bench.peer("b").confirmed = None;
    bench.ticks(9);
    assert_eq!(bench.said(), [] as [&str; 0]);
    // Nor does a store that fails.
    bench.give(stored(LeaseOutcome::Unavailable)).ticks(9);
    assert!(!bench.said().iter().any(|said| said.starts_with("lead")));
    bench.falls("b", MemberStatus::Down);
    bench.give(stored(LeaseOutcome::Unavailable)).ticks(4).answer();
    let said = bench.said();
    assert!(said.contains(&"lead 5: b was down".to_owned()), "{said:?}");
}

#[test]
fn a_swap_that_ended_in_the_turn_of_another_node_is_compared_with_its_claims() {
    let mut bench = waiting_for_the_store();
    bench.give(read(Some(lease("b", 4, "v4")))).said();
    // Nobody confirms that the leader is down, so this node waits for the store.
    bench.peer("b").confirmed = None;
    bench.ticks(5).give(swapped("v5"));
    assert_eq!((bench.role(), bench.said()), (Role::Suspended, vec!["claim 5".to_owned(), "read".to_owned()]));
    bench.ticks(1);
    bench.peer("c").current = Some(bench.now);
    bench.ticks(1);
    assert_eq!(bench.said(), [""; 0], "another node may have taken it since");
    bench.peer("c").current = Some(bench.now);
    bench.later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), ["lead 5: b was down"]);
}

#[test]
fn a_store_that_is_silent_does_not_let_the_vips_of_a_leader_that_has_lapsed_be_taken() {
    let mut bench = Bench::following();
    bench.ticks(11);
    bench.peer("b").state.lapsed = true;
    bench.later(ms(10)).give(Input::Peers).ticks(20);
    assert_eq!(bench.said(), ["read"], "it may come back at any time");
}

/// Its carrier was away for a moment, and another node may have taken the VIP.
#[test]
fn who_could_not_announce_a_vip_meanwhile_waits_for_the_store_anew() {
    let mut bench = waiting_for_the_store();
    bench.later(ms(20)).give(Input::Unable([vip4(1)].into()));
    bench.later(ms(60)).give(Input::Unable(BTreeSet::new()));
    bench.said();
    bench.later(ms(20)).tick().give(Input::Peers);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(1).give(Input::Peers).answer();
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
}

/// What it knows of its peers may be old: they may have heard of the leader since.
#[test]
fn who_was_held_for_down_meanwhile_waits_for_the_store_anew() {
    let mut bench = waiting_for_the_store();
    bench.later(ms(80)).give(Input::Disowned);
    bench.later(ms(20)).tick().give(Input::Peers);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(1).give(Input::Peers).answer();
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
}

#[test]
fn a_leader_that_came_back_meanwhile_gives_the_vip_up_first() {
    let mut bench = waiting_for_the_store();
    bench.give(read(Some(lease("b", 4, "v4")))).said();
    bench.falls("b", MemberStatus::Alive);
    bench.give(swapped("v5")).ticks(2);
    assert_eq!((bench.role(), bench.said()), (Role::Suspended, vec!["claim 5".to_owned()]));
    bench.peer("b").state.claims.remove(&vip4(1));
    bench.give(Input::Peers).give(read(Some(lease("a", 5, "v5")))).give(swapped("v6"));
    assert_eq!(bench.said(), ["read", "swap v5 for 5", "lead 5: b was down"]);
}

#[test]
fn a_leader_that_does_not_hear_the_claim_is_waited_for_as_long_as_its_deadline() {
    let mut bench = waiting_for_the_store();
    bench.give(read(Some(lease("b", 4, "v4")))).said();
    bench.falls("b", MemberStatus::Alive);
    bench.give(swapped("v5")).ticks(3);
    assert_eq!(bench.said(), ["claim 5", "read"]);
}

#[test]
fn a_lease_that_another_took_meanwhile_ends_what_a_silent_store_allowed() {
    let mut bench = waiting_for_the_store();
    bench.ticks(2).answer().said();
    bench.give(read(Some(lease("c", 5, "v5"))));
    assert_eq!(bench.said(), ["follow: c took it", "withdraw"]);
}

#[test]
fn a_swap_that_is_not_answered_was_written_or_is_written_again() {
    for (result, then) in [
        (LeaseOutcome::Swapped(version("v5")), &[] as &[&str]),
        (LeaseOutcome::Conflict, &["read"]),
        (LeaseOutcome::Unavailable, &["read"]),
    ] {
        let mut bench = waiting_for_the_store();
        bench.give(read(Some(lease("b", 4, "v4"))));
        assert_eq!(bench.said(), ["swap v4 for 5"]);
        bench.ticks(1).answer();
        assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
        bench.give(stored(result)).ticks(15);
        assert_eq!(bench.said(), then);
    }
}

/// Another node may have come back meanwhile, and lead by the Lease.
#[test]
fn a_node_that_stood_still_decides_nothing_by_answers_from_before() {
    let mut bench = waiting_for_the_store();
    bench.later(ms(140)).give(Input::Peers);
    assert!(bench.only_asks());
    bench.later(ms(20)).tick().later(ms(40)).give(Input::Peers).answer();
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
}

/// The claim of another node may be on its way.
#[test]
fn a_node_that_was_cut_off_for_a_moment_hears_claims_before_it_decides_without_the_store() {
    let mut bench = waiting_for_the_store();
    bench.later(ms(200)).tick();
    assert_eq!(bench.said(), [""; 0]);
    bench.later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), [""; 0]);
    bench.later(ms(20)).give(Input::Peers).answer();
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
}

/// It may lead again since.
#[test]
fn that_a_leader_lapsed_is_no_news_for_a_node_that_was_cut_off_for_a_moment() {
    for gap in [HEARTBEAT, HEARTBEAT * 2] {
        let mut bench = Bench::following();
        bench.ticks(20);
        bench.peer("b").state.claims.clear();
        bench.peer("b").state.lapsed = true;
        bench.later(gap).tick().later(ms(10)).give(Input::Peers);
        assert_eq!(bench.said().contains(&"read".to_owned()), gap == HEARTBEAT);
    }
}

#[test]
fn a_node_that_was_cut_off_in_a_takeover_reads_the_lease_anew_when_it_is_back() {
    let mut bench = waiting_for_the_store();
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["swap v4 for 5"]);
    bench.later(LEASE).tick();
    bench.said();
    bench.want(&["a"]);
    bench.ticks(1).later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease("a", 5, "v5"))));
    assert_eq!(bench.said(), ["ask the LAN"]);
    bench.give(probed(AddressOwner::Nobody)).give(swapped("v6"));
    assert_eq!(bench.said().last().map(String::as_str), Some("lead 6: it led it before, and came back in time"));
}

#[test]
fn a_silent_store_allows_nothing_where_the_last_leader_is_not_known() {
    let mut bench = Bench::ready();
    bench.ticks(30);
    assert_eq!(bench.said(), ["survey", "read"]);
}

#[test]
fn a_minority_waits_for_a_silent_store() {
    let mut bench = waiting_for_the_store();
    bench.peers.majority = false;
    bench.ticks(30);
    assert!(!bench.said().iter().any(|said| said.starts_with("lead")));
}

/// Their turns are at the same time, since one of them was cut off for a while.
#[test]
fn of_two_that_claim_it_without_the_store_the_first_by_name_leads() {
    for (rival, gives_way) in [("0", true), ("c", false)] {
        let mut bench = waiting_for_the_store();
        bench.peers.members.insert(node_name(rival), peer(MemberStatus::Alive, T));
        bench.ticks(1);
        assert_eq!((bench.role(), bench.said()), (Role::Suspended, vec!["claim 5".to_owned()]));
        bench.claim(rival, 5);
        bench.answer();
        assert_eq!(bench.said(), if gives_way { &["withdraw"][..] } else { &[] });
        bench.peer(rival).state.claims.remove(&vip4(1));
        bench.answer();
        assert_eq!(bench.said(), if gives_way { &[][..] } else { &["lead 5: b was down"] }, "{rival}");
    }
}
