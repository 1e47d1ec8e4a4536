//! Cases of only IPv6: extension headers, its lengths, and fragments with a header of their own.

use vipmux_common::{
    abi::{self, DropReason, EgressFragmentValue, FLOW_ISN, FragmentKey, FragmentValue, Stat},
    hash,
};
use vipmux_tests::{
    frames::{
        ACK, ETHERTYPE_IPV6, Ethernet, Extension,
        Extension::{DestinationOptions, HopByHop},
        Ipv6, Mac, Payload, SYN, Tcp, Udp,
    },
    program::{NOW, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, known_flow, new_flow, question_to_dns, syn_to_http},
    family::v6,
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, DNS, DNS_UDP, Endpoint, HTTP, HTTPS, LOCAL, NEIGHBOR, PEER_MAC, REMOTE,
        SELF_HANDOVER, SELF_MAC, SYSLOG, Service, VIP, WHILE, from_client,
    },
};

pub(crate) fn cases() -> Vec<Case> {
    [delivered(), handed_over(), walked(), not_walked(), malformed(), fragments(), replies(), reply_fragments()]
        .into_iter()
        .flatten()
        .map(Case::v6)
        .collect()
}

/// Returns the client's SYN to a Service.
pub(crate) fn syn(service: Service) -> Ipv6 {
    let tcp = Tcp::new(CLIENT_PORT, service.port, SYN).numbers(ISN, 0);
    Ipv6::tcp(v6(CLIENT), v6(service.vip), tcp)
}

/// Returns the client's datagram to a Service.
pub(crate) fn datagram(service: Service, data: &[u8]) -> Ipv6 {
    Ipv6::udp(v6(CLIENT), v6(service.vip), Udp::new(CLIENT_PORT, service.port, data))
}

/// The same packet with a backend as its destination.
pub(crate) fn to(packet: &Ipv6, backend: Endpoint) -> Ipv6 {
    let mut packet = packet.clone();
    packet.destination = v6(backend.address);
    match &mut packet.payload {
        Payload::Tcp(tcp) => tcp.destination = backend.port,
        Payload::Udp(udp) => udp.destination = backend.port,
        Payload::Sctp(_) | Payload::Icmpv6(_) | Payload::Other(..) => {}
    }
    packet
}

/// The frame to another node.
pub(crate) fn handed(packet: &Ipv6, mac: Mac) -> Vec<u8> {
    Ethernet::new(SELF_HANDOVER, mac).ipv6(&packet.clone().hop_limit(packet.hop_limit - 1))
}

fn local(name: &'static str, service: Service, packet: &Ipv6, backend: Endpoint) -> Case {
    Case::ingress(name, from_client().ipv6(packet))
        .becomes(Verdict::Passed(from_client().ipv6(&to(packet, backend))), &new_flow(service, Stat::Local))
}

fn delivered() -> Vec<Case> {
    let mut classed = syn(HTTP);
    (classed.traffic_class, classed.flow_label) = (0xb8, 0xf_ffff);
    vec![
        local("traffic class and flow label stay", HTTP, &classed, LOCAL).then(syn_to_http),
        local("an IPv6 checksum that comes to zero is sent as all ones", DNS_UDP, &summing_to_zero(), DNS)
            .then(question_to_dns),
    ]
}

/// A datagram whose checksum becomes zero when it is translated to [`DNS`]: its last word balances
/// the sum.
fn summing_to_zero() -> Ipv6 {
    let delivered = to(&datagram(DNS_UDP, &[0, 0]), DNS).bytes();
    let packet = datagram(DNS_UDP, &delivered[46..48]);
    assert_eq!(&to(&packet, DNS).bytes()[46..48], &[0xff, 0xff]);
    packet
}

fn handed_over() -> Vec<Case> {
    let to_https: fn(&mut State) = |state| HTTPS.record(state, REMOTE, 0, 0);
    let case = |name, packet: &Ipv6| {
        Case::ingress(name, from_client().ipv6(packet))
            .becomes(Verdict::Transmitted(handed(packet, PEER_MAC)), &new_flow(HTTPS, Stat::HandedOver))
            .then(to_https)
    };
    vec![
        case("a hop limit of 2 is enough", &syn(HTTPS).hop_limit(2)),
        case("a hop limit of 255 becomes 254", &syn(HTTPS).hop_limit(255)),
        case("extension headers go along", &syn(HTTPS).extension(HopByHop(vec![5, 2, 0, 0]))),
    ]
}

