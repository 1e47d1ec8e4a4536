//! Tests the evidence of answered heartbeats: that this node is alive, and since when others are silent.

use std::{collections::BTreeSet, time::Duration};

use super::{
    network::{HEARTBEAT, Network, ms, name},
    together,
};
use crate::membership::{
    MemberStatus, Membership,
    heartbeats::nanoseconds,
    member_id::MemberId,
    wire::{Ack, Gone, Heartbeat, StateVersion, Wire},
};
use vipmux_model::NodeName;

#[test]
fn evidence_of_one_is_itself_and_of_two_the_other() {
    let mut alone = together(1, 10);
    alone.run(ms(1000));
    assert!(alone.now - alone.of(0).peers().evidence_since.unwrap() <= HEARTBEAT);
    assert!(alone.of(0).peers().majority);
    let mut two = together(2, 10);
    two.run(ms(1000));
    assert!(two.now - two.of(0).peers().evidence_since.unwrap() <= HEARTBEAT + ms(1));
    two.paused.insert(1);
    let paused = two.now;
    two.run(ms(1000));
    assert!(two.of(0).peers().evidence_since.unwrap() <= paused);
}

#[test]
fn evidence_is_as_old_as_the_oldest_answer_of_a_majority() {
    // Of five: two others. Two are heard no more, then a third.
    let mut network = together(5, 11);
    network.kill(4);
    network.kill(3);
    network.run(ms(1000));
    assert!(network.now - network.of(0).peers().evidence_since.unwrap() <= HEARTBEAT + ms(1));
    let answered = |network: &Network, node| network.peer(0, node).answered.unwrap();
    network.kill(2);
    let killed = network.now;
    network.run(ms(1000));
    let evidence = network.of(0).peers().evidence_since.unwrap();
    assert_eq!(evidence, answered(&network, 2));
    assert!(evidence <= killed && answered(&network, 1) > killed);
}

#[test]
fn who_is_down_has_had_no_evidence_since_the_others_say_it_was_silent() {
    let (mut all, mut told) = (0, 0);
    for seed in 0..60 {
        for nodes in [2, 3, 4, 5] {
            let mut network = together(nodes, seed);
            // One is cut off for a while, of which it notices nothing; meanwhile another one is,
            // and stays so.
            let (first, both) = (ms(seed * 5 % 200), ms(20 + seed * 7 % 180));
            network.cut = Box::new(|from, to| from == 1 || to == 1);
            network.run(first);
            network.cut = Box::new(|from, to| from < 2 || to < 2);
            network.run(both);
            network.cut = Box::new(|from, to| from == 0 || to == 0);
            for _ in 0..900 {
                network.run(ms(1));
                let evidence = network.of(0).peers().evidence_since;
                for of in (1..nodes).filter(|of| network.of(*of).peers().majority || nodes == 2) {
                    let peer = network.peer(of, 0);
                    assert!(peer.silent.is_none() || peer.status == MemberStatus::Down);
                    if let Some(silent) = peer.silent {
                        assert!(
                            Some(silent) >= evidence,
                            "{nodes} nodes, seed {seed}: n{of} says {silent:?}, {evidence:?}"
                        );
                    }
                }
            }
            if nodes > 2 {
                all += nodes - 1;
                told += (1..nodes).filter(|of| network.peer(*of, 0).silent.is_some()).count();
            }
        }
    }
    // A node that was cut off has forgotten which nodes it considered down, and may not have found
    // that again.
    assert!(told * 10 > all * 9, "{told} of {all} know it");
}

#[test]
fn a_majority_says_soon_since_when_one_was_silent() {
    for nodes in [2, 3, 5, 12, 31] {
        let mut network = together(nodes, 20);
        network.kill(0);
        let down = |network: &Network| (1..nodes).all(|of| network.status(of, 0) == Some(MemberStatus::Down));
        assert!(network.until(ms(6000), down).is_some());
        let silent = |network: &Network| (1..nodes).all(|of| network.peer(of, 0).silent.is_some());
        let took = network.until(ms(100), silent);
        assert!(took.is_some(), "{nodes} nodes");
    }
}

#[test]
fn what_is_renounced_is_no_evidence() {
    let mut network = together(3, 12);
    // Answers to what was asked before are on their way.
    network.act(0, |membership, now| {
        membership.send_heartbeats(now);
        membership.discard_evidence(now + ms(1));
    });
    assert_eq!(network.of(0).peers().evidence_since, None);
    network.run(ms(3));
    assert_eq!(network.of(0).peers().evidence_since, None, "they do not count");
    network.run(HEARTBEAT);
    assert!(network.of(0).peers().evidence_since.is_some(), "later ones do");
}

#[test]
fn the_next_round_brings_no_discarded_evidence_back() {
    let mut network = together(3, 12);
    network.act(0, |membership, now| {
        membership.discard_evidence(now);
        membership.send_heartbeats(now);
        assert_eq!(membership.peers().evidence_since, None, "nobody has answered since");
    });
}

#[test]
fn the_others_are_asked_just_before_the_heartbeat_of_the_event_loop_that_uses_their_answers() {
    let mut network = together(3, 12);
    let (mut member, start) = (network.take(0), network.now + HEARTBEAT);
    let mut rounds = BTreeSet::new();
    for after in 0..600 {
        let now = start + ms(after);
        // The fourth one is late.
        if [0, 100, 200, 450, 550].contains(&after) {
            assert!(after == 0 || member.peers().evidence_since == rounds.last().copied());
            member.schedule_heartbeats(now);
        }
        member.turn(now);
        for (to, payload) in member.take_outbox() {
            let Ok(Wire::Heartbeat(Heartbeat { asked, .. })) = Wire::decode(&payload) else { continue };
            rounds.insert(Duration::from_nanos(asked));
            let ack = Ack { asked, at: StateVersion::default(), disowned: None, gone: Vec::new() };
            member.receive(&to, &Wire::Ack(ack).encode().unwrap(), now).unwrap();
        }
    }
    assert!(rounds.into_iter().eq([0, 90, 190, 290, 450, 540].map(|after| start + ms(after))));
}

