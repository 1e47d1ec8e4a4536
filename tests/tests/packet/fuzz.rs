//! Any bytes at all.

use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{Config, TestRunner},
};
use vipmux_common::abi::FLOW_ISN;
use vipmux_tests::{
    frames::{ACK, Arp, BROADCAST, Ethernet, PSH},
    program::{Hook, Program},
};

use crate::{
    demux::{ISN, datagram, segment, syn},
    fixture::{
        self, CLIENT_MAC, DNS_UDP, ELSEWHERE, FOLLOWED, HTTP, HTTPS, LOCAL, MIXED, NEIGHBOR, REDIRECTED, SELF_MAC,
        SYSLOG, TAGGED, TAGGED_HTTP, VIP, VLAN, WHILE, from_client, from_peer,
    },
    replies,
};

const CASES: u32 = 3_000;
const PASS: u32 = 2;
const SHOT: u32 = 2;

fn program() -> Program {
    let mut state = fixture::state();
    HTTP.record(&mut state, LOCAL, WHILE, 0);
    HTTP.remember(&mut state, LOCAL, WHILE, ISN, FLOW_ISN);
    Program::load(&state, fixture::FLOWS).unwrap()
}

/// Valid frames of every kind.
fn seeds() -> Vec<Vec<u8>> {
    let broadcast = Ethernet::new(CLIENT_MAC, BROADCAST);
    let request = |target| Arp::request(CLIENT_MAC, NEIGHBOR, target);
    vec![
        broadcast.arp(&request(VIP)),
        broadcast.clone().tagged(VLAN).arp(&request(TAGGED)),
        broadcast.arp(&Arp::announcement(fixture::PEER_MAC, VIP)),
        from_client().ipv4(&syn(HTTP)),
        from_client().ipv4(&segment(HTTP).options(&[1; 12])),
        from_client().ipv4(&segment(HTTPS)),
        from_client().ipv4(&syn(REDIRECTED)),
        from_client().tagged(VLAN).ipv4(&syn(TAGGED_HTTP)),
        from_client().ipv4(&datagram(DNS_UDP)),
        from_client().ipv4(&datagram(SYSLOG)),
        from_peer().ipv4(&segment(MIXED)),
        Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(&replies::segment(LOCAL, ACK | PSH, 77)),
    ]
}

/// A valid frame with some bytes changed and perhaps cut short, or noise.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<Index>(), any::<u8>()), 0..6);
    let mutated = (prop::sample::select(seeds()), edits, prop::option::weighted(0.3, any::<Index>())).prop_map(
        |(mut frame, edits, cut)| {
            for (at, byte) in edits {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            if let Some(cut) = cut {
                frame.truncate(14 + cut.index(frame.len() - 13));
            }
            frame
        },
    );
    prop_oneof![4 => mutated, 1 => prop::collection::vec(any::<u8>(), 14..400)]
}

fn is_vip(frame: &[u8], at: usize) -> bool {
    let vips = [VIP, FOLLOWED, ELSEWHERE, TAGGED];
    frame.get(at..at + 4).is_some_and(|ip| vips.iter().any(|vip| vip.octets() == ip))
}

/// Whether the frame may be for a VIP or speak of one: found without the programs' parser.
fn may_concern(frame: &[u8]) -> bool {
    let word = |at: usize| frame.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let (ethertype, network) = match word(12) {
        Some(0x8100) => (word(16), 18),
        other => (other, 14),
    };
    match ethertype {
        Some(0x0800) => frame[..6] == SELF_MAC && is_vip(frame, network + 16),
        Some(0x0806) => {
            (frame[..6] == SELF_MAC || frame[0] & 1 == 1)
                && (is_vip(frame, network + 14) || is_vip(frame, network + 24))
        }
        _ => false,
    }
}

pub(crate) fn any_frame_gets_a_verdict_and_what_is_not_for_a_vip_passes() {
    let program = program();
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let property = |frame: Vec<u8>| {
        let outcome = program.run(Hook::Ingress, &frame).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!((1..=4).contains(&outcome.verdict), "verdict {}", outcome.verdict);
        prop_assert_eq!(outcome.frame.len(), frame.len());
        if !may_concern(&frame) {
            prop_assert_eq!(outcome.verdict, PASS);
            prop_assert_eq!(outcome.frame, frame);
        }
        Ok(())
    };
    runner.run(&frames(), property).unwrap();
}

pub(crate) fn any_frame_may_leave_unless_it_speaks_for_a_vip() {
    let program = program();
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let property = |frame: Vec<u8>| {
        // The kernel refuses to make such an skb.
        let Ok(outcome) = program.run(Hook::Egress, &frame) else { return Ok(()) };
        let speaks_for_a_vip = frame[12..14] == [0x08, 0x06] && is_vip(&frame, 28);
        let reply_of_a_backend = frame[12..14] == [0x08, 0x00] && frame.get(26..30) == Some(&LOCAL.address.octets());
        if !speaks_for_a_vip && !reply_of_a_backend {
            prop_assert_eq!(outcome.verdict, u32::MAX);
            prop_assert_eq!(&outcome.frame, &frame);
        }
        prop_assert!([u32::MAX, SHOT].contains(&outcome.verdict), "verdict {}", outcome.verdict);
        Ok(())
    };
    runner.run(&frames(), property).unwrap();
}
