//! Cases of answers in a VIP's name.

use vipmux_common::abi::{DropReason, INTERFACE_GENERIC, INTERFACE_MTU_SHIFT, Stat, UNCLAIMED_PASS, UNCLAIMED_REJECT};
use vipmux_tests::{
    frames::{ACK, Ethernet, FIN, Ipv4, Payload, RST, SYN, Tcp, Udp, checksum},
    program::{IFINDEX, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, datagram, syn},
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, EMPTY, PEER_MAC, SELF_MAC, SYSLOG, Service, TAGGED, VIP, VLAN, from_client,
        from_peer,
    },
};

pub(crate) fn cases() -> Vec<Case> {
    [resets(), unreachables(), echoes(), settings()].into_iter().flatten().collect()
}

const CLOSED: u16 = 81;

fn rejecting(state: &mut State) {
    state.config.unclaimed = UNCLAIMED_REJECT;
}

fn closed(flags: u8) -> Tcp {
    Tcp::new(CLIENT_PORT, CLOSED, flags).numbers(ISN, 0x1234_5678)
}

fn back() -> Ethernet {
    Ethernet::new(SELF_MAC, CLIENT_MAC)
}

/// Returns the answer, padded to the shortest frame with what was there before.
fn reset(frame: &[u8], tcp: Tcp) -> Vec<u8> {
    let mut tcp = tcp;
    tcp.window = 0;
    let mut answer = back().ipv4(&Ipv4 { identification: 0, ..Ipv4::tcp(VIP, CLIENT, tcp) });
    if frame.len() > answer.len() {
        answer.extend(&frame[answer.len()..frame.len().min(60)]);
    }
    answer
}

fn counted(reason: DropReason) -> Vec<Counter> {
    vec![Counter::Drop(reason), Counter::Stat(Stat::Rejected)]
}

fn resets() -> Vec<Case> {
    let case = |name, segment: Tcp, answer: Tcp| {
        let frame = from_client().ipv4(&Ipv4::tcp(CLIENT, VIP, segment));
        let answer = reset(&frame, answer);
        Case::ingress(name, frame)
            .given(rejecting)
            .becomes(Verdict::Transmitted(answer), &counted(DropReason::NoService))
    };
    let rst = |flags, sequence, acknowledged| Tcp::new(CLOSED, CLIENT_PORT, flags).numbers(sequence, acknowledged);
    let empty = from_client().ipv4(&syn(EMPTY));
    let from_empty = Tcp::new(EMPTY.port, CLIENT_PORT, RST | ACK).numbers(0, ISN.wrapping_add(1));
    let mut padded = from_client().ipv4(&Ipv4::tcp(CLIENT, VIP, closed(SYN)));
    padded.resize(6_000, 0);
    let to_padded = reset(&padded, rst(RST | ACK, 0, ISN.wrapping_add(1)));
    let options = Ipv4::tcp(CLIENT, VIP, closed(SYN).options(&[1; 20])).options(&[1; 8]);
    let with_options = from_client().ipv4(&options);
    let to_options = reset(&with_options, rst(RST | ACK, 0, ISN.wrapping_add(1)));
    let to_tagged = Tcp { window: 0, ..rst(RST | ACK, 0, ISN.wrapping_add(1)) };
    let to_tagged = Ipv4 { identification: 0, ..Ipv4::tcp(TAGGED, CLIENT, to_tagged) };
    let from_nobody = |name, source: [u8; 4]| {
        Case::ingress(name, from_client().ipv4(&Ipv4::tcp(source.into(), VIP, closed(SYN))))
            .given(rejecting)
            .dropped(DropReason::NoService)
            .in_this_family()
    };
    vec![
        Case::ingress(
            "a tagged SYN is reset with its tag",
            from_client().tagged(VLAN).ipv4(&Ipv4::tcp(CLIENT, TAGGED, closed(SYN))),
        )
        .given(rejecting)
        .becomes(Verdict::Transmitted(back().tagged(VLAN).ipv4(&to_tagged)), &counted(DropReason::NoService)),
        from_nobody("a loopback source is never answered", [127, 0, 0, 1]),
        from_nobody("a source of this network is never answered", [0, 0, 0, 0]),
        from_nobody("a reserved source is never answered", [240, 0, 0, 1]),
        from_nobody("a broadcast source is never answered", [255, 255, 255, 255]),
        case("a SYN to a closed port is acknowledged and reset", closed(SYN), rst(RST | ACK, 0, ISN.wrapping_add(1))),
        case("a SYN's data counts", closed(SYN).data(b"early"), rst(RST | ACK, 0, ISN.wrapping_add(6))),
        case("a FIN without ACK counts", closed(FIN), rst(RST | ACK, 0, ISN.wrapping_add(1))),
        case("data without any flag counts", closed(0).data(&[7; 300]), rst(RST | ACK, 0, ISN.wrapping_add(300))),
        case("data in several buffers counts", closed(0).data(&[7; 6_000]), rst(RST | ACK, 0, ISN.wrapping_add(6_000)))
            .jumbo(),
        Case::ingress("padding in further buffers is cut from the answer", padded)
            .given(rejecting)
            .becomes(Verdict::Transmitted(to_padded), &counted(DropReason::NoService))
            .jumbo(),
        case("an ACK is reset at its own number", closed(ACK).data(&[7; 99]), rst(RST, 0x1234_5678, 0)),
        case("a SYN-ACK is reset at its own number", closed(SYN | ACK), rst(RST, 0x1234_5678, 0)),
        Case::ingress("a SYN with options is reset without", with_options)
            .given(rejecting)
            .becomes(Verdict::Transmitted(to_options), &counted(DropReason::NoService)),
        Case::ingress("a SYN to a Service without backends is reset", empty.clone())
            .given(rejecting)
            .becomes(Verdict::Transmitted(reset(&empty, from_empty)), &counted(DropReason::NoBackend)),
        Case::ingress(
            "a first fragment is never answered",
            from_client().ipv4(&Ipv4::tcp(CLIENT, VIP, closed(SYN).data(&[7; 40])).fragment(0x2000)),
        )
        .given(rejecting)
        .dropped(DropReason::NoService),
        Case::ingress("a RST is never answered", from_client().ipv4(&Ipv4::tcp(CLIENT, VIP, closed(RST))))
            .given(rejecting)
            .dropped(DropReason::NoService),
        Case::ingress("a peer's hand-over is never answered", from_peer().ipv4(&Ipv4::tcp(CLIENT, VIP, closed(SYN))))
            .given(rejecting)
            .becomes(Verdict::Dropped(DropReason::NoService), &[Counter::Stat(Stat::FromPeer)]),
        Case::ingress(
            "a multicast source is never answered",
            from_client().ipv4(&Ipv4::tcp([224, 0, 0, 1].into(), VIP, closed(SYN))),
        )
        .given(rejecting)
        .dropped(DropReason::NoService),
    ]
}

