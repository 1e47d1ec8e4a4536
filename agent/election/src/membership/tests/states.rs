//! Tests the states of members.

use std::time::Duration;

use super::{
    network::{Network, ms, name},
    together,
};
use crate::membership::{
    AgentInfo, Full, Item, ItemKey, ItemKind, MemberId, MemberStatus, Membership, MembershipEvent, ProbedPort, State,
    Why, WireVersions,
    items::ItemChange,
    remote_state::{Progress, RemoteState},
    wire::{Delta, DeltaChange, StateVersion},
};
use vipmux_model::Vip;
use vipmux_testing::pages::{FAILOVER, assert_says};

fn vip(number: u16) -> Vip {
    let [high, low] = number.to_be_bytes();
    Vip::new([198, 18, high, low].into())
}

fn claim(number: u16, epoch: u64) -> Item {
    Item::Claim { vip: vip(number), epoch, why: Some(Why::Down(name(9))) }
}

fn publish(network: &mut Network, node: usize, item: Item) {
    network.act(node, |membership, now| membership.publish(item, now)).unwrap().unwrap();
}

/// The longest round trip, and a little.
const ROUND_TRIP: Duration = Duration::from_micros(1_100);

#[test]
fn a_change_reaches_all_within_a_round_trip_and_a_half() {
    let mut network = together(5, 20);
    publish(&mut network, 0, Item::Ready(true));
    publish(&mut network, 0, claim(1, 3));
    let published = network.now;
    network.run(ROUND_TRIP * 3 / 2);
    for node in 1..5 {
        let state = &network.peer(node, 0).state;
        assert!(state.ready && !state.draining);
        let claimed = &state.claims[&vip(1)];
        assert_eq!((claimed.epoch, &claimed.why), (3, &Why::Down(name(9))));
        assert!(claimed.since > published && claimed.since <= network.now);
        assert!(
            network.events[node].iter().any(|(at, event)| *event == MembershipEvent::Changed && *at == claimed.since)
        );
    }
}

/// In a cluster of 1,000 nodes, a change that went to all at once was a burst of 1,000 datagrams, and as
/// many answers.
#[test]
fn changes_reach_all_in_a_large_cluster_without_a_burst() {
    let mut network = together(200, 23);
    let (mut most, mut number) = (0, 0);
    for step in 0..14 {
        // Each change comes while the last one is still announced.
        if step < 8 {
            number += 1;
            publish(&mut network, 0, claim(number, 3));
        }
        let before = network.sent_by[0];
        network.run(network.settings.news);
        most = most.max(network.sent_by[0] - before);
    }
    let heartbeats = network.settings.sample as u64;
    // An announcement, a round of heartbeats, one that is repeated, and the answers to others.
    assert!(most <= 64 + 6 * heartbeats, "{most} payloads in 10 ms");
    network.run(ROUND_TRIP * 2);
    for node in 1..200 {
        assert_eq!(network.peer(node, 0).state.claims.len(), usize::from(number), "node {node}");
    }
}

#[test]
fn each_kind_of_item_comes_and_goes() {
    let probed = ProbedPort { address: "10.0.0.1".parse().unwrap(), port: 80, check: 77 };
    let mac = vipmux_common::abi::Mac::new([2, 0, 0, 0, 0, 1]);
    let mut whole = State { ready: true, draining: true, ..State::default() };
    whole.unable.insert(vip(2));
    whole.macs.insert(31, mac);
    whole.health.insert(probed, false);
    whole.addresses.insert(probed.address);
    let agent = AgentInfo { version: "0.1.0".to_owned(), wire: WireVersions::OWN, lease: ms(300) };
    whole.agent = Some(agent.clone());
    let items = [
        Item::Ready(true),
        Item::Draining(true),
        Item::Unable(vip(2)),
        Item::Mac { segment: 31, mac },
        Item::Health { probed, up: false },
        Item::Address(probed.address),
        Item::Agent(agent),
    ];
    let mut network = together(3, 21);
    for item in items.clone() {
        publish(&mut network, 0, item);
    }
    publish(&mut network, 0, claim(1, 1));
    network.run(ms(5));
    let mut seen = network.peer(1, 0).state.clone();
    assert_eq!(seen.claims.remove(&vip(1)).unwrap().epoch, 1);
    assert_eq!(seen, whole);
    for key in items.iter().map(Item::key).chain([ItemKey::Claim(vip(1))]) {
        network.act(0, |membership, now| membership.withdraw(&key, now));
    }
    network.run(ms(15));
    assert_eq!(network.peer(1, 0).state, State::default());
}

