//! Cases: an agent was away for too long. Its node serves hand-overs and the flows of its own
//! backends, and leaves all else to its stack.

use vipmux_common::abi::{
    DropReason, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_ISN, INTERFACE_OWN_MAC, Stat, UNCLAIMED_REJECT,
};
use vipmux_tests::{
    frames::{Ethernet, Ipv4},
    program::{IFINDEX, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, datagram, handed, known_flow, new_flow, question_to_dns, segment, syn, syn_to_http, to},
    fixture::{
        CLIENT, DNS, DNS_UDP, ELSEWHERE_HTTP, HTTP, HTTPS, LOCAL, LOCAL_TOO, PEER_MAC, PHONE, REMOTE, SELF_MAC, SYSLOG,
        Service, UDP_IDLE, VIP, WHILE, boot_time, from_client, from_peer,
    },
    fragments::{cut, recorded},
    icmp::{self, FRAGMENTATION_NEEDED, about, reply, to_backend, to_vip},
    reject::sealed,
};

const SECOND: u64 = 1_000_000_000;

pub(crate) fn cases() -> Vec<Case> {
    [passed(), handed_over(), of_local_flows(), not_yet(), answered()].into_iter().flatten().collect()
}

fn abandoned(state: &mut State) {
    state.config.abandon_after = 1;
    state.config.unclaimed = UNCLAIMED_REJECT;
    state.fence.deadline = boot_time().saturating_sub(SECOND);
}

fn passed() -> Vec<Case> {
    let case = |name, frame| Case::ingress(name, frame).given(abandoned);
    let client = |packet: &Ipv4| from_client().ipv4(packet);
    let echo = Ipv4::new(CLIENT, VIP, sealed(vec![8, 0, 0, 0, 0x12, 0x34, 0, 1]));
    let unclaimed = Service { port: 81, ..HTTP };
    vec![
        case("an abandoned SYN", client(&syn(HTTP))),
        case("an abandoned SYN for another node", client(&syn(HTTPS))),
        case("an abandoned datagram", client(&datagram(SYSLOG))),
        case(
            "an abandoned SCTP packet",
            client(&Ipv4 { payload: vipmux_tests::frames::Payload::Other(132, vec![0; 32]), ..syn(PHONE) }),
        ),
        case("an abandoned packet of no Service", client(&syn(unclaimed))),
        case("an abandoned echo request", client(&echo)),
        case("an abandoned first fragment", client(&segment(HTTP).fragment(0x2000))),
        case("an abandoned later fragment", client(&segment(HTTP).fragment(0x0001))),
        case("an abandoned SYN after a closed connection", client(&syn(HTTP))).given(|state| {
            abandoned(state);
            HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN | FLOW_CLIENT_FIN | FLOW_BACKEND_FIN);
        }),
        case("an abandoned datagram of an idle flow", client(&datagram(DNS_UDP))).given(|state| {
            abandoned(state);
            DNS_UDP.remember(state, DNS, UDP_IDLE + 1, 0, 0);
        }),
        case(
            "an abandoned ICMP error about another node's flow",
            client(&to_vip(about(FRAGMENTATION_NEEDED, &reply(HTTPS)))),
        )
        .given(|state| {
            abandoned(state);
            HTTPS.record_vouched(state, REMOTE, WHILE, 0);
        }),
        case("an abandoned later fragment for another node", client(&cut(&datagram(SYSLOG))[1])).given(|state| {
            abandoned(state);
            recorded(state, SYSLOG, REMOTE, 0);
        }),
        case("an abandoned packet of a known flow to another node", client(&segment(HTTPS))).given(|state| {
            abandoned(state);
            HTTPS.record_vouched(state, REMOTE, WHILE, 0);
        }),
    ]
}

