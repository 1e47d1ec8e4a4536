//! Measures the cost in a large cluster. Run it with optimizations only.

use std::time::{Duration, Instant};

use super::{
    MemberStatus, Network,
    network::{ms, name},
};
use crate::membership::Membership;

/// How long all of it took, and for each time.
fn timed(times: u32, mut act: impl FnMut()) -> (Duration, Duration) {
    let start = Instant::now();
    (0..times).for_each(|_| act());
    let took = start.elapsed();
    (took, took / times)
}

#[test]
#[ignore = "takes a minute, and prints what it takes"]
fn a_thousand_nodes_find_each_other_and_miss_a_tenth() {
    let nodes = 1000;
    let start = Instant::now();
    let mut network = Network::new(nodes, 1);
    let joined = network.until(ms(5000), |network| network.now.as_millis() % 50 == 0 && network.whole());
    println!("{nodes} nodes together after {joined:?}, {} payloads; computed in {:?}", network.sent, start.elapsed());
    assert!(joined.is_some());

    let (start, sent) = (Instant::now(), network.sent);
    network.run(ms(1000));
    println!("a quiet second: {} payloads, computed in {:?}", network.sent - sent, start.elapsed());
    assert!(network.whole());

    let (asked, answerer) = (network.now, 1);
    let mut membership = network.take(0);
    membership.turn(asked);
    membership.take_outbox();
    membership.send_heartbeats(asked);
    let asks = membership.take_outbox();
    assert_eq!(asks.len(), 31);
    let answer = network.act(answerer, |other, now| {
        let (_, ask) = timed(100_000, || {
            other.receive(&name(0), &asks[0].1, now).unwrap();
            other.take_outbox();
        });
        println!("an ask: {ask:?}");
        other.receive(&name(0), &asks[0].1, now).unwrap();
        other.take_outbox().pop().unwrap().1
    });
    let answer = answer.unwrap();
    let (_, each) = timed(100_000, || membership.receive(&name(answerer), &answer, asked).unwrap());
    println!("an answer: {each:?}");
    let (_, each) = timed(1000, || {
        membership.send_heartbeats(asked);
        membership.take_outbox();
    });
    println!("a round of asks: {each:?}");

    let (start, sent, killed) = (Instant::now(), network.sent, network.now);
    (1..nodes / 10).for_each(|node| network.kill(node));
    let down = |network: &Network| {
        (nodes / 10..nodes).all(|of| (0..nodes / 10).all(|node| network.status(of, node) == Some(MemberStatus::Down)))
    };
    let took = network.until(ms(5000), |network| (network.now - killed).as_millis() % 50 == 0 && down(network));
    println!("a tenth down on all after {took:?}; {} payloads, computed in {:?}", network.sent - sent, start.elapsed());
    assert!(took.is_some_and(|took| took < ms(3000)));
    assert!(
        (nodes / 10..nodes).all(|node| network.act(node, |other: &mut Membership, _| other.peers().majority).unwrap())
    );
}
