//! Cases of plain packets: of an established flow to this node, or to another one in a frame whose VLAN the
//! path has. In all other cases here, one circumstance makes such a packet special.

use vipmux_common::abi::{
    BACKEND_READY, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_HALF_OPEN, FLOW_ISN, FLOW_NEW, FLOW_RESET, INTERFACE_OWN_MAC,
    Mac, NODE_ATTACHED, NODE_VLAN_SHIFT, SERVICE_GONE, Stat,
};
use vipmux_tests::{
    frames::{ACK, Ethernet, FIN, Ipv4, RST},
    program::{Hook, IFINDEX, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, datagram, handed, known_flow, new_flow, segment, to},
    fixture::{
        self, FAR, FAR_MAC, HTTP, LOCAL, LOCAL_TOO, PEER_MAC, REMOTE, SELF_HANDOVER, SELF_MAC, SPREAD, SYSLOG, Service,
        TAGGED_HTTP, VLAN, from_client, from_peer, know_vlans,
    },
    flows::with_flags,
    pool,
};

pub(crate) fn cases() -> Vec<Case> {
    [unchanged(), of_records(), elsewhere(), sent_differently(), local()].into_iter().flatten().collect()
}

/// Records an established flow to a node on the frames' VLAN, whose epoch vouches for it.
pub(crate) fn established(state: &mut State, service: Service) {
    know_vlans(state);
    service.record_vouched(state, REMOTE, 0, 0);
}

fn to_spread(state: &mut State) {
    established(state, SPREAD);
}

fn to_peer(name: &'static str, packet: &Ipv4) -> Case {
    sent_as(name, packet, handed(packet, PEER_MAC))
}

fn sent_as(name: &'static str, packet: &Ipv4, sent: Vec<u8>) -> Case {
    Case::ingress(name, from_client().ipv4(packet))
        .given(to_spread)
        .becomes(Verdict::Transmitted(sent), &known_flow(SPREAD, Stat::HandedOver))
}

/// Its record stays as it is.
fn unchanged() -> Vec<Case> {
    let tagged = segment(TAGGED_HTTP);
    let sent = Ethernet::new(SELF_HANDOVER, PEER_MAC).tagged(VLAN).ipv4(&tagged.clone().ttl(tagged.ttl - 1));
    let to_far = Verdict::Redirected(handed(&segment(SPREAD), FAR_MAC));
    vec![
        to_peer("a plain segment", &segment(SPREAD)),
        Case::ingress("a plain datagram", from_client().ipv4(&datagram(SYSLOG)))
            .given(|state| established(state, SYSLOG))
            .becomes(Verdict::Transmitted(handed(&datagram(SYSLOG), PEER_MAC)), &known_flow(SYSLOG, Stat::HandedOver)),
        Case::ingress("a plain segment to another interface", from_client().ipv4(&segment(SPREAD)))
            .given(|state| {
                know_vlans(state);
                SPREAD.record_vouched(state, FAR, 0, 0);
            })
            .becomes(to_far, &known_flow(SPREAD, Stat::HandedOver)),
        Case::ingress("a plain segment with a tag", from_client().tagged(VLAN).ipv4(&tagged))
            .given(|state| {
                established(state, TAGGED_HTTP);
                REMOTE.node_of(state).flags |= u32::from(VLAN) << NODE_VLAN_SHIFT;
            })
            .becomes(Verdict::Transmitted(sent), &known_flow(TAGGED_HTTP, Stat::HandedOver)),
    ]
}

/// The segment changes the record.
fn of_records() -> Vec<Case> {
    vec![
        to_peer("a client's FIN", &with_flags(SPREAD, FIN | ACK))
            .then(|state| SPREAD.record_vouched(state, REMOTE, 0, FLOW_CLIENT_FIN)),
        to_peer("a client's RST", &with_flags(SPREAD, RST))
            .then(|state| SPREAD.record_vouched(state, REMOTE, 0, FLOW_RESET)),
        to_peer("a segment after an RST", &segment(SPREAD))
            .given(|state| {
                to_spread(state);
                SPREAD.record_vouched(state, REMOTE, 0, FLOW_RESET);
            })
            .then(to_spread),
    ]
}

