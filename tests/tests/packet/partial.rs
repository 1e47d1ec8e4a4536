//! Cases of partial checksums from local senders. They stay partial for the stack, and are
//! completed for the wire.

use vipmux_common::abi::{FLOW_ISN, INTERFACE_GENERIC, INTERFACE_PARTIAL, Stat};
use vipmux_tests::{
    frames::{Chunk, Ipv4, Payload, SYN, Sctp, Tcp, Udp},
    program::{IFINDEX, State},
};

use crate::{
    case::{Case, Verdict, with_twins},
    demux::{ISN, handed, known_flow, new_flow, question_to_dns, syn_to_http, to},
    family::{
        self,
        Family::{self, V4, V6},
    },
    fixture::{
        CLIENT, CLIENT_PORT, DNS, DNS_UDP, Endpoint, HTTP, HTTPS, LOCAL, PEER_MAC, PHONE, REMOTE, SIGNAL, SYSLOG,
        Service, UDP, VIP, from_client,
    },
    fragments::{cut, recorded},
    plain,
};

pub(crate) fn cases() -> Vec<Case> {
    let both = |cases: Vec<Case>| with_twins(cases).into_iter().map(Case::in_this_family);
    let throughout = delivered().into_iter().chain(left_to_the_kernel()).collect();
    let partial_throughout = both(throughout).map(|case| case.edited(partial));
    let completed = both(completed()).map(|case| case.sent_as(partial));
    partial_throughout.chain(completed).chain(by_chance()).chain(both(final_ones())).collect()
}

/// Returns the frame with only the pseudo-header's sum as its checksum, as a kernel leaves it to a
/// NIC.
fn partial(mut frame: Vec<u8>) -> Vec<u8> {
    let sum = pseudo_sum(&frame).to_be_bytes();
    let field = field(&frame);
    frame[field..field + 2].copy_from_slice(&sum);
    frame
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd]
}