fn routing(segments_left: u8) -> Extension {
    Extension::Routing { kind: 4, segments_left, data: vec![0; 20] }
}

/// An atomic fragment (RFC 6946).
fn atomic(id: u32) -> Extension {
    Extension::Fragment { offset: 0, more: false, id }
}

fn with(extensions: Vec<Extension>) -> Ipv6 {
    Ipv6 { extensions, ..syn(HTTP) }
}

fn walked() -> Vec<Case> {
    let case = |name, extensions| local(name, HTTP, &with(extensions), LOCAL).then(syn_to_http);
    let all = vec![
        HopByHop(vec![5, 2, 0, 0]),
        DestinationOptions(vec![1, 5, 0, 0, 0, 0, 0]),
        routing(0),
        atomic(7),
        DestinationOptions(vec![]),
    ];
    vec![
        case("hop-by-hop options are walked", vec![HopByHop(vec![5, 2, 0, 0])]),
        case("destination options are walked", vec![DestinationOptions(vec![])]),
        case("the longest options are walked", vec![DestinationOptions([&[30, 255][..], &[0; 255]].concat())]),
        case("a routing header is walked", vec![routing(0)]),
        case("an atomic fragment is a whole packet", vec![atomic(0x0102_0304)]),
        case("headers in the recommended order are walked", all),
        case("eight headers are walked", vec![DestinationOptions(vec![]); 8]),
        local(
            "a datagram behind options",
            DNS_UDP,
            &Ipv6 { extensions: vec![routing(0)], ..datagram(DNS_UDP, b"?") },
            DNS,
        )
        .then(question_to_dns),
        Case::ingress("a known flow's packet behind options", from_client().ipv6(&with(vec![HopByHop(vec![])])))
            .given(syn_to_http)
            .becomes(
                Verdict::Passed(from_client().ipv6(&to(&with(vec![HopByHop(vec![])]), LOCAL))),
                &known_flow(HTTP, Stat::Local),
            )
            .then(syn_to_http),
        Case::ingress(
            "a packet for another address passes whatever its headers",
            from_client().ipv6(&Ipv6 { destination: v6(NEIGHBOR), ..with(vec![DestinationOptions(vec![]); 9]) }),
        ),
    ]
}

fn not_walked() -> Vec<Case> {
    let dropped = |name, packet: &Ipv6, reason| Case::ingress(name, from_client().ipv6(packet)).dropped(reason);
    let payload = |protocol| Ipv6 { payload: Payload::Other(protocol, vec![8; 24]), ..syn(HTTP) };
    let authenticated = with(vec![Extension::Other(51, vec![0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])]);
    vec![
        dropped("nine headers are too many", &with(vec![DestinationOptions(vec![]); 9]), DropReason::Malformed),
        dropped("a routing header that goes on elsewhere", &with(vec![routing(1)]), DropReason::Malformed),
        dropped("nested fragment headers", &with(vec![atomic(7), atomic(8)]), DropReason::Malformed),
        dropped("no next header", &payload(59), DropReason::Protocol),
        dropped(
            "no next header behind options",
            &Ipv6 { extensions: vec![routing(0)], ..payload(59) },
            DropReason::Protocol,
        ),
        dropped("an authentication header", &authenticated, DropReason::Protocol),
        dropped("IPv4's ICMP in IPv6", &payload(1), DropReason::Protocol),
    ]
}

