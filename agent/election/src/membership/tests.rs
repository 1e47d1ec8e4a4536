//! Tests the membership of simulated nodes.

#![allow(clippy::unchecked_time_subtraction, reason = "a test that fails there has found something")]

mod cost;
mod evidence;
mod format;
mod network;
mod payloads;
mod states;

use self::network::{HEARTBEAT, Network, ms, name};
use super::{
    DELETED, ElectionMessage, Malformed, MemberId, MemberStatus, Membership, MembershipEvent, MembershipSettings,
    TransferStep,
};
use crate::LEASE;
use vipmux_testing::{
    names::vip,
    pages::{FAILOVER, assert_says},
};

fn together(nodes: usize, seed: u64) -> Network {
    let mut network = Network::new(nodes, seed);
    assert!(network.until(ms(2000), Network::whole).is_some(), "they do not come together");
    network.run(ms(500));
    network.events.iter_mut().for_each(Vec::clear);
    network
}

#[test]
fn nodes_that_start_together_find_each_other_at_once() {
    for nodes in [1, 2, 3, 5, 40] {
        let mut network = Network::new(nodes, 1);
        let took = network.until(ms(2000), Network::whole);
        assert!(took.is_some_and(|took| took <= ms(300)), "{nodes}: {took:?}");
    }
}

#[test]
fn nodes_that_start_one_after_the_other_find_each_other() {
    let mut network = Network::idle(6, 2);
    for node in 0..6 {
        network.start(node);
        network.run(ms(130));
    }
    assert!(network.until(ms(2000), Network::whole).is_some());
    assert!((0..6).all(|node| network.count(node, &MembershipEvent::Disowned) == 0), "nobody had reason");
}

#[test]
fn a_silent_node_is_down_in_time_on_all() {
    for nodes in [2, 3, 5, 12] {
        for seed in 0..10 {
            let mut network = together(nodes, seed);
            network.kill(0);
            let down = |network: &Network| (1..nodes).all(|node| network.status(node, 0) == Some(MemberStatus::Down));
            let took = network.until(ms(5000), down).expect("it is never down");
            let MembershipSettings { suspicion, press, alarm, .. } = network.settings;
            // Heartbeats find it where SWIM's probes come later.
            let (least, most) = (suspicion, suspicion * 2 + press + alarm);
            assert!(took > least && took <= most, "{nodes} nodes: {took:?}, not from {least:?} to {most:?}");
            assert!(network.whole());
        }
    }
}

#[test]
fn who_is_late_with_its_own_heartbeats_suspects_nobody() {
    let mut network = together(3, 1);
    let (mut member, now) = (network.take(0), network.now);
    let alive =
        |member: &Membership| member.peers().members.values().filter(|peer| peer.status == MemberStatus::Alive).count();
    let suspicion = network.settings.suspicion + ms(10);
    member.send_heartbeats(now + suspicion);
    assert_eq!(alive(&member), 2);
    member.send_heartbeats(now + suspicion * 2);
    assert_eq!(alive(&member), 0, "a round was not answered");
}

#[test]
fn a_node_sends_each_other_node_about_twenty_datagrams_a_second() {
    for nodes in [2, 3, 5, 33] {
        let mut network = together(nodes, 5);
        let before = network.sent_by[0];
        network.run(ms(1000));
        let each = (network.sent_by[0] - before) / (nodes as u64 - 1);
        assert!((18..25).contains(&each), "{each} in a cluster of {nodes}");
    }
    assert_says(FAILOVER, "each node sends about 20 small datagrams a second to each other node");
    let MembershipSettings { sample, announced, news, .. } = MembershipSettings::default();
    assert_says(FAILOVER, &format!("In clusters of up to {} nodes", sample + 1));
    assert_says(FAILOVER, &format!("to a sample of {sample} nodes"));
    assert_says(FAILOVER, &format!("goes to {announced} other nodes every {} ms", news.as_millis()));
}

#[test]
fn a_longer_lease_makes_detection_slower_in_proportion() {
    let time = |lease| {
        let MembershipSettings { probe_period, suspicion, .. } = MembershipSettings::for_lease(lease);
        probe_period + suspicion
    };
    let default = time(LEASE);
    assert_eq!([LEASE + ms(1), LEASE * 2, LEASE * 2 + ms(1)].map(time), [default * 2, default * 2, default * 3]);
    assert_says(FAILOVER, &format!("in proportion, in steps of {} ms", LEASE.as_millis()));
}

