//! Cases of fragmented datagrams: later fragments follow the first one, in both directions.

use vipmux_common::{
    abi::{DropReason, EgressFragmentValue, FragmentKey, FragmentValue, Stat},
    hash,
};
use vipmux_tests::{
    frames::{Ethernet, Ipv4, Payload, Udp},
    program::{NOW, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{datagram, handed, known_flow, new_flow, to},
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, DNS, DNS_UDP, Endpoint, FRAGMENT_LIFE, PEER_MAC, REMOTE, SELF_MAC, SYSLOG,
        Service, VIP, WHILE, address, from_client, from_peer,
    },
};

pub(crate) fn cases() -> Vec<Case> {
    [first(), later(), replies()].into_iter().flatten().collect()
}

/// The offset of the cut: ports, length and checksum are before it.
const CUT: usize = 8;
const MORE: u16 = 0x2000;
const UDP: u32 = 17;

/// Returns a datagram's two fragments.
pub(crate) fn cut(packet: &Ipv4) -> [Ipv4; 2] {
    let contents = &packet.bytes()[20..];
    let part =
        |bytes: &[u8], word| Ipv4 { payload: Payload::Other(17, bytes.to_vec()), ..packet.clone() }.fragment(word);
    [part(&contents[..CUT], MORE), part(&contents[CUT..], 1)]
}

fn key(packet: &Ipv4) -> FragmentKey {
    FragmentKey {
        source: address(packet.source),
        destination: address(packet.destination),
        id: u32::from(packet.identification.to_be()),
        protocol: UDP,
    }
}

/// Records the client's first fragment to a Service, `age` jiffies ago.
pub(crate) fn recorded(state: &mut State, service: Service, backend: Endpoint, age: u64) {
    let key = key(&datagram(service));
    let value = FragmentValue {
        tag: hash::fragment(&key),
        backend: backend.index,
        backend_generation: backend.of(state).generation,
        slot: service.slot,
        direct: 0,
        reserved: 0,
        seen: NOW - age,
    };
    state.fragments.insert(key, value);
}

fn first() -> Vec<Case> {
    let [to_dns, _] = cut(&datagram(DNS_UDP));
    let [delivered, _] = cut(&to(&datagram(DNS_UDP), DNS));
    let [to_syslog, _] = cut(&datagram(SYSLOG));
    vec![
        Case::ingress("a first fragment is delivered and recorded", from_client().ipv4(&to_dns))
            .becomes(Verdict::Passed(from_client().ipv4(&delivered)), &new_flow(DNS_UDP, Stat::Local))
            .then(|state| {
                DNS_UDP.record(state, DNS, 0, 0);
                DNS_UDP.remember(state, DNS, 0, 0, 0);
                recorded(state, DNS_UDP, DNS, 0);
            }),
        Case::ingress("a first fragment is handed over and recorded", from_client().ipv4(&to_syslog))
            .becomes(Verdict::Transmitted(handed(&to_syslog, PEER_MAC)), &new_flow(SYSLOG, Stat::HandedOver))
            .then(|state| {
                SYSLOG.record(state, REMOTE, 0, 0);
                recorded(state, SYSLOG, REMOTE, 0);
            }),
        Case::ingress(
            "a first fragment of ICMP is dropped",
            from_client().ipv4(&Ipv4::new(CLIENT, VIP, Payload::Other(1, vec![8; 64])).fragment(MORE)),
        )
        .dropped(DropReason::Fragment),
    ]
}

