//! Properties of every frame. The property tests and the fuzz target (`tests/fuzz`) check them.

use std::net::Ipv4Addr;

use crate::{
    frames::{
        ACK, Arp, BROADCAST, Chunk, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Ethernet, Extension,
        Icmpv6, Ipv4, Ipv6, NA_OVERRIDE, Ndp, PSH, Payload, SYN, Sctp, Tcp, Udp, multicast_mac, solicited_node,
    },
    program::{Hook, Outcome, Program, State},
};
use anyhow::{Result, ensure};
use vipmux_common::abi::{FLOW_ISN, UNCLAIMED_REJECT};

use super::{
    family::{self, v6},
    fixture::{
        self, CLIENT, CLIENT_MAC, CLIENT_PORT, DNS_UDP, ELSEWHERE, FOLLOWED, HTTP, HTTPS, LOCAL, MIXED, NEIGHBOR,
        PEER_MAC, PHONE, REDIRECTED, SELF_MAC, SYSLOG, Service, TAGGED, TAGGED_HTTP, VIP, VLAN, WHILE, from_client,
        from_peer,
    },
};

/// The length of an Ethernet header: the kernel runs no program on fewer bytes.
pub const SHORTEST: usize = 14;

/// The longest headers that are added to a frame: those of an ICMPv6 error.
const GROWTH: usize = 48;

/// The header of an ICMP message: fragmentation needed, 1,300 bytes.
const TOO_BIG: [u8; 8] = [3, 4, 0, 0, 0, 0, 0x05, 0x14];

/// The client's initial sequence number in the known flow.
const ISN: u32 = 0x1234_5678;

// Values of include/uapi/linux/bpf.h and pkt_cls.h.
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;

/// The programs with the suite's state in one family.
pub struct Programs {
    v4: Program,
    v6: Program,
}

impl Programs {
    /// Loads them with `state`'s flow and limits.
    pub fn load() -> Result<Self> {
        let load = |state: State| Program::load(&state, fixture::FLOWS);
        Ok(Self { v4: load(state())?, v6: load(family::state(state()))? })
    }

    /// Returns the programs whose state may concern a frame.
    pub fn of(&self, frame: &[u8]) -> &Program {
        if network(frame).0 == Some(ETHERTYPE_IPV6) { &self.v6 } else { &self.v4 }
    }
}

/// Returns a state with a known flow. It refuses unclaimed ports, and has no limit on answers.
fn state() -> State {
    let mut state = fixture::state();
    state.config.unclaimed = UNCLAIMED_REJECT;
    state.config.answers_per_second = u32::MAX;
    HTTP.record(&mut state, LOCAL, WHILE, 0);
    HTTP.remember(&mut state, LOCAL, WHILE, ISN, FLOW_ISN);
    state.indexed()
}

