//! Tests the goal for floods: of 500,000 forged SYNs per second, none evicts a live connection, and
//! new ones succeed. A packet is a step of 2 us here, so nothing depends on the machine's speed.

use std::{collections::VecDeque, net::Ipv4Addr};

use vipmux_common::abi::Stat;
use vipmux_tests::{
    frames::{ACK, Ethernet, Ipv4, PSH, SYN, Tcp},
    program::{Hook, Program},
};

use crate::{
    demux::{ISN, handed, to},
    fixture::{self, CLIENT_MAC, HTTP, HTTPS, LOCAL, PEER_MAC, SELF_MAC, from_client},
};

/// Established and idle connections: half to a backend here, half to another node.
const CONNECTIONS: u32 = 1_000;
/// SYNs between two honest connections.
const BETWEEN: u32 = 200;
/// SYNs until a backend answers: a millisecond.
const UNTIL_REPLY: u32 = 500;
/// SYNs until a client answers: 100 milliseconds.
const UNTIL_ACK: u32 = 50_000;

const PASS: u32 = 2;
const TX: u32 = 3;
const NEXT: u32 = u32::MAX;

/// A client's address and port.
#[derive(Clone, Copy)]
struct Client(Ipv4Addr, u16);

impl Client {
    /// A client of a network of its own, by number.
    fn new(network: u8, number: u32) -> Self {
        let host = number.wrapping_mul(0x9e37_79b1) >> 8;
        let address = Ipv4Addr::from(u32::from(network) << 24 | host);
        Self(address, 1024 + u16::try_from(number % 60_000).unwrap())
    }

    /// Whether the client's segment arrives at the backend.
    fn asks(self, program: &Program, flags: u8) -> bool {
        let tcp = Tcp::new(self.1, HTTP.port, flags).numbers(ISN, 1);
        let packet = Ipv4::tcp(self.0, HTTP.vip, tcp);
        let outcome = program.run(Hook::Ingress, &from_client().ipv4(&packet)).unwrap();
        outcome.verdict == PASS && outcome.frame == from_client().ipv4(&to(&packet, LOCAL))
    }

    /// Whether the client's segment to a Service of another node is handed over.
    fn is_handed_over(self, program: &Program, flags: u8) -> bool {
        let tcp = Tcp::new(self.1, HTTPS.port, flags).numbers(ISN, 1);
        let packet = Ipv4::tcp(self.0, HTTPS.vip, tcp);
        let outcome = program.run(Hook::Ingress, &from_client().ipv4(&packet)).unwrap();
        outcome.verdict == TX && outcome.frame == handed(&packet, PEER_MAC)
    }

    /// Whether the backend's segment leaves with the VIP's address.
    fn is_answered(self, program: &Program, flags: u8) -> bool {
        let frame = |address, port| {
            let tcp = Tcp::new(port, self.1, flags).numbers(77, ISN.wrapping_add(1));
            Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(&Ipv4::tcp(address, self.0, tcp))
        };
        let outcome = program.run(Hook::Egress, &frame(LOCAL.address, LOCAL.port)).unwrap();
        outcome.verdict == NEXT && outcome.frame == frame(HTTP.vip, HTTP.port)
    }
}

/// Returns how many of the honest connections succeeded, and how many there were.
fn flood(program: &Program, syns: u32) -> (usize, usize) {
    let (mut begun, mut answered) = (VecDeque::new(), VecDeque::new());
    let (mut succeeded, mut all) = (0, 0);
    for number in 0..syns {
        assert!(Client::new(10, number).asks(program, SYN), "SYN {number} was dropped");
        if number % BETWEEN == 0 && number + UNTIL_ACK < syns {
            let client = Client::new(100, number);
            all += 1;
            if client.asks(program, SYN) {
                begun.push_back((number + UNTIL_REPLY, client));
            }
        }
        if let Some((_, client)) = begun.pop_front_if(|(time, _)| *time <= number)
            && client.is_answered(program, SYN | ACK)
        {
            answered.push_back((number + UNTIL_ACK - UNTIL_REPLY, client));
        }
        if let Some((_, client)) = answered.pop_front_if(|(time, _)| *time <= number)
            && client.asks(program, ACK)
            && client.asks(program, ACK | PSH)
            && client.is_answered(program, ACK | PSH)
        {
            succeeded += 1;
        }
    }
    (succeeded, all)
}

pub(crate) fn of_half_a_million_per_second() {
    // A small table, the smallest default, and one that the flood fills three times.
    for (records, syns) in [(4_096, 100_000), (16_384, 200_000), (65_536, 200_000)] {
        let program = Program::load(&fixture::state(), records).unwrap();
        let known: Vec<_> = (0..CONNECTIONS).map(|number| Client::new(200, number)).collect();
        let (here, elsewhere) = known.split_at(known.len() / 2);
        for client in here {
            let opens = client.asks(&program, SYN) && client.is_answered(&program, SYN | ACK);
            assert!(opens && client.asks(&program, ACK));
        }
        assert!(elsewhere.iter().all(|client| [SYN, ACK].iter().all(|flags| client.is_handed_over(&program, *flags))));
        let before = program.counters().unwrap();
        let (succeeded, all) = flood(&program, syns);
        assert!(succeeded * 100 >= all * 95, "{records} records: {succeeded} of {all} new connections succeeded");
        let lost = here.iter().filter(|client| !client.is_answered(&program, ACK | PSH)).count();
        assert_eq!(lost, 0, "{records} records: of {} backends that send first", here.len());
        // In a small table, eight live flows can have the same sets. Then a SYN to a backend here takes the
        // record of one to another node, which goes on by the Service's table.
        let evicted = program.counters().unwrap().since(&before).stats[Stat::EvictedLive as usize].packets;
        assert!(evicted <= if records == 4_096 { 5 } else { 0 }, "{records} records: {evicted} live ones evicted");
        let before = program.counters().unwrap();
        assert!(here.iter().all(|client| client.asks(&program, ACK)));
        assert!(elsewhere.iter().all(|client| client.is_handed_over(&program, ACK)));
        let counted = program.counters().unwrap().since(&before);
        let again = counted.stats[Stat::NewFlows as usize].packets;
        assert!(again <= evicted, "{records} records: {again} flows were not known");
    }
}
