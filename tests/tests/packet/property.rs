//! What holds for any frame at all: the property tests and the fuzz target (`tests/fuzz`) check it.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Result, ensure};
use vipmux_common::abi::{self, FLOW_ISN, UNCLAIMED_REJECT, VIP_LEADING};
use vipmux_tests::{
    frames::{ACK, Arp, BROADCAST, Ethernet, Extension, Icmpv6, Ipv4, Ipv6, Ndp, PSH, SYN, Tcp, Udp},
    program::{Hook, Outcome, Program},
};

use crate::fixture::{
    self, CLIENT, CLIENT_MAC, CLIENT_PORT, DNS_UDP, ELSEWHERE, FOLLOWED, HTTP, HTTPS, LOCAL, MIXED, NEIGHBOR,
    REDIRECTED, SELF_MAC, SYSLOG, Service, TAGGED, TAGGED_HTTP, VIP, VLAN, WHILE, from_client, from_peer,
};

/// The bytes of an Ethernet header: the kernel runs no program on less.
pub(crate) const SHORTEST: usize = 14;

/// What an ICMPv6 error puts in front of the packet that it tells of: more is not added to any frame.
const GROWTH: usize = 48;

/// The client's initial sequence number in the flow that is known.
const ISN: u32 = 0x1234_5678;

// include/uapi/linux/bpf.h and pkt_cls.h.
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;

/// A VIP of the other family, with one Service: port 80, with [`LOCAL6`] alone.
const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x60);
const LOCAL6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, 1);
const VIP6_ID: u32 = 6;
const HTTP6_SLOT: u32 = 14;

/// The programs, with the suite's state and a flow, refusing what no Service claims, and with no limit on answers.
pub(crate) fn program() -> Result<Program> {
    let mut state = fixture::state();
    state.config.unclaimed = UNCLAIMED_REJECT;
    state.config.answers_per_second = u32::MAX;
    state.config.records_per_second = u32::MAX;
    let vip = abi::VipValue { id: VIP6_ID, flags: VIP_LEADING, interfaces: 1, vlan: 0, epoch: 3 };
    state.vips.insert(abi::Address::from(IpAddr::V6(VIP6)), vip);
    let index = u32::try_from(state.backends.len())?;
    let local = state.backends[LOCAL.index as usize];
    state.backends.push(abi::Backend { address: abi::Address::from(IpAddr::V6(LOCAL6)), generation: 90, ..local });
    // Of HTTP's shape, on a table of its own.
    let (mut key, mut service, first) = (HTTP.key(), state.services[&HTTP.key()], HTTP6_SLOT as usize * 32);
    key.vip = VIP6_ID;
    (service.slot, service.generation) = (HTTP6_SLOT, 100 + HTTP6_SLOT);
    (service.table, service.local_table) = (u32::try_from(first)?, u32::try_from(first + 16)?);
    (state.tables[first], state.tables[first + 16]) = (index, index);
    state.services.insert(key, service);
    state.service_states[HTTP6_SLOT as usize] =
        abi::ServiceState { generation: 100 + HTTP6_SLOT, ..abi::ServiceState::default() };
    HTTP.record(&mut state, LOCAL, WHILE, 0);
    HTTP.remember(&mut state, LOCAL, WHILE, ISN, FLOW_ISN);
    Program::load(&state, fixture::FLOWS)
}