fn malformed() -> Vec<Case> {
    let edited = |packet: &Ipv6, edit: fn(&mut Vec<u8>)| {
        let mut bytes = packet.bytes();
        edit(&mut bytes);
        from_client().frame(ETHERTYPE_IPV6, &bytes)
    };
    let case = |name, frame| Case::ingress(name, frame).dropped(DropReason::Malformed);
    let (plain, optional) = (syn(HTTP), with(vec![DestinationOptions(vec![])]));
    vec![
        case("another version in an IPv6 frame", edited(&plain, |bytes| bytes[0] = 0x45)),
        case("a payload length beyond the frame", edited(&plain, |bytes| bytes[5] += 1)),
        case("a payload length that cuts TCP's header", edited(&plain, |bytes| bytes[5] = 19)),
        case("a payload length that cuts UDP's header", edited(&datagram(DNS_UDP, b""), |bytes| bytes[5] = 7)),
        case("a jumbogram", edited(&plain, |bytes| bytes[4..6].fill(0))),
        case("a payload length that cuts an extension header", edited(&optional, |bytes| bytes[5] = 7)),
        case("a payload length that ends with an extension header", edited(&optional, |bytes| bytes[5] = 8)),
        case("an extension header longer than the packet", edited(&optional, |bytes| bytes[41] = 200)),
        case("an extension header that leaves no room for TCP's", edited(&optional, |bytes| bytes[41] = 1)),
        case(
            "an extension header beyond the frame",
            edited(&with(vec![HopByHop(vec![])]), |bytes| {
                bytes.truncate(44);
                bytes[5] = 4;
            }),
        ),
        Case::ingress("an IPv6 header cut short passes", from_client().ipv6(&plain)[..53].to_vec()),
    ]
}

/// The offset of the cut: ports, length and checksum are before it.
const CUT: usize = 8;
const ID: u32 = 0x8765_4321;

fn key(packet: &Ipv6) -> FragmentKey {
    let address = |address| abi::Address::from(std::net::IpAddr::V6(address));
    let (source, destination) = (address(packet.source), address(packet.destination));
    FragmentKey { source, destination, id: ID.to_be(), protocol: 0 }
}

/// Records the client's first fragment to [`DNS_UDP`].
fn recorded(state: &mut State, age: u64) {
    let key = key(&datagram(DNS_UDP, b""));
    let value = FragmentValue {
        tag: hash::fragment(&key),
        backend: DNS.index,
        backend_generation: DNS.of(state).generation,
        slot: DNS_UDP.slot,
        seen: NOW - age,
        ..FragmentValue::default()
    };
    state.fragments.insert(key, value);
}

fn fragments() -> Vec<Case> {
    let whole = Ipv6 { extensions: vec![HopByHop(vec![])], ..datagram(DNS_UDP, b"a question in two parts") };
    let [first, later] = whole.cut(CUT, ID);
    let [first_to, later_to] = to(&whole, DNS).cut(CUT, ID);
    // The first fragment's headers are incomplete.
    let [headless, _] = syn(SYSLOG).cut(CUT, ID);
    let [icmp, _] = Ipv6 { payload: Payload::Other(58, vec![128; 64]), ..syn(HTTP) }.cut(CUT, ID);
    let other = Ipv6 { payload: Payload::Other(60, vec![0; 16]), ..later.clone() };
    let other_to = Ipv6 { payload: Payload::Other(60, vec![0; 16]), ..later_to.clone() };
    vec![
        Case::ingress("a first fragment behind options is delivered and recorded", from_client().ipv6(&first))
            .becomes(Verdict::Passed(from_client().ipv6(&first_to)), &new_flow(DNS_UDP, Stat::Local))
            .then(|state| {
                question_to_dns(state);
                recorded(state, 0);
            }),
        Case::ingress("a later fragment behind options follows it", from_client().ipv6(&later))
            .given(|state| recorded(state, WHILE))
            .becomes(Verdict::Passed(from_client().ipv6(&later_to)), &known_flow(DNS_UDP, Stat::Local)),
        Case::ingress("whatever a later fragment says that it is of", from_client().ipv6(&other))
            .given(|state| recorded(state, WHILE))
            .becomes(Verdict::Passed(from_client().ipv6(&other_to)), &known_flow(DNS_UDP, Stat::Local)),
        Case::ingress("a later fragment of another datagram", from_client().ipv6(&later))
            .given(|state| {
                recorded(state, WHILE);
                let (mut key, value) = state.fragments.pop_first().unwrap();
                key.id ^= 1 << 24;
                state.fragments.insert(key, FragmentValue { tag: hash::fragment(&key), ..value });
            })
            .dropped(DropReason::Fragment),
        Case::ingress("a first fragment without TCP's header", from_client().ipv6(&headless))
            .dropped(DropReason::Malformed),
        Case::ingress("a first fragment of ICMPv6 is dropped", from_client().ipv6(&icmp)).dropped(DropReason::Fragment),
    ]
}

