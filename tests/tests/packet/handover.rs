//! Cases of handed-over frames: to a backend here, or dropped.

use vipmux_common::abi::{self, BACKEND_READY, DropReason, FLOW_ISN, INTERFACE_OWN_MAC, SERVICE_SPARE, Stat};
use vipmux_tests::{
    frames::{Ethernet, Ipv4, Mac},
    program::{IFINDEX, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, datagram, handed, known_flow, new_flow, segment, syn, to},
    fixture::{
        CLIENT_MAC, DNS, DNS_UDP, ELSEWHERE_HTTP, EMPTY, Endpoint, FAR, FAR_IFINDEX, FAR_MAC, HTTP, HTTPS, LOCAL,
        LOCAL_TOO, MIXED, NEIGHBOR, PEER_MAC, REDIRECTED, REMOTE, SELF_HANDOVER, SELF_MAC, SPREAD, Service, VIP, WHILE,
        from_client, from_peer, vip_of,
    },
};

const FROM_PEER: Counter = Counter::Stat(Stat::FromPeer);

pub(crate) fn cases() -> Vec<Case> {
    [delivered(), refused(), not_handed_over(), with_own_mac()].into_iter().flatten().collect()
}

fn local(name: &'static str, service: Service, packet: &Ipv4, backend: Endpoint, known: bool) -> Case {
    let mut counters = if known { known_flow } else { new_flow }(service, Stat::Local);
    counters.push(FROM_PEER);
    Case::ingress(name, from_peer().ipv4(packet))
        .becomes(Verdict::Passed(from_peer().ipv4(&to(packet, backend))), &counters)
}

/// Makes [`LOCAL`] drain.
fn spare(state: &mut State) {
    LOCAL.of(state).flags &= !BACKEND_READY;
    MIXED.set_flags(state, SERVICE_SPARE);
}

fn delivered() -> Vec<Case> {
    vec![
        local("a handed-over flow keeps its local backend", HTTP, &segment(HTTP), LOCAL_TOO, true)
            .given(|state| HTTP.record(state, LOCAL_TOO, WHILE, 0))
            .then(|state| {
                HTTP.record(state, LOCAL_TOO, 0, 0);
                HTTP.remember(state, LOCAL_TOO, 0, ISN.wrapping_add(1), 0);
            }),
        local("the table's backend is here", HTTP, &syn(HTTP), LOCAL, false)
            .given(|state| HTTP.set(state, &[LOCAL], &[LOCAL_TOO]))
            .then(|state| {
                HTTP.record(state, LOCAL, 0, 0);
                HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            }),
        local("of a VIP that is announced on other interfaces", ELSEWHERE_HTTP, &syn(ELSEWHERE_HTTP), LOCAL, false)
            .given(|state| ELSEWHERE_HTTP.set(state, &[LOCAL], &[LOCAL_TOO]))
            .then(|state| {
                ELSEWHERE_HTTP.record(state, LOCAL, 0, 0);
                ELSEWHERE_HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            }),
        local("the table's backend is elsewhere, the local table's is here", MIXED, &syn(MIXED), LOCAL, false).then(
            |state| {
                MIXED.record(state, LOCAL, 0, 0);
                MIXED.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            },
        ),
        local("a record of an earlier connection elsewhere does not count", MIXED, &syn(MIXED), LOCAL, false)
            .given(|state| MIXED.record(state, REMOTE, WHILE, 0))
            .then(|state| {
                MIXED.record(state, LOCAL, 0, 0);
                MIXED.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            }),
        local("one that drains is better than none", MIXED, &syn(MIXED), LOCAL, false).given(spare).then(|state| {
            MIXED.record(state, LOCAL, 0, 0);
            MIXED.remember(state, LOCAL, 0, ISN, FLOW_ISN);
        }),
        local("a handed-over datagram", DNS_UDP, &datagram(DNS_UDP), DNS, false).then(|state| {
            DNS_UDP.record(state, DNS, 0, 0);
            DNS_UDP.remember(state, DNS, 0, 0, 0);
        }),
        local("a handed-over packet at the end of its TTL is delivered", HTTP, &syn(HTTP).ttl(1), LOCAL, false).then(
            |state| {
                HTTP.record(state, LOCAL, 0, 0);
                HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            },
        ),
        local("a VIP that is not led here is delivered too", HTTP, &syn(HTTP), LOCAL, false)
            .given(|state| vip_of(state, VIP).flags = 0)
            .then(|state| {
                vip_of(state, VIP).flags = 0;
                HTTP.record(state, LOCAL, 0, 0);
                HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            }),
    ]
}

