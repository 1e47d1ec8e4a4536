//! Cases of VIPs on a segment with a number: how nodes are reached there.

use vipmux_common::abi::{
    DropReason, INTERFACE_GENERIC, INTERFACE_MERGED, INTERFACE_MTU_SHIFT, INTERFACE_UNSUMMED, NODE_ATTACHED, NODE_VLAN,
    NODE_VLAN_SHIFT, Stat,
};
use vipmux_tests::{
    frames::{ACK, Ethernet, Icmpv6, Ipv4, Ipv6, Mac, Tcp},
    program::{FLOW_SECRET, IFINDEX, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{datagram, handed, known_flow, new_flow, segment, syn},
    family::v6,
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, FAR, FAR_MAC, HTTPS, MIXED, PEER_BESIDE, PEER_MAC, REMOTE, SELF_HANDOVER,
        SELF_MAC, SPREAD, SYSLOG, TAGGED_HTTP, VIP, VLAN, WHILE, from_client, on_segment,
    },
    fragments,
    reject::sealed,
};

pub(crate) fn cases() -> Vec<Case> {
    [there(), not_there(), tags(), too_big()].into_iter().flatten().collect()
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
                MIXED.record_of(state).epoch = REMOTE.path_of(state).epoch;
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

/// Bytes.
const NARROW: u16 = 60;
const WIDE: u32 = 1_500;

/// Returns a frame with the mark in front of it that `vipmux_ingress` looks for.
fn marked(frame: &[u8]) -> Vec<u8> {
    let own = FLOW_SECRET.frame_mark().to_ne_bytes();
    let outlet = u32::try_from(IFINDEX).unwrap().to_ne_bytes();
    [[0; 16].as_slice(), &own, &outlet, frame].concat()
}

/// The path is narrower than the interface where packets come in.
fn narrow(state: &mut State) {
    state.interfaces[IFINDEX].flags |= WIDE << INTERFACE_MTU_SHIFT;
    REMOTE.node_of(state).mtu = NARROW.into();
}

/// A packet to [`HTTPS`] of this length with its headers, which must not be fragmented.
fn long(length: u16) -> Ipv4 {
    let tcp = Tcp::new(CLIENT_PORT, HTTPS.port, ACK).numbers(7, 77).data(&vec![0x5a; usize::from(length - 40)]);
    Ipv4::tcp(CLIENT, VIP, tcp).fragment(0x4000)
}

/// What is longer than the path's MTU is answered, so that its sender learns the MTU.
fn too_big() -> Vec<Case> {
    const EMBEDDED: usize = 28;
    let too_long = long(NARROW + 1);
    let [high, low] = NARROW.to_be_bytes();
    let message = [&[3, 4, 0, 0, 0, 0, high, low], &too_long.bytes()[..EMBEDDED]].concat();
    let told = Ipv4 { identification: 0, ..Ipv4::new(VIP, CLIENT, sealed(message)) };
    let counters = [Counter::Drop(DropReason::TooBig), Counter::Stat(Stat::Rejected)];
    let known = [&counters[..], &[Counter::Service(HTTPS.slot)]].concat();
    let new = [&counters[..], &[Counter::Stat(Stat::NewFlows), Counter::NewFlow(HTTPS.slot)]].concat();
    let long_v6 = Ipv6::tcp(v6(CLIENT), v6(VIP), Tcp::new(CLIENT_PORT, HTTPS.port, ACK).data(&[0x5a; 30]));
    let told_v6 = Icmpv6::packet_too_big(NARROW.into(), &long_v6.bytes()[..48]);
    let back = || Ethernet::new(SELF_MAC, CLIENT_MAC);
    let recorded: fn(&mut State) = |state| HTTPS.record(state, REMOTE, 0, 0);
    vec![
        Case::ingress("a packet as long as the MTU goes on", from_client().ipv4(&long(NARROW)))
            .given(narrow)
            .becomes(Verdict::Transmitted(handed(&long(NARROW), PEER_MAC)), &new_flow(HTTPS, Stat::HandedOver))
            .then(recorded)
            .in_this_family(),
        Case::ingress("the client of a longer one is told", from_client().ipv4(&too_long))
            .given(narrow)
            .becomes(Verdict::Transmitted(back().ipv4(&told)), &new)
            .then(recorded),
        Case::ingress("also in the middle of a connection", from_client().ipv4(&too_long))
            .given(|state| {
                narrow(state);
                HTTPS.record_vouched(state, REMOTE, WHILE, 0);
            })
            .becomes(Verdict::Transmitted(back().ipv4(&told)), &known)
            .then(|state| HTTPS.record_vouched(state, REMOTE, 0, 0)),
        Case::ingress("in IPv6 too", from_client().ipv6(&long_v6))
            .given(narrow)
            .becomes(
                Verdict::Transmitted(
                    back().ipv6(&Ipv6 { flow_label: 0, ..Ipv6::icmpv6(v6(VIP), v6(CLIENT), told_v6) }),
                ),
                &new,
            )
            .then(recorded)
            .v6(),
        Case::ingress("one that may be fragmented is dropped", from_client().ipv4(&long(NARROW + 1).fragment(0)))
            .given(narrow)
            .becomes(
                Verdict::Dropped(DropReason::TooBig),
                &[Counter::Stat(Stat::NewFlows), Counter::NewFlow(HTTPS.slot)],
            )
            .then(recorded)
            .in_this_family(),
        Case::ingress("one that stands for several is left to the tc program", from_client().ipv4(&too_long))
            .given(|state| {
                narrow(state);
                state.interfaces[IFINDEX].flags =
                    INTERFACE_GENERIC | INTERFACE_MERGED | u32::from(NARROW) << INTERFACE_MTU_SHIFT;
            })
            .becomes(Verdict::Passed(marked(&handed(&too_long, PEER_MAC))), &new_flow(HTTPS, Stat::HandedOver))
            .then(recorded),
        Case::ingress("where no card computes checksums, tc sends all frames", from_client().ipv4(&long(NARROW)))
            .given(|state| {
                state.interfaces[IFINDEX].flags = INTERFACE_GENERIC
                    | INTERFACE_MERGED
                    | INTERFACE_UNSUMMED
                    | u32::from(NARROW) << INTERFACE_MTU_SHIFT;
            })
            .becomes(Verdict::Passed(marked(&handed(&long(NARROW), PEER_MAC))), &new_flow(HTTPS, Stat::HandedOver))
            .then(recorded)
            .in_this_family(),
        Case::ingress(
            "a later fragment that is too long is dropped",
            from_client().ipv4(&fragments::cut(&datagram(SYSLOG))[1]),
        )
        .given(|state| {
            narrow(state);
            REMOTE.node_of(state).mtu = 21;
            fragments::recorded(state, SYSLOG, REMOTE, WHILE);
        })
        .becomes(Verdict::Dropped(DropReason::TooBig), &[Counter::Service(SYSLOG.slot)]),
    ]
}