/// Returns a port unreachable with the offending packet's IPv4 header and first eight bytes.
fn unreachable(frame: &[u8], link: usize) -> Payload {
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    message.extend(&frame[link..link + 28]);
    sealed(message)
}

/// Returns an ICMP message with its checksum.
pub(crate) fn sealed(mut message: Vec<u8>) -> Payload {
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    Payload::Other(1, message)
}

fn unreachables() -> Vec<Case> {
    let from_vip = |vip, payload| Ipv4 { identification: 0, ..Ipv4::new(vip, CLIENT, payload) };
    let packet = |vip| Ipv4::udp(CLIENT, vip, Udp::new(CLIENT_PORT, CLOSED, b"a question to nobody, rather long"));
    let plain = from_client().ipv4(&packet(VIP));
    let tagged = from_client().tagged(VLAN).ipv4(&packet(TAGGED));
    let (to_plain, to_tagged) = (unreachable(&plain, 14), unreachable(&tagged, 18));
    let options = from_client().ipv4(&packet(VIP).options(&[1; 8]));
    vec![
        Case::ingress("a datagram to a closed port", plain)
            .given(rejecting)
            .becomes(Verdict::Transmitted(back().ipv4(&from_vip(VIP, to_plain))), &counted(DropReason::NoService)),
        Case::ingress("a tagged datagram is answered with its tag", tagged).given(rejecting).becomes(
            Verdict::Transmitted(back().tagged(VLAN).ipv4(&from_vip(TAGGED, to_tagged))),
            &counted(DropReason::NoService),
        ),
        Case::ingress("a datagram with IPv4 options is dropped", options)
            .given(rejecting)
            .dropped(DropReason::NoService),
    ]
}

