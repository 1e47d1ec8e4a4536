//! Tests whole conversations, packet by packet, with maps that only the programs write.

use vipmux_common::abi::{
    BACKEND_LOCAL, BACKEND_READY, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_HALF_OPEN, FLOW_ISN, FLOW_NEW, FLOW_REPLIES,
    Mac, NODE_ATTACHED, NODE_SELF,
};
use vipmux_tests::{
    frames::{ACK, Ethernet, FIN, Ipv4, PSH, RST, SYN},
    program::{Hook, IFINDEX, Outcome, Program, State},
};

use crate::{
    demux::{ISN, handed, syn, to},
    fixture::{
        self, CLIENT_MAC, FAR, HTTP, HTTPS, LOCAL, LOCAL_TOO, PEER_HANDOVER, PEER_MAC, REMOTE, SELF_HANDOVER, SELF_MAC,
        SPREAD, from_client,
    },
    flows::with_flags,
    pool,
    replies::{from, segment},
};

const PASS: u32 = 2;
const TX: u32 = 3;
const NEXT: u32 = u32::MAX;

fn sent(program: &Program, hook: Hook, frame: &[u8], verdict: u32, wanted: &[u8]) {
    assert_eq!(program.run(hook, frame).unwrap(), Outcome { verdict, frame: wanted.to_vec() });
}

/// Handshake, data and both FINs of a connection to a backend on this node.
pub(crate) fn with_a_local_backend() {
    let program = pool::load(&fixture::state(), fixture::FLOWS).unwrap();
    let back = Ethernet::new(SELF_MAC, CLIENT_MAC);
    let request = |packet: &Ipv4| {
        sent(&program, Hook::Ingress, &from_client().ipv4(packet), PASS, &from_client().ipv4(&to(packet, LOCAL)));
    };
    let reply = |packet: &Ipv4| {
        sent(&program, Hook::Egress, &back.ipv4(packet), NEXT, &back.ipv4(&from(HTTP, packet)));
    };
    let flags = || u32::from(program.state().unwrap().flows[&HTTP.flow()].flags);
    request(&syn(HTTP));
    reply(&segment(LOCAL, SYN | ACK, ISN.wrapping_add(1)));
    request(&with_flags(HTTP, ACK));
    request(&with_flags(HTTP, ACK | PSH));
    reply(&segment(LOCAL, ACK | PSH, 77));
    assert_eq!(flags(), FLOW_REPLIES | FLOW_ISN);
    reply(&segment(LOCAL, FIN | ACK, 78));
    request(&with_flags(HTTP, FIN | ACK));
    reply(&segment(LOCAL, ACK, 79));
    assert_eq!(flags(), FLOW_REPLIES | FLOW_ISN | FLOW_CLIENT_FIN | FLOW_BACKEND_FIN);

    request(&syn(HTTP));
    let opening = FLOW_REPLIES | FLOW_ISN | FLOW_NEW | FLOW_HALF_OPEN;
    assert_eq!(flags(), opening, "the same ports again are a new connection");
    let unrelated = back.ipv4(&segment(LOCAL, SYN | ACK, 0x7777_7777));
    sent(&program, Hook::Egress, &unrelated, NEXT, &unrelated);
    let as_it_is = |packet: &Ipv4| sent(&program, Hook::Egress, &back.ipv4(packet), NEXT, &back.ipv4(packet));
    as_it_is(&segment(LOCAL, ACK, 6));
    for late in [ACK, FIN | ACK, RST] {
        request(&with_flags(HTTP, late));
        as_it_is(&segment(LOCAL, ACK | PSH, 7));
    }
    request(&syn(HTTP));
    reply(&segment(LOCAL, SYN | ACK, ISN.wrapping_add(1)));
}

