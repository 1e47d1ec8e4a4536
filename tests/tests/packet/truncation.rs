//! Tests frames that are cut at every byte: no fault, no change of passing frames, no half-parsed
//! packet.

use std::net::Ipv4Addr;

use vipmux_common::abi::FLOW_ISN;
use vipmux_tests::{
    frames::{
        ACK, Arp, BROADCAST, Chunk, Ethernet, Extension, Icmpv6, Ipv4, Ipv6, Ndp, PSH, Payload, SYN, Sctp, Tcp, Udp,
        multicast_mac, solicited_node,
    },
    program::{Hook, Program, State},
};

use crate::{
    demux::{ISN, datagram, segment, syn, to},
    family::{self, Family, v6},
    fixture::{
        self, CLIENT, CLIENT_MAC, CLIENT_PORT, DNS, DNS_UDP, FOLLOWED, HTTP, HTTPS, LOCAL, NEIGHBOR, PHONE, SIGNAL,
        SYSLOG, TAGGED, TAGGED_HTTP, VIP, VLAN, WHILE, from_client, from_peer,
    },
    pool,
    reject::sealed,
    replies,
};

const DROP: u32 = 1;
const PASS: u32 = 2;
/// The minimum for `BPF_PROG_TEST_RUN`: an Ethernet header, and for an skb also the IP header that
/// it announces.
const SHORTEST: usize = 14;

fn in_family(family: Family, state: State) -> State {
    if family == Family::V6 { family::state(state) } else { state }
}

/// The expectation for a frame's first `length` bytes.
struct Rule {
    name: &'static str,
    frame: Vec<u8>,
    /// Shorter frames pass.
    header: usize,
    /// Shorter frames are dropped from `header` bytes on.
    understood: usize,
}

fn rules() -> Vec<Rule> {
    let Payload::Tcp(tcp) = segment(HTTP).payload else { unreachable!() };
    let with_options = Payload::Tcp(tcp.options(&[1; 12]));
    let to_https = Ipv4 { payload: with_options, ..segment(HTTPS) }.options(&[1; 8]);
    let init = Ipv4::sctp(CLIENT, VIP, Sctp::new(CLIENT_PORT, PHONE.port, 0, Chunk::init(7)));
    let request = |target| Arp::request(CLIENT_MAC, NEIGHBOR, target);
    let broadcast = Ethernet::new(CLIENT_MAC, BROADCAST);
    let arp = |name, frame| Rule { name, frame, header: 0, understood: 0 };
    let ip = |name, header, frame: Vec<u8>| Rule { name, header, understood: frame.len(), frame };
    vec![
        arp("an ARP request", broadcast.arp(&request(VIP))),
        arp("an ARP request to drop", broadcast.arp(&request(FOLLOWED))),
        arp("a tagged ARP request", broadcast.clone().tagged(VLAN).arp(&request(TAGGED))),
        ip("a segment to a local backend", 34, from_client().ipv4(&segment(HTTP))),
        ip("a segment with options to another node", 34, from_client().ipv4(&to_https)),
        ip("a tagged segment", 38, from_client().tagged(VLAN).ipv4(&segment(TAGGED_HTTP))),
        ip("a datagram to a local backend", 34, from_client().ipv4(&datagram(DNS_UDP))),
        ip("a datagram to another node", 34, from_client().ipv4(&datagram(SYSLOG))),
        ip("a handed-over segment", 34, from_peer().ipv4(&segment(HTTP))),
        ip("an INIT", 34, from_client().ipv4(&init)),
        ip("a SYN with the longest header", 34, from_client().ipv4(&syn(HTTP).options(&[1; 40]))),
        ip("a first fragment", 34, from_client().ipv4(&datagram(DNS_UDP).fragment(0x2000))),
        ip("a later fragment", 34, from_client().ipv4(&datagram(DNS_UDP).fragment(0x0001))),
        ip("an ICMP error", 34, from_client().ipv4(&Ipv4::new(NEIGHBOR, VIP, icmp_error(VIP, HTTP.port)))),
        ip("an echo request", 34, from_client().ipv4(&Ipv4::new(CLIENT, VIP, sealed(vec![8, 0, 0, 0, 1, 2, 3, 4])))),
    ]
}

/// Returns a fragmentation needed error about a segment to the client.
fn icmp_error(source: Ipv4Addr, port: u16) -> Payload {
    let segment = Ipv4::tcp(source, CLIENT, Tcp::new(port, CLIENT_PORT, ACK)).bytes();
    sealed([&[3, 4, 0, 0, 0, 0, 5, 0x14][..], &segment[..28]].concat())
}

/// The same in IPv6, with 48 bytes of the segment.
fn icmpv6_error(source: Ipv4Addr, port: u16) -> Payload {
    let segment = Ipv6::tcp(v6(source), v6(CLIENT), Tcp::new(port, CLIENT_PORT, ACK)).bytes();
    Payload::Icmpv6(Icmpv6::packet_too_big(1280, &segment[..48]))
}

