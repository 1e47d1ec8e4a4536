//! Cases: from a packet to a VIP to the backend of a new flow.

use std::net::{IpAddr, Ipv4Addr};

use vipmux_common::{
    abi::{self, BACKEND_READY, DropReason, NODE_ATTACHED, SERVICE_SPARE, Stat},
    hash,
};
use vipmux_tests::{
    frames::{
        ACK, BROADCAST, ETHERTYPE_IPV4, Ethernet, Icmpv6, Ipv4, Ipv6, NA_OVERRIDE, Ndp, PSH, Payload, SYN, Tcp, Udp,
    },
    program::State,
};

use crate::{
    case::{Case, Counter, Verdict},
    family::{Family, v6},
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, DNS, DNS_TCP, DNS_UDP, ELSEWHERE, EMPTY, Endpoint, FAR, FAR_MAC,
        FOLLOWED_HTTP, FOREIGN_MAC, HTTP, HTTPS, LOCAL, LOCAL_TOO, LOST, MIXED, NEIGHBOR, PEER_MAC, REDIRECTED, REMOTE,
        SELF_HANDOVER, SELF_MAC, SPREAD, SYSLOG, Service, TAGGED, TAGGED_HTTP, UNREACHABLE, VIP, VLAN, from_client,
        vip_of,
    },
    reject::sealed,
};