/// Returns valid frames of every kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let broadcast = Ethernet::new(CLIENT_MAC, BROADCAST);
    let request = |target| Arp::request(CLIENT_MAC, NEIGHBOR, target);
    let tcp = |service: Service, flags| {
        let tcp = Tcp::new(CLIENT_PORT, service.port, flags).numbers(ISN, 77);
        Ipv4::tcp(CLIENT, service.vip, tcp.data(if flags & SYN == 0 { b"GET / HTTP/1.1\r\n\r\n" } else { b"" }))
    };
    let datagram = |service: Service| Ipv4::udp(CLIENT, service.vip, Udp::new(CLIENT_PORT, service.port, b"question"));
    let reply = Tcp::new(LOCAL.port, CLIENT_PORT, ACK | PSH).numbers(9_000, 77);
    let sctp = |tag, chunk| Ipv4::sctp(CLIENT, VIP, Sctp::new(CLIENT_PORT, PHONE.port, tag, chunk));
    let out = || Ethernet::new(SELF_MAC, CLIENT_MAC);
    let icmp = |header: [u8; 8], data: &[u8]| Payload::Other(1, [&header[..], data].concat());
    let from_vip = Ipv4::tcp(VIP, CLIENT, Tcp::new(HTTP.port, CLIENT_PORT, ACK));
    let to_backend = Ipv4::tcp(CLIENT, LOCAL.address, Tcp::new(CLIENT_PORT, LOCAL.port, ACK));
    let ipv4 = vec![
        broadcast.arp(&request(VIP)),
        broadcast.clone().tagged(VLAN).arp(&request(TAGGED)),
        broadcast.arp(&Arp::announcement(PEER_MAC, VIP)),
        from_client().ipv4(&tcp(HTTP, SYN)),
        from_client().ipv4(&tcp(HTTP, ACK | PSH).options(&[1; 12])),
        from_client().ipv4(&tcp(HTTPS, ACK | PSH)),
        from_client().ipv4(&tcp(REDIRECTED, SYN)),
        from_client().ipv4(&tcp(Service { port: 1, ..HTTP }, SYN)),
        from_client().tagged(VLAN).ipv4(&tcp(TAGGED_HTTP, SYN)),
        from_client().ipv4(&datagram(DNS_UDP)),
        from_client().ipv4(&datagram(DNS_UDP).fragment(0x2000)),
        from_client().ipv4(&datagram(SYSLOG)),
        from_client().ipv4(&datagram(Service { port: 1, ..SYSLOG })),
        from_peer().ipv4(&tcp(MIXED, ACK | PSH)),
        from_client().ipv4(&sctp(0, Chunk::init(7))),
        from_client().ipv4(&sctp(8, Chunk::data(1, b"message"))),
        out().ipv4(&Ipv4::tcp(LOCAL.address, CLIENT, reply.clone())),
        out().ipv4(&Ipv4::tcp(LOCAL.address, CLIENT, reply).fragment(0x2000)),
        from_client().ipv4(&Ipv4::new(CLIENT, VIP, icmp([8, 0, 0, 0, 0, 0, 0, 1], b"echo"))),
        from_client().ipv4(&Ipv4::new(NEIGHBOR, VIP, icmp(TOO_BIG, &from_vip.bytes()))),
        from_client().ipv4(&Ipv4::new(NEIGHBOR, VIP, icmp(TOO_BIG, &from_vip.clone().options(&[1; 8]).bytes()))),
        out().ipv4(&Ipv4::new(LOCAL.address, CLIENT, icmp(TOO_BIG, &to_backend.bytes()))),
    ];
    let ipv6: Vec<Vec<u8>> = ipv4.iter().filter_map(|frame| family::frame(frame)).chain(seeds_of_ipv6()).collect();
    [ipv4, ipv6].concat()
}

fn seeds_of_ipv6() -> Vec<Vec<u8>> {
    let asked = |message: &Ndp| {
        let group = solicited_node(message.target);
        Ethernet::new(CLIENT_MAC, multicast_mac(group)).ipv6(&Ipv6::ndp(v6(NEIGHBOR), group, message))
    };
    let announced = Ndp::advertisement(v6(VIP), NA_OVERRIDE).mac(PEER_MAC);
    let all_nodes = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let announced =
        |source| Ethernet::new(source, multicast_mac(all_nodes)).ipv6(&Ipv6::ndp(v6(VIP), all_nodes, &announced));
    let syn = Ipv6::tcp(v6(CLIENT), v6(VIP), Tcp::new(CLIENT_PORT, HTTP.port, SYN));
    let extended = syn
        .clone()
        .extension(Extension::HopByHop(vec![]))
        .extension(Extension::Routing { kind: 4, segments_left: 0, data: vec![0; 20] })
        .extension(Extension::Fragment { offset: 0, more: false, id: 7 })
        .extension(Extension::DestinationOptions(vec![]));
    let [first, later] = Ipv6::udp(v6(CLIENT), v6(VIP), Udp::new(CLIENT_PORT, DNS_UDP.port, b"question")).cut(8, 9);
    let reply = Ipv6::tcp(v6(VIP), v6(CLIENT), Tcp::new(HTTP.port, CLIENT_PORT, ACK)).bytes();
    let [first_reply, _] = Ipv6::udp(v6(VIP), v6(CLIENT), Udp::new(DNS_UDP.port, CLIENT_PORT, b"answer..")).cut(8, 9);
    let to_backend = Ipv6::tcp(v6(CLIENT), v6(LOCAL.address), Tcp::new(CLIENT_PORT, LOCAL.port, ACK));
    let to_vip = |message| from_client().ipv6(&Ipv6::icmpv6(v6(NEIGHBOR), v6(VIP), message));
    vec![
        asked(&Ndp::solicitation(v6(VIP))),
        asked(&Ndp::solicitation(v6(VIP)).mac(CLIENT_MAC)),
        asked(&Ndp::solicitation(v6(FOLLOWED)).mac(CLIENT_MAC)),
        announced(PEER_MAC),
        announced(SELF_MAC),
        from_client().ipv6(&extended),
        from_client().ipv6(&first),
        from_client().ipv6(&later),
        to_vip(Icmpv6::echo_request(1, 2, b"echo")),
        to_vip(Icmpv6::packet_too_big(1280, &reply)),
        to_vip(Icmpv6::packet_too_big(1280, &first_reply.bytes())),
        Ethernet::new(SELF_MAC, CLIENT_MAC).ipv6(&Ipv6::icmpv6(
            v6(LOCAL.address),
            v6(CLIENT),
            Icmpv6::unreachable(4, &to_backend.bytes()),
        )),
    ]
}

