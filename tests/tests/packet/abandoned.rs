//! Cases: an agent was away for too long, and its node leaves VIPs to its own stack.

use vipmux_common::abi::{FLOW_ISN, Stat, UNCLAIMED_REJECT};
use vipmux_tests::{frames::Ipv4, program::State};

use crate::{
    case::{Case, Verdict},
    demux::{ISN, datagram, handed, known_flow, new_flow, segment, syn, to},
    fixture::{
        CLIENT, DNS, DNS_UDP, HTTP, HTTPS, LOCAL, PEER_MAC, PHONE, REMOTE, SYSLOG, Service, VIP, WHILE, boot_time,
        from_client, from_peer,
    },
    reject::sealed,
};

const SECOND: u64 = 1_000_000_000;

pub(crate) fn cases() -> Vec<Case> {
    [passed(), not_yet(), answered()].into_iter().flatten().collect()
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
        case("an abandoned packet of a known flow", client(&segment(HTTP))).given(|state| {
            abandoned(state);
            HTTP.record(state, LOCAL, WHILE, 0);
            HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
        }),
        case("an abandoned packet of a known flow to another node", client(&segment(HTTPS))).given(|state| {
            abandoned(state);
            HTTPS.record_vouched(state, REMOTE, WHILE, 0);
        }),
        case("an abandoned hand-over", from_peer().ipv4(&syn(HTTP))),
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
