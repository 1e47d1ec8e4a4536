//! Cases of SCTP: balanced by its first chunk, and delivered with unchanged ports and checksum.

use vipmux_common::abi::{DropReason, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_ISN, FLOW_RESET, Stat, UNCLAIMED_REJECT};
use vipmux_tests::{
    frames::{Chunk, Ethernet, Ipv4, Payload, Sctp},
    program::State,
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{expired, handed, known_flow, new_flow, to},
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, PEER_MAC, PHONE, PHONE_REMOTE, SELF_MAC, SIGNAL, SIGNAL_REMOTE, Service, VIP,
        WHILE, from_client, from_peer,
    },
    replies::{self, from},
};

pub(crate) fn cases() -> Vec<Case> {
    [delivered(), handed_over(), opened_again(), refused(), cut(), replies()].into_iter().flatten().collect()
}

/// The initiate tag of the client's INIT, which replies must have.
const TAG: u32 = 0x8000_0001;
/// The value in its record: an INIT ACK's tag must be this plus one.
const ISN: u32 = TAG - 1;
const BACKENDS_TAG: u32 = 0x1234_5678;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;

fn packet(service: Service, tag: u32, chunk: Chunk) -> Ipv4 {
    Ipv4::sctp(CLIENT, service.vip, Sctp::new(CLIENT_PORT, service.port, tag, chunk))
}

fn init(service: Service) -> Ipv4 {
    packet(service, 0, Chunk::init(TAG))
}

fn data(service: Service) -> Ipv4 {
    packet(service, BACKENDS_TAG, Chunk::data(1, b"odd"))
}

fn shutdown(kind: u8) -> Chunk {
    Chunk::new(kind, 0, if kind == SHUTDOWN { &[0, 0, 0, 1] } else { &[] })
}

fn association(state: &mut State, age: u64, flags: u32) {
    PHONE.record(state, SIGNAL, age, flags & !FLOW_BACKEND_FIN);
    PHONE.remember(state, SIGNAL, age, ISN, FLOW_ISN | flags);
}

fn established(state: &mut State) {
    association(state, WHILE, 0);
}

fn refreshed(state: &mut State) {
    association(state, 0, 0);
}

fn local(name: &'static str, packet: &Ipv4, known: bool) -> Case {
    let count = if known { known_flow } else { new_flow };
    Case::ingress(name, from_client().ipv4(packet))
        .becomes(Verdict::Passed(from_client().ipv4(&to(packet, SIGNAL))), &count(PHONE, Stat::Local))
}

fn delivered() -> Vec<Case> {
    let follows = |name, packet: &Ipv4| local(name, packet, true).given(established);
    let mut by_peer = new_flow(PHONE, Stat::Local);
    by_peer.push(Counter::Stat(Stat::FromPeer));
    vec![
        local("an INIT makes a flow", &init(PHONE), false).then(refreshed),
        follows("DATA follows", &data(PHONE)).then(refreshed),
        follows("chunks after the first do not matter", &{
            let mut packet = data(PHONE);
            if let Payload::Sctp(sctp) = &mut packet.payload {
                sctp.chunks.push(Chunk::sack(7));
            }
            packet
        })
        .then(refreshed),
        follows("an ABORT closes", &packet(PHONE, BACKENDS_TAG, Chunk::abort(false)))
            .then(|state| association(state, 0, FLOW_RESET)),
        follows("a SHUTDOWN closes the client's side", &packet(PHONE, BACKENDS_TAG, shutdown(SHUTDOWN)))
            .then(|state| association(state, 0, FLOW_CLIENT_FIN)),
        follows("a SHUTDOWN ACK closes the client's side", &packet(PHONE, BACKENDS_TAG, shutdown(SHUTDOWN_ACK)))
            .then(|state| association(state, 0, FLOW_CLIENT_FIN)),
        local("DATA without an INIT before it is balanced too", &data(PHONE), false).then(|state| {
            PHONE.record(state, SIGNAL, 0, 0);
            PHONE.remember(state, SIGNAL, 0, 0, 0);
        }),
        Case::ingress("a handed-over INIT", from_peer().ipv4(&init(PHONE)))
            .becomes(Verdict::Passed(from_peer().ipv4(&to(&init(PHONE), SIGNAL))), &by_peer)
            .then(refreshed),
    ]
}

fn handed_over() -> Vec<Case> {
    let case = |name, packet: &Ipv4, count: Vec<Counter>| {
        Case::ingress(name, from_client().ipv4(packet)).becomes(Verdict::Transmitted(handed(packet, PEER_MAC)), &count)
    };
    vec![
        case("an INIT is handed over", &init(PHONE_REMOTE), new_flow(PHONE_REMOTE, Stat::HandedOver))
            .then(|state| PHONE_REMOTE.record(state, SIGNAL_REMOTE, 0, 0)),
        case("so is DATA", &data(PHONE_REMOTE), known_flow(PHONE_REMOTE, Stat::HandedOver))
            .given(|state| PHONE_REMOTE.record(state, SIGNAL_REMOTE, WHILE, 0))
            .then(|state| PHONE_REMOTE.record_vouched(state, SIGNAL_REMOTE, 0, 0)),
        expired("an INIT with a TTL of 1 is not", &init(PHONE_REMOTE).ttl(1), PHONE_REMOTE)
            .then(|state| PHONE_REMOTE.record(state, SIGNAL_REMOTE, 0, 0)),
    ]
}