#[test]
fn what_does_not_change_is_not_told() {
    let mut network = together(2, 22);
    publish(&mut network, 0, claim(1, 1));
    network.run(ms(50));
    let before = network.of(0).next();
    publish(&mut network, 0, claim(1, 1));
    network.act(0, |membership, now| membership.withdraw(&ItemKey::Draining, now));
    assert_eq!(network.of(0).next(), before);
}

#[test]
fn a_claim_that_stays_is_known_since_when_it_was() {
    let mut network = together(2, 23);
    publish(&mut network, 0, claim(1, 1));
    network.run(ms(50));
    let since = network.peer(1, 0).state.claims[&vip(1)].since;
    network.kill(0);
    network.start(0);
    publish(&mut network, 0, claim(1, 1));
    publish(&mut network, 0, claim(2, 1));
    network.run(ms(2000));
    let claims = &network.peer(1, 0).state.claims;
    assert_eq!(claims[&vip(1)].since, since);
    assert!(claims[&vip(2)].since > since);
}

#[test]
fn a_restarted_nodes_state_is_taken_anew() {
    for away in [10, 1000] {
        let mut network = together(3, 24);
        (0..100).for_each(|number| publish(&mut network, 0, claim(number, 1)));
        network.run(ms(50));
        assert_eq!(network.peer(1, 0).state.claims.len(), 100);
        network.kill(0);
        network.run(ms(away));
        assert_eq!(network.peer(1, 0).state.claims.len(), 100, "it is not forgotten meanwhile");
        network.start(0);
        publish(&mut network, 0, claim(5000, 9));
        network.run(ms(2000));
        for node in 1..3 {
            let claims = &network.peer(node, 0).state.claims;
            assert_eq!(claims.keys().collect::<Vec<_>>(), [&vip(5000)], "away for {away} ms");
        }
    }
}

/// Until its state is there, it is another run, which leads nothing.
#[test]
fn a_node_that_comes_back_has_no_state_of_its_earlier_run() {
    let mut network = together(2, 24);
    let agent = AgentInfo { version: "0.1.0".to_owned(), wire: WireVersions::OWN, lease: ms(900) };
    for item in [claim(1, 1), Item::Ready(true), Item::Draining(true), Item::Lapsed, Item::Agent(agent.clone())] {
        publish(&mut network, 0, item);
    }
    network.run(ms(50));
    network.kill(0);
    network.run(ms(1000));
    assert_eq!(network.status(1, 0), Some(MemberStatus::Down));
    network.act(1, |membership, now| {
        let member = MemberId { node: MemberId::key(&name(0)), generation: 2 };
        membership.swim.learn(member, foca::State::Alive, false).unwrap();
        membership.process_swim(now);
    });
    let peer = network.peer(1, 0);
    assert_eq!((peer.status, peer.current), (MemberStatus::Alive, None));
    assert_eq!(peer.state, State { agent: Some(agent), ..State::default() }, "its kernel answers as long as before");
}

#[test]
fn a_node_that_was_cut_off_has_its_whole_state_again() {
    let mut network = together(2, 25);
    (0..100).for_each(|number| publish(&mut network, 0, claim(number, 1)));
    network.run(ms(50));
    let whole = network.peer(1, 0).state.clone();
    network.cut = Box::new(|_, _| true);
    network.run(ms(1000));
    assert_eq!(network.status(1, 0), Some(MemberStatus::Down));
    network.cut = Box::new(|_, _| false);
    network.run(ms(1500));
    let peer = network.peer(1, 0);
    assert_eq!((peer.status, peer.state.claims.len()), (MemberStatus::Alive, 100));
    assert!(peer.state.claims[&vip(1)].since > whole.claims[&vip(1)].since, "it was learned anew");
}

