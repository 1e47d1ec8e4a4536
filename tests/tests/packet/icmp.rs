//! Cases of ICMP errors about a flow's packets: they follow the flow and are translated with it.

use std::net::Ipv4Addr;

use vipmux_common::abi::{DropReason, FLOW_ISN, Stat};
use vipmux_tests::frames::{ACK, Chunk, Ethernet, Ipv4, Payload, Sctp, Tcp, Udp, checksum};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, handed},
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, DNS, DNS_UDP, EMPTY, Endpoint, HTTP, HTTPS, LOCAL, LOCAL_TOO, MIXED, NEIGHBOR,
        PEER_MAC, PHONE, REMOTE, SELF_MAC, SIGNAL, Service, UDP_IDLE, VIP, VLAN, WHILE, from_client, from_peer,
    },
    reject::sealed,
};

pub(crate) fn cases() -> Vec<Case> {
    [to_backends(), refused(), from_backends()].into_iter().flatten().collect()
}

/// A router on the way to the client.
const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const FRAGMENTATION_NEEDED: [u8; 8] = [3, 4, 0, 0, 0, 0, 0x05, 0x14];
const PORT_UNREACHABLE: [u8; 8] = [3, 3, 0, 0, 0, 0, 0, 0];

const HOST_UNREACHABLE: [u8; 8] = [3, 1, 0, 0, 0, 0, 0, 0];
const TIME_EXCEEDED: [u8; 8] = [11, 0, 0, 0, 0, 0, 0, 0];
const PARAMETER_PROBLEM: [u8; 8] = [12, 0, 0, 0, 20, 0, 0, 0];

/// Returns the length of a packet's IPv4 header.
fn header_length(packet: &[u8]) -> usize {
    usize::from(packet[0] & 0x0f) * 4
}

/// Returns an error about a packet: its IPv4 header and the eight bytes after it.
pub(crate) fn about(header: [u8; 8], packet: &[u8]) -> Payload {
    sealed([&header, &packet[..header_length(packet) + 8]].concat())
}

/// Returns the first bytes of a reply as it left.
pub(crate) fn reply(service: Service) -> Vec<u8> {
    Ipv4::tcp(service.vip, CLIENT, Tcp::new(service.port, CLIENT_PORT, ACK)).bytes()
}

/// Returns the packet with another address and port, at these offsets of its header and payload.
/// Only the header's checksum changes otherwise.
fn moved(mut packet: Vec<u8>, address: (usize, Ipv4Addr), port: (usize, u16)) -> Vec<u8> {
    packet[address.0..address.0 + 4].copy_from_slice(&address.1.octets());
    let at = header_length(&packet) + port.0;
    packet[at..at + 2].copy_from_slice(&port.1.to_be_bytes());
    packet[10..12].fill(0);
    let sum = checksum(&packet[..header_length(&packet)]).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet
}

pub(crate) fn from(packet: Vec<u8>, endpoint: Endpoint) -> Vec<u8> {
    moved(packet, (12, endpoint.address), (0, endpoint.port))
}

pub(crate) fn to_vip(payload: Payload) -> Ipv4 {
    Ipv4::new(ROUTER, VIP, payload)
}

pub(crate) fn to_backend(endpoint: Endpoint, payload: Payload) -> Ipv4 {
    Ipv4::new(ROUTER, endpoint.address, payload)
}

