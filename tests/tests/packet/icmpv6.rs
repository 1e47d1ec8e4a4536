//! Cases of ICMPv6: errors follow their flow; echo requests and packets to nobody are answered.

use std::net::Ipv6Addr;

use vipmux_common::abi::{DropReason, FLOW_ISN, Stat, UNCLAIMED_REJECT};
use vipmux_tests::{
    frames::{ACK, Chunk, Ethernet, Extension, Icmpv6, Ipv6, Payload, Sctp, Tcp, Udp},
    program::State,
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::ISN,
    family::v6,
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, DNS, DNS_UDP, EMPTY, Endpoint, HTTP, HTTPS, LOCAL, LOCAL_TOO, MIXED, NEIGHBOR,
        PEER_MAC, PHONE, REMOTE, SELF_MAC, SIGNAL, Service, TAGGED, TCP, UDP, UDP_IDLE, VIP, VLAN, WHILE, from_client,
        from_peer,
    },
    ipv6::handed,
};

pub(crate) fn cases() -> Vec<Case> {
    [to_backends(), refused(), from_backends(), echoes(), unreachables()].into_iter().flatten().map(Case::v6).collect()
}

/// A router on the way to the client.
const ROUTER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);

/// A kind of error.
type Error = fn(&[u8]) -> Icmpv6;

const TOO_BIG: Error = |packet| Icmpv6::packet_too_big(1280, packet);
const NO_ROUTE: Error = |packet| Icmpv6::unreachable(0, packet);
const NO_PORT: Error = |packet| Icmpv6::unreachable(4, packet);
const TIME_EXCEEDED: Error = |packet| Icmpv6::time_exceeded(0, packet);
const BAD_FIELD: Error = |packet| Icmpv6::parameter_problem(0, 6, packet);

/// Returns a packet between two ends, with data that shows which part of it is embedded.
fn packet(protocol: u32, source: (Ipv6Addr, u16), destination: (Ipv6Addr, u16)) -> Ipv6 {
    let data = [0x5a; 300];
    let payload = match protocol {
        TCP => Payload::Tcp(Tcp::new(source.1, destination.1, ACK).data(&data)),
        UDP => Payload::Udp(Udp::new(source.1, destination.1, &data)),
        _ => Payload::Sctp(Sctp::new(source.1, destination.1, 7, Chunk::data(1, &data))),
    };
    Ipv6::new(source.0, destination.0, payload)
}

/// Returns the embedded packet after the translation of its address and port. The embedded checksum
/// is not changed.
fn embedded(before: &Ipv6, after: &Ipv6) -> Vec<u8> {
    let (before, mut after) = (before.bytes(), after.bytes());
    let (mut protocol, mut at) = (after[6], 40);
    while EXTENSIONS.contains(&protocol) {
        // A fragment header has a zero as its length, and eight bytes.
        (protocol, at) = (after[at], at + 8 + 8 * usize::from(after[at + 1]));
    }
    let field = match protocol {
        6 => at + 16..at + 18,
        17 => at + 6..at + 8,
        _ => at + 8..at + 12,
    };
    after[field.clone()].copy_from_slice(&before[field]);
    after
}

/// The numbers of extension headers: hop-by-hop options, routing, fragment, destination options.
const EXTENSIONS: [u8; 4] = [0, 43, 44, 60];

/// Returns a datagram's fragment. The first one has the ports.
fn fragment(packet: Ipv6, offset: u16) -> Ipv6 {
    packet.extension(Extension::Fragment { offset, more: true, id: 0x8765_4321 })
}

/// Adds extension headers of each kind that the programs walk.
fn optional(packet: Ipv6) -> Ipv6 {
    packet
        .extension(Extension::HopByHop(vec![5, 2, 0, 0]))
        .extension(Extension::DestinationOptions(vec![1; 20]))
        .extension(Extension::Routing { kind: 4, segments_left: 0, data: vec![0; 20] })
        .extension(Extension::Fragment { offset: 0, more: false, id: 7 })
}

fn client() -> (Ipv6Addr, u16) {
    (v6(CLIENT), CLIENT_PORT)
}

fn reply(service: Service) -> Ipv6 {
    packet(service.protocol, (v6(service.vip), service.port), client())
}

/// The same reply as the backend sent it.
fn sent(service: Service, backend: Endpoint) -> Ipv6 {
    packet(service.protocol, (v6(backend.address), backend.port), client())
}