#[test]
fn states_come_through_in_spite_of_losses() {
    for seed in 0..5 {
        let mut network = together(5, seed);
        network.loss = 300;
        for round in 0..20 {
            let gone = ItemKey::Claim(vip(u16::try_from(round).unwrap()));
            for node in 0..5 {
                (0..40).for_each(|number| publish(&mut network, node, claim(number, round)));
                network.act(node, |membership, now| membership.withdraw(&gone, now));
            }
            network.run(ms(20));
        }
        let same = |network: &Network| {
            (0..5).all(|of| {
                (0..5).filter(|node| *node != of).all(|node| {
                    let claims = &network.peer(of, node).state.claims;
                    claims.len() == 39 && claims.values().all(|claimed| claimed.epoch == 19)
                })
            })
        };
        assert!(network.until(ms(2000), same).is_some(), "seed {seed}");
    }
}

#[test]
fn who_joins_a_large_cluster_has_all_states_at_once() {
    let mut network = Network::idle(80, 31);
    (0..79).for_each(|node| network.start(node));
    assert!(network.until(ms(2000), Network::whole).is_some());
    (0..79).for_each(|node| publish(&mut network, node, Item::Ready(true)));
    network.run(ms(1000));
    network.start(79);
    network.run(ms(300));
    assert!((0..79).all(|node| network.peer(79, node).state.ready));
}

#[test]
fn thousands_of_items_come_in_pages_and_one_change_does_not() {
    let mut network = together(3, 26);
    (0..8000).for_each(|number| publish(&mut network, 0, claim(number, 1)));
    network.run(ms(400));
    assert_eq!(network.peer(1, 0).state.claims.len(), 8000);
    let sent = network.sent;
    publish(&mut network, 0, claim(4000, 2));
    network.run(ROUND_TRIP * 2);
    assert_eq!(network.peer(1, 0).state.claims[&vip(4000)].epoch, 2);
    assert!(network.sent - sent < 40, "{} payloads", network.sent - sent);
}

#[test]
fn who_missed_more_than_is_remembered_starts_over_and_keeps_what_it_had_until_then() {
    let mut network = together(3, 27);
    (0..5000).for_each(|number| publish(&mut network, 0, claim(number, 1)));
    network.run(ms(400));
    network.cut = Box::new(|from, to| (from, to) == (0, 1) || (from, to) == (1, 0));
    for number in 0..3000 {
        network.act(0, |membership, now| membership.withdraw(&ItemKey::Claim(vip(number)), now));
    }
    network.run(ms(200));
    assert_eq!(network.peer(2, 0).state.claims.len(), 2000, "in time, or anew");
    assert_eq!(network.peer(1, 0).state.claims.len(), 5000);
    network.cut = Box::new(|_, _| false);
    let mut seen = std::collections::BTreeSet::new();
    let done = network.until(ms(2000), |network| {
        seen.insert(network.peer(1, 0).state.claims.len());
        network.peer(1, 0).state.claims.len() == 2000
    });
    assert!(done.is_some());
    assert_eq!(seen, [5000, 2000].into(), "never half of it");
}

#[test]
fn what_goes_while_one_starts_over_goes_there_too() {
    let mut network = together(2, 28);
    // More has gone than is remembered, before anybody reads.
    network.cut = Box::new(|_, _| true);
    (0..6000).for_each(|number| publish(&mut network, 0, claim(number, 1)));
    (0..2000).for_each(|number| {
        network.act(0, |membership, now| membership.withdraw(&ItemKey::Claim(vip(number)), now));
    });
    network.cut = Box::new(|_, _| false);
    network.run(ms(15));
    // The first pages are there.
    for number in (2000..6000).step_by(2) {
        network.act(0, |membership, now| membership.withdraw(&ItemKey::Claim(vip(number)), now));
        network.run(Duration::from_micros(50));
    }
    network.run(ms(1000));
    let claims = &network.peer(1, 0).state.claims;
    assert_eq!(claims.len(), 2000);
    assert!(claims.keys().zip((2001..6000).step_by(2)).all(|(seen, number)| *seen == vip(number)));
}

