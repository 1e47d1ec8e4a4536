//! Cases of replies: backends' packets, translated back to the VIP's.

use vipmux_common::abi::{
    BACKEND_GONE, BACKEND_LOCAL, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_ISN, FLOW_REPLIES, FLOW_RESET,
    SERVICE_GONE, Stat,
};
use vipmux_tests::{
    frames::{ACK, ETHERTYPE_IPV4, Ethernet, FIN, Ipv4, PSH, Payload, RST, SYN, Tcp, Udp},
    program::{NOW_LOW, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::ISN,
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, DNS, DNS_UDP, Endpoint, HTTP, LATE, LINGER, LOCAL, LOCAL_TOO, NEIGHBOR,
        SELF_MAC, Service, TCP_IDLE, UDP_IDLE, VLAN, WHILE,
    },
    flows::seen_later,
};

pub(crate) fn cases() -> Vec<Case> {
    [translated(), of_what_is_gone(), of_closing_connections(), handshakes(), expired(), foreign(), malformed()]
        .into_iter()
        .flatten()
        .collect()
}

fn out() -> Ethernet {
    Ethernet::new(SELF_MAC, CLIENT_MAC)
}

/// Returns a backend's segment to the client.
pub(crate) fn segment(backend: Endpoint, flags: u8, acknowledged: u32) -> Ipv4 {
    let tcp = Tcp::new(backend.port, CLIENT_PORT, flags).numbers(9_000, acknowledged);
    Ipv4::tcp(backend.address, CLIENT, tcp)
}

fn datagram(data: &[u8]) -> Ipv4 {
    Ipv4::udp(DNS.address, CLIENT, Udp::new(DNS.port, CLIENT_PORT, data))
}

/// The same packet from the Service.
pub(crate) fn from(service: Service, packet: &Ipv4) -> Ipv4 {
    let mut packet = packet.clone();
    packet.source = service.vip;
    match &mut packet.payload {
        Payload::Tcp(tcp) => tcp.source = service.port,
        Payload::Udp(udp) => udp.source = service.port,
        Payload::Sctp(sctp) => sctp.source = service.port,
        Payload::Icmpv6(_) | Payload::Other(..) => {}
    }
    packet
}

const REPLY: &[Counter] = &[Counter::Stat(Stat::Replies)];
const DIRECT: u32 = FLOW_DIRECT | FLOW_RESET;
const BOTH_FINS: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;

/// A reply of a connection to [`HTTP`] that was idle for a while.
fn restored(name: &'static str, packet: &Ipv4) -> Case {
    Case::egress(name, out().ipv4(packet))
        .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN))
        .becomes(Verdict::Passed(out().ipv4(&from(HTTP, packet))), REPLY)
        .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN))
}

/// A packet that leaves unchanged.
fn left_alone(name: &'static str, packet: &Ipv4) -> Case {
    Case::egress(name, out().ipv4(packet)).given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN))
}

/// The records translate replies no longer.
pub(crate) fn forgotten(state: &mut State) {
    for flow in state.flows.values_mut() {
        flow.flags &= !u8::try_from(FLOW_REPLIES).unwrap();
        flow.seen = NOW_LOW;
    }
}

fn answered(name: &'static str, packet: &Ipv4) -> Case {
    Case::egress(name, out().ipv4(packet))
        .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
        .becomes(Verdict::Passed(out().ipv4(&from(DNS_UDP, packet))), REPLY)
        .then(|state| DNS_UDP.remember(state, DNS, 0, 0, 0))
}

fn translated() -> Vec<Case> {
    let data = segment(LOCAL, ACK | PSH, 77);
    let Payload::Tcp(tcp) = data.payload.clone() else { return Vec::new() };
    let with_options =
        Ipv4 { payload: Payload::Tcp(tcp.options(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8])), ..data.clone() };
    let Payload::Udp(udp) = datagram(b"answer").payload else { return Vec::new() };
    let without_checksum = Ipv4 { payload: Payload::Udp(udp.without_checksum()), ..datagram(b"answer") };
    let tagged = |packet: &Ipv4| out().tagged(VLAN).ipv4(packet);
    vec![
        restored("a segment comes from the VIP", &data),
        Case::egress("a frame that is tagged already", tagged(&data))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN))
            .becomes(Verdict::Passed(tagged(&from(HTTP, &data))), REPLY)
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        restored("a reply's TCP options stay", &with_options),
        restored("a reply's IPv4 options stay", &data.clone().options(&[1; 8])),
        restored("the longest IPv4 header of a reply is walked", &data.clone().options(&[1; 40])),
        restored("a reply at the end of its TTL", &data.clone().ttl(1)),
        answered("a datagram comes from the VIP", &datagram(b"answer")),
        answered("an odd datagram", &datagram(b"odd")),
        answered("an empty datagram", &datagram(b"")),
        answered("an absent UDP checksum stays absent", &without_checksum),
        answered("a checksum that comes to zero is sent as all ones", &summing_to_zero()),
    ]
}