fn about_reply(service: Service, error: Error) -> Ipv6 {
    Ipv6::icmpv6(ROUTER, v6(service.vip), error(&reply(service).bytes()))
}

fn to_backend(service: Service, backend: Endpoint, error: Error) -> Ipv6 {
    Ipv6::icmpv6(ROUTER, v6(backend.address), error(&embedded(&reply(service), &sent(service, backend))))
}

fn to_backends() -> Vec<Case> {
    let local = [Counter::Stat(Stat::Local)];
    let reaches = |name, service, backend, error| {
        Case::ingress(name, from_client().ipv6(&about_reply(service, error)))
            .becomes(Verdict::Passed(from_client().ipv6(&to_backend(service, backend, error))), &local)
    };
    let to_http: fn(&mut State) = |state| HTTP.record(state, LOCAL_TOO, WHILE, 0);
    let first = |packet| fragment(packet, 0);
    let about_first = |service| Ipv6::icmpv6(ROUTER, v6(VIP), TOO_BIG(&first(reply(service)).bytes()));
    let about = |packet: &Ipv6| Ipv6::icmpv6(ROUTER, v6(VIP), TOO_BIG(&packet.bytes()));
    let about_optional = about(&optional(reply(HTTP)));
    let optional_translated = Ipv6::icmpv6(
        ROUTER,
        v6(LOCAL_TOO.address),
        TOO_BIG(&embedded(&optional(reply(HTTP)), &optional(sent(HTTP, LOCAL_TOO)))),
    );
    let behind = |packet: &Ipv6| packet.clone().extension(Extension::DestinationOptions(vec![1; 260]));
    let options = |kind: fn(Vec<u8>) -> Extension, to: Ipv6| to.extension(kind(vec![1; 6]));
    let with_options = |name, kind| {
        let (before, after) = (options(kind, reply(HTTP)), options(kind, sent(HTTP, LOCAL_TOO)));
        let translated = Ipv6::icmpv6(ROUTER, v6(LOCAL_TOO.address), TOO_BIG(&embedded(&before, &after)));
        Case::ingress(name, from_client().ipv6(&about(&before)))
            .given(|state| HTTP.record(state, LOCAL_TOO, WHILE, 0))
            .becomes(Verdict::Passed(from_client().ipv6(&translated)), &local)
    };
    let first_translated =
        Ipv6::icmpv6(ROUTER, v6(DNS.address), TOO_BIG(&embedded(&first(reply(DNS_UDP)), &first(sent(DNS_UDP, DNS)))));
    vec![
        Case::ingress("packet too big about a reply's first fragment", from_client().ipv6(&about_first(DNS_UDP)))
            .given(|state| DNS_UDP.record(state, DNS, WHILE, 0))
            .becomes(Verdict::Passed(from_client().ipv6(&first_translated)), &local),
        Case::ingress("it goes to another node too", from_client().ipv6(&about_first(HTTPS)))
            .given(|state| HTTPS.record(state, REMOTE, WHILE, 0))
            .becomes(Verdict::Transmitted(handed(&about_first(HTTPS), PEER_MAC)), &[Counter::Stat(Stat::HandedOver)]),
        with_options("packet too big about a reply with hop-by-hop options", Extension::HopByHop),
        with_options("packet too big about a reply with destination options", Extension::DestinationOptions),
        Case::ingress("packet too big about a reply with all extension headers", from_client().ipv6(&about_optional))
            .given(to_http)
            .becomes(Verdict::Passed(from_client().ipv6(&optional_translated)), &local),
        Case::ingress("it is found behind many options of its own", from_client().ipv6(&behind(&about_optional)))
            .given(to_http)
            .becomes(Verdict::Passed(from_client().ipv6(&behind(&optional_translated))), &local),
        reaches("packet too big reaches the flow's backend", HTTP, LOCAL_TOO, TOO_BIG).given(to_http),
        reaches("so does destination unreachable", HTTP, LOCAL_TOO, NO_ROUTE).given(to_http),
        reaches("so does time exceeded", HTTP, LOCAL_TOO, TIME_EXCEEDED).given(to_http),
        reaches("so does a parameter problem", HTTP, LOCAL_TOO, BAD_FIELD).given(to_http),
        reaches("without a record packet too big goes by the table", HTTP, LOCAL, TOO_BIG),
        reaches("a client's port unreachable", DNS_UDP, DNS, NO_PORT)
            .given(|state| DNS_UDP.record(state, DNS, WHILE, 0)),
        reaches("packet too big of an association", PHONE, SIGNAL, TOO_BIG)
            .given(|state| PHONE.record(state, SIGNAL, WHILE, 0)),
        Case::ingress("packet too big goes to another node", from_client().ipv6(&about_reply(HTTPS, TOO_BIG)))
            .given(|state| HTTPS.record(state, REMOTE, WHILE, 0))
            .becomes(
                Verdict::Transmitted(handed(&about_reply(HTTPS, TOO_BIG), PEER_MAC)),
                &[Counter::Stat(Stat::HandedOver)],
            ),
        Case::ingress("a peer's packet too big is delivered", from_peer().ipv6(&about_reply(MIXED, TOO_BIG))).becomes(
            Verdict::Passed(from_peer().ipv6(&to_backend(MIXED, LOCAL, TOO_BIG))),
            &[Counter::Stat(Stat::Local), Counter::Stat(Stat::FromPeer)],
        ),
    ]
}

