//! Answering, from the start on: the fence, and making sure of what is this node's own after
//! doubts.

use super::*;

/// Another agent may have left its VIPs to a node that has not written the Lease yet.
#[test]
fn an_agent_that_came_back_goes_on_with_what_its_kernel_answers_for_and_asks_the_lan_about_the_rest() {
    for (led, waits, asks) in [(true, 0, false), (false, 0, true), (false, 30, false)] {
        let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
        bench.election.led_at_start.extend(led.then_some(vip4(1)));
        bench.recorded();
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
        assert_eq!(bench.recorded(), [""; 0], "it fences no node");
    }
}

#[test]
fn an_agent_that_came_back_with_a_long_lease_asks_the_lan_for_as_long() {
    let lease_time = Duration::from_secs(5);
    let mut bench = Bench::new(ElectionSettings { lease: lease_time, hold_down: Duration::ZERO, detect: true });
    bench.ticks(30);
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip4(1), lease("a", 3, "v3"))])) });
    bench.tick().later(ms(20)).give(Input::Peers).give(read(Some(lease("a", 3, "v3"))));
    assert_eq!(bench.said(), ["survey", "read", "ask the LAN"]);
}

#[test]
fn an_agent_that_came_back_leaves_alone_what_it_may_not_or_cannot_announce() {
    for (candidate, unable) in [("b", None), ("a", Some(vip4(1)))] {
        let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
        bench.want(&[candidate]);
        bench.give(Input::Unable(unable.into_iter().collect()));
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip4(1), lease("a", 3, "v3"))])) });
        bench.tick().ticks(20);
        assert!(!bench.said().contains(&"read".to_owned()), "candidate {candidate}, unable {unable:?}");
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
        bench.differs(rival).claim(rival, 1);
        bench.give(Input::Peers).ticks(1);
        let said = bench.said();
        assert_eq!(said.contains(&format!("follow: {rival} took it")), !stays, "{said:?}");
        assert_eq!(bench.leader(), Some(if stays { "a" } else { rival }));
    }
}

#[test]
fn a_claim_in_the_same_epoch_of_a_node_with_the_same_store_changes_nothing() {
    let mut bench = Bench::leading();
    bench.peers.members.insert(node_name("1"), peer(MemberStatus::Alive, T));
    bench.differs("1").peer("1").state.store = Some(StoreId(1));
    bench.claim("1", 1);
    bench.give(Input::Peers);
    for _ in 0..40 {
        bench.ticks(1).give(read(Some(lease("a", 1, "v1"))));
    }
    assert_eq!(bench.leader(), Some("a"));
}

#[test]
fn where_stores_differ_a_node_whose_deadline_passed_asks_the_lan_before_it_leads_again() {
    for differs in [false, true] {
        let mut bench = Bench::leading();
        if differs {
            bench.differs("b");
        }
        bench.later(LEASE).tick();
        bench.said();
        bench.want(&["a"]);
        bench.tick().later(ms(40)).give(Input::Peers).give(read(Some(lease("a", 1, "v1"))));
        let next = if differs { "ask the LAN" } else { "swap v1 for 1" };
        assert_eq!(bench.said().last().map(String::as_str), Some(next));
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
    bench.peers.evidence_since = None;
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
    bench.ticks(2).give(stored(LeaseOutcome::Unavailable)).later(ms(20)).give(Input::Peers);
    assert_eq!(bench.role(), Role::Suspended, "another node may have taken it since");
    bench.answer();
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
    bench.peers.evidence_since = Some(T + ms(60));
    bench.give(Input::Tick { carrier: true });
    assert_eq!(bench.election.fence.deadline, Some(T + ms(60) + LEASE));
}

#[test]
fn without_a_carrier_the_deadline_stands_still() {
    let mut bench = Bench::leading();
    let before = bench.election.fence.deadline;
    bench.later(ms(100));
    bench.peers.evidence_since = Some(bench.now);
    bench.give(Input::Tick { carrier: false });
    assert_eq!(bench.election.fence.deadline, before);
}

#[test]
fn nothing_is_led_while_the_fence_is_closed() {
    let mut bench = Bench::ready();
    bench.give(read(None));
    bench.later(LEASE * 2).give(swapped("v1"));
    assert_eq!(bench.role(), Role::Suspended);
    assert!(!bench.said().iter().any(|said| said.starts_with("lead")));
}
