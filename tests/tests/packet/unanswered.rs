//! Tests that a flow to a backend here is only established once both sides have spoken.

use std::net::IpAddr;

use vipmux_common::abi::{FLOW_HALF_OPEN, FLOW_ISN, FLOW_NEW, FLOW_REPLIES, FlowKey, FlowRecord, Stat, WAYS};
use vipmux_tests::{
    frames::{ACK, Ethernet, Ipv4, PSH, RST, SYN, Tcp, Udp},
    program::{Hook, NOW_LOW, Program},
};

use crate::{
    demux::ISN,
    fixture::{self, CLIENT_MAC, DNS, DNS_UDP, Endpoint, HTTP, LOCAL, SELF_MAC, Service, WHILE, from_client},
    pool,
    records::{PASS, established, from_port, neighbors, run},
};

/// Runs a backend's segment to the client of a flow. Returns whether it left translated.
pub(crate) fn answer(program: &Program, backend: Endpoint, key: &FlowKey, flags: u8) -> bool {
    let tcp = Tcp::new(backend.port, u16::from_be(key.client_port), flags).numbers(9_000, ISN.wrapping_add(1));
    leave(program, &Ipv4::tcp(backend.address, client(key), tcp))
}

fn client(key: &FlowKey) -> std::net::Ipv4Addr {
    let IpAddr::V4(client) = key.client.into() else { panic!("an IPv4 client") };
    client
}

fn leave(program: &Program, packet: &Ipv4) -> bool {
    let frame = Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(packet);
    program.run(Hook::Egress, &frame).unwrap().frame != frame
}

/// Returns the flags of a flow's record without those of its kind.
fn proof(program: &Program, key: &FlowKey) -> Option<u32> {
    let flags = program.state().unwrap().flows.get(key).map(|flow| u32::from(flow.flags));
    flags.map(|flags| flags & !(FLOW_REPLIES | FLOW_ISN))
}

/// The handshake of a connection, in all orders of its packets.
pub(crate) fn both_sides_establish_a_connection() {
    let key = HTTP.flow();
    let after = |packets: &[(Hook, u8)]| {
        let program = pool::load(&fixture::state(), fixture::FLOWS).unwrap();
        for (hook, flags) in packets {
            match hook {
                Hook::Ingress => assert_eq!(run(&program, &from_port(HTTP, &key, *flags)), (PASS, vec![])),
                Hook::Egress => assert!(answer(&program, LOCAL, &key, *flags), "{flags:#x}"),
            }
        }
        proof(&program, &key).unwrap()
    };
    let (client, backend) = (|flags| (Hook::Ingress, flags), |flags| (Hook::Egress, flags));
    let (syn, syn_ack, ack) = (client(SYN), backend(SYN | ACK), client(ACK));
    assert_eq!(after(&[syn]), FLOW_NEW | FLOW_HALF_OPEN);
    assert_eq!(after(&[syn, syn]), FLOW_NEW | FLOW_HALF_OPEN);
    assert_eq!(after(&[syn, syn_ack]), FLOW_HALF_OPEN);
    assert_eq!(after(&[syn, syn_ack, syn]), FLOW_HALF_OPEN);
    assert_eq!(after(&[syn, syn_ack, ack]), 0);
    assert_eq!(after(&[syn, ack]), FLOW_NEW);
    assert_eq!(after(&[syn, ack, ack, client(ACK | PSH)]), FLOW_NEW);
    assert_eq!(after(&[syn, ack, syn_ack]), 0);
    assert_eq!(after(&[ack]), FLOW_NEW, "in the middle of a connection");
    assert_eq!(after(&[ack, ack]), FLOW_NEW);
    assert_eq!(after(&[ack, backend(ACK | PSH)]), 0);
    // A firewall may answer like that, and a forged segment disproves it.
    assert_eq!(after(&[syn, ack, backend(RST | ACK), ack]), FLOW_NEW);
}

/// Another SYN establishes nothing, whatever its sequence number is.
pub(crate) fn a_second_syn_establishes_nothing() {
    let key = HTTP.flow();
    let program = pool::load(&fixture::state(), fixture::FLOWS).unwrap();
    for flags in [SYN, ACK] {
        run(&program, &from_port(HTTP, &key, flags));
    }
    let other = Tcp::new(u16::from_be(key.client_port), HTTP.port, SYN).numbers(ISN + 7, 0);
    run(&program, &from_client().ipv4(&Ipv4::tcp(client(&key), HTTP.vip, other)));
    assert_eq!(proof(&program, &key), Some(FLOW_NEW | FLOW_HALF_OPEN));
}