/// The equivalent cases in IPv6, and the cases of only IPv6.
fn rules_of_ipv6() -> Vec<Rule> {
    let twins = rules().into_iter().filter_map(|rule| {
        let frame = family::frame(&rule.frame)?;
        Some(Rule { header: rule.header + 20, understood: frame.len(), frame, ..rule })
    });
    let ndp = |name, target| {
        let message = Ndp::solicitation(v6(target));
        let packet = Ipv6::ndp(v6(NEIGHBOR), solicited_node(v6(target)), &message);
        let frame = Ethernet::new(CLIENT_MAC, multicast_mac(packet.destination)).ipv6(&packet);
        Rule { name, frame, header: 0, understood: 0 }
    };
    let optional = Ipv6::tcp(v6(CLIENT), v6(VIP), Tcp::new(CLIENT_PORT, HTTP.port, SYN))
        .extension(Extension::HopByHop(vec![]))
        .extension(Extension::Routing { kind: 4, segments_left: 0, data: vec![0; 20] })
        .extension(Extension::Fragment { offset: 0, more: false, id: 7 });
    let frame = from_client().ipv6(&optional);
    let optional = Rule { name: "a SYN behind extension headers", header: 54, understood: frame.len(), frame };
    let ip = |name, payload| {
        let frame = from_client().ipv6(&Ipv6::new(v6(CLIENT), v6(VIP), payload));
        Rule { name, header: 54, understood: frame.len(), frame }
    };
    let alone = [
        ndp("a solicitation", VIP),
        ndp("a solicitation to drop", FOLLOWED),
        optional,
        ip("an ICMPv6 error", icmpv6_error(VIP, HTTP.port)),
        ip("an ICMPv6 echo request", Payload::Icmpv6(Icmpv6::echo_request(1, 2, b"echo"))),
    ];
    let rules: Vec<Rule> = twins.chain(alone).collect();
    assert!(rules.len() > 8, "{} rules", rules.len());
    rules
}

/// The headers' lengths are larger than the frame.
pub(crate) fn cut_frames_pass_untouched_or_are_dropped() {
    for (family, rules) in [(Family::V4, rules()), (Family::V6, rules_of_ipv6())] {
        let state = in_family(family, fixture::state());
        let mut program = pool::load(&state, fixture::FLOWS).unwrap();
        for rule in rules {
            holds(&mut program, &state, rule);
        }
    }
}

fn holds(program: &mut Program, state: &State, rule: Rule) {
    let Rule { name, frame, header, understood } = rule;
    program.install(state).unwrap();
    for length in SHORTEST..frame.len() {
        let outcome = program.run(Hook::Ingress, &frame[..length]).unwrap();
        let wanted = if (header..understood).contains(&length) { DROP } else { PASS };
        assert_eq!(outcome.verdict, wanted, "{name}, {length} of {} bytes", frame.len());
        assert_eq!(outcome.frame, frame[..length], "{name}, {length} of {} bytes", frame.len());
    }
    assert_eq!(program.state().unwrap(), *state, "{name}: a cut frame left a trace");
    let whole = program.run(Hook::Ingress, &frame).unwrap();
    assert!(whole.verdict != PASS || whole.frame != frame, "{name}: nothing came of the whole frame either");
}

/// The IP header's length is that of the frame. The program relies on it as far as the headers are
/// complete.
pub(crate) fn short_packets_are_dropped_until_their_headers_are_whole() {
    let program = pool::load(&fixture::state(), fixture::FLOWS).unwrap();
    let (tcp, udp) = (segment(HTTP).options(&[1; 8]), datagram(DNS_UDP).options(&[1; 8]));
    let sctp = Ipv4::sctp(CLIENT, VIP, Sctp::new(CLIENT_PORT, PHONE.port, 7, Chunk::data(1, b"message")));
    let icmp = Ipv4::new(NEIGHBOR, VIP, icmp_error(VIP, HTTP.port)).options(&[1; 8]);
    for (name, packet, backend, transport) in [
        ("TCP", tcp, LOCAL, 20),
        ("UDP", udp, DNS, 8),
        ("SCTP", sctp.options(&[1; 8]), SIGNAL, 16),
        ("ICMP", icmp, LOCAL, 8 + 20 + 8),
    ] {
        let (frame, delivered) = (from_client().ipv4(&packet), from_client().ipv4(&to(&packet, backend)));
        for length in 34..frame.len() {
            let mut short = frame[..length].to_vec();
            let total = u16::try_from(length - 14).unwrap().to_be_bytes();
            short[16..18].copy_from_slice(&total);
            assert_whole(&program, &short, &delivered, (30..34, 42 + transport), name);
        }
    }
}