fn word(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Returns the offset of TCP's or UDP's checksum.
fn field(frame: &[u8]) -> usize {
    let (at, protocol) = if is_v6(frame) { (54, frame[20]) } else { (34, frame[23]) };
    at + if protocol == 6 { 16 } else { 6 }
}

/// Returns the folded sum of the pseudo-header.
fn pseudo_sum(frame: &[u8]) -> u16 {
    let (ends, protocol, length) =
        if is_v6(frame) { (22..54, frame[20], word(frame, 18)) } else { (26..34, frame[23], word(frame, 16) - 20) };
    folded(ends.step_by(2).map(|at| u32::from(word(frame, at))).sum::<u32>() + u32::from(protocol) + u32::from(length))
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// Makes the ingress interface one of local senders.
fn veth(state: &mut State) {
    state.interfaces[IFINDEX].flags = INTERFACE_PARTIAL;
}

fn segment(service: Service, length: usize) -> Ipv4 {
    let data: Vec<u8> = (0..length).map(|at| (at * 7 + 1).to_le_bytes()[0]).collect();
    let payload = if service.protocol == UDP {
        Payload::Udp(Udp::new(CLIENT_PORT, service.port, &data))
    } else {
        Payload::Tcp(Tcp::new(CLIENT_PORT, service.port, SYN).numbers(ISN, 0).data(&data))
    };
    Ipv4::new(CLIENT, service.vip, payload)
}

fn local(name: &'static str, service: Service, packet: &Ipv4, backend: Endpoint) -> Case {
    Case::ingress(name, from_client().ipv4(packet))
        .given(veth)
        .becomes(Verdict::Passed(from_client().ipv4(&to(packet, backend))), &new_flow(service, Stat::Local))
}

fn remote(name: &'static str, service: Service, packet: &Ipv4) -> Case {
    let case = Case::ingress(name, from_client().ipv4(packet))
        .given(veth)
        .becomes(Verdict::Transmitted(handed(packet, PEER_MAC)), &new_flow(service, Stat::HandedOver));
    if service.protocol == UDP {
        case.then(|state| SYSLOG.record(state, REMOTE, 0, 0))
    } else {
        case.then(|state| HTTPS.record(state, REMOTE, 0, 0))
    }
}

fn delivered() -> Vec<Case> {
    vec![
        local("a partial TCP checksum stays partial", HTTP, &segment(HTTP, 100), LOCAL).then(syn_to_http),
        local("that of a bare SYN too", HTTP, &segment(HTTP, 0), LOCAL).then(syn_to_http),
        local("a partial UDP checksum stays partial", DNS_UDP, &segment(DNS_UDP, 33), DNS).then(question_to_dns),
        local("that of an empty datagram too", DNS_UDP, &segment(DNS_UDP, 0), DNS).then(question_to_dns),
        local("that of a jumbo frame too", HTTP, &segment(HTTP, 8_900), LOCAL).then(syn_to_http).jumbo(),
        local("that of more than is summed too", HTTP, &segment(HTTP, 20_000), LOCAL).then(syn_to_http).jumbo(),
    ]
}

/// In generic mode the kernel knows that the frame is partial. A frame that is too long to be
/// summed will be segmented.
fn left_to_the_kernel() -> Vec<Case> {
    let generic: fn(&mut State) = |state| state.interfaces[IFINDEX].flags = INTERFACE_PARTIAL | INTERFACE_GENERIC;
    vec![
        remote("in generic mode a TCP checksum is handed over partial", HTTPS, &segment(HTTPS, 77)).given(generic),
        remote("in generic mode a UDP checksum is handed over partial", SYSLOG, &segment(SYSLOG, 77)).given(generic),
        remote("more than is summed is handed over partial", HTTPS, &segment(HTTPS, 20_000)).jumbo(),
    ]
}

fn completed() -> Vec<Case> {
    let names = [
        ("a partial checksum is completed: no data", 0),
        ("a partial checksum is completed: one byte", 1),
        ("a partial checksum is completed: less than a block", 11),
        ("a partial checksum is completed: a block", 12),
        ("a partial checksum is completed: a block and a byte", 13),
        ("a partial checksum is completed: an even number", 1_000),
        ("a partial checksum is completed: a full frame", 1_460),
        ("a partial checksum is completed: a full frame less one", 1_459),
    ];
    let datagrams = [
        ("a partial datagram is completed: no data", 0),
        ("a partial datagram is completed: an odd number", 23),
        ("a partial datagram is completed: blocks", 24),
        ("a partial datagram is completed: a full frame", 1_472),
    ];
    let jumbos = [
        ("a partial checksum is completed: two buffers", 4_096),
        ("a partial checksum is completed: a jumbo frame", 8_960),
        ("a partial checksum is completed: a jumbo frame less one", 8_959),
    ];
    let mut padded = remote("a partial checksum is completed without the padding", HTTPS, &segment(HTTPS, 3));
    padded = padded.edited(|mut frame| {
        frame.resize(100, 0xa5);
        frame
    });
    let segments = names.map(|(name, length)| remote(name, HTTPS, &segment(HTTPS, length)));
    let datagrams = datagrams.map(|(name, length)| remote(name, SYSLOG, &segment(SYSLOG, length)));
    let jumbos = jumbos.map(|(name, length)| remote(name, HTTPS, &segment(HTTPS, length)).jumbo());
    let zero =
        remote("a datagram that is completed to zero is sent as all ones", SYSLOG, &summing_to_zero()).in_this_family();
    let known = remote("a partial datagram of a known flow is completed", SYSLOG, &segment(SYSLOG, 23))
        .given(|state| {
            veth(state);
            plain::established(state, SYSLOG);
        })
        .becomes(Verdict::Transmitted(handed(&segment(SYSLOG, 23), PEER_MAC)), &known_flow(SYSLOG, Stat::HandedOver))
        .then(|_| {});
    segments.into_iter().chain(datagrams).chain(jumbos).chain([padded, zero, known]).collect()
}

/// A datagram to [`SYSLOG`] whose checksum becomes zero: its data balances the sum.
fn summing_to_zero() -> Ipv4 {
    let with = |data: &[u8]| Ipv4::udp(CLIENT, SYSLOG.vip, Udp::new(CLIENT_PORT, SYSLOG.port, data));
    let packet = with(&with(&[0, 0]).bytes()[26..28]);
    assert_eq!(&packet.bytes()[26..28], &[0xff, 0xff]);
    packet
}

/// A final checksum that looks like a partial one, as one in 65,535 does.
fn by_chance() -> Vec<Case> {
    vec![
        of_a_fragment(),
        local("a final checksum that looks partial is delivered final", DNS_UDP, &looking_partial(DNS_UDP, 0, V4), DNS)
            .then(question_to_dns)
            .in_this_family(),
        remote("a final checksum that looks partial is handed over", SYSLOG, &looking_partial(SYSLOG, 0, V4))
            .in_this_family(),
        remote("a final checksum that looks partial in several buffers", SYSLOG, &looking_partial(SYSLOG, 4_999, V4))
            .jumbo()
            .in_this_family(),
        local("a final checksum that looks partial is delivered final", DNS_UDP, &looking_partial(DNS_UDP, 0, V6), DNS)
            .then(question_to_dns)
            .twin()
            .unwrap(),
        remote("a final checksum that looks partial is handed over", SYSLOG, &looking_partial(SYSLOG, 0, V6))
            .twin()
            .unwrap(),
        local("where no partial ones come in, none is looked for", DNS_UDP, &looking_partial(DNS_UDP, 0, V4), DNS)
            .given(|_| {})
            .then(question_to_dns)
            .in_this_family(),
    ]
}

/// A first fragment's checksum does not verify without the rest of its datagram.
fn of_a_fragment() -> Case {
    let with = |word: u16| Ipv4::udp(CLIENT, VIP, Udp::new(CLIENT_PORT, DNS_UDP.port, &word.to_be_bytes()));
    let first = |packet: &Ipv4| from_client().ipv4(&cut(packet)[0]);
    let datagram = (0..=u16::MAX).map(with).find(|packet| first(packet) == partial(first(packet))).unwrap();
    Case::ingress("a first fragment's checksum that looks partial is final", first(&datagram))
        .given(veth)
        .becomes(Verdict::Passed(first(&to(&datagram, DNS))), &new_flow(DNS_UDP, Stat::Local))
        .then(|state| {
            question_to_dns(state);
            recorded(state, DNS_UDP, DNS, 0);
        })
        .in_this_family()
}

/// Returns a datagram with two bytes of data that make it so, followed by `more`.
fn looking_partial(service: Service, more: usize, family: Family) -> Ipv4 {
    let with = |word: u16| {
        let data = [&word.to_be_bytes()[..], &vec![0x5a; more]].concat();
        Ipv4::udp(CLIENT, service.vip, Udp::new(CLIENT_PORT, service.port, &data))
    };
    let frame = |packet: &Ipv4| {
        let frame = from_client().ipv4(packet);
        if family == V6 { family::frame(&frame).unwrap() } else { frame }
    };
    let plain = frame(&with(0));
    // With its own checksum as its data, the sum would be zero. This subtracts the pseudo-header's.
    let packet = with(folded(u32::from(word(&plain, field(&plain))) + u32::from(!pseudo_sum(&plain))));
    assert_eq!(frame(&packet), partial(frame(&packet)));
    packet
}

fn final_ones() -> Vec<Case> {
    let without = |service| {
        let Payload::Udp(udp) = segment(service, 9).payload else { unreachable!() };
        Ipv4::udp(CLIENT, service.vip, udp.without_checksum())
    };
    let init = Ipv4::sctp(CLIENT, PHONE.vip, Sctp::new(CLIENT_PORT, PHONE.port, 0, Chunk::init(8)));
    vec![
        local("a final TCP checksum from a local sender", HTTP, &segment(HTTP, 40), LOCAL).then(syn_to_http),
        local("a final UDP checksum from a local sender", DNS_UDP, &segment(DNS_UDP, 40), DNS).then(question_to_dns),
        local("an absent UDP checksum from a local sender", DNS_UDP, &without(DNS_UDP), DNS).then(question_to_dns),
        remote("a final checksum from a local sender is handed over", HTTPS, &segment(HTTPS, 40)),
        remote("an absent checksum from a local sender is handed over", SYSLOG, &without(SYSLOG)),
        local("SCTP's checksum is never partial", PHONE, &init, SIGNAL).then(|state| {
            PHONE.record(state, SIGNAL, 0, 0);
            PHONE.remember(state, SIGNAL, 0, 7, FLOW_ISN);
        }),
    ]
}