/// An attacker who knows the ports of a connection ends it in the client's name, and opens another one. Meanwhile
/// the Service's table has changed.
pub(crate) fn forged_segments_move_no_connection() {
    for forged in [RST, RST | ACK, FIN | ACK] {
        let mut state = fixture::state();
        let (here, elsewhere) = (syn(HTTP), syn(SPREAD));
        HTTP.set(&mut state, &[LOCAL_TOO], &[LOCAL_TOO]);
        SPREAD.set(&mut state, &[FAR], &[]);
        HTTP.remember(&mut state, LOCAL, 0, 1, FLOW_ISN);
        SPREAD.record_vouched(&mut state, REMOTE, 0, 0);
        let program = pool::load(&state, fixture::FLOWS).unwrap();
        for packet in [&with_flags(HTTP, forged), &here, &with_flags(HTTP, ACK | PSH)] {
            let delivered = from_client().ipv4(&to(packet, LOCAL));
            sent(&program, Hook::Ingress, &from_client().ipv4(packet), PASS, &delivered);
        }
        for packet in [&with_flags(SPREAD, forged), &elsewhere, &with_flags(SPREAD, ACK | PSH)] {
            sent(&program, Hook::Ingress, &from_client().ipv4(packet), TX, &handed(packet, PEER_MAC));
        }
        let back = Ethernet::new(SELF_MAC, CLIENT_MAC);
        let data = segment(LOCAL, ACK | PSH, 77);
        sent(&program, Hook::Egress, &back.ipv4(&data), NEXT, &back.ipv4(&from(HTTP, &data)));
    }
}

/// The peer's state: the backend that is remote here is local there.
fn peer() -> State {
    let mut state = fixture::state();
    state.interfaces[IFINDEX].mac = Mac::new(PEER_MAC);
    state.config.handover = Mac::new(PEER_HANDOVER);
    state.peers = [(Mac::new(SELF_HANDOVER), vipmux_common::abi::PEER_HANDOVER)].into();
    (state.nodes[0].flags, state.nodes[1].flags) = (NODE_ATTACHED, NODE_SELF);
    for backend in &mut state.backends {
        backend.flags = if backend.node == 1 { BACKEND_READY | BACKEND_LOCAL } else { BACKEND_READY };
    }
    HTTPS.set(&mut state, &[REMOTE], &[REMOTE]);
    state
}

/// One node hands over, the backend's node delivers, and the reply leaves from there.
pub(crate) fn across_two_nodes() {
    let here = pool::load(&fixture::state(), fixture::FLOWS).unwrap();
    let there = pool::load(&peer(), fixture::FLOWS).unwrap();
    let between = Ethernet::new(SELF_HANDOVER, PEER_MAC);
    let back = Ethernet::new(PEER_MAC, CLIENT_MAC);
    for packet in [syn(HTTPS), with_flags(HTTPS, ACK), with_flags(HTTPS, FIN | ACK)] {
        let frame = handed(&packet, PEER_MAC);
        sent(&here, Hook::Ingress, &from_client().ipv4(&packet), TX, &frame);
        let delivered = to(&packet.clone().ttl(63), REMOTE);
        sent(&there, Hook::Ingress, &frame, PASS, &between.ipv4(&delivered));
    }
    let reply = segment(REMOTE, ACK, 77);
    sent(&there, Hook::Egress, &back.ipv4(&reply), NEXT, &back.ipv4(&from(HTTPS, &reply)));
    let flags = u32::from(here.state().unwrap().flows[&HTTPS.flow()].flags);
    assert_eq!(flags, FLOW_CLIENT_FIN, "only the backend's node sees replies");
}

/// Two nodes that each take the other for the backend's node: the frame stops at the second.
pub(crate) fn that_would_go_in_circles() {
    let here = pool::load(&fixture::state(), fixture::FLOWS).unwrap();
    let mut confused = peer();
    HTTPS.set(&mut confused, &[LOCAL], &[]);
    let there = pool::load(&confused, fixture::FLOWS).unwrap();
    let frame = handed(&syn(HTTPS), PEER_MAC);
    sent(&here, Hook::Ingress, &from_client().ipv4(&syn(HTTPS)), TX, &frame);
    assert_eq!(there.run(Hook::Ingress, &frame).unwrap().verdict, 1);
    let direct = Ethernet::new(CLIENT_MAC, PEER_MAC).ipv4(&syn(HTTPS));
    let home = Ethernet::new(PEER_HANDOVER, SELF_MAC).ipv4(&syn(HTTPS).ttl(63));
    sent(&there, Hook::Ingress, &direct, TX, &home);
    assert_eq!(here.run(Hook::Ingress, &home).unwrap().verdict, 1);
}