#[test]
fn a_node_that_started_while_the_network_was_split_is_found_soon_after() {
    for seed in 0..10 {
        let mut network = Network::idle(5, seed);
        network.cut = Box::new(|from, to| (from == 0) != (to == 0));
        (0..5).for_each(|node| network.start(node));
        network.run(ms(3000 + 90 * seed));
        network.cut = Box::new(|_, _| false);
        let took = network.until(ms(1000), Network::whole);
        assert!(took.is_some(), "seed {seed}");
    }
}

#[test]
fn a_node_that_hears_but_is_not_heard_is_down_and_one_that_is_heard_but_does_not_hear() {
    for deaf in [true, false] {
        let mut network = together(5, 3);
        network.cut = Box::new(move |from, to| if deaf { to == 0 } else { from == 0 });
        let down = |network: &Network| (1..5).all(|node| network.status(node, 0) == Some(MemberStatus::Down));
        assert!(network.until(ms(5000), down).is_some(), "deaf: {deaf}");
        network.run(ms(3000));
        assert!(down(&network), "deaf: {deaf}: it is not, later");
        assert!(network.of(0).peers().evidence_since.unwrap() < network.now - ms(3000), "nobody can hold it for alive");
    }
}

#[test]
fn who_leaves_has_left_at_once_and_is_known_no_more() {
    let mut network = together(3, 4);
    network.act(0, Membership::leave);
    network.run(ms(1));
    for node in [1, 2] {
        assert_eq!(network.status(node, 0), Some(MemberStatus::Left));
    }
    network.run(ms(100));
    assert_eq!(network.of(0).next(), None, "it has said so often enough");
    network.kill(0);
    network.run(ms(1000));
    assert_eq!(network.status(1, 0), Some(MemberStatus::Left), "and is not down later");
    // Of two known ones the other one must answer, and it does.
    assert!(network.of(1).peers().majority);
    assert!(network.now - network.of(1).peers().evidence_since.unwrap() <= HEARTBEAT + ms(2));
    network.kill(2);
    network.run(ms(1000));
    assert!(!network.of(1).peers().majority, "one of two");
}

#[test]
fn a_farewell_gets_through_in_spite_of_losses() {
    let mut left = 0;
    for seed in 0..100 {
        let mut network = together(2, seed);
        network.loss = 300;
        network.act(0, Membership::leave);
        network.run(ms(100));
        left += usize::from(network.status(1, 0) == Some(MemberStatus::Left));
    }
    assert!(left >= 90, "of three, 2.7 % are all lost: {left} of 100 came");
}

#[test]
fn who_missed_a_farewell_hears_of_it_from_others() {
    for nodes in [3, 5, 40] {
        for seed in 0..10 {
            let mut network = together(nodes, seed);
            network.cut = Box::new(|from, to| from == 0 && to <= 2);
            network.act(0, Membership::leave);
            network.run(ms(70));
            network.kill(0);
            let left = |network: &Network| (1..nodes).all(|node| network.status(node, 0) == Some(MemberStatus::Left));
            if nodes == 3 {
                network.run(ms(1000));
                assert!(!left(&network), "nobody heard it");
                continue;
            }
            let took = network.until(ms(1000), left);
            assert!(took.is_some_and(|took| took <= HEARTBEAT), "{nodes} nodes, seed {seed}: {took:?}");
        }
    }
}

#[test]
fn who_was_cut_off_hears_later_who_has_left_and_who_is_dead_remains_known() {
    for seed in 0..10 {
        let mut network = together(6, seed);
        network.cut = Box::new(|from, to| (from == 5) != (to == 5));
        network.act(0, Membership::leave);
        network.kill(1);
        network.run(ms(2000));
        network.kill(0);
        assert_eq!(network.status(5, 0), Some(MemberStatus::Down));
        network.cut = Box::new(|_, _| false);
        let left = |network: &Network| network.status(5, 0) == Some(MemberStatus::Left);
        assert!(network.until(ms(3000), left).is_some(), "seed {seed}");
        network.run(ms(3000));
        assert!((2..6).all(|node| network.status(node, 1) == Some(MemberStatus::Down)), "seed {seed}");
    }
}