fn later() -> Vec<Case> {
    let [_, to_dns] = cut(&datagram(DNS_UDP));
    let [_, delivered] = cut(&to(&datagram(DNS_UDP), DNS));
    let [_, to_syslog] = cut(&datagram(SYSLOG));
    let sent_on = Ethernet::new(PEER_MAC, SELF_MAC);
    let mut from_a_peer = known_flow(DNS_UDP, Stat::Local);
    from_a_peer.push(Counter::Stat(Stat::FromPeer));
    let dropped = |name, given: fn(&mut State)| {
        Case::ingress(name, from_client().ipv4(&to_dns)).given(given).dropped(DropReason::Fragment)
    };
    vec![
        Case::ingress("a later fragment follows the first to its backend", from_client().ipv4(&to_dns))
            .given(|state| recorded(state, DNS_UDP, DNS, WHILE))
            .becomes(Verdict::Passed(from_client().ipv4(&delivered)), &known_flow(DNS_UDP, Stat::Local)),
        Case::ingress("a later fragment follows the first to another node", from_client().ipv4(&to_syslog))
            .given(|state| recorded(state, SYSLOG, REMOTE, WHILE))
            .becomes(Verdict::Transmitted(handed(&to_syslog, PEER_MAC)), &known_flow(SYSLOG, Stat::HandedOver)),
        Case::ingress("a later fragment that a peer handed over", from_peer().ipv4(&to_dns))
            .given(|state| recorded(state, DNS_UDP, DNS, WHILE))
            .becomes(Verdict::Passed(from_peer().ipv4(&delivered)), &from_a_peer),
        Case::ingress("a later fragment is never handed on", from_peer().ipv4(&to_syslog))
            .given(|state| recorded(state, SYSLOG, REMOTE, WHILE))
            .becomes(Verdict::Dropped(DropReason::NotLocal), &[Counter::Stat(Stat::FromPeer)]),
        Case::ingress("a later fragment never goes back to where it came from", sent_on.ipv4(&to_syslog))
            .given(|state| recorded(state, SYSLOG, REMOTE, WHILE))
            .dropped(DropReason::Hairpin),
        Case::ingress("a later fragment to a node that went", from_client().ipv4(&to_syslog))
            .given(|state| {
                recorded(state, SYSLOG, REMOTE, WHILE);
                REMOTE.node_of(state).flags = 0;
            })
            .dropped(DropReason::NodeUnreachable),
        dropped("a later fragment that comes first", |_| {}),
        dropped("a later fragment long after the first", |state| recorded(state, DNS_UDP, DNS, FRAGMENT_LIFE + WHILE)),
        dropped("a later fragment whose backend is gone", |state| {
            recorded(state, DNS_UDP, DNS, WHILE);
            DNS.of(state).generation += 1;
        }),
        dropped("a fragment's element that was given to another datagram", |state| {
            recorded(state, DNS_UDP, DNS, WHILE);
            state.fragments.values_mut().for_each(|value| value.tag ^= 1);
        }),
    ]
}

fn reply() -> Ipv4 {
    Ipv4::udp(DNS.address, CLIENT, Udp::new(DNS.port, CLIENT_PORT, b"a long answer, in two parts"))
}

/// Records the reply's first fragment, `age` jiffies ago.
fn recorded_reply(state: &mut State, age: u64) {
    let key = key(&reply());
    let value = EgressFragmentValue { tag: hash::fragment(&key), reserved: 0, vip: address(VIP), seen: NOW - age };
    state.egress_fragments.insert(key, value);
}

fn replies() -> Vec<Case> {
    let out = || Ethernet::new(SELF_MAC, CLIENT_MAC);
    let restored = Ipv4::udp(VIP, CLIENT, Udp::new(DNS_UDP.port, CLIENT_PORT, b"a long answer, in two parts"));
    let [first, later] = cut(&reply());
    let [first_restored, later_restored] = cut(&restored);
    let left = |name, given: fn(&mut State)| Case::egress(name, out().ipv4(&later)).given(given);
    vec![
        Case::egress("a reply's first fragment is restored and recorded", out().ipv4(&first))
            .given(|state| DNS_UDP.remember(state, DNS, WHILE, 0, 0))
            .becomes(Verdict::Passed(out().ipv4(&first_restored)), &[Counter::Stat(Stat::Replies)])
            .then(|state| {
                DNS_UDP.remember(state, DNS, 0, 0, 0);
                recorded_reply(state, 0);
            }),
        Case::egress("a reply's later fragment follows the first", out().ipv4(&later))
            .given(|state| recorded_reply(state, WHILE))
            .becomes(Verdict::Passed(out().ipv4(&later_restored)), &[Counter::Stat(Stat::Replies)]),
        left("a later fragment of no reply leaves as it is", |_| {}),
        left("a later fragment long after the first one of a reply", |state| {
            recorded_reply(state, FRAGMENT_LIFE + WHILE);
        }),
        left("an egress fragment's element that was given to another datagram", |state| {
            recorded_reply(state, WHILE);
            state.egress_fragments.values_mut().for_each(|value| value.tag ^= 1);
        }),
    ]
}
