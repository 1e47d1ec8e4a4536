//! Cases of ARP, in both directions.

use vipmux_common::abi::{self, DropReason, INTERFACE_BACKUP, Stat, VIP_ASSURED, VIP_LEADING, VIP_YIELDED};
use vipmux_tests::{
    frames::{Arp, BROADCAST, Ethernet, Mac},
    program::{IFINDEX, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    fixture::{
        CLIENT_MAC, ELSEWHERE, FAR_MAC, FOLLOWED, FOREIGN_MAC, NEIGHBOR, PEER_MAC, SELF_MAC, TAGGED, VIP, VLAN,
        boot_time, claimed, from_client, probed, vip_of,
    },
};

pub(crate) fn cases() -> Vec<Case> {
    [answered(), left_to_others(), fenced(), abandoned(), not_understood(), announced(), assured(), heard(), leaving()]
        .into_iter()
        .flatten()
        .collect()
}

pub(crate) fn broadcast(source: Mac) -> Ethernet {
    Ethernet::new(source, BROADCAST)
}

fn answer(tags: &[u16], arp: &Arp) -> Verdict {
    let mut header = Ethernet::new(SELF_MAC, CLIENT_MAC);
    header.tags = tags.to_vec();
    Verdict::Transmitted(header.arp(arp))
}

const ANSWERED: &[Counter] = &[Counter::Stat(Stat::ArpAnswered)];
const YIELDED: &[Counter] = &[Counter::Stat(Stat::Yielded), Counter::Stat(Stat::Passed)];
const FOREIGN: &[Counter] = &[Counter::Stat(Stat::Foreign), Counter::Stat(Stat::Passed)];
const REFLECTED: &[Counter] = &[Counter::Stat(Stat::Reflected), Counter::Stat(Stat::Passed)];
const NO_OPTION: [u8; 8] = [0; 8];

fn answered() -> Vec<Case> {
    let request = Arp::request(CLIENT_MAC, NEIGHBOR, VIP);
    let reply = Arp::reply(SELF_MAC, VIP, CLIENT_MAC, NEIGHBOR);
    let tagged = Arp::request(CLIENT_MAC, NEIGHBOR, TAGGED);
    let tagged_reply = Arp::reply(SELF_MAC, TAGGED, CLIENT_MAC, NEIGHBOR);
    let probe = Arp::probe(CLIENT_MAC, VIP);
    let probe_reply = Arp::reply(SELF_MAC, VIP, CLIENT_MAC, std::net::Ipv4Addr::UNSPECIFIED);
    let padded = |mut frame: Vec<u8>| {
        frame.resize(60, 0xa5);
        frame
    };
    let of_group = Arp::request([0x01, 0, 0x5e, 0, 0, 1], NEIGHBOR, VIP);
    let through_proxy = Ethernet::new(FOREIGN_MAC, SELF_MAC).arp(&request);
    vec![
        Case::ingress("a broadcast request for a VIP that is led is answered", broadcast(CLIENT_MAC).arp(&request))
            .becomes(answer(&[], &reply), ANSWERED),
        Case::ingress("a unicast request is answered", from_client().arp(&request))
            .becomes(answer(&[], &reply), ANSWERED),
        Case::ingress("padding after a request stays", padded(broadcast(CLIENT_MAC).arp(&request)))
            .becomes(Verdict::Transmitted(padded(Ethernet::new(SELF_MAC, CLIENT_MAC).arp(&reply))), ANSWERED),
        Case::ingress("a probe, which has no sender address, is answered", broadcast(CLIENT_MAC).arp(&probe))
            .becomes(answer(&[], &probe_reply), ANSWERED)
            .then(|state| probed(state, VIP, CLIENT_MAC, NO_OPTION)),
        Case::ingress(
            "a probe to this node alone, as switches check for hosts, is only answered",
            from_client().arp(&probe),
        )
        .becomes(answer(&[], &probe_reply), ANSWERED),
        Case::ingress("a reply goes to the sender that the packet names, not to the frame's", through_proxy)
            .becomes(answer(&[], &reply), ANSWERED),
        Case::ingress("a request that names a group as its sender is dropped", from_client().arp(&of_group))
            .dropped(DropReason::Malformed),
        Case::ingress("a tagged request is answered with its tag", broadcast(CLIENT_MAC).tagged(VLAN).arp(&tagged))
            .becomes(answer(&[VLAN], &tagged_reply), ANSWERED),
        Case::ingress("a tag's priority is kept", broadcast(CLIENT_MAC).tagged(0xa000 | VLAN).arp(&tagged))
            .becomes(answer(&[0xa000 | VLAN], &tagged_reply), ANSWERED),
        Case::ingress("a priority tag is no VLAN", broadcast(CLIENT_MAC).tagged(0xa000).arp(&request))
            .becomes(answer(&[0xa000], &reply), ANSWERED),
    ]
}

fn left_to_others() -> Vec<Case> {
    let request = |target| Arp::request(CLIENT_MAC, NEIGHBOR, target);
    let elsewhere = |arp: &Arp| Ethernet::new(CLIENT_MAC, FOREIGN_MAC).arp(arp);
    vec![
        Case::ingress("a request for another address passes", broadcast(CLIENT_MAC).arp(&request(NEIGHBOR))),
        Case::ingress("a unicast request to another MAC passes", elsewhere(&request(VIP))),
        Case::ingress("a request for a VIP announced elsewhere passes", broadcast(CLIENT_MAC).arp(&request(ELSEWHERE))),
        Case::ingress("an untagged request for a tagged VIP passes", broadcast(CLIENT_MAC).arp(&request(TAGGED))),
        Case::ingress(
            "a tagged request for an untagged VIP passes",
            broadcast(CLIENT_MAC).tagged(VLAN).arp(&request(VIP)),
        ),
        Case::ingress("a request in another VLAN passes", broadcast(CLIENT_MAC).tagged(VLAN + 1).arp(&request(TAGGED))),
        Case::ingress(
            "a doubly tagged request passes",
            broadcast(CLIENT_MAC).tagged(VLAN).tagged(VLAN).arp(&request(TAGGED)),
        ),
        Case::ingress(
            "a reply for a VIP's neighbor passes",
            from_client().arp(&Arp::reply(CLIENT_MAC, NEIGHBOR, SELF_MAC, VIP)),
        ),
        Case::ingress("a request for a VIP led elsewhere is dropped", broadcast(CLIENT_MAC).arp(&request(FOLLOWED)))
            .dropped(DropReason::ArpNotLeading),
        Case::ingress(
            "a probe for a VIP led elsewhere is dropped",
            broadcast(CLIENT_MAC).arp(&Arp::probe(CLIENT_MAC, FOLLOWED)),
        )
        .dropped(DropReason::ArpNotLeading)
        .then(|state| probed(state, FOLLOWED, CLIENT_MAC, NO_OPTION)),
        Case::ingress(
            "a bond's unused card leaves a broadcast to the used one",
            broadcast(CLIENT_MAC).arp(&request(VIP)),
        )
        .given(backup),
        Case::ingress(
            "a bond's unused card does not hear a broadcast probe",
            broadcast(CLIENT_MAC).arp(&Arp::probe(CLIENT_MAC, FOLLOWED)),
        )
        .given(backup),
        Case::ingress(
            "a bond's unused card answers a unicast request: it may just have become the used one",
            from_client().arp(&request(VIP)),
        )
        .given(backup)
        .becomes(answer(&[], &Arp::reply(SELF_MAC, VIP, CLIENT_MAC, NEIGHBOR)), ANSWERED),
        Case::ingress("an interface that is not attached answers nothing", broadcast(CLIENT_MAC).arp(&request(VIP)))
            .given(|state| state.interfaces.fill(abi::Interface::default())),
    ]
}

/// The bond uses another card now.
pub(crate) fn backup(state: &mut State) {
    state.interfaces[IFINDEX].flags = INTERFACE_BACKUP;
}

fn fenced() -> Vec<Case> {
    let request = broadcast(CLIENT_MAC).arp(&Arp::request(CLIENT_MAC, NEIGHBOR, VIP));
    let followed = broadcast(CLIENT_MAC).arp(&Arp::request(CLIENT_MAC, NEIGHBOR, FOLLOWED));
    vec![
        Case::ingress("past the fence's deadline no request is answered", request)
            .given(|state| state.fence.deadline = boot_time())
            .dropped(DropReason::ArpFenced),
        Case::ingress("past the deadline a VIP led elsewhere is still another's", followed)
            .given(|state| state.fence.deadline = boot_time())
            .dropped(DropReason::ArpNotLeading),
    ]
}

/// The deadline passed longer ago than the configured `abandon_after`.
fn abandoned() -> Vec<Case> {
    let request = |target| broadcast(CLIENT_MAC).arp(&Arp::request(CLIENT_MAC, NEIGHBOR, target));
    let own = |sender| broadcast(SELF_MAC).arp(&Arp::request(SELF_MAC, sender, NEIGHBOR));
    let long_ago: fn(&mut State) = |state| {
        state.config.abandon_after = 1;
        state.fence.deadline = boot_time().saturating_sub(1_000_000_000);
    };
    vec![
        Case::ingress("an abandoned program passes requests for a VIP", request(VIP)).given(long_ago),
        Case::ingress("an abandoned program passes requests for a VIP led elsewhere", request(FOLLOWED))
            .given(long_ago),
        Case::egress("an abandoned program lets the node speak for a VIP", own(VIP)).given(long_ago),
        Case::egress("an abandoned program lets the node speak for a VIP led elsewhere", own(FOLLOWED)).given(long_ago),
    ]
}

fn not_understood() -> Vec<Case> {
    let request = Arp::request(CLIENT_MAC, NEIGHBOR, VIP);
    let odd = |arp: Arp| broadcast(CLIENT_MAC).arp(&arp);
    vec![
        Case::ingress("another hardware type passes", odd(Arp { hardware: 6, ..request.clone() })),
        Case::ingress("another protocol type passes", odd(Arp { protocol: 0x86dd, ..request.clone() })),
        Case::ingress("other address lengths pass", odd(Arp { lengths: [6, 16], ..request.clone() })),
        Case::ingress("another operation passes", odd(Arp { operation: 8, ..request.clone() })),
        Case::ingress("a request cut short passes", broadcast(CLIENT_MAC).arp(&request)[..41].to_vec()),
    ]
}

/// To the peer that announced it.
fn set_yielded(state: &mut State) {
    vip_of(state, VIP).flags = VIP_YIELDED;
    claimed(state, VIP, PEER_MAC);
}

fn announced() -> Vec<Case> {
    let by = |mac: Mac, vip| broadcast(mac).arp(&Arp::announcement(mac, vip));
    vec![
        Case::ingress("a peer's announcement takes the VIP", by(PEER_MAC, VIP))
            .becomes(Verdict::Untouched, YIELDED)
            .then(set_yielded),
        Case::ingress("a peer behind another interface takes it too", by(FAR_MAC, VIP))
            .becomes(Verdict::Untouched, YIELDED)
            .then(|state| {
                vip_of(state, VIP).flags = VIP_YIELDED;
                claimed(state, VIP, FAR_MAC);
            }),
        Case::ingress(
            "a peer's gratuitous reply takes the VIP",
            broadcast(PEER_MAC).arp(&Arp::reply(PEER_MAC, VIP, BROADCAST, VIP)),
        )
        .becomes(Verdict::Untouched, YIELDED)
        .then(set_yielded),
        Case::ingress(
            "a peer's request from the VIP takes it",
            broadcast(PEER_MAC).arp(&Arp::request(PEER_MAC, VIP, NEIGHBOR)),
        )
        .becomes(Verdict::Untouched, YIELDED)
        .then(set_yielded),
        Case::ingress(
            "a tagged announcement takes a tagged VIP",
            broadcast(PEER_MAC).tagged(VLAN).arp(&Arp::announcement(PEER_MAC, TAGGED)),
        )
        .becomes(Verdict::Untouched, YIELDED)
        .then(|state| {
            vip_of(state, TAGGED).flags = VIP_YIELDED;
            claimed(state, TAGGED, PEER_MAC);
        }),
        Case::ingress("an announcement in another VLAN takes nothing", by(PEER_MAC, TAGGED)),
        Case::ingress("an announcement of a VIP announced elsewhere takes nothing", by(PEER_MAC, ELSEWHERE)),
        Case::ingress("this node's own announcement, looped back, takes nothing", by(SELF_MAC, VIP))
            .becomes(Verdict::Untouched, REFLECTED),
        Case::ingress("a peer's announcement of a VIP led elsewhere takes nothing", by(PEER_MAC, FOLLOWED))
            .then(|state| claimed(state, FOLLOWED, PEER_MAC)),
        Case::ingress("a peer's announcement of another address changes nothing", by(PEER_MAC, NEIGHBOR)),
        Case::ingress(
            "a yielded VIP's requests are left to its new leader",
            broadcast(CLIENT_MAC).arp(&Arp::request(CLIENT_MAC, NEIGHBOR, VIP)),
        )
        .given(set_yielded)
        .dropped(DropReason::ArpNotLeading),
    ]
}

/// Announcements with peers' MACs were forged lately, so the agent asks the peers about more of them.
fn assured() -> Vec<Case> {
    let by = |vip| broadcast(PEER_MAC).arp(&Arp::announcement(PEER_MAC, vip));
    let assured: fn(&mut State) = |state| state.vips.values_mut().for_each(|vip| vip.flags |= VIP_ASSURED);
    let foreign = |name, frame| Case::ingress(name, frame).given(assured).becomes(Verdict::Untouched, FOREIGN);
    let request = Arp::request(CLIENT_MAC, NEIGHBOR, VIP);
    vec![
        foreign("a peer's announcement of an assured VIP takes nothing, and is noted", by(VIP))
            .then(|state| claimed(state, VIP, PEER_MAC)),
        foreign(
            "so is a request from an assured VIP with a peer's MAC in it, whoever sends the frame",
            broadcast(CLIENT_MAC).arp(&Arp::request(PEER_MAC, VIP, NEIGHBOR)),
        )
        .then(|state| claimed(state, VIP, PEER_MAC)),
        foreign(
            "so is a tagged announcement of an assured tagged VIP",
            broadcast(PEER_MAC).tagged(VLAN).arp(&Arp::announcement(PEER_MAC, TAGGED)),
        )
        .then(|state| claimed(state, TAGGED, PEER_MAC)),
        Case::ingress("a request for an assured VIP is answered", broadcast(CLIENT_MAC).arp(&request))
            .given(assured)
            .becomes(answer(&[], &Arp::reply(SELF_MAC, VIP, CLIENT_MAC, NEIGHBOR)), ANSWERED),
        Case::ingress("past the deadline a peer's announcement takes an assured VIP", by(VIP))
            .given(|state| {
                state.vips.values_mut().for_each(|vip| vip.flags |= VIP_ASSURED);
                state.fence.deadline = boot_time();
            })
            .becomes(Verdict::Untouched, YIELDED)
            .then(set_yielded),
        Case::ingress("assurance of a VIP led elsewhere means nothing", by(FOLLOWED))
            .given(assured)
            .then(|state| claimed(state, FOLLOWED, PEER_MAC)),
    ]
}

/// Foreign speakers and probes are noted for the agent.
fn heard() -> Vec<Case> {
    let by = |vip| broadcast(FOREIGN_MAC).arp(&Arp::announcement(FOREIGN_MAC, vip));
    let probe = |mac: Mac, vip| broadcast(mac).arp(&Arp::probe(mac, vip));
    let reply = Arp::reply(FOREIGN_MAC, FOLLOWED, SELF_MAC, std::net::Ipv4Addr::UNSPECIFIED);
    let foreign = |name, frame| Case::ingress(name, frame).becomes(Verdict::Untouched, FOREIGN);
    vec![
        foreign("a foreign speaker's announcement takes nothing, and is noted", by(VIP))
            .then(|state| claimed(state, VIP, FOREIGN_MAC)),
        foreign("so is one that was noted before, and its probe stays noted", by(VIP))
            .given(|state| probed(state, VIP, FOREIGN_MAC, NO_OPTION))
            .then(|state| claimed(state, VIP, FOREIGN_MAC)),
        foreign(
            "a foreign speaker's answer to this node's probe is noted",
            Ethernet::new(FOREIGN_MAC, SELF_MAC).arp(&reply),
        )
        .then(|state| claimed(state, FOLLOWED, FOREIGN_MAC)),
        foreign(
            "a foreign speaker's request from a tagged VIP is noted",
            broadcast(FOREIGN_MAC).tagged(VLAN).arp(&Arp::request(FOREIGN_MAC, TAGGED, NEIGHBOR)),
        )
        .then(|state| claimed(state, TAGGED, FOREIGN_MAC)),
        Case::ingress("a foreign speaker where the VIP is not announced is ignored", by(ELSEWHERE)),
        Case::ingress("nor is one in another VLAN", by(TAGGED)),
        Case::ingress("this node's own probe, looped back, is not noted", probe(SELF_MAC, FOLLOWED))
            .dropped(DropReason::ArpNotLeading),
        Case::ingress("a peer's probe is noted", probe(PEER_MAC, FOLLOWED))
            .dropped(DropReason::ArpNotLeading)
            .then(|state| probed(state, FOLLOWED, PEER_MAC, NO_OPTION)),
        Case::ingress("a probe where the VIP is not announced is not noted", probe(FOREIGN_MAC, ELSEWHERE)),
        Case::ingress(
            "a reply in nobody's name is no probe",
            broadcast(FOREIGN_MAC).arp(&Arp { operation: 2, ..Arp::probe(FOREIGN_MAC, VIP) }),
        ),
    ]
}

fn leaving() -> Vec<Case> {
    let from = |sender| broadcast(SELF_MAC).arp(&Arp::request(SELF_MAC, sender, NEIGHBOR));
    let lapsed: fn(&mut State) = |state| state.fence.deadline = boot_time();
    vec![
        Case::egress("the node may speak for a VIP that it leads", from(VIP)),
        Case::egress("the node may speak for its own address", from(NEIGHBOR)),
        Case::egress("the node may probe for a VIP", broadcast(SELF_MAC).arp(&Arp::probe(SELF_MAC, FOLLOWED))),
        Case::egress(
            "the node may ask for a VIP led elsewhere",
            broadcast(SELF_MAC).arp(&Arp::request(SELF_MAC, NEIGHBOR, FOLLOWED)),
        ),
        Case::egress("the node may not speak for a VIP led elsewhere", from(FOLLOWED)).dropped(DropReason::ArpEgress),
        Case::egress(
            "the node may not answer for a VIP led elsewhere",
            Ethernet::new(SELF_MAC, CLIENT_MAC).arp(&Arp::reply(SELF_MAC, FOLLOWED, CLIENT_MAC, NEIGHBOR)),
        )
        .dropped(DropReason::ArpEgress),
        Case::egress("the node may not speak for a VIP where that is not announced", from(ELSEWHERE))
            .dropped(DropReason::ArpEgress),
        Case::egress("past the deadline the node may not speak for a VIP", from(VIP))
            .given(lapsed)
            .dropped(DropReason::ArpEgress),
        Case::egress("past the deadline the node may speak for its own address", from(NEIGHBOR)).given(lapsed),
        Case::egress("a yielded VIP is not spoken for", from(VIP))
            .given(|state| vip_of(state, VIP).flags &= !VIP_LEADING)
            .dropped(DropReason::ArpEgress),
        Case::egress("an ARP packet cut short leaves", from(FOLLOWED)[..41].to_vec()),
    ]
}