/// One query with one answer is not enough: anybody can forge a query.
pub(crate) fn a_second_datagram_establishes_a_flow() {
    let query = |service: Service| {
        let key = service.flow();
        let udp = Udp::new(u16::from_be(key.client_port), service.port, b"query");
        from_client().ipv4(&Ipv4::udp(client(&key), service.vip, udp))
    };
    let program = pool::load(&fixture::state(), fixture::FLOWS).unwrap();
    let key = DNS_UDP.flow();
    let answered = || {
        let udp = Udp::new(DNS.port, u16::from_be(key.client_port), b"answer");
        assert!(leave(&program, &Ipv4::udp(DNS.address, client(&key), udp)));
    };
    let asked = || assert_eq!(run(&program, &query(DNS_UDP)), (PASS, vec![]));
    asked();
    assert_eq!(proof(&program, &key), Some(FLOW_NEW | FLOW_HALF_OPEN));
    answered();
    assert_eq!(proof(&program, &key), Some(FLOW_HALF_OPEN));
    asked();
    assert_eq!(proof(&program, &key), Some(0));

    let program = pool::load(&fixture::state(), fixture::FLOWS).unwrap();
    for _ in 0..3 {
        run(&program, &query(DNS_UDP));
    }
    assert_eq!(proof(&program, &key), Some(FLOW_NEW), "the backend has not answered");
}

/// A backend that is silent, as behind a NetworkPolicy: no number of its clients' packets keeps new flows out.
pub(crate) fn connections_without_an_answer_keep_no_flow_out() {
    let state = fixture::state();
    let keys = neighbors(&state, &HTTP.flow(), 100);
    let (forged, honest) = keys.split_at(90);
    let program = pool::load(&state, fixture::FLOWS).unwrap();
    for key in forged {
        for flags in [SYN, ACK, ACK | PSH] {
            assert_eq!(run(&program, &from_port(HTTP, key, flags)).0, PASS);
        }
    }
    for key in honest {
        assert_eq!(run(&program, &from_port(HTTP, key, SYN)).0, PASS);
        assert!(answer(&program, LOCAL, key, SYN | ACK));
        assert_eq!(run(&program, &from_port(HTTP, key, ACK)).0, PASS);
    }
    let established = keys.iter().filter(|key| proof(&program, key) == Some(0)).count();
    assert_eq!((established, program.state().unwrap().flows.len()), (10, 10));
}

/// Of flows whose two sides have not both spoken, the oldest makes room, whatever its packets were.
pub(crate) fn a_flood_of_acks_evicts_its_own_flows() {
    let mut state = fixture::state();
    let keys = neighbors(&state, &HTTP.flow(), 60);
    let (old, new) = keys.split_at(2 * WAYS as usize);
    for (age, key) in (1..).zip(old) {
        let flags = u8::try_from(FLOW_REPLIES | FLOW_NEW).unwrap();
        let seen = NOW_LOW - age * u32::try_from(WHILE).unwrap();
        state.flows.insert(*key, FlowRecord { flags, seen, ..established(*key) });
    }
    let program = pool::load(&state, fixture::FLOWS).unwrap();
    let (honest, flood) = new.split_at(1);
    let evicted = |key, flags| run(&program, &from_port(HTTP, key, flags));
    assert_eq!(evicted(&honest[0], SYN), (PASS, vec![Stat::EvictedUnconfirmed]));
    for key in &flood[..2] {
        assert_eq!(evicted(key, ACK), (PASS, vec![Stat::EvictedUnconfirmed]));
    }
    assert!(answer(&program, LOCAL, &honest[0], SYN | ACK), "its set has older ones of the flood");
    assert_eq!(evicted(&honest[0], ACK), (PASS, vec![]));
    for key in &flood[2..] {
        assert_eq!(evicted(key, ACK), (PASS, vec![Stat::EvictedUnconfirmed]));
    }
    assert_eq!(proof(&program, &honest[0]), Some(0));
}