fn to_backends() -> Vec<Case> {
    let too_big = |service| to_vip(about(FRAGMENTATION_NEEDED, &reply(service)));
    let translated =
        |service, endpoint| to_backend(endpoint, about(FRAGMENTATION_NEEDED, &from(reply(service), endpoint)));
    let reaches = |name, header, packet: Vec<u8>| {
        let reached = to_backend(LOCAL_TOO, about(header, &from(packet.clone(), LOCAL_TOO)));
        Case::ingress(name, from_client().ipv4(&to_vip(about(header, &packet))))
            .given(|state| HTTP.record(state, LOCAL_TOO, WHILE, 0))
            .becomes(Verdict::Passed(from_client().ipv4(&reached)), &[Counter::Stat(Stat::Local)])
    };
    let answered = Ipv4::tcp(HTTP.vip, CLIENT, Tcp::new(HTTP.port, CLIENT_PORT, ACK));
    let with_options = |length| answered.clone().options(&vec![1; length]).bytes();
    let association = Ipv4::sctp(VIP, CLIENT, Sctp::new(PHONE.port, CLIENT_PORT, 7, Chunk::data(1, b"answer"))).bytes();
    let answer = Ipv4::udp(VIP, CLIENT, Udp::new(DNS_UDP.port, CLIENT_PORT, b"answer")).bytes();
    let local = [Counter::Stat(Stat::Local)];
    vec![
        Case::ingress("an error about a flow's reply reaches its backend", from_client().ipv4(&too_big(HTTP)))
            .given(|state| HTTP.record(state, LOCAL_TOO, WHILE, 0))
            .becomes(Verdict::Passed(from_client().ipv4(&translated(HTTP, LOCAL_TOO))), &local),
        Case::ingress("without a record it goes by the table", from_client().ipv4(&too_big(HTTP)))
            .becomes(Verdict::Passed(from_client().ipv4(&translated(HTTP, LOCAL))), &local),
        Case::ingress("an error about a datagram", from_client().ipv4(&to_vip(about(PORT_UNREACHABLE, &answer))))
            .given(|state| DNS_UDP.record(state, DNS, WHILE, 0))
            .becomes(
                Verdict::Passed(
                    from_client().ipv4(&to_backend(DNS, about(PORT_UNREACHABLE, &from(answer.clone(), DNS)))),
                ),
                &local,
            ),
        reaches("a host that cannot be reached", HOST_UNREACHABLE, reply(HTTP)),
        reaches("a TTL that was used up", TIME_EXCEEDED, reply(HTTP)),
        reaches("a field that is not understood", PARAMETER_PROBLEM, reply(HTTP)),
        reaches("an error about a reply with options", FRAGMENTATION_NEEDED, with_options(8)),
        reaches("an error about a reply with the longest header", FRAGMENTATION_NEEDED, with_options(40)),
        reaches("an error about a reply's first fragment", FRAGMENTATION_NEEDED, answered.fragment(0x2000).bytes()),
        Case::ingress(
            "an error about an association's packet",
            from_client().ipv4(&to_vip(about(TIME_EXCEEDED, &association))),
        )
        .given(|state| PHONE.record(state, SIGNAL, WHILE, 0))
        .becomes(
            Verdict::Passed(
                from_client().ipv4(&to_backend(SIGNAL, about(TIME_EXCEEDED, &from(association.clone(), SIGNAL)))),
            ),
            &local,
        ),
        Case::ingress("an error about a reply from another node is handed over", from_client().ipv4(&too_big(HTTPS)))
            .given(|state| HTTPS.record(state, REMOTE, WHILE, 0))
            .becomes(Verdict::Transmitted(handed(&too_big(HTTPS), PEER_MAC)), &[Counter::Stat(Stat::HandedOver)]),
        Case::ingress("a peer's hand-over is delivered", from_peer().ipv4(&too_big(MIXED))).becomes(
            Verdict::Passed(from_peer().ipv4(&translated(MIXED, LOCAL))),
            &[Counter::Stat(Stat::Local), Counter::Stat(Stat::FromPeer)],
        ),
    ]
}

fn refused() -> Vec<Case> {
    let dropped = |name, payload| Case::ingress(name, from_client().ipv4(&to_vip(payload))).dropped(DropReason::Icmp);
    let edited = |edit: fn(&mut [u8])| {
        let mut packet = reply(HTTP);
        edit(&mut packet);
        about(FRAGMENTATION_NEEDED, &packet)
    };
    let cut = || sealed([&FRAGMENTATION_NEEDED[..], &reply(HTTP)[..27]].concat());
    let foreign = Ipv4::tcp(NEIGHBOR, CLIENT, Tcp::new(80, CLIENT_PORT, ACK)).bytes();
    let closed = Ipv4::tcp(VIP, CLIENT, Tcp::new(81, CLIENT_PORT, ACK)).bytes();
    let with_options = Ipv4::tcp(VIP, CLIENT, Tcp::new(80, CLIENT_PORT, ACK)).options(&[1; 4]).bytes();
    vec![
        dropped("an error about another address's packet", about(FRAGMENTATION_NEEDED, &foreign)),
        dropped("an error about a port that no Service claims", about(FRAGMENTATION_NEEDED, &closed)),
        dropped("a redirect", about([5, 1, 0, 0, 192, 0, 2, 1], &reply(HTTP))),
        dropped("an error about a packet of another version", edited(|packet| packet[0] = 0x65)),
        dropped("an error about a packet with too short a header", edited(|packet| packet[0] = 0x44)),
        dropped("an error about a later fragment", edited(|packet| packet[7] = 1)),
        dropped("an error about ICMP", edited(|packet| packet[9] = 1)),
        dropped("an error cut short", cut()),
        Case::ingress("an error cut short with padding", [from_client().ipv4(&to_vip(cut())), vec![0; 20]].concat())
            .dropped(DropReason::Icmp),
        dropped("an error cut short behind options", sealed([&FRAGMENTATION_NEEDED[..], &with_options[..31]].concat())),
        Case::ingress(
            "an error about a Service without backends",
            from_client().ipv4(&to_vip(about(FRAGMENTATION_NEEDED, &reply(EMPTY)))),
        )
        .dropped(DropReason::NoBackend),
        Case::ingress(
            "a peer's hand-over about a backend elsewhere",
            from_peer().ipv4(&to_vip(about(FRAGMENTATION_NEEDED, &reply(HTTPS)))),
        )
        .becomes(Verdict::Dropped(DropReason::NotLocal), &[Counter::Stat(Stat::FromPeer)]),
    ]
}

