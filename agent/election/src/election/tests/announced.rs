//! Announcements with the MACs of peers: forged ones, and those of peers that took the VIP over.

use super::*;

/// It leads for two seconds, and the program yielded to an announcement with the MAC of `b`.
fn yielded() -> Bench {
    let mut bench = Bench::leading();
    bench.ticks(20).later(ms(10)).said();
    bench.give(Input::PeerAnnounced(announced(&bench, &["b"])));
    assert_eq!(bench.said(), ["follow: a peer announced it", "read", "ask b"]);
    bench
}

/// As [`yielded`], and `b` denied it. The first look at the Leases is over.
fn assured() -> Bench {
    let mut bench = yielded();
    denies(&mut bench, "b");
    assert_eq!(bench.said(), ["forged with b's MAC", "assure", "lead 1: nobody led it before", "survey"]);
    let all = leases(bench.now, "a", 1);
    bench.give(read(Some(lease("a", 1, "v1")))).give(all);
    assert_eq!((bench.said(), bench.role()), (vec![], Role::Leading));
    bench
}

fn leases(asked: Duration, holder: &str, epoch: u64) -> Input {
    Input::Surveyed { asked, leases: Some(OrdMap::from_iter([(vip4(1), lease(holder, epoch, "v1"))])) }
}

/// The peer's state of a few milliseconds later comes.
fn denies(bench: &mut Bench, name: &str) {
    bench.later(ms(10));
    bench.peer(name).current = Some(bench.now);
    bench.give(Input::Peers);
}

/// The program goes on answering.
fn goes_on(bench: &Bench, by: &[&str]) -> Input {
    Input::PeerAnnounced(PeerAnnouncement { yielded: false, ..announced(bench, by) })
}

#[test]
fn a_leader_leads_again_as_soon_as_the_peer_denies_the_announcement() {
    let mut bench = yielded();
    bench.later(ms(6)).give(Input::Peers);
    assert_eq!((bench.said(), bench.role()), (vec![], Role::Yielded), "b's state is older than the announcement");
    denies(&mut bench, "b");
    assert_eq!(bench.said(), ["forged with b's MAC", "assure", "lead 1: nobody led it before", "survey"]);
}

#[test]
fn a_peer_that_claims_the_vip_with_an_older_epoch_denies_nothing() {
    let mut bench = yielded();
    bench.claim("b", 0);
    denies(&mut bench, "b");
    assert_eq!((bench.said(), bench.role()), (vec![], Role::Yielded));
    bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.said(), ["swap v1 for 1", "lead 1: nobody led it before"], "without assurance");
}

#[test]
fn all_peers_with_the_mac_must_deny_the_announcement() {
    let mut bench = Bench::leading();
    bench.ticks(20).later(ms(10)).said();
    bench.give(Input::PeerAnnounced(announced(&bench, &["b", "c"])));
    assert_eq!(bench.said(), ["follow: a peer announced it", "read", "ask b", "ask c"]);
    denies(&mut bench, "b");
    assert_eq!(
        (bench.said(), bench.role()),
        (["forged with b's MAC", "survey"].map(str::to_owned).to_vec(), Role::Yielded)
    );
    denies(&mut bench, "c");
    assert_eq!(bench.said(), ["forged with c's MAC", "assure", "lead 1: nobody led it before"]);
}

#[test]
fn only_the_lease_decides_where_the_peer_is_not_known_or_not_alive() {
    for down in [true, false] {
        let mut bench = Bench::leading();
        bench.ticks(20).later(ms(10));
        bench.falls("b", if down { MemberStatus::Down } else { MemberStatus::Alive });
        bench.said();
        bench.give(Input::PeerAnnounced(announced(&bench, if down { &["b"] } else { &[] })));
        assert_eq!(bench.said(), ["follow: a peer announced it", "read"]);
        denies(&mut bench, "b");
        assert_eq!((bench.said(), bench.role()), (vec![], Role::Yielded));
        bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
        assert_eq!(bench.said(), ["swap v1 for 1", "lead 1: nobody led it before"]);
    }
}