fn refused() -> Vec<Case> {
    let dropped = |name, packet: &Ipv4, reason| {
        Case::ingress(name, from_peer().ipv4(packet)).becomes(Verdict::Dropped(reason), &[FROM_PEER])
    };
    let unclaimed = Service { port: 81, ..HTTP };
    let neighbor = Ipv4 { destination: NEIGHBOR, ..syn(HTTP) };
    vec![
        dropped("no frame is handed on", &syn(HTTPS), DropReason::NotLocal),
        dropped("nor to another interface", &syn(REDIRECTED), DropReason::NotLocal),
        dropped("nor by a flow record", &segment(HTTPS), DropReason::NotLocal)
            .given(|state| HTTPS.record_vouched(state, REMOTE, WHILE, 0)),
        dropped("only a SYN replaces the record of a backend elsewhere", &segment(MIXED), DropReason::NotLocal)
            .given(|state| MIXED.record_vouched(state, REMOTE, WHILE, 0)),
        dropped("but the backend of such a record is looked up once", &segment(MIXED), DropReason::NotLocal)
            .given(|state| MIXED.record(state, REMOTE, WHILE, 0))
            .then(|state| MIXED.record_vouched(state, REMOTE, WHILE, 0)),
        dropped("a handed-over packet to an unclaimed port", &syn(unclaimed), DropReason::NoService),
        dropped("a handed-over packet to a Service without backends", &syn(EMPTY), DropReason::NoBackend),
        Case::ingress("a handed-over packet for another address passes", from_peer().ipv4(&neighbor)),
    ]
}