#[test]
fn who_was_down_comes_back_with_a_higher_generation() {
    let mut network = together(3, 5);
    for generation in 2..5 {
        network.paused.insert(0);
        network.run(ms(1000));
        assert_eq!(network.status(1, 0), Some(MemberStatus::Down));
        network.resume(0);
        assert!(network.until(ms(500), Network::whole).is_some());
        network.run(ms(200));
        assert!((1..3).all(|node| network.peer(node, 0).generation == generation), "{generation}");
    }
    assert!(network.count(0, &MembershipEvent::Disowned) >= 3, "it is told each time");
    assert!((1..3).all(|node| network.count(node, &MembershipEvent::Disowned) == 0), "the others were always known");
}

#[test]
fn who_woke_declares_nobody_down() {
    for seed in 0..20 {
        let mut network = together(5, seed);
        network.paused.insert(0);
        // So short that the others do not notice, and so long that its own probes have all failed.
        network.run(ms(140));
        network.resume(0);
        network.run(ms(1000));
        assert!((1..5).all(|node| network.count(node, &MembershipEvent::Disowned) == 0), "seed {seed}");
        assert!(network.whole());
    }
}

#[test]
fn who_slept_over_a_suspicion_asks_again_before_it_declares_anybody_down() {
    for seed in 0..10 {
        let mut network = together(3, seed);
        network.cut = Box::new(|_, to| to == 0);
        let suspects = |network: &Network| (1..3).any(|node| network.status(0, node) == Some(MemberStatus::Suspected));
        assert!(network.until(ms(500), suspects).is_some());
        network.paused.insert(0);
        network.cut = Box::new(|_, _| false);
        network.run(ms(1000));
        network.resume(0);
        let downs = |network: &Network| (1..3).any(|node| network.status(0, node) == Some(MemberStatus::Down));
        assert_eq!(network.until(ms(500), downs), None, "seed {seed}");
        assert!(network.whole());
        assert!((1..3).all(|node| network.count(node, &MembershipEvent::Disowned) == 0), "seed {seed}");
    }
}

#[test]
fn who_slept_over_a_suspicion_finds_nobody_down_at_the_moment_when_it_wakes() {
    for seed in 0..10 {
        let mut network = together(3, seed);
        network.cut = Box::new(|_, to| to == 0);
        let suspects = |network: &Network| (1..3).all(|node| network.status(0, node) == Some(MemberStatus::Suspected));
        assert!(network.until(ms(500), suspects).is_some());
        let (mut member, woken) = (network.take(0), network.now + ms(1000));
        let downs = |member: &Membership| {
            member.peers().members.values().filter(|peer| peer.status == MemberStatus::Down).count()
        };
        member.turn(woken);
        assert_eq!(downs(&member), 0, "seed {seed}");
        for at in 1..=400 {
            member.turn(woken + ms(at));
        }
        assert_eq!(downs(&member), 2, "seed {seed}: nobody answered since");
    }
}

/// It was cut off, forgot who is down, and then heard from others that a node is, which it did not know.
#[test]
fn who_holds_a_node_for_down_that_it_hears_tells_it() {
    let mut network = together(3, 2);
    network.cut = Box::new(|from, to| (from == 0) != (to == 0));
    let down = |network: &Network| (1..3).all(|node| network.status(0, node) == Some(MemberStatus::Down));
    assert!(network.until(ms(1000), down).is_some());
    network.act(0, |membership, now| {
        membership.forget_downs(&name(1), now);
        let member = MemberId { node: MemberId::key(&name(2)), generation: 1 };
        membership.swim.learn(member, foca::State::Down, false).unwrap();
        membership.process_swim(now);
    });
    // It is no majority with the other one alone.
    network.cut = Box::new(|from, to| from == 1 || to == 1);
    let found = |network: &Network| network.status(0, 2) == Some(MemberStatus::Alive);
    assert!(network.until(ms(500), found).is_some());
    assert_eq!(network.peer(0, 2).generation, 2);
}

#[test]
fn a_restarted_node_is_alive_again_whether_or_not_it_was_missed() {
    for (away, generation) in [(20, 1), (2000, 2)] {
        let mut network = together(4, 6);
        network.kill(0);
        network.run(ms(away));
        network.start(0);
        assert!(network.until(ms(1500), Network::whole).is_some(), "away for {away} ms");
        network.run(ms(500));
        assert_eq!(network.peer(1, 0).generation, generation, "away for {away} ms");
        assert!(network.whole());
    }
}