/// A datagram whose checksum becomes zero when its source becomes the VIP.
fn summing_to_zero() -> Ipv4 {
    let restored = from(DNS_UDP, &datagram(&[0, 0])).bytes();
    let packet = datagram(&restored[26..28]);
    assert_eq!(&from(DNS_UDP, &packet).bytes()[26..28], &[0xff, 0xff]);
    packet
}

/// A backend or a Service port that is gone stays known to the last replies of its flows.
fn of_what_is_gone() -> Vec<Case> {
    vec![
        restored("a reply of a backend that is gone", &segment(LOCAL, ACK, 77))
            .given(|state| {
                HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
                LOCAL.of(state).flags = BACKEND_LOCAL | BACKEND_GONE;
            })
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        restored("a reply of a Service that is gone", &segment(LOCAL, ACK, 77))
            .given(|state| {
                HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
                state.services.remove(&HTTP.key());
                state.service_states[HTTP.slot as usize].flags = SERVICE_GONE;
            })
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        left_alone("a reply of a backend whose index has another one", &segment(LOCAL, ACK, 77)).given(|state| {
            HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
            LOCAL.of(state).generation += 1;
        }),
        left_alone("a reply of a Service whose slot has another one", &segment(LOCAL, ACK, 77)).given(|state| {
            HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
            state.service_states[HTTP.slot as usize].generation += 1;
        }),
    ]
}

fn of_closing_connections() -> Vec<Case> {
    vec![
        restored("a backend's FIN is noted", &segment(LOCAL, FIN | ACK, 77))
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN | FLOW_BACKEND_FIN)),
        restored("a backend's RST is noted", &segment(LOCAL, RST | ACK, 77))
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN | FLOW_RESET)),
        restored("the second FIN closes", &segment(LOCAL, FIN | ACK, 77))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN | FLOW_CLIENT_FIN))
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN | BOTH_FINS)),
        restored(
            "what is sent again after both FINs is translated, as long as it goes on",
            &segment(LOCAL, FIN | ACK, 77),
        )
        .given(|state| HTTP.remember(state, LOCAL, LINGER - WHILE, ISN, FLOW_ISN | BOTH_FINS))
        .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN | BOTH_FINS)),
        restored("a backend's late packet does not undo the client's RST", &segment(LOCAL, ACK, 77))
            .given(|state| HTTP.remember(state, LOCAL, LINGER - WHILE, ISN, FLOW_ISN | FLOW_RESET))
            .then(|state| HTTP.remember(state, LOCAL, LINGER - WHILE, ISN, FLOW_ISN | FLOW_RESET)),
        restored("a half-closed connection is translated as ever", &segment(LOCAL, ACK, 77))
            .given(|state| HTTP.remember(state, LOCAL, LINGER + WHILE, ISN, FLOW_ISN | FLOW_CLIENT_FIN))
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN | FLOW_CLIENT_FIN)),
    ]
}

/// The backend agrees to ECN (RFC 3168, 6.1.1).
const ECE: u8 = 0x40;

/// A SYN-ACK shows whether the connection goes to the VIP or to the backend itself.
fn handshakes() -> Vec<Case> {
    let direct = |name, packet: &Ipv4| {
        left_alone(name, packet)
            .becomes(Verdict::Untouched, &[Counter::Stat(Stat::DirectReplies)])
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, DIRECT))
    };
    let accepted = |acknowledged| segment(LOCAL, SYN | ACK, acknowledged);
    let after = |data: u32| ISN.wrapping_add(1).wrapping_add(data);
    vec![
        restored("a SYN-ACK of the client's SYN", &accepted(after(0))),
        restored("a SYN-ACK of the client's SYN and its data", &accepted(after(1_000))),
        restored("a SYN-ACK of as much data as a packet holds", &accepted(after(0xffff))),
        restored("a SYN-ACK with ECE", &segment(LOCAL, SYN | ACK | ECE, after(0))),
        direct("a SYN-ACK with ECE of another SYN", &segment(LOCAL, SYN | ACK | ECE, ISN)),
        restored("a sequence number wraps", &accepted(0))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, u32::MAX, FLOW_ISN))
            .then(|state| HTTP.remember(state, LOCAL, 0, u32::MAX, FLOW_ISN)),
        direct("a SYN-ACK of another SYN is of a direct connection", &accepted(ISN)),
        direct("a SYN-ACK of more than a SYN holds is of a direct connection", &accepted(after(0x1_0000))),
        direct("a SYN-ACK of no SYN that was seen is of a direct connection", &accepted(after(0)))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, 0))
            .then(forgotten),
        direct("so it is where a connection has ended", &accepted(after(0)))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, BOTH_FINS)),
        direct("a SYN-ACK of a direct connection that comes again", &accepted(after(0)))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, DIRECT)),
        left_alone("what follows the SYN-ACK is of the direct connection too", &segment(LOCAL, ACK | PSH, 77))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, DIRECT)),
        left_alone("and what comes later", &segment(LOCAL, ACK | PSH, 77))
            .given(|state| HTTP.remember(state, LOCAL, LATE + WHILE, ISN, DIRECT)),
        left_alone("and is so when its record has had its time", &segment(LOCAL, ACK | PSH, 77))
            .given(|state| HTTP.remember(state, LOCAL, LINGER + WHILE, ISN, DIRECT)),
        restored("a backend's own SYN is no SYN-ACK", &segment(LOCAL, SYN, 0)),
    ]
}