fn opened_again() -> Vec<Case> {
    vec![
        local("an INIT does not move a live association", &init(PHONE), true).given(established).then(refreshed),
        local("an INIT after an ABORT, which may be forged, moves nothing", &init(PHONE), true)
            .given(|state| association(state, WHILE, FLOW_RESET))
            .then(refreshed),
        local("an INIT after a SHUTDOWN makes a new flow", &init(PHONE), false)
            .given(|state| association(state, WHILE, FLOW_CLIENT_FIN | FLOW_BACKEND_FIN))
            .then(refreshed),
    ]
}

fn refused() -> Vec<Case> {
    let unclaimed = Service { port: 2907, ..PHONE };
    let rejecting: fn(&mut State) = |state| state.config.unclaimed = UNCLAIMED_REJECT;
    let frame = from_client().ipv4(&init(unclaimed));
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    message.extend(&frame[14..14 + 28]);
    let answer = Ipv4 { identification: 0, ..Ipv4::new(VIP, CLIENT, crate::reject::sealed(message)) };
    vec![
        Case::ingress("an INIT to an unclaimed port", frame.clone()).dropped(DropReason::NoService),
        Case::ingress("an INIT to an unclaimed port is answered", frame).given(rejecting).becomes(
            Verdict::Transmitted(Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(&answer)),
            &[Counter::Drop(DropReason::NoService), Counter::Stat(Stat::Rejected)],
        ),
        Case::ingress(
            "an ABORT is never answered",
            from_client().ipv4(&packet(unclaimed, BACKENDS_TAG, Chunk::abort(true))),
        )
        .given(rejecting)
        .dropped(DropReason::NoService),
        Case::ingress(
            "TCP's port is not SCTP's",
            from_client().ipv4(&packet(Service { port: 80, ..PHONE }, 0, Chunk::init(TAG))),
        )
        .dropped(DropReason::NoService),
    ]
}

/// The common header, a chunk's header, and an INIT's first field are needed.
fn cut() -> Vec<Case> {
    let cut = |name, packet: Ipv4, length: usize| {
        let bytes = packet.bytes();
        let payload = Payload::Other(132, bytes[20..20 + length].to_vec());
        Case::ingress(name, from_client().ipv4(&Ipv4 { payload, ..packet }))
    };
    vec![
        cut("an SCTP header without ports", data(PHONE), 3).dropped(DropReason::Malformed),
        cut("an SCTP header cut short", data(PHONE), 11).dropped(DropReason::Malformed),
        cut("SCTP without a chunk", data(PHONE), 12).dropped(DropReason::Malformed),
        cut("a chunk's header cut short", data(PHONE), 15).dropped(DropReason::Malformed),
        cut("an INIT without its tag", init(PHONE), 19).dropped(DropReason::Malformed),
    ]
}

fn reply(tag: u32, chunk: Chunk) -> Ipv4 {
    Ipv4::sctp(SIGNAL.address, CLIENT, Sctp::new(SIGNAL.port, CLIENT_PORT, tag, chunk))
}

fn replies() -> Vec<Case> {
    let out = || Ethernet::new(SELF_MAC, CLIENT_MAC);
    let restored = |name, packet: &Ipv4| {
        Case::egress(name, out().ipv4(packet))
            .given(|state| PHONE.remember(state, SIGNAL, WHILE, ISN, FLOW_ISN))
            .becomes(Verdict::Passed(out().ipv4(&from(PHONE, packet))), &[Counter::Stat(Stat::Replies)])
    };
    let direct = |name, packet: &Ipv4| {
        Case::egress(name, out().ipv4(packet))
            .becomes(Verdict::Untouched, &[Counter::Stat(Stat::DirectReplies)])
            .then(replies::forgotten)
    };
    let accepted = |tag| reply(tag, Chunk::init_ack(BACKENDS_TAG));
    let now: fn(&mut State) = |state| PHONE.remember(state, SIGNAL, 0, ISN, FLOW_ISN);
    vec![
        restored("an INIT ACK with the client's tag comes from the VIP", &accepted(TAG)).then(now),
        restored("DATA comes from the VIP", &reply(TAG, Chunk::data(9, b"answer"))).then(now),
        restored("a backend's ABORT closes", &reply(TAG, Chunk::abort(false)))
            .then(|state| PHONE.remember(state, SIGNAL, 0, ISN, FLOW_ISN | FLOW_RESET)),
        restored("a backend's SHUTDOWN closes its side", &reply(TAG, shutdown(SHUTDOWN)))
            .then(|state| PHONE.remember(state, SIGNAL, 0, ISN, FLOW_ISN | FLOW_BACKEND_FIN)),
        direct("an INIT ACK with another tag is of a direct association", &accepted(TAG + 1))
            .given(|state| PHONE.remember(state, SIGNAL, WHILE, ISN, FLOW_ISN)),
        direct("an INIT ACK of no INIT that was seen is of a direct association", &accepted(TAG))
            .given(|state| PHONE.remember(state, SIGNAL, WHILE, ISN, 0)),
        Case::egress("another SCTP packet leaves", out().ipv4(&reply(TAG, Chunk::data(9, b"answer")))),
    ]
}