fn settings() -> Vec<Case> {
    const MTU: u32 = 1500;
    let merged = Ipv4::tcp(CLIENT, VIP, closed(ACK).data(&[0x5a; MTU as usize]));
    let closed_syn = Ipv4::tcp(CLIENT, VIP, closed(SYN));
    let frame = || from_client().ipv4(&Ipv4::tcp(CLIENT, VIP, closed(SYN)));
    let sent_on = Ethernet::new(PEER_MAC, SELF_MAC);
    let rst = Tcp { window: 0, ..Tcp::new(CLOSED, CLIENT_PORT, RST | ACK).numbers(0, ISN.wrapping_add(1)) };
    let refused = Ethernet::new(SELF_MAC, PEER_MAC).ipv4(&Ipv4 { identification: 0, ..Ipv4::tcp(VIP, CLIENT, rst) });
    vec![
        Case::ingress("where it is configured so, unclaimed packets pass", frame())
            .given(|state| state.config.unclaimed = UNCLAIMED_PASS),
        Case::ingress("where they pass, one that a peer's stack has sent on does not", sent_on.ipv4(&closed_syn))
            .given(|state| state.config.unclaimed = UNCLAIMED_PASS)
            .becomes(Verdict::Transmitted(refused), &counted(DropReason::NoService)),
        Case::ingress("where they pass, one that a peer has handed over does not", from_peer().ipv4(&closed_syn))
            .given(|state| state.config.unclaimed = UNCLAIMED_PASS)
            .becomes(Verdict::Dropped(DropReason::NoService), &[Counter::Stat(Stat::FromPeer)]),
        Case::ingress("a frame that stands for several gets no answer", from_client().ipv4(&merged))
            .given(|state| {
                rejecting(state);
                state.interfaces[IFINDEX].flags = INTERFACE_GENERIC | MTU << INTERFACE_MTU_SHIFT;
            })
            .dropped(DropReason::NoService),
        Case::ingress("a served port is not rejected", from_client().ipv4(&datagram(SYSLOG)))
            .given(rejecting)
            .becomes(
                Verdict::Transmitted(crate::demux::handed(&datagram(SYSLOG), PEER_MAC)),
                &crate::demux::new_flow(SYSLOG, Stat::HandedOver),
            )
            .then(|state| recorded(state, SYSLOG)),
        Case::ingress("an exhausted budget answers nothing", frame())
            .given(|state| {
                rejecting(state);
                state.config.answers_per_second = 0;
            })
            .becomes(Verdict::Dropped(DropReason::NoService), &[Counter::Stat(Stat::AnswerLimited)]),
        Case::ingress("an echo request beyond the budget", request(&from_client(), &[1; 56], 64))
            .given(|state| state.config.answers_per_second = 0)
            .becomes(Verdict::Dropped(DropReason::Icmp), &[Counter::Stat(Stat::AnswerLimited)]),
    ]
}

fn recorded(state: &mut State, service: Service) {
    service.record(state, crate::fixture::REMOTE, 0, 0);
}

fn echo(kind: u8, data: &[u8]) -> Payload {
    let mut message = vec![kind, 0, 0, 0, 0x12, 0x34, 0, 1];
    message.extend(data);
    sealed(message)
}

fn request(ethernet: &Ethernet, data: &[u8], ttl: u8) -> Vec<u8> {
    ethernet.ipv4(&Ipv4::new(CLIENT, VIP, echo(8, data)).ttl(ttl))
}

fn echoes() -> Vec<Case> {
    let reply = |data: &[u8]| back().ipv4(&Ipv4::new(VIP, CLIENT, echo(0, data)));
    let cut = from_client().ipv4(&Ipv4::new(CLIENT, VIP, Payload::Other(1, vec![8, 0, 0xf7, 0xff, 0, 0])));
    let answered = |name, data: &[u8], ttl| {
        Case::ingress(name, request(&from_client(), data, ttl))
            .becomes(Verdict::Transmitted(reply(data)), &[Counter::Stat(Stat::EchoAnswered)])
    };
    vec![
        answered("an echo request is answered", &[0xa5; 56], 64),
        answered("an echo request of odd length", &[0xff; 33], 64),
        answered("an echo request without data", &[], 64),
        answered("an echo request at the end of its way", &[1; 56], 1),
        Case::ingress(
            "a tagged echo request is answered with its tag",
            from_client().tagged(VLAN).ipv4(&Ipv4::new(CLIENT, TAGGED, echo(8, &[1; 56]))),
        )
        .becomes(
            Verdict::Transmitted(back().tagged(VLAN).ipv4(&Ipv4::new(TAGGED, CLIENT, echo(0, &[1; 56])))),
            &[Counter::Stat(Stat::EchoAnswered)],
        ),
        Case::ingress("an echo reply is not answered", from_client().ipv4(&Ipv4::new(CLIENT, VIP, echo(0, &[1; 56]))))
            .dropped(DropReason::Icmp),
        Case::ingress("an echo request that a peer handed over", request(&from_peer(), &[1; 56], 64))
            .becomes(Verdict::Dropped(DropReason::Icmp), &[Counter::Stat(Stat::FromPeer)]),
        Case::ingress("a cut echo request", cut.clone()).dropped(DropReason::Malformed),
        Case::ingress("a cut echo request with padding", [cut, vec![0; 20]].concat()).dropped(DropReason::Malformed),
    ]
}