#[test]
fn a_copy_is_as_new_as_what_it_answers() {
    let mut network = together(2, 29);
    network.run(ms(300));
    assert!(network.now - network.peer(1, 0).current.unwrap() <= ms(102));
    network.cut = Box::new(|from, _| from == 0);
    let cut = network.now;
    network.run(ms(500));
    assert!(network.peer(1, 0).current.unwrap() <= cut);
}

fn numbered(number: u32) -> Vip {
    Vip::new(std::net::Ipv4Addr::from(number).into())
}

fn failing(number: u32) -> Item {
    let probed = ProbedPort { address: std::net::Ipv4Addr::from(number).into(), port: 80, check: 1 };
    Item::Health { probed, up: false }
}

#[test]
fn a_claim_has_room_whatever_else_a_node_publishes() {
    let mut membership = Membership::new(name(0), 1, super::MembershipSettings::default(), ms(1));
    for of_kind in [failing as fn(u32) -> Item, |number| Item::Unable(numbered(number))] {
        let refused = (0..100_000).find_map(|number| membership.publish(of_kind(number), ms(1)).err());
        assert!(refused.is_some(), "each kind is bounded");
    }
    membership.publish(claim(1, 1), ms(1)).unwrap();
    membership.publish(Item::Ready(true), ms(1)).unwrap();
    membership.publish(Item::Lapsed, ms(1)).unwrap();
}

#[test]
fn a_withdrawn_item_makes_room_for_another_one_of_its_kind() {
    let mut membership = Membership::new(name(0), 1, super::MembershipSettings::default(), ms(1));
    let most = u32::try_from(ItemKind::Unable.most()).unwrap();
    (0..most).for_each(|number| membership.publish(Item::Unable(numbered(number)), ms(1)).unwrap());
    assert_eq!(membership.publish(Item::Unable(numbered(most)), ms(1)), Err(Full(ItemKind::Unable)));
    membership.publish(Item::Unable(numbered(7)), ms(1)).unwrap();
    membership.withdraw(&ItemKey::Unable(numbered(7)), ms(1));
    membership.withdraw(&ItemKey::Unable(numbered(7)), ms(1));
    membership.publish(Item::Unable(numbered(most)), ms(1)).unwrap();
    assert!(membership.publish(Item::Unable(numbered(7)), ms(1)).is_err());
}

#[test]
fn a_peer_that_publishes_without_end_takes_bounded_memory_and_its_claims_count() {
    let (mut remote, mut state) = (RemoteState::default(), State::default());
    let mut number = 0;
    let mut receive = |items: Vec<Item>| {
        let (since, upto) = (number, number + items.len() as u64);
        number = upto;
        let changes = items.into_iter().map(|item| DeltaChange(Some(ItemChange::Set(item)))).collect();
        let upto = StateVersion { run: 0, number: upto };
        let applied =
            remote.apply(Delta { asked: 1, upto, since, reset: None, more: false, changes }, &mut state, ms(1));
        assert_eq!(applied.progress, Progress::Whole);
        applied.refused
    };
    let addresses = (0..100).map(|number| Item::Address(numbered(number).address()));
    assert_eq!(receive(addresses.collect()), Some(ItemKind::Address));
    assert_eq!(receive((0..100_000).map(failing).collect()), Some(ItemKind::Health));
    assert_eq!(receive((0..100_000).map(|number| Item::Unable(numbered(number))).collect()), Some(ItemKind::Unable));
    assert_eq!(receive(vec![claim(1, 1), Item::Lapsed]), None);
    let endless = (0..100_000).map(|number| Item::Claim { vip: numbered(number), epoch: 1, why: Some(Why::First) });
    assert_eq!(receive(endless.collect()), Some(ItemKind::Claim));
    assert!(state.lapsed && state.claims.contains_key(&vip(1)));
    let counts = [state.addresses.len(), state.health.len(), state.unable.len(), state.claims.len()];
    let kinds = [ItemKind::Address, ItemKind::Health, ItemKind::Unable, ItemKind::Claim];
    assert_eq!(counts, kinds.map(ItemKind::most));
}

