//! Cases of VIPs on a segment with a number: how nodes are reached there.

use vipmux_common::abi::{DropReason, NODE_ATTACHED, NODE_VLAN, NODE_VLAN_SHIFT, Stat};
use vipmux_tests::{
    frames::{Ethernet, Ipv4, Mac},
    program::State,
};

use crate::{
    case::{Case, Verdict},
    demux::{datagram, handed, known_flow, new_flow, segment, syn},
    fixture::{
        FAR, FAR_MAC, HTTPS, MIXED, PEER_BESIDE, PEER_MAC, REMOTE, SELF_HANDOVER, SELF_MAC, SPREAD, SYSLOG,
        TAGGED_HTTP, VIP, VLAN, WHILE, from_client, on_segment,
    },
    fragments,
};

pub(crate) fn cases() -> Vec<Case> {
    [there(), not_there(), tags()].into_iter().flatten().collect()
}

fn sent(packet: &Ipv4, mac: Mac) -> Verdict {
    Verdict::Redirected(handed(packet, mac))
}

/// The backend's node is on the VIP's segment.
fn there() -> Vec<Case> {
    let [first, later] = fragments::cut(&datagram(SYSLOG));
    let from_node = |packet: &Ipv4| Ethernet::new(PEER_BESIDE, SELF_MAC).ipv4(packet);
    vec![
        Case::ingress("a new flow takes the path of the VIP's segment", from_client().ipv4(&syn(HTTPS)))
            .given(|state| on_segment(state, VIP))
            .becomes(sent(&syn(HTTPS), PEER_BESIDE), &new_flow(HTTPS, Stat::HandedOver))
            .then(|state| HTTPS.record(state, REMOTE, 0, 0)),
        Case::ingress("so does a recorded flow", from_client().ipv4(&segment(HTTPS)))
            .given(|state| {
                on_segment(state, VIP);
                HTTPS.record_vouched(state, REMOTE, WHILE, 0);
            })
            .becomes(sent(&segment(HTTPS), PEER_BESIDE), &known_flow(HTTPS, Stat::HandedOver))
            .then(|state| HTTPS.record_vouched(state, REMOTE, 0, 0)),
        Case::ingress("and a first fragment", from_client().ipv4(&first))
            .given(|state| on_segment(state, VIP))
            .becomes(sent(&first, PEER_BESIDE), &new_flow(SYSLOG, Stat::HandedOver))
            .then(|state| {
                SYSLOG.record(state, REMOTE, 0, 0);
                fragments::recorded(state, SYSLOG, REMOTE, 0);
            }),
        Case::ingress("and a later fragment", from_client().ipv4(&later))
            .given(|state| {
                on_segment(state, VIP);
                fragments::recorded(state, SYSLOG, REMOTE, WHILE);
            })
            .becomes(sent(&later, PEER_BESIDE), &known_flow(SYSLOG, Stat::HandedOver)),
        Case::ingress("no frame goes back to the node's MAC on that segment", from_node(&segment(MIXED)))
            .given(|state| {
                on_segment(state, VIP);
                MIXED.record(state, REMOTE, WHILE, 0);
            })
            .becomes(Verdict::Dropped(DropReason::Hairpin), &[]),
        Case::ingress("an epoch that the path does not have vouches for nothing", from_client().ipv4(&segment(HTTPS)))
            .given(|state| {
                on_segment(state, VIP);
                HTTPS.record_vouched(state, REMOTE, WHILE, 0);
                REMOTE.path_of(state).epoch = 0;
                REMOTE.of(state).generation += 1;
            })
            .becomes(sent(&segment(HTTPS), PEER_BESIDE), &new_flow(HTTPS, Stat::HandedOver))
            .then(|state| HTTPS.record(state, REMOTE, 0, 0)),
    ]
}

