//! Tests that a flood of one sender, or of one kind, takes nothing from others.

use std::net::Ipv4Addr;

use vipmux_common::abi::{Address, Mac, SpeakerKey, UNCLAIMED_REJECT};
use vipmux_tests::{
    frames::{Arp, BROADCAST, Ethernet, Ipv4, Payload, SYN, Tcp, Udp},
    program::{Hook, Program},
};

use crate::{
    fixture::{self, DNS_UDP, FOREIGN_MAC, VIP, claimed, from_client},
    pool::{self, Pooled},
    reject::sealed,
};

const PASS: u32 = 2;
const TX: u32 = 3;
/// More than any budget holds.
const FLOOD: u16 = 20_000;

fn program() -> Pooled {
    let mut state = fixture::state();
    state.config.unclaimed = UNCLAIMED_REJECT;
    // A budget is filled as slowly as if a second took a thousand: nothing depends on the machine.
    state.config.hz *= 1_000;
    claimed(&mut state, VIP, FOREIGN_MAC);
    pool::load(&state, 8_192).unwrap()
}

fn verdict(program: &Program, frame: &[u8]) -> u32 {
    program.run(Hook::Ingress, frame).unwrap().verdict
}

/// Other senders than that of the flood. Some may share its group.
fn others() -> impl Iterator<Item = Ipv4Addr> {
    (1..=16).map(|last| Ipv4Addr::new(203, 0, 113, last))
}

fn syn(client: Ipv4Addr, port: u16) -> Vec<u8> {
    from_client().ipv4(&Ipv4::tcp(client, VIP, Tcp::new(port, 9, SYN)))
}

fn echo(client: Ipv4Addr) -> Vec<u8> {
    from_client().ipv4(&Ipv4::new(client, VIP, sealed(vec![8, 0, 0, 0, 0, 1, 0, 1])))
}

fn datagram(client: Ipv4Addr, number: u16, fragment: u16, payload: Payload) -> Vec<u8> {
    let packet = Ipv4::new(client, DNS_UDP.vip, payload).fragment(fragment);
    from_client().ipv4(&Ipv4 { identification: number, ..packet })
}

fn first_fragment(client: Ipv4Addr, number: u16) -> Vec<u8> {
    const MORE: u16 = 0x2000;
    datagram(client, number, MORE, Payload::Udp(Udp::new(4_000, DNS_UDP.port, &[0; 16])))
}

/// Most of the others get what they ask for.
fn are_served(program: &Program, frame: impl Fn(Ipv4Addr) -> Vec<u8>, verdict_of: u32) {
    let served = others().filter(|client| verdict(program, &frame(*client)) == verdict_of).count();
    assert!(served >= 14, "{served} of 16 are served");
}

pub(crate) fn leave_others_their_share() {
    let (program, client) = (program(), fixture::CLIENT);
    let refused = (0..FLOOD).filter(|port| verdict(&program, &syn(client, 1 + port)) != TX).count();
    assert!(refused > 0, "the flood was no flood");
    assert_eq!(verdict(&program, &echo(client)), TX, "SYNs to a closed port leave echo replies alone");
    are_served(&program, |client| syn(client, 1), TX);
    assert!((0..FLOOD).any(|_| verdict(&program, &echo(client)) != TX));
    are_served(&program, echo, TX);

    let honest = Ipv4Addr::new(203, 0, 113, 99);
    assert_eq!(verdict(&program, &first_fragment(honest, 7)), PASS);
    let refused = (0..FLOOD).filter(|number| verdict(&program, &first_fragment(client, *number)) != PASS).count();
    assert!(refused > 0, "the flood was no flood");
    let later = datagram(honest, 7, 3, Payload::Other(17, vec![0; 16]));
    assert_eq!(verdict(&program, &later), PASS, "the flood has not evicted the first fragment");
    are_served(&program, |client| first_fragment(client, 8), PASS);
}

pub(crate) fn keep_known_speakers() {
    let program = program();
    for number in 0..FLOOD {
        let [high, low] = number.to_be_bytes();
        let mac = [2, 0xff, 0, 0, high, low];
        verdict(&program, &Ethernet::new(mac, BROADCAST).arp(&Arp::announcement(mac, VIP)));
    }
    let speakers = program.state().unwrap().speakers;
    let known = SpeakerKey { vip: Address::from(VIP), mac: Mac::new(FOREIGN_MAC) };
    assert!(speakers.contains_key(&known), "{} other speakers", speakers.len());
    assert!(speakers.len() > 1, "others are noted too");
}