fn expired() -> Vec<Case> {
    let udp = Case::egress("an idle flow of datagrams is not translated", out().ipv4(&datagram(b"late")));
    vec![
        left_alone("an idle connection is not translated", &segment(LOCAL, ACK, 77))
            .given(|state| HTTP.remember(state, LOCAL, TCP_IDLE + WHILE, ISN, FLOW_ISN)),
        restored("a connection that is not idle yet", &segment(LOCAL, ACK, 77))
            .given(|state| HTTP.remember(state, LOCAL, TCP_IDLE - WHILE, ISN, FLOW_ISN)),
        left_alone(
            "a SYN-ACK on an idle connection is not translated",
            &segment(LOCAL, SYN | ACK, ISN.wrapping_add(1)),
        )
        .given(|state| HTTP.remember(state, LOCAL, TCP_IDLE + WHILE, ISN, FLOW_ISN)),
        left_alone("a closed connection is not translated any more", &segment(LOCAL, ACK, 77))
            .given(|state| HTTP.remember(state, LOCAL, LINGER + WHILE, ISN, FLOW_ISN | BOTH_FINS)),
        left_alone("nor is a reset one", &segment(LOCAL, ACK, 77))
            .given(|state| HTTP.remember(state, LOCAL, LINGER + WHILE, ISN, FLOW_ISN | FLOW_RESET)),
        restored("a connection that another CPU has seen later", &segment(LOCAL, ACK, 77)).given(|state| {
            HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
            seen_later(state);
        }),
        restored("nor does that make a closed connection an old one", &segment(LOCAL, ACK, 77))
            .given(|state| {
                HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN | BOTH_FINS);
                seen_later(state);
            })
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN | BOTH_FINS)),
        udp.given(|state| DNS_UDP.remember(state, DNS, UDP_IDLE + WHILE, 0, 0)),
        answered("a flow of datagrams that is not idle yet", &datagram(b"slow"))
            .given(|state| DNS_UDP.remember(state, DNS, UDP_IDLE - WHILE, 0, 0)),
    ]
}

fn foreign() -> Vec<Case> {
    let reply = segment(LOCAL, ACK, 77);
    let Payload::Tcp(tcp) = reply.payload.clone() else { return Vec::new() };
    let other_port = Ipv4 { payload: Payload::Tcp(Tcp { source: 8081, ..tcp.clone() }), ..reply.clone() };
    let other_client_port = Ipv4 { payload: Payload::Tcp(Tcp { destination: 40_001, ..tcp }), ..reply.clone() };
    let datagram = Ipv4::udp(LOCAL.address, CLIENT, Udp::new(LOCAL.port, CLIENT_PORT, b"?"));
    let icmp = Ipv4::new(LOCAL.address, CLIENT, Payload::Other(1, vec![3; 36]));
    let fragment = |word| reply.clone().fragment(word);
    vec![
        left_alone("another backend's segment", &segment(LOCAL_TOO, ACK, 77)),
        left_alone("a segment from another port", &other_port),
        left_alone("a segment to another of the client's ports", &other_client_port),
        left_alone("a segment to another client", &Ipv4 { destination: NEIGHBOR, ..reply.clone() }),
        left_alone("a datagram between the same ports", &datagram),
        left_alone("ICMP", &icmp),
        left_alone("a later fragment", &fragment(0x2001)),
        left_alone("a last fragment", &fragment(0x0001)),
        left_alone("a reply whose record is torn", &reply)
            .given(|state| {
                HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
                state.flows.values_mut().for_each(|flow| flow.check ^= 1);
            })
            .then(|state| state.flows.clear()),
        Case::egress("a first fragment of another packet leaves", out().ipv4(&fragment(0x2000))),
    ]
}

fn malformed() -> Vec<Case> {
    let edited = |name, edit: fn(&mut Vec<u8>)| {
        let mut bytes = segment(LOCAL, ACK, 77).bytes();
        edit(&mut bytes);
        Case::egress(name, out().frame(ETHERTYPE_IPV4, &bytes))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN))
    };
    vec![
        edited("another IP version leaves", |bytes| bytes[0] = 0x65),
        edited("a header length of sixteen bytes leaves", |bytes| bytes[0] = 0x44),
        edited("a header beyond the frame leaves", |bytes| bytes[0] = 0x4f),
        edited("a TCP header cut short leaves", |bytes| bytes.truncate(39)),
        edited("ports cut short leave", |bytes| bytes.truncate(27)),
    ]
}