fn from_backends() -> Vec<Case> {
    let out = || Ethernet::new(SELF_MAC, CLIENT_MAC);
    let asked = Ipv4::udp(CLIENT, DNS.address, Udp::new(CLIENT_PORT, DNS.port, b"question")).bytes();
    let as_sent = moved(asked.clone(), (16, VIP), (2, DNS_UDP.port));
    let segment = Ipv4::tcp(CLIENT, LOCAL.address, Tcp::new(CLIENT_PORT, LOCAL.port, ACK)).bytes();
    let segment_as_sent = moved(segment.clone(), (16, VIP), (2, HTTP.port));
    let error = |source, header, packet: &[u8]| out().ipv4(&Ipv4::new(source, CLIENT, about(header, packet)));
    let restored = [Counter::Stat(Stat::Replies)];
    let first = Ipv4::udp(CLIENT, DNS.address, Udp::new(CLIENT_PORT, DNS.port, &[1; 40])).fragment(0x2000);
    let first = first.options(&[1; 8]).bytes();
    let first_as_sent = moved(first.clone(), (16, VIP), (2, DNS_UDP.port));
    let tagged =
        |source, packet: &[u8]| out().tagged(VLAN).ipv4(&Ipv4::new(source, CLIENT, about(PORT_UNREACHABLE, packet)));
    let of_association = |destination| {
        let sctp = Sctp::new(CLIENT_PORT, PHONE.port, 7, Chunk::data(1, b"question"));
        error(NEIGHBOR, TIME_EXCEEDED, &Ipv4::sctp(CLIENT, destination, sctp).bytes())
    };
    vec![
        Case::egress(
            "a node's error about a first fragment with options",
            error(NEIGHBOR, FRAGMENTATION_NEEDED, &first),
        )
        .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
        .becomes(Verdict::Passed(error(NEIGHBOR, FRAGMENTATION_NEEDED, &first_as_sent)), &restored),
        Case::egress("a backend's error in a tagged frame", tagged(DNS.address, &asked))
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
            .becomes(Verdict::Passed(tagged(VIP, &as_sent)), &restored),
        Case::egress("a node's error about a client's packet of an association", of_association(SIGNAL.address))
            .given(|state| PHONE.remember(state, SIGNAL, WHILE, ISN, FLOW_ISN))
            .becomes(Verdict::Passed(of_association(VIP)), &restored),
        Case::egress("a backend's error is the VIP's", error(DNS.address, PORT_UNREACHABLE, &asked))
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
            .becomes(Verdict::Passed(error(VIP, PORT_UNREACHABLE, &as_sent)), &restored),
        Case::egress("a node's error on the way to a backend", error(NEIGHBOR, FRAGMENTATION_NEEDED, &segment))
            .given(|state| HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN))
            .becomes(Verdict::Passed(error(NEIGHBOR, FRAGMENTATION_NEEDED, &segment_as_sent)), &restored),
        Case::egress("an error about no flow of ours leaves", error(DNS.address, PORT_UNREACHABLE, &asked)),
        Case::egress("an error about an idle flow leaves", error(DNS.address, PORT_UNREACHABLE, &asked))
            .given(|state| DNS_UDP.remember(state, DNS, UDP_IDLE + WHILE, 0, 0)),
        Case::egress("an echo reply leaves", error(DNS.address, [0; 8], &asked))
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0)),
    ]
}