/// The leader hands over as long as Kubernetes has the node's pods as ready.
fn handed_over() -> Vec<Case> {
    let own: fn(&mut State) = |state| {
        abandoned(state);
        state.interfaces[IFINDEX].flags = INTERFACE_OWN_MAC;
    };
    let case = |name, source: Ethernet, packet: &Ipv4, backend, counters: &[Counter]| {
        Case::ingress(name, source.ipv4(packet))
            .given(abandoned)
            .becomes(Verdict::Passed(source.ipv4(&to(packet, backend))), counters)
    };
    let (http, dns) = (syn(HTTP), datagram(DNS_UDP));
    let peers = |mut counters: Vec<Counter>| {
        counters.push(Counter::Stat(Stat::FromPeer));
        counters
    };
    let elsewhere = || peers(new_flow(ELSEWHERE_HTTP, Stat::Local));
    let [_, later] = cut(&dns);
    let [_, delivered] = cut(&to(&dns, DNS));
    vec![
        case("an abandoned node serves hand-overs", from_peer(), &http, LOCAL, &peers(new_flow(HTTP, Stat::Local)))
            .then(syn_to_http),
        case("it serves handed-over datagrams", from_peer(), &dns, DNS, &peers(new_flow(DNS_UDP, Stat::Local)))
            .then(question_to_dns),
        Case::ingress("it serves handed-over fragments", from_peer().ipv4(&later))
            .given(|state| {
                abandoned(state);
                recorded(state, DNS_UDP, DNS, 0);
            })
            .becomes(
                Verdict::Passed(from_peer().ipv4(&delivered)),
                &[Counter::Stat(Stat::Local), Counter::Service(DNS_UDP.slot), Counter::Stat(Stat::FromPeer)],
            )
            .then(|state| recorded(state, DNS_UDP, DNS, 0)),
        case("it serves hand-overs of VIPs elsewhere", from_peer(), &syn(ELSEWHERE_HTTP), LOCAL, &elsewhere())
            .given(|state| {
                abandoned(state);
                ELSEWHERE_HTTP.set(state, &[LOCAL], &[LOCAL_TOO]);
            })
            .then(|state| ELSEWHERE_HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        Case::ingress("it hands nothing on", from_peer().ipv4(&syn(HTTPS)))
            .given(abandoned)
            .becomes(Verdict::Dropped(DropReason::NotLocal), &[Counter::Stat(Stat::FromPeer)]),
        Case::ingress(
            "it knows no node that came later",
            Ethernet::new([0x0e, 0x76, 0x6d, 0, 0, 2], SELF_MAC).ipv4(&http),
        )
        .given(abandoned),
        case(
            "it serves hand-overs with nodes' own MACs",
            Ethernet::new(PEER_MAC, SELF_MAC),
            &http,
            LOCAL,
            &new_flow(HTTP, Stat::Local),
        )
        .given(own)
        .then(syn_to_http),
        Case::ingress("a node's own packet is a client's", Ethernet::new(PEER_MAC, SELF_MAC).ipv4(&http))
            .given(abandoned),
        Case::ingress("where nodes use their own MACs, clients' packets pass", from_client().ipv4(&http)).given(own),
    ]
}

/// Flows of backends here go on.
fn of_local_flows() -> Vec<Case> {
    let delivered = |packet: &Ipv4, backend| Verdict::Passed(from_client().ipv4(&to(packet, backend)));
    let error = to_vip(about(FRAGMENTATION_NEEDED, &reply(HTTP)));
    let translated = to_backend(LOCAL_TOO, about(FRAGMENTATION_NEEDED, &icmp::from(reply(HTTP), LOCAL_TOO)));
    let [_, later] = cut(&datagram(DNS_UDP));
    let [_, later_delivered] = cut(&to(&datagram(DNS_UDP), DNS));
    vec![
        Case::ingress("an abandoned packet of a known flow", from_client().ipv4(&segment(HTTP)))
            .given(|state| {
                abandoned(state);
                HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
            })
            .becomes(delivered(&segment(HTTP), LOCAL), &known_flow(HTTP, Stat::Local))
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        Case::ingress("an abandoned datagram of a known flow", from_client().ipv4(&datagram(DNS_UDP)))
            .given(|state| {
                abandoned(state);
                DNS_UDP.remember(state, DNS, WHILE, 0, 0);
            })
            .becomes(delivered(&datagram(DNS_UDP), DNS), &known_flow(DNS_UDP, Stat::Local))
            .then(question_to_dns),
        Case::ingress("an abandoned later fragment of a known flow", from_client().ipv4(&later))
            .given(|state| {
                abandoned(state);
                recorded(state, DNS_UDP, DNS, 0);
            })
            .becomes(
                Verdict::Passed(from_client().ipv4(&later_delivered)),
                &[Counter::Stat(Stat::Local), Counter::Service(DNS_UDP.slot)],
            )
            .then(|state| recorded(state, DNS_UDP, DNS, 0)),
        Case::ingress("an abandoned ICMP error about a known flow", from_client().ipv4(&error))
            .given(|state| {
                abandoned(state);
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
            })
            .becomes(Verdict::Passed(from_client().ipv4(&translated)), &[Counter::Stat(Stat::Local)])
            .then(|state| HTTP.record(state, LOCAL_TOO, WHILE, 0)),
    ]
}

/// Past the deadline, a node answers for no VIP, but still balances packets.
fn not_yet() -> Vec<Case> {
    let lapsed: fn(&mut State) = |state| state.fence.deadline = boot_time().saturating_sub(SECOND);
    let delivered = |packet: &Ipv4, backend| Verdict::Passed(from_client().ipv4(&to(packet, backend)));
    vec![
        Case::ingress("past the deadline new flows are balanced", from_client().ipv4(&datagram(DNS_UDP)))
            .given(lapsed)
            .becomes(delivered(&datagram(DNS_UDP), DNS), &new_flow(DNS_UDP, Stat::Local))
            .then(|state| {
                DNS_UDP.record(state, DNS, 0, 0);
                DNS_UDP.remember(state, DNS, 0, 0, 0);
            }),
        Case::ingress("past the deadline known flows go on", from_client().ipv4(&segment(HTTP)))
            .given(|state| {
                state.fence.deadline = boot_time().saturating_sub(SECOND);
                HTTP.record(state, LOCAL, WHILE, 0);
                HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
            })
            .becomes(delivered(&segment(HTTP), LOCAL), &known_flow(HTTP, Stat::Local))
            .then(|state| {
                HTTP.record(state, LOCAL, 0, 0);
                HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            }),
    ]
}

/// The clock is not asked again until the time of an answer is over.
fn answered() -> Vec<Case> {
    let case = |name| Case::ingress(name, from_client().ipv4(&segment(HTTPS)));
    vec![
        case("packets are balanced as long as that answer holds")
            .given(|state| {
                abandoned(state);
                state.fence.kept_until = u64::MAX;
                HTTPS.record_vouched(state, REMOTE, WHILE, 0);
            })
            .becomes(Verdict::Transmitted(handed(&segment(HTTPS), PEER_MAC)), &known_flow(HTTPS, Stat::HandedOver))
            .then(|state| HTTPS.record_vouched(state, REMOTE, 0, 0)),
        case("they pass as long as the other one holds").given(|state| {
            state.fence.abandoned_until = u64::MAX;
            HTTPS.record_vouched(state, REMOTE, WHILE, 0);
        }),
        case("an answer whose time is over does not count").given(|state| {
            abandoned(state);
            state.fence.kept_until = 1;
            HTTPS.record_vouched(state, REMOTE, WHILE, 0);
        }),
    ]
}