#[test]
fn forged_announcements_do_not_silence_an_assured_leader_for_a_minute_after_the_last_one() {
    let mut bench = assured();
    for _ in 0..30 {
        bench.later(ms(60));
        bench.give(goes_on(&bench, &["b"]));
        denies(&mut bench, "b");
        bench.tick();
        let said = bench.said();
        assert_eq!(said, ["ask b", "forged with b's MAC"], "{:?}", bench.now);
    }
    let last = bench.now;
    while bench.now < last + Duration::from_secs(59) {
        bench.ticks(1);
        bench.give(leases(bench.now, "a", 1));
    }
    assert!(!bench.said().contains(&"assure no longer".to_owned()));
    bench.ticks(20);
    assert_eq!((bench.said(), bench.role()), (vec!["assure no longer".to_owned()], Role::Leading));
    bench.give(Input::PeerAnnounced(announced(&bench, &["b"])));
    assert_eq!(bench.said(), ["follow: a peer announced it", "read", "ask b"]);
}

/// The peer may have taken the VIP after it published that state.
#[test]
fn a_peer_denies_announcements_by_a_state_that_is_newer_than_the_last_of_them() {
    let mut bench = assured();
    bench.later(ms(60));
    bench.give(goes_on(&bench, &["b"]));
    let between = bench.later(ms(10)).now;
    bench.later(ms(10));
    bench.give(goes_on(&bench, &["b"]));
    bench.peer("b").current = Some(between);
    bench.later(ms(10)).give(Input::Peers);
    assert!(!bench.said().contains(&"forged with b's MAC".to_owned()), "that state is older than the last one");
    denies(&mut bench, "b");
    assert_eq!((bench.said(), bench.role()), (vec!["forged with b's MAC".to_owned()], Role::Leading));
}

#[test]
fn an_assured_leader_stops_when_the_announcing_peer_is_not_alive() {
    let mut bench = assured();
    bench.falls("c", MemberStatus::Down);
    bench.later(ms(60));
    bench.give(goes_on(&bench, &["c"]));
    assert_eq!(bench.said()[0], "follow: a peer announced it");
}

#[test]
fn an_assured_leader_stops_when_the_announcing_peer_does_not_answer_within_a_lease() {
    let mut bench = assured();
    bench.later(ms(60));
    bench.give(goes_on(&bench, &["c"]));
    let heard = bench.now;
    assert_eq!(bench.said(), ["ask c"]);
    while bench.role() == Role::Leading {
        // Further announcements give it no more time.
        bench.later(ms(10));
        bench.give(goes_on(&bench, &["c"]));
        assert!(bench.now <= heard + LEASE, "it goes on");
        bench.peers.evidence_since = Some(bench.now);
        bench.give(Input::Tick { carrier: true });
    }
    assert_eq!(bench.now, heard + LEASE);
    let said = bench.said();
    assert!(said.iter().filter(|said| *said == "ask c").count() >= 6, "it asks again: {said:?}");
    assert!(said.contains(&"follow: a peer announced it".to_owned()), "{said:?}");
}

#[test]
fn an_assured_leader_stops_when_a_mac_is_of_no_known_peer() {
    let mut bench = assured();
    bench.later(ms(60));
    bench.give(goes_on(&bench, &[]));
    assert_eq!(bench.said(), ["follow: a peer announced it"]);
}

#[test]
fn an_assured_leader_gives_way_to_a_claim_and_to_the_lease() {
    let mut bench = assured();
    bench.claim("b", 2);
    bench.later(ms(60));
    bench.give(goes_on(&bench, &["b"]));
    assert_eq!(bench.said(), ["follow: b took it", "withdraw"]);

    let mut bench = assured();
    bench.ticks(120);
    assert_eq!(bench.said(), ["survey"]);
    bench.give(leases(bench.now, "c", 2));
    assert_eq!(bench.said(), ["follow: c took it", "withdraw"]);
}

#[test]
fn announcements_of_an_earlier_leader_silence_nobody() {
    let mut bench = Bench::following();
    bench.give(told("b", TransferStep::Take, 5));
    assert_eq!(bench.role(), Role::Leading);
    bench.said();
    bench.give(Input::PeerAnnounced(PeerAnnouncement {
        at: bench.now.saturating_sub(ms(20)),
        yielded: false,
        ..announced(&bench, &["b"])
    }));
    assert_eq!(bench.role(), Role::Leading);
    assert!(bench.election.states[&vip4(1)].own().unwrap().announced_by.is_empty());
}

#[test]
fn a_lost_question_is_asked_again() {
    let mut bench = yielded();
    for _ in 0..3 {
        bench.later(ms(20)).give(Input::Peers);
        assert_eq!(bench.said(), [""; 0]);
        bench.later(ms(10)).give(Input::Peers);
        assert_eq!(bench.said(), ["ask b"]);
    }
}