fn refused() -> Vec<Case> {
    let message = |message| from_client().ipv6(&Ipv6::icmpv6(ROUTER, v6(VIP), message));
    let dropped = |name, icmp| Case::ingress(name, message(icmp)).dropped(DropReason::Icmp);
    let foreign = packet(TCP, (v6(NEIGHBOR), 80), client()).bytes();
    let closed = packet(TCP, (v6(VIP), 81), client()).bytes();
    let routed = reply(HTTP).extension(Extension::Routing { kind: 4, segments_left: 1, data: vec![0; 20] }).bytes();
    let authenticated = reply(HTTP).extension(Extension::Other(51, vec![0, 2, 0, 0, 0, 0, 0, 7])).bytes();
    let cut = optional(reply(HTTP)).bytes()[..70].to_vec();
    let mut of_icmp = reply(HTTP).bytes();
    of_icmp[6] = 58;
    vec![
        dropped("packet too big about another address's packet", TOO_BIG(&foreign)),
        dropped("packet too big about a port that no Service claims", TOO_BIG(&closed)),
        dropped("packet too big about a packet on its way to another host", TOO_BIG(&routed)),
        dropped("packet too big about a packet with another header", TOO_BIG(&authenticated)),
        dropped("packet too big about extension headers that are cut off", TOO_BIG(&cut)),
        dropped("packet too big about a later fragment", TOO_BIG(&fragment(reply(HTTP), 1).bytes())),
        dropped("an error about a first fragment cut short", TOO_BIG(&fragment(reply(HTTP), 0).bytes()[..55])),
        dropped("an error about ICMPv6", NO_ROUTE(&of_icmp)),
        dropped("an ICMPv6 error of an unknown type", Icmpv6 { kind: 5, ..TOO_BIG(&reply(HTTP).bytes()) }),
        dropped("an ICMPv6 error cut short", TOO_BIG(&reply(HTTP).bytes()[..47])),
        dropped("a router advertisement to a VIP", Icmpv6 { kind: 134, ..Icmpv6::echo_request(1, 1, &[0; 8]) }),
        Case::ingress("packet too big about a Service without backends", message(TOO_BIG(&reply(EMPTY).bytes())))
            .dropped(DropReason::NoBackend),
        Case::ingress(
            "a peer's packet too big about a backend elsewhere",
            from_peer().ipv6(&about_reply(HTTPS, TOO_BIG)),
        )
        .becomes(Verdict::Dropped(DropReason::NotLocal), &[Counter::Stat(Stat::FromPeer)]),
    ]
}