pub(crate) fn short_ipv6_packets_are_dropped_until_their_headers_are_whole() {
    let program = pool::load(&family::state(fixture::state()), fixture::FLOWS).unwrap();
    let option = || Extension::DestinationOptions(vec![]);
    let tcp = Tcp::new(CLIENT_PORT, HTTP.port, ACK).data(b"data");
    let udp = Udp::new(CLIENT_PORT, DNS_UDP.port, b"data");
    let sctp = Sctp::new(CLIENT_PORT, PHONE.port, 7, Chunk::data(1, b"message"));
    for (name, payload, backend, transport) in [
        ("TCP", Payload::Tcp(tcp), LOCAL, 20),
        ("UDP", Payload::Udp(udp), DNS, 8),
        ("SCTP", Payload::Sctp(sctp), SIGNAL, 16),
        ("ICMPv6", icmpv6_error(VIP, HTTP.port), LOCAL, 8 + 40 + 8),
    ] {
        let packet = Ipv6::new(v6(CLIENT), v6(VIP), payload).extension(option());
        let frame = from_client().ipv6(&packet);
        let delivered = from_client().ipv6(&Ipv6 { destination: v6(backend.address), ..packet });
        for length in 54..frame.len() {
            let mut short = frame[..length].to_vec();
            let total = u16::try_from(length - 54).unwrap().to_be_bytes();
            short[18..20].copy_from_slice(&total);
            assert_whole(&program, &short, &delivered, (38..54, 62 + transport), name);
        }
    }
}

/// With fewer bytes of headers, it is dropped unchanged. From there on, it has the backend's
/// address.
fn assert_whole(
    program: &Program,
    short: &[u8],
    delivered: &[u8],
    (address, headers): (std::ops::Range<usize>, usize),
    name: &str,
) {
    let length = short.len();
    let outcome = program.run(Hook::Ingress, short).unwrap();
    if length < headers {
        assert_eq!((outcome.verdict, outcome.frame.as_slice()), (DROP, short), "{name}, {length} bytes");
    } else {
        assert_eq!(outcome.verdict, PASS, "{name}, {length} bytes");
        assert_eq!(outcome.frame[address.clone()], delivered[address], "{name}, {length} bytes: the destination");
        assert_eq!(outcome.frame.len(), length, "{name}, {length} bytes");
    }
}

/// On egress nothing is dropped for being short, and nothing changes before its headers are
/// complete.
pub(crate) fn cut_replies_leave_untouched() {
    let packet = replies::segment(LOCAL, ACK | PSH, 77);
    let Payload::Tcp(tcp) = packet.payload.clone() else { unreachable!() };
    let packet = Ipv4 { payload: Payload::Tcp(Tcp { data: b"page".to_vec(), ..tcp }), ..packet };
    let header = Ethernet::new(fixture::SELF_MAC, CLIENT_MAC);
    let datagram = header.ipv4(&Ipv4::udp(DNS.address, CLIENT, Udp::new(DNS.port, CLIENT_PORT, b"answer")));
    let in_ipv6 = |frame: &[u8]| family::frame(frame).unwrap();
    let asked = Tcp::new(CLIENT_PORT, LOCAL.port, ACK);
    let error = Ipv4::tcp(CLIENT, LOCAL.address, asked.clone()).bytes();
    let error = sealed([&[3, 4, 0, 0, 0, 0, 5, 0x14][..], &error[..28]].concat());
    let error_v6 = Ipv6::tcp(v6(CLIENT), v6(LOCAL.address), asked).bytes();
    let error_v6 = Ipv6::icmpv6(v6(NEIGHBOR), v6(CLIENT), Icmpv6::packet_too_big(1280, &error_v6[..48]));
    cut_leave_untouched(Family::V4, &header.ipv4(&packet.clone().options(&[1; 8])), 28 + 20);
    cut_leave_untouched(Family::V6, &in_ipv6(&header.ipv4(&packet)), 40 + 20);
    cut_leave_untouched(Family::V4, &datagram, 20 + 8);
    cut_leave_untouched(Family::V6, &in_ipv6(&datagram), 40 + 8);
    cut_leave_untouched(Family::V4, &header.ipv4(&Ipv4::new(NEIGHBOR, CLIENT, error)), 20 + 8 + 28);
    cut_leave_untouched(Family::V6, &header.ipv6(&error_v6), 40 + 8 + 48);
}

/// With that many bytes of headers after the Ethernet header.
fn cut_leave_untouched(family: Family, frame: &[u8], headers: usize) {
    let mut state = fixture::state();
    HTTP.remember(&mut state, LOCAL, WHILE, ISN, FLOW_ISN);
    DNS_UDP.remember(&mut state, DNS, WHILE, 0, 0);
    let program = pool::load(&in_family(family, state), fixture::FLOWS).unwrap();
    let shortest = SHORTEST + if family == Family::V6 { 40 } else { 20 };
    for length in shortest..=frame.len() {
        let outcome = program.run(Hook::Egress, &frame[..length]).unwrap();
        assert_eq!(outcome.verdict, u32::MAX, "{family:?}, {length} of {} bytes", frame.len());
        let touched = outcome.frame != frame[..length];
        assert_eq!(touched, length >= 14 + headers, "{family:?}, {length} of {} bytes", frame.len());
    }
}