#[test]
fn each_vip_of_a_kernel_has_room_for_a_claim_and_the_page_has_the_limits() {
    let vips = vipmux_common::abi::capacity::VIPS as usize;
    assert!(ItemKind::Claim.most() >= vips && ItemKind::Unable.most() >= vips);
    for (kind, text) in [
        (ItemKind::Claim, "24,576 VIPs that it leads"),
        (ItemKind::Unable, "24,576 VIPs that it cannot announce"),
        (ItemKind::Health, "16,000 failing probes"),
        (ItemKind::Mac, "32 MACs"),
        (ItemKind::Address, "64 addresses"),
    ] {
        assert_says(FAILOVER, text);
        let figure: String = text.chars().take_while(|char| *char != ' ').filter(char::is_ascii_digit).collect();
        assert_eq!(figure, kind.most().to_string());
    }
}

#[test]
fn a_downs_state_stays_as_it_was() {
    let mut network = together(2, 30);
    publish(&mut network, 0, claim(1, 1));
    network.run(ms(20));
    network.kill(0);
    network.run(ms(1000));
    assert_eq!(network.status(1, 0), Some(MemberStatus::Down));
    assert_eq!(network.peer(1, 0).state.claims.len(), 1);
}

#[test]
fn a_peer_that_is_asked_says_soon_what_it_publishes() {
    for nodes in [3, 40] {
        let mut network = together(nodes, 31);
        let asked = network.now;
        network.act(0, |membership, now| membership.ask(&name(1), now));
        let answered = |network: &Network| network.peer(0, 1).current >= Some(asked);
        assert!(network.until(ROUND_TRIP, answered).is_some(), "{nodes} nodes");
        let changed = network.events[0].iter().filter(|(at, event)| *event == MembershipEvent::Changed && *at >= asked);
        assert_eq!(changed.count(), 1, "{nodes} nodes: the election is told once");

        publish(&mut network, 1, claim(1, 3));
        network.act(0, |membership, now| membership.ask(&name(1), now));
        let asked = network.now;
        let answered = |network: &Network| network.peer(0, 1).current >= Some(asked);
        assert!(network.until(ROUND_TRIP * 2, answered).is_some(), "{nodes} nodes");
        assert!(network.peer(0, 1).state.claims.contains_key(&vip(1)), "{nodes} nodes: it is as new as the question");
    }
}

/// Publishes a claim of node 0, whose kernel answers for 300 ms.
fn with_a_leader(seed: u64) -> Network {
    let mut network = together(3, seed);
    network.act(0, |membership, now| {
        membership.publish(claim(1, 4), now).unwrap();
        membership.note_event_loop(ms(300), now);
        membership.note_deadline(now + ms(200), now);
    });
    network.run(ms(100));
    assert!([1, 2].iter().all(|of| network.peer(*of, 0).state.leads(vip(1))));
    network
}

#[test]
fn a_node_whose_event_loop_hangs_leads_nothing_once_its_deadline_has_passed() {
    for seed in 0..10 {
        let mut network = with_a_leader(seed);
        let lapsed = |network: &Network| [1, 2].iter().all(|of| !network.peer(*of, 0).state.leads(vip(1)));
        network.run(ms(190));
        assert!(!lapsed(&network), "the loop does not count as hanging");
        assert!(network.until(ms(30), lapsed).is_some());
        // It goes on, and sees to its Leases.
        network.act(0, |membership, now| membership.note_deadline(now + ms(300), now));
        assert!(network.until(ms(30), |network| !lapsed(network)).is_some());
    }
}

#[test]
fn a_node_that_does_not_answer_for_a_second_leads_nothing_though_its_event_loop_runs() {
    let mut network = with_a_leader(0);
    let lapsed = |network: &Network| [1, 2].iter().all(|of| !network.peer(*of, 0).state.leads(vip(1)));
    for _ in 0..10 {
        network.act(0, |membership, now| membership.note_event_loop(ms(300), now));
        network.run(ms(100));
        assert!(!lapsed(&network));
    }
    network.act(0, |membership, now| membership.note_event_loop(ms(300), now));
    assert!(network.until(ms(130), lapsed).is_some());
}
