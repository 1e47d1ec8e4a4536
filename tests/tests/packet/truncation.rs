//! Frames cut at every byte: never a fault, never a change to what passes, never a packet half understood.

use vipmux_common::abi::FLOW_ISN;
use vipmux_tests::{
    frames::{ACK, Arp, BROADCAST, Ipv4, PSH, Payload, Tcp},
    program::{Hook, Program},
};

use crate::{
    demux::{ISN, datagram, segment, syn, to},
    fixture::{
        self, CLIENT_MAC, DNS_UDP, FOLLOWED, HTTP, HTTPS, LOCAL, NEIGHBOR, SYSLOG, TAGGED, TAGGED_HTTP, VIP, VLAN,
        WHILE, from_client, from_peer,
    },
    replies,
};

const DROP: u32 = 1;
const PASS: u32 = 2;
/// What `BPF_PROG_TEST_RUN` takes at least: an Ethernet header, and for an skb an IPv4 header if it says so.
const SHORTEST: usize = 14;
const SHORTEST_SKB: usize = SHORTEST + 20;

fn program() -> Program {
    Program::load(&fixture::state(), fixture::FLOWS).unwrap()
}

/// What of a frame's first `length` bytes must happen.
struct Rule {
    name: &'static str,
    frame: Vec<u8>,
    /// Shorter frames pass.
    header: usize,
    /// From `header` on, shorter frames are dropped.
    understood: usize,
}

fn rules() -> Vec<Rule> {
    let Payload::Tcp(tcp) = segment(HTTP).payload else { unreachable!() };
    let with_options = Payload::Tcp(tcp.options(&[1; 12]));
    let to_https = Ipv4 { payload: with_options, ..segment(HTTPS) }.options(&[1; 8]);
    let request = |target| Arp::request(CLIENT_MAC, NEIGHBOR, target);
    let broadcast = vipmux_tests::frames::Ethernet::new(CLIENT_MAC, BROADCAST);
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
        ip("a SYN with the longest header", 34, from_client().ipv4(&syn(HTTP).options(&[1; 40]))),
    ]
}

/// The headers' lengths tell of more than there is.
pub(crate) fn cut_frames_pass_untouched_or_are_dropped() {
    let mut program = program();
    let state = fixture::state();
    for Rule { name, frame, header, understood } in rules() {
        program.install(&state).unwrap();
        for length in SHORTEST..frame.len() {
            let outcome = program.run(Hook::Ingress, &frame[..length]).unwrap();
            let wanted = if (header..understood).contains(&length) { DROP } else { PASS };
            assert_eq!(outcome.verdict, wanted, "{name}, {length} of {} bytes", frame.len());
            assert_eq!(outcome.frame, frame[..length], "{name}, {length} of {} bytes", frame.len());
        }
        assert_eq!(program.state().unwrap(), state, "{name}: a cut frame left a trace");
        let whole = program.run(Hook::Ingress, &frame).unwrap();
        assert!(whole.verdict != PASS || whole.frame != frame, "{name}: nothing came of the whole frame either");
    }
}

/// The IPv4 header tells of just what there is: the program goes by it as far as the headers reach.
pub(crate) fn short_packets_are_dropped_until_their_headers_are_whole() {
    let program = program();
    let tcp = segment(HTTP).options(&[1; 8]);
    let udp = datagram(DNS_UDP).options(&[1; 8]);
    for (name, packet, backend, headers) in [("TCP", tcp, LOCAL, 14 + 28 + 20), ("UDP", udp, fixture::DNS, 14 + 28 + 8)]
    {
        let (frame, delivered) = (from_client().ipv4(&packet), from_client().ipv4(&to(&packet, backend)));
        for length in SHORTEST + 20..frame.len() {
            let mut short = frame[..length].to_vec();
            let total = u16::try_from(length - 14).unwrap().to_be_bytes();
            short[16..18].copy_from_slice(&total);
            let outcome = program.run(Hook::Ingress, &short).unwrap();
            if length < headers {
                assert_eq!((outcome.verdict, outcome.frame), (DROP, short), "{name}, {length} bytes");
            } else {
                assert_eq!(outcome.verdict, PASS, "{name}, {length} bytes");
                assert_eq!(outcome.frame[30..38], delivered[30..38], "{name}, {length} bytes: the destination");
                assert_eq!(outcome.frame.len(), length, "{name}, {length} bytes");
            }
        }
    }
}

/// On the way out, nothing is dropped for being short, and nothing is touched before its headers are whole.
pub(crate) fn cut_replies_leave_untouched() {
    let mut program = program();
    let mut state = fixture::state();
    HTTP.remember(&mut state, LOCAL, WHILE, ISN, FLOW_ISN);
    program.install(&state).unwrap();
    let packet = replies::segment(LOCAL, ACK | PSH, 77).options(&[1; 8]);
    let Payload::Tcp(tcp) = packet.payload.clone() else { unreachable!() };
    let packet = Ipv4 { payload: Payload::Tcp(Tcp { data: b"page".to_vec(), ..tcp }), ..packet };
    let frame = vipmux_tests::frames::Ethernet::new(fixture::SELF_MAC, CLIENT_MAC).ipv4(&packet);
    let (next, headers) = (u32::MAX, 14 + 28 + 20);
    for length in SHORTEST_SKB..=frame.len() {
        let outcome = program.run(Hook::Egress, &frame[..length]).unwrap();
        assert_eq!(outcome.verdict, next, "{length} bytes");
        let touched = outcome.frame != frame[..length];
        assert_eq!(touched, length >= headers, "{length} bytes");
    }
}