#[test]
fn a_restarted_node_outdoes_the_generation_that_it_had() {
    let mut network = together(3, 7);
    for _ in 0..6 {
        network.paused.insert(0);
        network.run(ms(1000));
        network.resume(0);
        network.run(ms(1000));
    }
    let before = network.peer(1, 0).generation;
    assert!(before >= 7);
    network.kill(0);
    network.start(0);
    network.run(ms(500));
    assert!(network.whole());
    assert!(network.peer(1, 0).generation > before);
}

#[test]
fn the_majority_of_a_partition_is_undisturbed_when_it_heals() {
    for seed in 0..10 {
        let mut network = together(5, seed);
        network.cut = Box::new(|from, to| (from < 2) != (to < 2));
        network.run(ms(5000));
        for of in 0..5 {
            let majority = of >= 2;
            assert_eq!(network.of(of).peers().majority, majority);
            let fresh = network.now - network.of(of).peers().evidence_since.unwrap() < ms(150);
            assert_eq!(fresh, majority, "evidence of {of}");
            assert!((0..5).filter(|node| *node != of).all(|node| {
                network.status(of, node)
                    == Some(if (node < 2) == (of < 2) { MemberStatus::Alive } else { MemberStatus::Down })
            }));
        }
        network.events.iter_mut().for_each(Vec::clear);
        network.cut = Box::new(|_, _| false);
        let took = network.until(ms(5000), Network::whole);
        assert!(took.is_some_and(|took| took < ms(1000)), "seed {seed}: {took:?}");
        network.run(ms(3000));
        assert!(network.whole());
        for node in 0..2 {
            assert!(network.count(node, &MembershipEvent::Disowned) > 0, "seed {seed}: {node} was held for down");
        }
        for node in 2..5 {
            assert_eq!(network.count(node, &MembershipEvent::Disowned), 0, "seed {seed}: {node} was not");
        }
    }
}

#[test]
fn what_a_minority_has_just_found_does_not_spread_through_one_that_is_back() {
    for seed in 0..40 {
        let mut network = together(5, seed);
        network.cut = Box::new(|from, to| (from < 2) != (to < 2));
        network.run(ms(400 + seed * 10));
        network.cut = Box::new(|from, to| (from == 1 && to >= 2) || (from >= 2 && to == 1));
        network.run(ms(1000));
        network.cut = Box::new(|_, _| false);
        network.run(ms(1500));
        assert!(network.whole(), "seed {seed}");
        assert!((2..5).all(|node| network.count(node, &MembershipEvent::Disowned) == 0), "seed {seed}");
    }
}

#[test]
fn two_halves_come_together_again() {
    for nodes in [2, 4, 6] {
        let mut network = together(nodes, 8);
        network.cut = Box::new(|from, to| (from % 2) != (to % 2));
        network.run(ms(5000));
        assert!((0..nodes).all(|node| !network.of(node).peers().majority), "neither half is a majority");
        network.cut = Box::new(|_, _| false);
        assert!(network.until(ms(3000), Network::whole).is_some(), "{nodes} nodes");
        network.run(ms(3000));
        assert!(network.whole());
    }
}

#[test]
fn all_come_together_again_after_an_outage_of_the_network() {
    let mut network = together(40, 9);
    network.cut = Box::new(|_, _| true);
    network.run(ms(10_000));
    network.cut = Box::new(|_, _| false);
    let took = network.until(ms(5000), Network::whole);
    assert!(took.is_some(), "they do not");
}

/// Its gossip may be blocked, while the others lead.
#[test]
fn a_node_that_never_heard_of_the_others_is_no_majority() {
    let mut network = Network::idle(3, 9);
    network.cut = Box::new(|from, to| from == 0 || to == 0);
    (0..3).for_each(|node| network.start(node));
    network.run(ms(3000));
    assert!(network.of(0).peers().members.is_empty());
    assert!(!network.of(0).peers().majority);
    assert!(network.of(1).peers().majority, "one of two that heard each other");
    network.cut = Box::new(|_, _| false);
    network.until(ms(5000), Network::whole).unwrap();
    assert!(network.of(0).peers().majority);
}

#[test]
fn a_pair_is_two_nodes_whether_they_were_heard_or_not() {
    let mut network = Network::idle(2, 9);
    network.cut = Box::new(|_, _| true);
    (0..2).for_each(|node| network.start(node));
    network.run(ms(1000));
    assert!(network.of(0).peers().pair);
    for nodes in [1, 3] {
        assert!(!together(nodes, 9).of(0).peers().pair, "{nodes} nodes");
    }
}