/// The backend's node is not there, or cannot be reached there. The agent decides which path such
/// a node has.
fn not_there() -> Vec<Case> {
    let detached: fn(&mut State) = |state| {
        on_segment(state, VIP);
        REMOTE.path_of(state).flags &= !NODE_ATTACHED;
    };
    vec![
        Case::ingress("another node is reached by its InternalIP", from_client().ipv4(&syn(SPREAD)))
            .given(|state| {
                on_segment(state, VIP);
                SPREAD.set(state, &[FAR], &[]);
            })
            .becomes(sent(&syn(SPREAD), FAR_MAC), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        Case::ingress("a path without an end is not taken", from_client().ipv4(&syn(HTTPS)))
            .given(detached)
            .becomes(Verdict::Dropped(DropReason::NodeUnreachable), &[]),
        Case::ingress("further slots are tried with the segment's paths", from_client().ipv4(&syn(SPREAD)))
            .given(detached)
            .becomes(sent(&syn(SPREAD), FAR_MAC), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
    ]
}

/// Lets the path end in a VLAN; 0: untagged.
fn in_vlan(state: &mut State, vlan: u32) {
    REMOTE.node_of(state).flags |= NODE_VLAN | vlan << NODE_VLAN_SHIFT;
}

/// A frame leaves with the tag of the path, whatever tag it came with.
fn tags() -> Vec<Case> {
    const OTHER: u16 = VLAN + 1;
    const PRIORITY: u16 = 0xa000;
    let to_peer = || Ethernet::new(SELF_HANDOVER, PEER_MAC);
    let on = |packet: &Ipv4| packet.clone().ttl(packet.ttl - 1);
    let (plain, tagged) = (syn(HTTPS), syn(TAGGED_HTTP));
    let case = |name, frame: Vec<u8>, service, sent: Vec<u8>| {
        Case::ingress(name, frame).becomes(Verdict::Transmitted(sent), &new_flow(service, Stat::HandedOver))
    };
    let recorded: fn(&mut State) = |state| HTTPS.record(state, REMOTE, 0, 0);
    let tagged_recorded: fn(&mut State) = |state| TAGGED_HTTP.record(state, REMOTE, 0, 0);
    vec![
        case(
            "an untagged frame gets a tag",
            from_client().ipv4(&plain),
            HTTPS,
            to_peer().tagged(VLAN).ipv4(&on(&plain)),
        )
        .given(|state| in_vlan(state, VLAN.into()))
        .then(recorded),
        case(
            "a tagged frame loses its tag",
            from_client().tagged(PRIORITY | VLAN).ipv4(&tagged),
            TAGGED_HTTP,
            to_peer().ipv4(&on(&tagged)),
        )
        .given(|state| in_vlan(state, 0))
        .then(tagged_recorded),
        case(
            "a tag changes, and its priority stays",
            from_client().tagged(PRIORITY | VLAN).ipv4(&tagged),
            TAGGED_HTTP,
            to_peer().tagged(PRIORITY | OTHER).ipv4(&on(&tagged)),
        )
        .given(|state| in_vlan(state, OTHER.into()))
        .then(tagged_recorded),
        case(
            "a tag that fits stays",
            from_client().tagged(PRIORITY | VLAN).ipv4(&tagged),
            TAGGED_HTTP,
            to_peer().tagged(PRIORITY | VLAN).ipv4(&on(&tagged)),
        )
        .given(|state| in_vlan(state, VLAN.into()))
        .then(tagged_recorded),
        case(
            "a tag of priority alone is no VLAN's",
            from_client().tagged(PRIORITY).ipv4(&plain),
            HTTPS,
            to_peer().tagged(PRIORITY).ipv4(&on(&plain)),
        )
        .given(|state| in_vlan(state, 0))
        .then(recorded),
        case(
            "such a tag gets a VLAN",
            from_client().tagged(PRIORITY).ipv4(&plain),
            HTTPS,
            to_peer().tagged(PRIORITY | VLAN).ipv4(&on(&plain)),
        )
        .given(|state| in_vlan(state, VLAN.into()))
        .then(recorded),
    ]
}