fn out() -> Ethernet {
    Ethernet::new(SELF_MAC, CLIENT_MAC)
}

fn answer(data: &[u8]) -> Ipv6 {
    Ipv6::udp(v6(DNS.address), v6(CLIENT), Udp::new(DNS.port, CLIENT_PORT, data))
}

/// The same answer from the VIP.
fn from_vip(packet: &Ipv6) -> Ipv6 {
    let mut packet = packet.clone();
    packet.source = v6(VIP);
    match &mut packet.payload {
        Payload::Tcp(tcp) => tcp.source = HTTP.port,
        Payload::Udp(udp) => udp.source = DNS_UDP.port,
        Payload::Sctp(_) | Payload::Icmpv6(_) | Payload::Other(..) => {}
    }
    packet
}

const REPLY: &[Counter] = &[Counter::Stat(Stat::Replies)];

fn answered(name: &'static str, packet: &Ipv6) -> Case {
    Case::egress(name, out().ipv6(packet))
        .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
        .becomes(Verdict::Passed(out().ipv6(&from_vip(packet))), REPLY)
        .then(|state| DNS_UDP.remember(state, DNS, 0, 0, 0))
}

fn replies() -> Vec<Case> {
    let zeroed = from_vip(&answer(&[0, 0])).bytes();
    let summing_to_zero = answer(&zeroed[46..48]);
    assert_eq!(&from_vip(&summing_to_zero).bytes()[46..48], &[0xff, 0xff]);
    let optional = Ipv6 { extensions: vec![DestinationOptions(vec![]), atomic(9)], ..answer(b"answer") };
    let nine = Ipv6 { extensions: vec![DestinationOptions(vec![]); 9], ..answer(b"answer") };
    let tcp = Tcp::new(LOCAL.port, CLIENT_PORT, ACK).numbers(1, 2);
    let segment = Ipv6::tcp(v6(LOCAL.address), v6(CLIENT), tcp).extension(HopByHop(vec![]));
    vec![
        answered("an IPv6 reply's checksum that comes to zero is sent as all ones", &summing_to_zero),
        answered("a reply's extension headers are walked", &optional),
        Case::egress("a segment behind hop-by-hop options", out().ipv6(&segment))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN))
            .becomes(Verdict::Passed(out().ipv6(&from_vip(&segment))), REPLY)
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        Case::egress("a reply with more headers than are walked leaves", out().ipv6(&nine))
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0)),
    ]
}

fn reply_fragments() -> Vec<Case> {
    fn recorded(state: &mut State, age: u64) {
        let (key, vip) = (key(&answer(b"")), crate::fixture::address(VIP));
        let value = EgressFragmentValue { tag: hash::fragment(&key), reserved: 0, vip, seen: NOW - age };
        state.egress_fragments.insert(key, value);
    }
    let whole = answer(b"a long answer, in two parts");
    let [first, later] = whole.cut(CUT, ID);
    let [first_from, later_from] = from_vip(&whole).cut(CUT, ID);
    vec![
        Case::egress("an IPv6 reply's first fragment is restored and recorded", out().ipv6(&first))
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
            .becomes(Verdict::Passed(out().ipv6(&first_from)), REPLY)
            .then(|state| {
                DNS_UDP.remember(state, DNS, 0, 0, 0);
                recorded(state, 0);
            }),
        Case::egress("an IPv6 reply's later fragment follows the first", out().ipv6(&later))
            .given(|state| recorded(state, WHILE))
            .becomes(Verdict::Passed(out().ipv6(&later_from)), REPLY),
    ]
}