/// A frame from the wire gets a verdict that is not the program's failure. A frame for no VIP
/// passes untouched. A frame that is not sent back keeps its length. An answer is at most
/// `GROWTH` longer than its request.
pub fn holds_on_the_way_in(program: &Program, frame: &[u8]) -> Result<Outcome> {
    let outcome = program.run(Hook::Ingress, frame)?;
    ensure!((1..=XDP_REDIRECT).contains(&outcome.verdict), "verdict {}", outcome.verdict);
    let (before, after) = (frame.len(), outcome.frame.len());
    let most = if outcome.verdict == XDP_TX { before + GROWTH } else { before };
    ensure!(after <= most, "{before} bytes became {after} with verdict {}", outcome.verdict);
    if outcome.verdict != XDP_TX {
        ensure!(after == before, "{before} bytes became {after} with verdict {}", outcome.verdict);
    }
    if !may_concern(frame) {
        ensure!(outcome.verdict == XDP_PASS, "a frame that is not for a VIP got verdict {}", outcome.verdict);
        ensure!(outcome.frame == frame, "a frame that is not for a VIP was changed");
    }
    Ok(outcome)
}

/// A frame from the stack leaves untouched, unless it speaks for a VIP or is a backend's reply.
/// `None` if the kernel makes no packet of such bytes: no bytes, or less than an IP header.
pub fn holds_on_the_way_out(program: &Program, frame: &[u8]) -> Result<Option<Outcome>> {
    let outcome = match program.run(Hook::Egress, frame) {
        Ok(outcome) => outcome,
        Err(_) if frame.len() < SHORTEST + 40 => return Ok(None),
        Err(error) => return Err(error),
    };
    ensure!([TC_ACT_UNSPEC, TC_ACT_SHOT].contains(&outcome.verdict), "verdict {}", outcome.verdict);
    ensure!(outcome.frame.len() == frame.len(), "{} bytes became {}", frame.len(), outcome.frame.len());
    let speaks_for_a_vip = match network(frame) {
        (Some(ETHERTYPE_ARP), at) => is_vip(frame, at + 14),
        (Some(ETHERTYPE_IPV6), at) => is_vip_v6(frame, at + 8) || is_vip_v6(frame, at + 48),
        _ => false,
    };
    // As its source, or in a packet that an error is about.
    let has = |address: &[u8]| frame.windows(address.len()).any(|bytes| bytes == address);
    let reply_of_a_backend = has(&LOCAL.address.octets()) || has(&v6(LOCAL.address).octets());
    if !speaks_for_a_vip && !reply_of_a_backend {
        ensure!(outcome.verdict == TC_ACT_UNSPEC, "a frame that is not ours to judge got verdict {}", outcome.verdict);
        ensure!(outcome.frame == frame, "a frame that is not ours to judge was changed");
    }
    Ok(Some(outcome))
}

const VIPS: [Ipv4Addr; 4] = [VIP, FOLLOWED, ELSEWHERE, TAGGED];

fn is_vip(frame: &[u8], at: usize) -> bool {
    frame.get(at..at + 4).is_some_and(|ip| VIPS.iter().any(|vip| vip.octets() == ip))
}

fn is_vip_v6(frame: &[u8], at: usize) -> bool {
    frame.get(at..at + 16).is_some_and(|ip| VIPS.iter().any(|vip| v6(*vip).octets() == ip))
}

/// Returns the Ethertype behind at most one tag, and the offset of its payload.
fn network(frame: &[u8]) -> (Option<u16>, usize) {
    let word = |at: usize| frame.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    match word(12) {
        Some(ETHERTYPE_VLAN) => (word(16), 18),
        other => (other, 14),
    }
}

/// Returns whether the frame may be for a VIP or speak for one. Computed without the programs'
/// parser.
fn may_concern(frame: &[u8]) -> bool {
    let own = frame[..6] == SELF_MAC;
    let heard = own || frame[0] & 1 == 1;
    match network(frame) {
        (Some(ETHERTYPE_IPV4), at) => own && is_vip(frame, at + 16),
        (Some(ETHERTYPE_IPV6), at) => {
            own && is_vip_v6(frame, at + 24) || heard && (is_vip_v6(frame, at + 8) || is_vip_v6(frame, at + 48))
        }
        (Some(ETHERTYPE_ARP), at) => heard && (is_vip(frame, at + 14) || is_vip(frame, at + 24)),
        _ => false,
    }
}