fn from_backends() -> Vec<Case> {
    let out = || Ethernet::new(SELF_MAC, CLIENT_MAC);
    let asked =
        |service: Service, backend: Endpoint| packet(service.protocol, client(), (v6(backend.address), backend.port));
    let as_sent = |service: Service, backend| {
        embedded(&asked(service, backend), &packet(service.protocol, client(), (v6(service.vip), service.port)))
    };
    let error = |source: Ipv6Addr, message| out().ipv6(&Ipv6::icmpv6(source, v6(CLIENT), message));
    let restored = [Counter::Stat(Stat::Replies)];
    let unreached = || error(v6(DNS.address), NO_PORT(&asked(DNS_UDP, DNS).bytes()));
    let tagged = |packet: &Ipv6| out().tagged(VLAN).ipv6(packet);
    let of_backend = |source, about: &[u8]| Ipv6::icmpv6(source, v6(CLIENT), NO_PORT(about));
    let question = fragment(asked(DNS_UDP, DNS), 0);
    let as_asked = packet(UDP, client(), (v6(VIP), DNS_UDP.port));
    let question_as_sent = embedded(&question, &fragment(as_asked.clone(), 0));
    let optional_as_sent = embedded(&optional(asked(DNS_UDP, DNS)), &optional(as_asked));
    vec![
        Case::egress("a node's packet too big about a first fragment", error(v6(NEIGHBOR), TOO_BIG(&question.bytes())))
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
            .becomes(Verdict::Passed(error(v6(NEIGHBOR), TOO_BIG(&question_as_sent))), &restored),
        Case::egress(
            "a node's packet too big about a packet with extension headers",
            error(v6(NEIGHBOR), TOO_BIG(&optional(asked(DNS_UDP, DNS)).bytes())),
        )
        .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
        .becomes(Verdict::Passed(error(v6(NEIGHBOR), TOO_BIG(&optional_as_sent))), &restored),
        Case::egress("a backend's port unreachable is the VIP's", unreached())
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
            .becomes(Verdict::Passed(error(v6(VIP), NO_PORT(&as_sent(DNS_UDP, DNS)))), &restored),
        Case::egress("in a tagged frame too", tagged(&of_backend(v6(DNS.address), &asked(DNS_UDP, DNS).bytes())))
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
            .becomes(Verdict::Passed(tagged(&of_backend(v6(VIP), &as_sent(DNS_UDP, DNS)))), &restored),
        Case::egress(
            "a node's packet too big on the way to a backend",
            error(v6(NEIGHBOR), TOO_BIG(&asked(HTTP, LOCAL).bytes())),
        )
        .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN))
        .becomes(Verdict::Passed(error(v6(NEIGHBOR), TOO_BIG(&as_sent(HTTP, LOCAL)))), &restored),
        Case::egress(
            "an error about an association",
            error(v6(SIGNAL.address), TIME_EXCEEDED(&asked(PHONE, SIGNAL).bytes())),
        )
        .given(|state| PHONE.remember(state, SIGNAL, WHILE, ISN, FLOW_ISN))
        .becomes(Verdict::Passed(error(v6(VIP), TIME_EXCEEDED(&as_sent(PHONE, SIGNAL)))), &restored),
        Case::egress("port unreachable about no flow of ours leaves", unreached()),
        Case::egress("port unreachable about an idle flow leaves", unreached())
            .given(|state| DNS_UDP.remember(state, DNS, UDP_IDLE + WHILE, 0, 0)),
        Case::egress(
            "an ICMPv6 echo reply leaves",
            error(v6(DNS.address), Icmpv6::echo_reply(1, 2, &asked(DNS_UDP, DNS).bytes())),
        )
        .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0)),
    ]
}

fn back() -> Ethernet {
    Ethernet::new(SELF_MAC, CLIENT_MAC)
}