#[test]
fn losses_seldom_bring_anybody_down() {
    for (nodes, loss, seconds) in [(2, 300, 60), (3, 300, 60), (5, 300, 60), (12, 300, 30), (60, 50, 5)] {
        let mut network = together(nodes, 14);
        network.loss = loss;
        let mut stale = 0;
        for _ in 0..seconds * 10 {
            network.run(ms(100));
            for node in 0..nodes {
                stale += usize::from(network.now - network.of(node).peers().evidence_since.unwrap() > ms(300));
            }
        }
        let downs: usize = (0..nodes).map(|node| network.count(node, &MembershipEvent::Disowned)).sum();
        let looks = seconds * 10 * nodes;
        println!(
            "{nodes} nodes, {loss} of 1000 lost, {seconds} s: {downs} times down; evidence too old: {stale} of {looks}"
        );
        assert!(downs <= 2, "{nodes} nodes, {loss} of 1000 lost: {downs} times");
    }
}

#[test]
fn messages_come_through_unless_the_node_is_unknown() {
    let mut network = together(2, 16);
    let message = ElectionMessage { step: TransferStep::Take, vip: vip("192.0.2.1"), epoch: 7 };
    network.act(0, |membership, _| membership.send_message(&name(1), message));
    network.run(ms(1));
    assert_eq!(network.events[1].last().unwrap().1, MembershipEvent::Message { from: name(0), message });
    let mut other = Membership::new(name(1), 1, network.settings.clone(), network.now);
    let received = other.receive(&name(0), &[], network.now);
    assert!(matches!(received, Err(Malformed::Stranger)), "{received:?}");
}

#[test]
fn a_vip_that_was_handed_over_a_while_ago_is_not_taken_up() {
    let mut network = together(2, 18);
    let (mut sender, mut receiver, now) = (network.take(0), network.take(1), network.now);
    let message = ElectionMessage { step: TransferStep::Take, vip: vip("192.0.2.1"), epoch: 7 };
    let told = MembershipEvent::Message { from: name(0), message };
    let tell = |sender: &mut Membership| {
        sender.take_outbox();
        sender.send_message(&name(1), message);
        sender.take_outbox().pop().unwrap().1
    };
    let first = tell(&mut sender);
    receiver.receive(&name(0), &first, now).unwrap();
    assert!(receiver.take_events(now).contains(&told));
    receiver.take_outbox();
    let late = now + network.settings.fresh;
    receiver.receive(&name(0), &first, late).unwrap();
    assert!(!receiver.take_events(late).contains(&told), "it may be another's again");
    // The sender hears what time it is, and the next word is taken up.
    for (_, payload) in receiver.take_outbox() {
        sender.receive(&name(1), &payload, late).unwrap();
    }
    receiver.receive(&name(0), &tell(&mut sender), late).unwrap();
    assert!(receiver.take_events(late).contains(&told));
    // A busy event loop may come to it later.
    receiver.receive(&name(0), &tell(&mut sender), late).unwrap();
    assert!(!receiver.take_events(late + network.settings.fresh + ms(1)).contains(&told));
}

#[test]
fn a_node_that_is_gone_from_the_manifests_is_a_member_until_its_agent_is_down_and_may_come_back() {
    let mut network = together(3, 17);
    network.act(0, |membership, now| membership.set_nodes([name(0), name(1)].into(), now));
    network.run(ms(20_000));
    assert_eq!(network.status(0, 2), Some(MemberStatus::Alive), "its agent runs");
    assert_eq!(network.of(0).deleted().collect::<Vec<_>>(), [&name(2)]);
    network.kill(2);
    network.run(ms(5_000));
    assert_eq!(network.status(0, 2), Some(MemberStatus::Down), "its VIPs are taken over");
    assert_says(FAILOVER, &format!("until it has left, or was down for {} s", DELETED.as_secs()));
    network.run(DELETED + network.settings.join);
    assert_eq!((network.status(0, 2), network.of(0).peers().members.len()), (None, 1));
    network.act(0, |membership, now| membership.set_nodes((0..3).map(name).collect(), now));
    network.start(2);
    assert!(network.until(ms(1500), Network::whole).is_some());
}