/// The record's backend is of no use.
fn elsewhere() -> Vec<Case> {
    let to_far = |name| {
        Case::ingress(name, from_client().ipv4(&segment(SPREAD)))
            .becomes(Verdict::Redirected(handed(&segment(SPREAD), FAR_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0))
    };
    vec![
        to_far("the Service of a plain segment is gone").given(|state| {
            to_spread(state);
            SPREAD.set(state, &[FAR], &[]);
            state.service_states[SPREAD.slot as usize].flags = SERVICE_GONE;
        }),
        to_far("the node of a plain segment cannot be reached").given(|state| {
            to_spread(state);
            SPREAD.set(state, &[FAR], &[]);
            REMOTE.node_of(state).flags &= !NODE_ATTACHED;
        }),
    ]
}

/// More changes in the frame, or another MAC is its source.
fn sent_differently() -> Vec<Case> {
    let packet = segment(SPREAD);
    let forwarded = packet.clone().ttl(packet.ttl - 1);
    let own = Ethernet::new(SELF_MAC, PEER_MAC);
    vec![
        sent_as(
            "a plain segment gets the tag of the path",
            &packet,
            Ethernet::new(SELF_HANDOVER, PEER_MAC).tagged(VLAN).ipv4(&forwarded),
        )
        .given(|state| {
            to_spread(state);
            REMOTE.node_of(state).flags |= u32::from(VLAN) << NODE_VLAN_SHIFT;
        }),
        sent_as("a plain segment by an interface that takes one MAC", &packet, own.ipv4(&forwarded)).given(|state| {
            to_spread(state);
            state.interfaces[IFINDEX].flags = INTERFACE_OWN_MAC;
        }),
        sent_as("a plain segment of a node without a hand-over MAC", &packet, own.ipv4(&forwarded)).given(|state| {
            to_spread(state);
            state.config.handover = Mac::default();
        }),
    ]
}

/// Records an established flow to a backend on this node that [`HTTP`]'s table does not have.
fn to_local(state: &mut State) {
    HTTP.remember(state, LOCAL_TOO, 0, ISN, FLOW_ISN);
}

/// To a backend on this node, or the record's backend is of no use.
fn local() -> Vec<Case> {
    let packet = segment(HTTP);
    let stays = |name, from: fn() -> Ethernet, count: &[Counter]| {
        Case::ingress(name, from().ipv4(&packet))
            .given(to_local)
            .becomes(Verdict::Passed(from().ipv4(&to(&packet, LOCAL_TOO))), count)
    };
    let moves = |name| {
        Case::ingress(name, from_client().ipv4(&packet))
            .becomes(Verdict::Passed(from_client().ipv4(&to(&packet, LOCAL))), &new_flow(HTTP, Stat::Local))
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN.wrapping_add(1), 0))
    };
    let known = known_flow(HTTP, Stat::Local);
    let handed = [&known[..], &[Counter::Stat(Stat::FromPeer)]].concat();
    vec![
        stays("a plain segment to a local backend", from_client, &known),
        stays("a plain segment that was handed over", from_peer, &handed),
        stays("a plain segment just after the client turned to the backend itself", from_client, &known)
            .given(|state| HTTP.remember(state, LOCAL_TOO, 0, ISN, FLOW_ISN | FLOW_DIRECT)),
        moves("the index of a plain segment's backend has another one").given(|state| {
            to_local(state);
            LOCAL_TOO.of(state).generation += 1;
        }),
        moves("the backend of a plain segment is on another node now").given(|state| {
            to_local(state);
            let backend = LOCAL_TOO.of(state);
            (backend.node, backend.flags) = (REMOTE.node, BACKEND_READY);
        }),
    ]
}

/// A second packet shows that the client is there. Cases do not tell such records from others.
pub(crate) fn second_packets_prove_flows() {
    for young in [FLOW_NEW, FLOW_HALF_OPEN, FLOW_NEW | FLOW_HALF_OPEN] {
        let mut state = fixture::state();
        to_spread(&mut state);
        SPREAD.record_of(&mut state).flags = u8::try_from(young).unwrap();
        let program = pool::load(&state, fixture::FLOWS).unwrap();
        program.run(Hook::Ingress, &from_client().ipv4(&segment(SPREAD))).unwrap();
        let flows = program.state().unwrap().flows;
        assert_eq!(flows[&SPREAD.flow()].flags, 0, "of a record with the flags {young:#x}");
    }
}