/// A node's ordinary MAC is no sign of a hand-over: packets of its own clients and packets that it
/// routes are balanced.
fn not_handed_over() -> Vec<Case> {
    let redirected = Ethernet::new(PEER_MAC, SELF_MAC).ipv4(&syn(REDIRECTED));
    let from_node = |packet: &Ipv4| Ethernet::new(PEER_MAC, SELF_MAC).ipv4(packet);
    let forged = |packet: &Ipv4| Ethernet::new([0x0e, 0x76, 0x6d, 0, 0, 2], SELF_MAC).ipv4(packet);
    let reflected = |packet: &Ipv4| Ethernet::new(SELF_HANDOVER, SELF_MAC).ipv4(packet);
    vec![
        Case::ingress("a node's own packet is balanced", redirected)
            .becomes(Verdict::Redirected(handed(&syn(REDIRECTED), FAR_MAC)), &new_flow(REDIRECTED, Stat::HandedOver))
            .then(|state| REDIRECTED.record(state, FAR, 0, 0)),
        Case::ingress("a MAC that only resembles a hand-over MAC is any client's", forged(&syn(HTTPS)))
            .becomes(Verdict::Transmitted(handed(&syn(HTTPS), PEER_MAC)), &new_flow(HTTPS, Stat::HandedOver))
            .then(|state| HTTPS.record(state, REMOTE, 0, 0)),
        Case::ingress("so is this node's own hand-over MAC", reflected(&syn(HTTPS)))
            .becomes(Verdict::Transmitted(handed(&syn(HTTPS), PEER_MAC)), &new_flow(HTTPS, Stat::HandedOver))
            .then(|state| HTTPS.record(state, REMOTE, 0, 0)),
        Case::ingress("with it, a SYN goes to the backend of the live record", forged(&syn(MIXED)))
            .given(|state| MIXED.record(state, REMOTE, WHILE, 0))
            .becomes(Verdict::Transmitted(handed(&syn(MIXED), PEER_MAC)), &known_flow(MIXED, Stat::HandedOver))
            .then(|state| MIXED.record_vouched(state, REMOTE, 0, 0)),
        Case::ingress("with it, no VIP is reached that is announced elsewhere", forged(&syn(ELSEWHERE_HTTP))),
        Case::ingress("a frame of a backend's node changes no record", from_node(&segment(MIXED)))
            .given(|state| MIXED.record_vouched(state, REMOTE, WHILE, 0))
            .dropped(DropReason::Hairpin),
        Case::ingress("nor does a SYN of a backend's node", from_node(&syn(MIXED)))
            .given(|state| MIXED.record_vouched(state, REMOTE, WHILE, 0))
            .dropped(DropReason::Hairpin),
        Case::ingress("but a SYN that a node without the programs sends back moves", from_node(&syn(SPREAD)))
            .given(|state| SPREAD.record(state, REMOTE, 0, abi::FLOW_NEW | abi::FLOW_HALF_OPEN))
            .becomes(Verdict::Redirected(handed(&syn(SPREAD), FAR_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
    ]
}

/// The MAC of the interface towards [`FAR_MAC`].
const OUTLET_MAC: Mac = [0x02, 0, 0, 0, 1, 0x01];

/// If the network takes no second MAC from a node, frames leave with the interface's own.
fn with_own_mac() -> Vec<Case> {
    let own: fn(&mut State) = |state| {
        state.interfaces[IFINDEX].flags = INTERFACE_OWN_MAC;
        state.interfaces[FAR_IFINDEX as usize].mac = abi::Mac::new(OUTLET_MAC);
    };
    let sent = |packet: &Ipv4, from, to| Ethernet::new(from, to).ipv4(&packet.clone().ttl(packet.ttl - 1));
    let elsewhere = |source| Ethernet::new(source, SELF_MAC).ipv4(&syn(ELSEWHERE_HTTP));
    let case = |name, service: Service, verdict| {
        Case::ingress(name, from_client().ipv4(&syn(service)))
            .given(own)
            .becomes(verdict, &new_flow(service, Stat::HandedOver))
    };
    vec![
        case(
            "a frame goes on with the node's own MAC",
            HTTPS,
            Verdict::Transmitted(sent(&syn(HTTPS), SELF_MAC, PEER_MAC)),
        )
        .then(|state| HTTPS.record(state, REMOTE, 0, 0)),
        case(
            "with that of the interface by which it leaves",
            REDIRECTED,
            Verdict::Redirected(sent(&syn(REDIRECTED), OUTLET_MAC, FAR_MAC)),
        )
        .then(|state| REDIRECTED.record(state, FAR, 0, 0)),
        Case::ingress("a node's frame for a VIP that is announced elsewhere was handed over", elsewhere(PEER_MAC))
            .given(|state| {
                state.interfaces[IFINDEX].flags = INTERFACE_OWN_MAC;
                ELSEWHERE_HTTP.set(state, &[REMOTE], &[LOCAL]);
            })
            .becomes(
                Verdict::Passed(Ethernet::new(PEER_MAC, SELF_MAC).ipv4(&to(&syn(ELSEWHERE_HTTP), LOCAL))),
                &[new_flow(ELSEWHERE_HTTP, Stat::Local), vec![FROM_PEER]].concat(),
            )
            .then(|state| {
                ELSEWHERE_HTTP.record(state, LOCAL, 0, 0);
                ELSEWHERE_HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            }),
        Case::ingress("so it goes to no third node", elsewhere(PEER_MAC))
            .given(|state| {
                state.interfaces[IFINDEX].flags = INTERFACE_OWN_MAC;
                ELSEWHERE_HTTP.set(state, &[FAR], &[]);
            })
            .becomes(Verdict::Dropped(DropReason::NotLocal), &[FROM_PEER]),
        Case::ingress("a client's frame for such a VIP passes", elsewhere(CLIENT_MAC)).given(own),
        Case::ingress("where nodes have hand-over MACs, a node's frame passes too", elsewhere(PEER_MAC)),
    ]
}