pub(crate) fn cases() -> Vec<Case> {
    [
        not_for_us(),
        not_balanced(),
        malformed(),
        delivered(),
        handed_over(),
        unbalanced_ports(),
        another_choice(),
        from_a_backends_node(),
        crowded(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The sequence number of the client's SYN.
pub(crate) const ISN: u32 = 0xffff_ff00;

/// Returns the client's SYN to a Service.
pub(crate) fn syn(service: Service) -> Ipv4 {
    Ipv4::tcp(CLIENT, service.vip, Tcp::new(CLIENT_PORT, service.port, SYN).numbers(ISN, 0))
}

/// The same with more data than fits into a page (RFC 7413).
fn jumbo(service: Service) -> Ipv4 {
    let tcp = Tcp::new(CLIENT_PORT, service.port, SYN).numbers(ISN, 0);
    Ipv4::tcp(CLIENT, service.vip, tcp.data(&[0x5a; 8_001]))
}

/// Returns the client's segment in the middle of a connection to a Service.
pub(crate) fn segment(service: Service) -> Ipv4 {
    let tcp = Tcp::new(CLIENT_PORT, service.port, ACK | PSH).numbers(ISN.wrapping_add(1), 77);
    Ipv4::tcp(CLIENT, service.vip, tcp.data(b"GET / HTTP/1.1\r\n\r\n"))
}

/// Returns the client's datagram to a Service.
pub(crate) fn datagram(service: Service) -> Ipv4 {
    Ipv4::udp(CLIENT, service.vip, Udp::new(CLIENT_PORT, service.port, b"question"))
}

/// The records after the client's SYN to [`HTTP`].
pub(crate) fn syn_to_http(state: &mut State) {
    HTTP.record(state, LOCAL, 0, 0);
    HTTP.remember(state, LOCAL, 0, ISN, abi::FLOW_ISN);
}

/// The records after its datagram to [`DNS_UDP`].
pub(crate) fn question_to_dns(state: &mut State) {
    DNS_UDP.record(state, DNS, 0, 0);
    DNS_UDP.remember(state, DNS, 0, 0, 0);
}

/// The same packet with a backend as its destination.
pub(crate) fn to(packet: &Ipv4, backend: Endpoint) -> Ipv4 {
    let mut packet = packet.clone();
    packet.destination = backend.address;
    match &mut packet.payload {
        Payload::Tcp(tcp) => tcp.destination = backend.port,
        Payload::Udp(udp) => udp.destination = backend.port,
        Payload::Sctp(sctp) => sctp.destination = backend.port,
        Payload::Icmpv6(_) | Payload::Other(..) => {}
    }
    packet
}

/// The frame to another node.
pub(crate) fn handed(packet: &Ipv4, mac: vipmux_tests::frames::Mac) -> Vec<u8> {
    Ethernet::new(SELF_HANDOVER, mac).ipv4(&packet.clone().ttl(packet.ttl - 1))
}

/// The counters of a flow's first packet.
pub(crate) fn new_flow(service: Service, act: Stat) -> Vec<Counter> {
    vec![Counter::Stat(act), Counter::Stat(Stat::NewFlows), Counter::NewFlow(service.slot)]
}

/// The counters of a known flow's packet.
pub(crate) fn known_flow(service: Service, act: Stat) -> Vec<Counter> {
    vec![Counter::Stat(act), Counter::Service(service.slot)]
}

fn not_for_us() -> Vec<Case> {
    let vlan = |packet: &Ipv4, tag| from_client().tagged(tag).ipv4(packet);
    let to_mac = |mac| Ethernet::new(CLIENT_MAC, mac).ipv4(&syn(HTTP));
    let elsewhere = Ipv4::tcp(CLIENT, ELSEWHERE, Tcp::new(CLIENT_PORT, 80, SYN));
    let neighbor = |packet: Ipv4| from_client().ipv4(&Ipv4 { destination: NEIGHBOR, ..packet });
    let double = from_client().tagged(VLAN).tagged(VLAN).ipv4(&syn(TAGGED_HTTP));
    let mapped = Ipv6::tcp(v6(CLIENT), VIP.to_ipv6_mapped(), Tcp::new(CLIENT_PORT, HTTP.port, SYN));
    let about_mapped = |message: Ndp| {
        let packet = Ipv6::ndp(v6(NEIGHBOR), v6(CLIENT), &message.mac(PEER_MAC));
        Ethernet::new(PEER_MAC, SELF_MAC).ipv6(&packet)
    };
    let mapped_vip = VIP.to_ipv6_mapped();
    let mut service_tag = from_client().tagged(VLAN).ipv4(&syn(TAGGED_HTTP));
    service_tag[12..14].copy_from_slice(&[0x88, 0xa8]);
    vec![
        Case::ingress("a frame for another MAC passes", to_mac(FOREIGN_MAC)),
        Case::ingress("a broadcast frame with a packet to a VIP passes", to_mac(BROADCAST)),
        Case::ingress("a multicast frame with a packet to a VIP passes", to_mac([0x01, 0, 0x5e, 0, 0, 1])),
        Case::ingress("a packet for another address passes", neighbor(syn(HTTP))),
        Case::ingress("a fragment for another address passes", neighbor(syn(HTTP).fragment(0x2001))),
        Case::ingress(
            "a packet of another protocol for another address passes",
            neighbor(Ipv4 { payload: Payload::Other(1, vec![8; 8]), ..syn(HTTP) }),
        ),
        Case::ingress("a VIP announced on another interface passes", from_client().ipv4(&elsewhere)),
        Case::ingress("an untagged packet for a tagged VIP passes", from_client().ipv4(&syn(TAGGED_HTTP))),
        Case::ingress("a tagged packet for an untagged VIP passes", vlan(&syn(HTTP), VLAN)),
        Case::ingress("a packet in another VLAN passes", vlan(&syn(TAGGED_HTTP), VLAN + 1)),
        Case::ingress("a doubly tagged packet passes", double),
        Case::ingress("a service tag is not understood and passes", service_tag),
        Case::ingress("an Ethertype that is not understood passes", from_client().frame(0x86dd, &syn(HTTP).bytes())),
        Case::ingress("an IPv4-mapped VIP in an IPv6 packet passes", from_client().ipv6(&mapped)),
        Case::ingress("a solicitation for an IPv4-mapped VIP passes", about_mapped(Ndp::solicitation(mapped_vip))),
        Case::ingress(
            "a peer's advertisement of an IPv4-mapped VIP takes nothing",
            about_mapped(Ndp::advertisement(mapped_vip, NA_OVERRIDE)),
        ),
        Case::ingress("an interface that is not attached balances nothing", from_client().ipv4(&syn(HTTP)))
            .given(|state| state.interfaces.fill(abi::Interface::default())),
        Case::ingress(
            "a packet with the VIP as its source passes",
            from_client().ipv4(&Ipv4::tcp(VIP, NEIGHBOR, Tcp::new(80, 80, ACK))),
        ),
    ]
}

fn not_balanced() -> Vec<Case> {
    let other = |protocol| from_client().ipv4(&Ipv4::new(CLIENT, VIP, Payload::Other(protocol, vec![8; 24])));
    let fragment = |word| from_client().ipv4(&segment(HTTP).fragment(word));
    let accepted = |name, word| {
        Case::ingress(name, fragment(word))
            .becomes(
                Verdict::Passed(from_client().ipv4(&to(&segment(HTTP).fragment(word), LOCAL))),
                &new_flow(HTTP, Stat::Local),
            )
            .then(|state| {
                HTTP.record(state, LOCAL, 0, 0);
                HTTP.remember(state, LOCAL, 0, ISN.wrapping_add(1), 0);
            })
    };
    vec![
        Case::ingress("ICMP to a VIP is dropped", other(1)).dropped(DropReason::Icmp),
        Case::ingress("GRE to a VIP is dropped", other(47)).dropped(DropReason::Protocol),
        Case::ingress("a middle fragment without its first is dropped", fragment(0x2001)).dropped(DropReason::Fragment),
        Case::ingress("a last fragment without its first is dropped", fragment(0x1fff)).dropped(DropReason::Fragment),
        Case::ingress(
            "a fragment of another protocol is a fragment",
            from_client().ipv4(&Ipv4 { payload: Payload::Other(1, vec![8; 24]), ..syn(HTTP) }.fragment(0x00b9)),
        )
        .dropped(DropReason::Fragment),
        accepted("a packet that may be fragmented is not a fragment", 0),
        accepted("the reserved bit does not make a fragment", 0x8000),
    ]
}

fn malformed() -> Vec<Case> {
    let from_vip = |source| from_client().ipv4(&Ipv4 { source, ..datagram(DNS_UDP) });
    let edited = |packet: &Ipv4, edit: fn(&mut [u8])| {
        let mut bytes = packet.bytes();
        edit(&mut bytes);
        from_client().frame(ETHERTYPE_IPV4, &bytes)
    };
    let tcp = syn(HTTP);
    let udp = datagram(DNS_UDP);
    let longest = syn(HTTP).options(&[1; 40]);
    let case = |name, frame| Case::ingress(name, frame).dropped(DropReason::Malformed);
    vec![
        case("another IP version", edited(&tcp, |bytes| bytes[0] = 0x65)),
        case("a header length of sixteen bytes", edited(&tcp, |bytes| bytes[0] = 0x44)),
        case("a header longer than the packet", edited(&tcp, |bytes| bytes[0] = 0x4f)),
        case("a total length beyond the frame", edited(&tcp, |bytes| bytes[3] += 1)),
        case("a total length of less than the header", edited(&tcp, |bytes| bytes[3] = 19)),
        case("a total length that cuts TCP's header", edited(&tcp, |bytes| bytes[3] = 39)),
        case("a total length that cuts UDP's header", edited(&udp, |bytes| bytes[3] = 27)),
        case("options that leave no room for TCP's header", edited(&longest, |bytes| bytes[3] = 79)),
        case("a packet from the VIP itself", from_vip(VIP)),
        case("a packet from another VIP", from_vip(ELSEWHERE)),
        Case::ingress("an IPv4 header cut short passes", from_client().ipv4(&tcp)[..33].to_vec()),
    ]
}

fn local(service: Service, packet: &Ipv4, backend: Endpoint) -> (Vec<u8>, Verdict, Vec<Counter>) {
    let passed = Verdict::Passed(from_client().ipv4(&to(packet, backend)));
    (from_client().ipv4(packet), passed, new_flow(service, Stat::Local))
}

fn delivered() -> Vec<Case> {
    let case = |name, service, packet: &Ipv4, backend| {
        let (frame, verdict, counters) = local(service, packet, backend);
        Case::ingress(name, frame).becomes(verdict, &counters)
    };
    let with_options = syn(HTTP);
    let Payload::Tcp(tcp) = with_options.payload.clone() else { return Vec::new() };
    let tcp_options = [2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0, 1, 3, 3, 7];
    let with_options = Ipv4 { payload: Payload::Tcp(tcp.options(&tcp_options)), ..with_options };
    let Payload::Udp(udp) = datagram(DNS_UDP).payload else { return Vec::new() };
    let without_checksum = Ipv4 { payload: Payload::Udp(udp.without_checksum()), ..datagram(DNS_UDP) };
    let odd = Ipv4::udp(CLIENT, VIP, Udp::new(CLIENT_PORT, DNS_UDP.port, b"odd"));
    let empty = Ipv4::udp(CLIENT, VIP, Udp::new(CLIENT_PORT, DNS_UDP.port, b""));
    let mut padded = from_client().ipv4(&empty);
    padded.resize(60, 0x5a);
    let mut padded_out = from_client().ipv4(&to(&empty, DNS));
    padded_out.resize(60, 0x5a);
    vec![
        case("a SYN is delivered to a local backend", HTTP, &syn(HTTP), LOCAL).then(syn_to_http),
        case("a SYN in several buffers", HTTP, &jumbo(HTTP), LOCAL).then(syn_to_http).jumbo(),
        case("TCP options stay", HTTP, &with_options, LOCAL).then(syn_to_http),
        case("IPv4 options stay", HTTP, &syn(HTTP).options(&[7, 7, 4, 0, 0, 0, 0, 0]), LOCAL).then(syn_to_http),
        case("the longest IPv4 header is walked", HTTP, &syn(HTTP).options(&[1; 40]), LOCAL).then(syn_to_http),
        case("a TTL of 1 reaches a local backend", HTTP, &syn(HTTP).ttl(1), LOCAL).then(syn_to_http),
        case("a datagram is delivered to a local backend", DNS_UDP, &datagram(DNS_UDP), DNS).then(question_to_dns),
        case("an absent UDP checksum stays absent", DNS_UDP, &without_checksum, DNS).then(question_to_dns),
        case("an odd datagram", DNS_UDP, &odd, DNS).then(question_to_dns),
        case("an empty datagram", DNS_UDP, &empty, DNS).then(question_to_dns),
        case("a checksum that comes to zero is sent as all ones", DNS_UDP, &summing_to_zero(), DNS)
            .then(question_to_dns),
        Case::ingress("padding after a packet stays", padded)
            .becomes(Verdict::Passed(padded_out), &new_flow(DNS_UDP, Stat::Local))
            .then(question_to_dns),
        case("a segment without a SYN before it is balanced too", HTTP, &segment(HTTP), LOCAL).then(|state| {
            HTTP.record(state, LOCAL, 0, 0);
            HTTP.remember(state, LOCAL, 0, ISN.wrapping_add(1), 0);
        }),
        case("the hash picks the table's slot", HTTP, &known_hash(), LOCAL_TOO)
            .given(|state| HTTP.set(state, &[LOCAL, LOCAL, LOCAL, LOCAL, LOCAL, LOCAL, LOCAL, LOCAL_TOO], &[]))
            .then(|state| {
                HTTP.record(state, LOCAL_TOO, 0, 0);
                HTTP.remember(state, LOCAL_TOO, 0, ISN, abi::FLOW_ISN);
                of_the_known_client(state);
            })
            .in_this_family(),
    ]
}

/// A datagram whose checksum becomes zero when it is translated to [`DNS`]: its last word balances
/// the sum.
fn summing_to_zero() -> Ipv4 {
    let with = |word: u16| Ipv4::udp(CLIENT, VIP, Udp::new(CLIENT_PORT, DNS_UDP.port, &word.to_be_bytes()));
    let delivered = to(&with(0), DNS).bytes();
    let field = u16::from_be_bytes([delivered[26], delivered[27]]);
    let packet = with(field);
    assert_eq!(&to(&packet, DNS).bytes()[26..28], &[0xff, 0xff]);
    packet
}

const KNOWN_CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// A SYN to [`HTTP`] with a known flow hash, from `vipmux-common`'s test vectors: 4157142029, so
/// the last eighth of the table.
fn known_hash() -> Ipv4 {
    Ipv4 { source: KNOWN_CLIENT, ..syn(HTTP) }
}

/// Changes the records of the fixture's client to those of [`known_hash`]'s client.
fn of_the_known_client(state: &mut State) {
    let client = crate::fixture::address(KNOWN_CLIENT);
    state.flows = std::mem::take(&mut state.flows)
        .into_iter()
        .map(|(key, value)| (abi::FlowKey { client, ..key }, abi::FlowRecord { client, ..value }))
        .collect();
}

fn handed_over() -> Vec<Case> {
    let case = |name, service, packet: &Ipv4| {
        Case::ingress(name, from_client().ipv4(packet))
            .becomes(Verdict::Transmitted(handed(packet, PEER_MAC)), &new_flow(service, Stat::HandedOver))
    };
    let to_https: fn(&mut State) = |state| HTTPS.record(state, REMOTE, 0, 0);
    let tagged = Ethernet::new(SELF_HANDOVER, PEER_MAC).tagged(VLAN).ipv4(&syn(TAGGED_HTTP).ttl(63));
    vec![
        case("a SYN is handed over to the backend's node", HTTPS, &syn(HTTPS)).then(to_https),
        case("so is one in several buffers", HTTPS, &jumbo(HTTPS)).then(to_https).jumbo(),
        case("so is a segment", HTTPS, &segment(HTTPS)).then(to_https),
        case("so is a datagram", SYSLOG, &datagram(SYSLOG)).then(|state| SYSLOG.record(state, REMOTE, 0, 0)),
        case("IPv4 options go along", HTTPS, &syn(HTTPS).options(&[1; 12])).then(to_https),
        case("a TTL of 2 is enough", HTTPS, &syn(HTTPS).ttl(2)).then(to_https),
        case("a TTL of 255 becomes 254", HTTPS, &syn(HTTPS).ttl(255)).then(to_https),
        case("a VIP that another node leads is balanced as ever", FOLLOWED_HTTP, &syn(FOLLOWED_HTTP))
            .then(|state| FOLLOWED_HTTP.record(state, REMOTE, 0, 0)),
        Case::ingress("the tag is kept", from_client().tagged(VLAN).ipv4(&syn(TAGGED_HTTP)))
            .becomes(Verdict::Transmitted(tagged), &new_flow(TAGGED_HTTP, Stat::HandedOver))
            .then(|state| TAGGED_HTTP.record(state, REMOTE, 0, 0)),
        Case::ingress("a node behind another interface is redirected to", from_client().ipv4(&syn(REDIRECTED)))
            .becomes(Verdict::Redirected(handed(&syn(REDIRECTED), FAR_MAC)), &new_flow(REDIRECTED, Stat::HandedOver))
            .then(|state| REDIRECTED.record(state, FAR, 0, 0)),
        expired("a TTL of 1 is not handed over, and its sender is told", &syn(HTTPS).ttl(1), HTTPS).then(to_https),
        expired("nor is a TTL of 0", &syn(HTTPS).ttl(0), HTTPS).then(to_https),
        expired_v6("nor is a hop limit of 1", 1),
        Case::ingress("options are in the way of the answer", from_client().ipv4(&syn(HTTPS).options(&[1; 12]).ttl(1)))
            .becomes(
                Verdict::Dropped(DropReason::TtlExceeded),
                &[Counter::Stat(Stat::NewFlows), Counter::NewFlow(HTTPS.slot)],
            )
            .then(to_https),
        Case::ingress("the answers are limited", from_client().ipv4(&syn(HTTPS).ttl(1)))
            .given(|state| state.config.answers_per_second = 0)
            .becomes(
                Verdict::Dropped(DropReason::TtlExceeded),
                &[Counter::Stat(Stat::NewFlows), Counter::NewFlow(HTTPS.slot), Counter::Stat(Stat::AnswerLimited)],
            )
            .then(to_https),
    ]
}

fn counters_of_expired(service: Service) -> [Counter; 4] {
    [
        Counter::Drop(DropReason::TtlExceeded),
        Counter::Stat(Stat::Rejected),
        Counter::Stat(Stat::NewFlows),
        Counter::NewFlow(service.slot),
    ]
}

/// Time exceeded (RFC 792), with the first bytes of a new flow's packet.
pub(crate) fn expired(name: &'static str, packet: &Ipv4, service: Service) -> Case {
    let message = [&[11, 0, 0, 0, 0, 0, 0, 0], &packet.bytes()[..28]].concat();
    let told = Ipv4 { identification: 0, ..Ipv4::new(VIP, CLIENT, sealed(message)) };
    let told = Verdict::Transmitted(Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(&told));
    Case::ingress(name, from_client().ipv4(packet)).becomes(told, &counters_of_expired(service))
}

/// The same in IPv6 (RFC 4443, 3.3).
fn expired_v6(name: &'static str, hops: u8) -> Case {
    let packet = Ipv6::tcp(v6(CLIENT), v6(VIP), Tcp::new(CLIENT_PORT, HTTPS.port, SYN)).hop_limit(hops);
    let message = Icmpv6::time_exceeded(0, &packet.bytes()[..48]);
    let told = Ipv6 { flow_label: 0, ..Ipv6::icmpv6(v6(VIP), v6(CLIENT), message) };
    Case::ingress(name, from_client().ipv6(&packet))
        .becomes(Verdict::Transmitted(Ethernet::new(SELF_MAC, CLIENT_MAC).ipv6(&told)), &counters_of_expired(HTTPS))
        .then(|state| HTTPS.record(state, REMOTE, 0, 0))
        .v6()
}

/// The first or second address with the same index in `VIP_INDEX`, in one family.
fn neighbor_in_index(family: Family, number: usize) -> Ipv4Addr {
    let index = |address: Ipv4Addr| {
        hash::vip(&match family {
            Family::V4 => abi::Address::from(address),
            Family::V6 => IpAddr::from(v6(address)).into(),
        })
    };
    let mut all = (0x0b00_0000_u32..0x0c00_0000).map(Ipv4Addr::from).filter(|it| index(*it) == index(VIP));
    all.nth(number).unwrap()
}

/// Makes another address a VIP without Services.
fn crowd(state: &mut State, family: Family) {
    let value = abi::VipValue { id: 9, ..*vip_of(state, VIP) };
    state.vips.insert(crate::fixture::address(neighbor_in_index(family, 0)), value);
}

/// VIPs with the same index.
fn crowded() -> Vec<Case> {
    let of = |family, given: fn(&mut State)| {
        let to_address = |number| {
            let packet = Ipv4 { destination: neighbor_in_index(family, number), ..syn(HTTP) };
            from_client().ipv4(&packet)
        };
        let (frame, verdict, counters) = local(HTTP, &syn(HTTP), LOCAL);
        let cases = [
            Case::ingress("a VIP that shares its index", frame).becomes(verdict, &counters).then(syn_to_http),
            Case::ingress("another VIP of that index", to_address(0)).dropped(DropReason::NoService),
            Case::ingress("an address of that index that is no VIP passes", to_address(1)),
        ];
        cases.map(|case| {
            let case = case.given(given);
            if family == Family::V6 { case.twin().unwrap() } else { case.in_this_family() }
        })
    };
    let v4 = of(Family::V4, |state| crowd(state, Family::V4));
    v4.into_iter().chain(of(Family::V6, |state| crowd(state, Family::V6))).collect()
}

/// A port is identified by VIP, protocol and number.
fn unbalanced_ports() -> Vec<Case> {
    let to_port = |vip, port| from_client().ipv4(&Ipv4::tcp(CLIENT, vip, Tcp::new(CLIENT_PORT, port, SYN)));
    let dns_tcp = syn(DNS_TCP);
    vec![
        Case::ingress("a port that no Service claims", to_port(VIP, 81)).dropped(DropReason::NoService),
        Case::ingress("a port that a Service claims in UDP alone", to_port(VIP, SYSLOG.port))
            .dropped(DropReason::NoService),
        Case::ingress("a port that a Service claims on another VIP alone", to_port(FOLLOWED_HTTP.vip, HTTPS.port))
            .dropped(DropReason::NoService),
        Case::ingress("port 0", to_port(VIP, 0)).dropped(DropReason::NoService),
        Case::ingress("one port of two protocols belongs to two Services", from_client().ipv4(&dns_tcp))
            .becomes(Verdict::Transmitted(handed(&dns_tcp, PEER_MAC)), &new_flow(DNS_TCP, Stat::HandedOver))
            .then(|state| DNS_TCP.record(state, REMOTE, 0, 0)),
        Case::ingress("a Service without backends", from_client().ipv4(&syn(EMPTY))).dropped(DropReason::NoBackend),
    ]
}

/// The table's backend cannot be used.
fn another_choice() -> Vec<Case> {
    let lost = || from_client().ipv4(&syn(LOST));
    let mixed = || from_client().ipv4(&syn(MIXED));
    let from_node = |mac, service| Ethernet::new(mac, SELF_MAC).ipv4(&syn(service));
    let delivered = Verdict::Passed(from_client().ipv4(&to(&syn(MIXED), LOCAL)));
    let mixed_here: fn(&mut State) = |state| {
        MIXED.record(state, LOCAL, 0, 0);
        MIXED.remember(state, LOCAL, 0, ISN, abi::FLOW_ISN);
    };
    vec![
        Case::ingress("a node that is not resolved", lost()).dropped(DropReason::NodeUnreachable),
        Case::ingress("a node whose program is not attached", lost())
            .given(|state| {
                state.nodes[3] = abi::Node { flags: 0, ..state.nodes[1] };
            })
            .dropped(DropReason::NodeUnreachable),
        Case::ingress("a node that is known no more", lost())
            .given(|state| UNREACHABLE.of(state).node = 99)
            .dropped(DropReason::NodeUnreachable),
        Case::ingress("a backend that is known no more", lost())
            .given(|state| LOST.set(state, &[Endpoint { index: 99, ..UNREACHABLE }], &[]))
            .dropped(DropReason::NoBackend),
        Case::ingress("a backend that went just now", from_client().ipv4(&syn(HTTPS)))
            .given(|state| {
                *REMOTE.of(state) = abi::Backend::default();
                state.nodes[0].flags |= NODE_ATTACHED;
            })
            .dropped(DropReason::NoBackend),
        Case::ingress("a reachable node is chosen instead", from_client().ipv4(&syn(SPREAD)))
            .given(|state| state.nodes[1].flags &= !NODE_ATTACHED)
            .becomes(Verdict::Redirected(handed(&syn(SPREAD), FAR_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        Case::ingress("also while there are backends here", from_client().ipv4(&syn(SPREAD)))
            .given(|state| {
                state.nodes[1].flags &= !NODE_ATTACHED;
                SPREAD.set(state, &[REMOTE, FAR, REMOTE, FAR], &[LOCAL]);
            })
            .becomes(Verdict::Redirected(handed(&syn(SPREAD), FAR_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        Case::ingress("a local backend is chosen where no other node is reachable", mixed())
            .given(|state| state.nodes[1].flags &= !NODE_ATTACHED)
            .becomes(delivered, &new_flow(MIXED, Stat::Local))
            .then(mixed_here),
        Case::ingress("one that drains here is left to what peers hand over", from_client().ipv4(&syn(SPREAD)))
            .given(|state| {
                state.nodes[1].flags &= !NODE_ATTACHED;
                SPREAD.set(state, &[REMOTE, FAR, REMOTE, FAR], &[LOCAL]);
                SPREAD.set_flags(state, SERVICE_SPARE);
            })
            .becomes(Verdict::Redirected(handed(&syn(SPREAD), FAR_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        Case::ingress("to what has nowhere else to go", mixed())
            .given(|state| {
                state.nodes[1].flags &= !NODE_ATTACHED;
                MIXED.set_flags(state, SERVICE_SPARE);
            })
            .becomes(Verdict::Passed(from_client().ipv4(&to(&syn(MIXED), LOCAL))), &new_flow(MIXED, Stat::Local))
            .then(mixed_here),
        Case::ingress("and to what could only go back", from_node(PEER_MAC, MIXED))
            .given(|state| MIXED.set_flags(state, SERVICE_SPARE))
            .becomes(
                Verdict::Passed(Ethernet::new(PEER_MAC, SELF_MAC).ipv4(&to(&syn(MIXED), LOCAL))),
                &new_flow(MIXED, Stat::Local),
            )
            .then(mixed_here),
        Case::ingress(
            "a backend that takes no new flows is in no table, and is not asked",
            from_client().ipv4(&syn(HTTP)),
        )
        .given(|state| {
            LOCAL.of(state).flags &= !BACKEND_READY;
            HTTP.set(state, &[LOCAL_TOO], &[]);
        })
        .becomes(Verdict::Passed(from_client().ipv4(&to(&syn(HTTP), LOCAL_TOO))), &new_flow(HTTP, Stat::Local))
        .then(|state| {
            HTTP.record(state, LOCAL_TOO, 0, 0);
            HTTP.remember(state, LOCAL_TOO, 0, ISN, abi::FLOW_ISN);
        }),
        Case::ingress("a VIP moved to another interface passes", from_client().ipv4(&syn(HTTP)))
            .given(|state| vip_of(state, VIP).interfaces = 2),
        Case::ingress("a VIP moved to a VLAN passes", from_client().ipv4(&syn(HTTP)))
            .given(|state| vip_of(state, VIP).vlan = vip_of(state, TAGGED).vlan),
    ]
}

/// Packets that do not go back to the node that they came from.
fn from_a_backends_node() -> Vec<Case> {
    let from_node = |mac, service| Ethernet::new(mac, SELF_MAC).ipv4(&syn(service));
    vec![
        Case::ingress(
            "a packet of the chosen node stays here, so that it does not circle",
            from_node(PEER_MAC, SPREAD),
        )
        .given(|state| SPREAD.set(state, &[REMOTE, FAR, REMOTE, FAR], &[LOCAL]))
        .becomes(
            Verdict::Passed(Ethernet::new(PEER_MAC, SELF_MAC).ipv4(&to(&syn(SPREAD), LOCAL))),
            &new_flow(SPREAD, Stat::Local),
        )
        .then(|state| {
            SPREAD.record(state, LOCAL, 0, 0);
            SPREAD.remember(state, LOCAL, 0, ISN, abi::FLOW_ISN);
        }),
        Case::ingress("a node's own packet does not go back to it", from_node(PEER_MAC, SPREAD))
            .becomes(Verdict::Redirected(handed(&syn(SPREAD), FAR_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        Case::ingress("nor does another node's", from_node(FAR_MAC, SPREAD))
            .becomes(Verdict::Transmitted(handed(&syn(SPREAD), PEER_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, REMOTE, 0, 0)),
        Case::ingress("a node's own packet has nowhere else to go", from_node(PEER_MAC, HTTPS))
            .dropped(DropReason::Hairpin),
    ]
}