fn echoes() -> Vec<Case> {
    let request = |data: &[u8]| Ipv6::icmpv6(v6(CLIENT), v6(VIP), Icmpv6::echo_request(0x1234, 1, data));
    let reply = |data: &[u8]| Ipv6::icmpv6(v6(VIP), v6(CLIENT), Icmpv6::echo_reply(0x1234, 1, data));
    let answered = |name, data: &[u8], hops| {
        Case::ingress(name, from_client().ipv6(&request(data).hop_limit(hops)))
            .becomes(Verdict::Transmitted(back().ipv6(&reply(data))), &[Counter::Stat(Stat::EchoAnswered)])
    };
    let from = |source| from_client().ipv6(&Ipv6 { source, ..request(&[1; 56]) });
    let cut = Ipv6::new(v6(CLIENT), v6(VIP), Payload::Other(58, vec![128, 0, 0, 0, 0, 0]));
    let optional = |packet: Ipv6| packet.extension(Extension::DestinationOptions(vec![]));
    vec![
        answered("an ICMPv6 echo request is answered", &[0xa5; 56], 64),
        answered("an ICMPv6 echo request of odd length", &[0xff; 33], 64),
        answered("an ICMPv6 echo request without data", &[], 64),
        answered("an ICMPv6 echo request at the end of its way", &[1; 56], 1),
        answered("an ICMPv6 echo request in several buffers", &[7; 8_001], 64).jumbo(),
        Case::ingress(
            "a tagged ICMPv6 echo request is answered with its tag",
            from_client().tagged(VLAN).ipv6(&Ipv6 { destination: v6(TAGGED), ..request(&[1; 9]) }),
        )
        .becomes(
            Verdict::Transmitted(back().tagged(VLAN).ipv6(&Ipv6 { source: v6(TAGGED), ..reply(&[1; 9]) })),
            &[Counter::Stat(Stat::EchoAnswered)],
        ),
        Case::ingress("an ICMPv6 echo request behind options", from_client().ipv6(&optional(request(&[1; 9]))))
            .becomes(
                Verdict::Transmitted(back().ipv6(&optional(reply(&[1; 9])))),
                &[Counter::Stat(Stat::EchoAnswered)],
            ),
        Case::ingress(
            "an ICMPv6 echo reply is not answered",
            from_client().ipv6(&Ipv6 { destination: v6(VIP), ..reply(&[1; 56]) }),
        )
        .dropped(DropReason::Icmp),
        Case::ingress("an echo request from the unspecified address", from(Ipv6Addr::UNSPECIFIED))
            .dropped(DropReason::Icmp),
        Case::ingress("an echo request from the loopback address", from(Ipv6Addr::LOCALHOST)).dropped(DropReason::Icmp),
        Case::ingress("an echo request from a group", from(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 2)))
            .dropped(DropReason::Icmp),
        Case::ingress("an ICMPv6 echo request that a peer handed over", from_peer().ipv6(&request(&[1; 56])))
            .becomes(Verdict::Dropped(DropReason::Icmp), &[Counter::Stat(Stat::FromPeer)]),
        Case::ingress("a cut ICMPv6 echo request", from_client().ipv6(&cut)).dropped(DropReason::Malformed),
        Case::ingress("an ICMPv6 echo request beyond the budget", from_client().ipv6(&request(&[1; 56])))
            .given(|state| state.config.answers_per_second = 0)
            .becomes(Verdict::Dropped(DropReason::Icmp), &[Counter::Stat(Stat::AnswerLimited)]),
    ]
}

/// Port unreachable, with the offending packet's IPv6 header and first eight bytes.
fn unreachables() -> Vec<Case> {
    let rejecting: fn(&mut State) = |state| state.config.unclaimed = UNCLAIMED_REJECT;
    let answer = |vip, offending: &Ipv6| {
        let message = Icmpv6::unreachable(4, &offending.bytes()[..48]);
        Ipv6 { flow_label: 0, ..Ipv6::icmpv6(v6(vip), v6(CLIENT), message) }
    };
    let counted = [Counter::Drop(DropReason::NoService), Counter::Stat(Stat::Rejected)];
    let question = |vip, data: &[u8]| Ipv6::udp(v6(CLIENT), v6(vip), Udp::new(CLIENT_PORT, 81, data));
    let rather_long = question(VIP, b"a question to nobody, rather long");
    let empty = question(VIP, b"");
    let huge = question(VIP, &[7; 8_000]);
    let tagged = question(TAGGED, b"a question to nobody");
    let init = Ipv6::sctp(v6(CLIENT), v6(VIP), Sctp::new(CLIENT_PORT, 81, 0, Chunk::init(1)));
    let plain = |name, packet: &Ipv6| {
        Case::ingress(name, from_client().ipv6(packet))
            .given(rejecting)
            .becomes(Verdict::Transmitted(back().ipv6(&answer(VIP, packet))), &counted)
    };
    let optional = rather_long.clone().extension(Extension::HopByHop(vec![]));
    vec![
        plain("an IPv6 datagram to a closed port", &rather_long),
        plain("an empty IPv6 datagram to a closed port", &empty),
        plain("an IPv6 datagram to a closed port in several buffers", &huge).jumbo(),
        plain("an INIT to a closed port", &init),
        Case::ingress("a tagged IPv6 datagram is answered with its tag", from_client().tagged(VLAN).ipv6(&tagged))
            .given(rejecting)
            .becomes(Verdict::Transmitted(back().tagged(VLAN).ipv6(&answer(TAGGED, &tagged))), &counted),
        Case::ingress("a datagram behind options to a closed port is dropped", from_client().ipv6(&optional))
            .given(rejecting)
            .dropped(DropReason::NoService),
    ]
}