#[test]
fn a_question_between_two_rounds_brings_evidence_and_is_asked_each_ten_milliseconds_at_most() {
    let mut network = together(3, 12);
    network.run(HEARTBEAT / 3);
    let (mut member, now) = (network.take(0), network.now);
    let before = member.peers().evidence_since;
    let mut asked = BTreeSet::new();
    for after in 0..30 {
        member.ask_peers(now + ms(after));
        for (to, payload) in member.take_outbox() {
            let Ok(Wire::Heartbeat(Heartbeat { asked: at, .. })) = Wire::decode(&payload) else { continue };
            assert!(asked.insert((to, Duration::from_nanos(at))));
        }
    }
    let expected = [name(1), name(2)].into_iter().flat_map(|to| [0, 10, 20].map(|at| (to.clone(), now + ms(at))));
    assert!(asked.into_iter().eq(expected));
    assert!(before < Some(now));
    let ack = Ack { asked: nanoseconds(now), at: StateVersion::default(), disowned: None, gone: Vec::new() };
    member.receive(&name(1), &Wire::Ack(ack).encode().unwrap(), now + ms(30)).unwrap();
    assert_eq!(member.peers().evidence_since, Some(now));
}

/// The answer of a node that considers this generation of `gone` down.
fn ack(asked: Duration, gone: &NodeName, generation: u64) -> Vec<u8> {
    let gone = vec![Gone { node: MemberId::key(gone), generation, silent: nanoseconds(ms(40)) }];
    let ack = Ack { asked: nanoseconds(asked), at: StateVersion::default(), disowned: None, gone };
    Wire::Ack(ack).encode().unwrap()
}

/// A node that others answered again may be down a second time. They answered it until then.
#[test]
fn lists_of_the_gone_say_nothing_of_a_later_generation() {
    for generation in 1..4 {
        let mut network = together(3, 19);
        let (mut member, now) = (network.take(1), network.now);
        let node = MemberId::key(&name(0));
        member.swim.learn(MemberId { node, generation: 2 }, foca::State::Down, false).unwrap();
        member.process_swim(now);
        member.send_heartbeats(now);
        member.receive(&name(2), &ack(now, &name(0), generation), now).unwrap();
        let peer = &member.peers().members[&name(0)];
        assert_eq!((peer.status, peer.generation), (MemberStatus::Down, 2));
        assert_eq!(peer.silent.is_some(), generation >= 2, "generation {generation}");
        assert_eq!(peer.confirmed, (generation >= 2).then_some(now), "generation {generation}");
    }
}

/// It may be another run, which has answered that node since.
#[test]
fn the_list_of_the_gone_is_forgotten_with_the_run_that_sent_it() {
    let mut network = together(3, 19);
    let (mut member, now) = (network.take(1), network.now);
    let learn = |member: &mut Membership, node: usize, generation: u64, state: foca::State| {
        let member_id = MemberId { node: MemberId::key(&name(node)), generation };
        member.swim.learn(member_id, state, false).unwrap();
        member.process_swim(now);
    };
    learn(&mut member, 0, 1, foca::State::Down);
    member.send_heartbeats(now);
    member.receive(&name(2), &ack(now, &name(0), 1), now).unwrap();
    let silent = |member: &Membership| member.peers().members[&name(0)].silent.is_some();
    assert!(silent(&member));
    learn(&mut member, 2, 1, foca::State::Down);
    learn(&mut member, 2, 2, foca::State::Alive);
    assert!(!silent(&member));
    member.receive(&name(2), &ack(now, &name(0), 1), now).unwrap();
    assert!(silent(&member), "the new run says so, too");
}

/// Elsewhere it may have answered that node since.
#[test]
fn the_list_of_a_node_that_is_down_itself_does_not_count() {
    let mut network = together(3, 19);
    let (mut member, now) = (network.take(1), network.now);
    let falls = |member: &mut Membership, node: usize| {
        let member_id = MemberId { node: MemberId::key(&name(node)), generation: 1 };
        member.swim.learn(member_id, foca::State::Down, false).unwrap();
        member.process_swim(now);
    };
    falls(&mut member, 0);
    member.send_heartbeats(now);
    member.receive(&name(2), &ack(now, &name(0), 1), now).unwrap();
    let known = |member: &Membership| {
        let peer = &member.peers().members[&name(0)];
        (peer.silent.is_some(), peer.confirmed.is_some())
    };
    assert_eq!(known(&member), (true, true));
    falls(&mut member, 2);
    assert_eq!(known(&member), (false, false));
}

#[test]
fn of_a_large_cluster_a_sample_is_asked() {
    let mut network = together(60, 13);
    network.run(ms(1000));
    for node in 0..60 {
        assert!(network.now - network.of(node).peers().evidence_since.unwrap() <= HEARTBEAT + ms(1));
    }
    // 25 of 60 hear each other alone: more than half of many a sample.
    network.cut = Box::new(|from, to| (from < 25) != (to < 25));
    let cut = network.now;
    network.run(ms(3000));
    for node in 0..60 {
        // For the majority, not in each round; for the others, until SWIM has found how few they
        // are.
        let evidence = network.of(node).peers().evidence_since.unwrap().saturating_sub(cut);
        assert_eq!(evidence > ms(1500), node >= 25, "node {node}: {evidence:?} after the cut");
    }
}