/// Valid frames of every kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let broadcast = Ethernet::new(CLIENT_MAC, BROADCAST);
    let request = |target| Arp::request(CLIENT_MAC, NEIGHBOR, target);
    let tcp = |service: Service, flags| {
        let tcp = Tcp::new(CLIENT_PORT, service.port, flags).numbers(ISN, 77);
        Ipv4::tcp(CLIENT, service.vip, tcp.data(if flags & SYN == 0 { b"GET / HTTP/1.1\r\n\r\n" } else { b"" }))
    };
    let datagram = |service: Service| Ipv4::udp(CLIENT, service.vip, Udp::new(CLIENT_PORT, service.port, b"question"));
    let tcp6 = |port| Ipv6::tcp(CLIENT6, VIP6, Tcp::new(CLIENT_PORT, port, SYN).numbers(ISN, 0));
    let unreachable = Icmpv6::unreachable(1, &tcp6(80).bytes());
    let reply = Tcp::new(LOCAL.port, CLIENT_PORT, ACK | PSH).numbers(9_000, 77);
    vec![
        broadcast.arp(&request(VIP)),
        broadcast.clone().tagged(VLAN).arp(&request(TAGGED)),
        broadcast.arp(&Arp::announcement(fixture::PEER_MAC, VIP)),
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
        from_client().ipv6(&Ipv6::ndp(CLIENT6, VIP6, &Ndp::solicitation(VIP6).mac(CLIENT_MAC))),
        from_client().ipv6(&tcp6(80)),
        from_client().ipv6(&tcp6(80).extension(Extension::HopByHop(vec![0; 6]))),
        from_client().ipv6(&tcp6(80).extension(Extension::Fragment { offset: 0, more: true, id: 9 })),
        from_client().ipv6(&tcp6(1)),
        from_client().ipv6(&Ipv6::icmpv6(CLIENT6, VIP6, Icmpv6::echo_request(1, 1, b"ping"))),
        from_client().ipv6(&Ipv6::icmpv6(CLIENT6, VIP6, unreachable)),
        Ethernet::new(SELF_MAC, CLIENT_MAC).ipv6(&Ipv6::ndp(VIP6, CLIENT6, &Ndp::advertisement(VIP6, 0))),
        Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(&Ipv4::tcp(LOCAL.address, CLIENT, reply)),
    ]
}

/// A frame from the wire gets a verdict that is not the program's failure; what is not for a VIP passes untouched; what
/// is not sent keeps its length, and an answer is hardly longer than its question.
pub(crate) fn holds_on_the_way_in(program: &Program, frame: &[u8]) -> Result<Outcome> {
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

/// A frame from the stack leaves untouched, unless it speaks for a VIP or is a backend's reply. None where the kernel
/// refuses to make a packet of such bytes.
pub(crate) fn holds_on_the_way_out(program: &Program, frame: &[u8]) -> Result<Option<Outcome>> {
    let Ok(outcome) = program.run(Hook::Egress, frame) else { return Ok(None) };
    ensure!([TC_ACT_UNSPEC, TC_ACT_SHOT].contains(&outcome.verdict), "verdict {}", outcome.verdict);
    ensure!(outcome.frame.len() == frame.len(), "{} bytes became {}", frame.len(), outcome.frame.len());
    let ours = match frame[12..14] {
        [0x08, 0x06] => is_vip(frame, 28),
        [0x08, 0x00] => frame.get(26..30) == Some(&LOCAL.address.octets()),
        // A backend's reply, or an advertisement whose target is a VIP.
        [0x86, 0xdd] => frame.get(22..38) == Some(&LOCAL6.octets()) || mentions_vip6(&frame[SHORTEST..]),
        _ => false,
    };
    if !ours {
        ensure!(outcome.verdict == TC_ACT_UNSPEC, "a frame that is not ours to judge got verdict {}", outcome.verdict);
        ensure!(outcome.frame == frame, "a frame that is not ours to judge was changed");
    }
    Ok(Some(outcome))
}

fn is_vip(frame: &[u8], at: usize) -> bool {
    let vips = [VIP, FOLLOWED, ELSEWHERE, TAGGED];
    frame.get(at..at + 4).is_some_and(|ip| vips.iter().any(|vip| vip.octets() == ip))
}

fn mentions_vip6(bytes: &[u8]) -> bool {
    bytes.windows(16).any(|window| window == VIP6.octets())
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
        // The destination, or a solicitation's target.
        Some(0x86dd) => (frame[..6] == SELF_MAC || frame[0] & 1 == 1) && mentions_vip6(&frame[network..]),
        _ => false,
    }
}
