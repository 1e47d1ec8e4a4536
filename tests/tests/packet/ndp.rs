//! Cases of Neighbor Discovery, in both directions.

use std::net::{Ipv4Addr, Ipv6Addr};

use vipmux_common::abi::{self, DropReason, Stat, VIP_ASSURED, VIP_LEADING, VIP_YIELDED};
use vipmux_tests::{
    frames::{Ethernet, Ipv6, Mac, NA_OVERRIDE, NA_SOLICITED, Ndp, multicast_mac, solicited_node},
    program::State,
};

use crate::{
    arp::backup,
    case::{Case, Counter, Verdict},
    family::v6,
    fixture::{
        CLIENT_MAC, ELSEWHERE, FAR_MAC, FOLLOWED, FOREIGN_MAC, NEIGHBOR, PEER_MAC, SELF_MAC, TAGGED, VIP, VLAN,
        boot_time, claimed, from_client, probed, vip_of,
    },
};

pub(crate) fn cases() -> Vec<Case> {
    [answered(), left_to_others(), fenced(), abandoned(), not_understood(), announced(), assured(), heard(), leaving()]
        .into_iter()
        .flatten()
        .map(Case::v6)
        .collect()
}

const ANSWERED: &[Counter] = &[Counter::Stat(Stat::NdpAnswered)];
const YIELDED: &[Counter] = &[Counter::Stat(Stat::Yielded), Counter::Stat(Stat::Passed)];
const FOREIGN: &[Counter] = &[Counter::Stat(Stat::Foreign), Counter::Stat(Stat::Passed)];
const REFLECTED: &[Counter] = &[Counter::Stat(Stat::Reflected), Counter::Stat(Stat::Passed)];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Option 14 (RFC 3971, 5.3.2), which kernels add to DAD's solicitations (RFC 7527).
const NONCE: (u8, [u8; 6]) = (14, [1, 2, 3, 4, 5, 6]);
/// The same option as bytes of the message.
const NONCE_OPTION: [u8; 8] = [14, 1, 1, 2, 3, 4, 5, 6];
const NO_OPTION: [u8; 8] = [0; 8];

/// Returns the header of a frame to an address's solicited-node group.
fn to_group(source: Mac, target: Ipv4Addr) -> Ethernet {
    Ethernet::new(source, multicast_mac(solicited_node(v6(target))))
}

/// Returns a neighbor's solicitation.
fn question(message: &Ndp) -> Ipv6 {
    Ipv6::ndp(v6(NEIGHBOR), solicited_node(message.target), message)
}

fn asked(target: Ipv4Addr) -> Ndp {
    Ndp::solicitation(v6(target)).mac(CLIENT_MAC)
}

/// Returns a DAD probe (RFC 4862, 5.4.2).
fn probe(message: &Ndp) -> Ipv6 {
    Ipv6::ndp(Ipv6Addr::UNSPECIFIED, solicited_node(message.target), message)
}

fn asks(name: &'static str, target: Ipv4Addr) -> Case {
    Case::ingress(name, to_group(CLIENT_MAC, target).ipv6(&question(&asked(target))))
}

fn advertisement(vip: Ipv4Addr, to: Ipv6Addr, flags: u8) -> Ipv6 {
    Ipv6::ndp(v6(vip), to, &Ndp::advertisement(v6(vip), flags).mac(SELF_MAC))
}

fn answer(vip: Ipv4Addr) -> Ipv6 {
    advertisement(vip, v6(NEIGHBOR), NA_SOLICITED | NA_OVERRIDE)
}

fn answered() -> Vec<Case> {
    let back = || Ethernet::new(SELF_MAC, CLIENT_MAC);
    let plain =
        |name, frame| Case::ingress(name, frame).becomes(Verdict::Transmitted(back().ipv6(&answer(VIP))), ANSWERED);
    let group = |message: &Ndp| to_group(CLIENT_MAC, VIP).ipv6(&question(message));
    let unicast = Ipv6::ndp(v6(NEIGHBOR), v6(VIP), &asked(VIP));
    let bare = Ndp::solicitation(v6(VIP));
    let (nonce, data) = NONCE;
    let mut padded = group(&bare);
    padded.resize(100, 0xa5);
    let to_all = Ethernet::new(SELF_MAC, multicast_mac(ALL_NODES));
    let detects = |name, message: &Ndp| {
        Case::ingress(name, to_group(CLIENT_MAC, VIP).ipv6(&probe(message)))
            .becomes(Verdict::Transmitted(to_all.ipv6(&advertisement(VIP, ALL_NODES, NA_OVERRIDE))), ANSWERED)
    };
    let tagged = |name, tag: u16, vip| {
        let mut header = back();
        header.tags = vec![tag];
        Case::ingress(name, to_group(CLIENT_MAC, vip).tagged(tag).ipv6(&question(&asked(vip))))
            .becomes(Verdict::Transmitted(header.ipv6(&answer(vip))), ANSWERED)
    };
    let grown = to_group(CLIENT_MAC, TAGGED).tagged(VLAN).ipv6(&question(&Ndp::solicitation(v6(TAGGED))));
    let through_proxy =
        |message: &Ndp| Ethernet::new(FOREIGN_MAC, SELF_MAC).ipv6(&Ipv6::ndp(v6(NEIGHBOR), v6(VIP), message));
    let mut padded_option = through_proxy(&bare);
    padded_option.extend([1, 1, 2, 0, 0, 0, 0, 0x77]);
    vec![
        plain("a solicitation for a VIP that is led is answered", group(&asked(VIP))),
        plain("a unicast solicitation is answered", from_client().ipv6(&unicast)),
        plain("one without a source link-layer address is answered with a longer frame", group(&bare)),
        plain("one with more options is answered with a shorter frame", group(&asked(VIP).option(nonce, &data))),
        plain("the longest option goes", group(&asked(VIP).option(nonce, &[7; 8 * 255 - 2]))).in_this_family(),
        plain("padding after a solicitation goes", padded),
        detects("duplicate address detection is answered to all nodes", &bare)
            .then(|state| probed(state, VIP, CLIENT_MAC, NO_OPTION)),
        detects("duplicate address detection with a nonce is answered", &bare.clone().option(nonce, &data))
            .then(|state| probed(state, VIP, CLIENT_MAC, NONCE_OPTION)),
        Case::ingress("detection that asks this node alone is only answered", from_client().ipv6(&probe(&bare)))
            .becomes(Verdict::Transmitted(to_all.ipv6(&advertisement(VIP, ALL_NODES, NA_OVERRIDE))), ANSWERED),
        plain("an answer goes to the sender that the packet names, not to the frame's", through_proxy(&asked(VIP))),
        plain("also behind other options", through_proxy(&bare.clone().option(nonce, &[7; 22]).mac(CLIENT_MAC))),
        Case::ingress("a solicitation that names no sender has the frame's", through_proxy(&bare))
            .becomes(Verdict::Transmitted(Ethernet::new(SELF_MAC, FOREIGN_MAC).ipv6(&answer(VIP))), ANSWERED),
        Case::ingress("padding is no option", padded_option)
            .becomes(Verdict::Transmitted(Ethernet::new(SELF_MAC, FOREIGN_MAC).ipv6(&answer(VIP))), ANSWERED),
        Case::ingress(
            "a solicitation that names a group as its sender is dropped",
            group(&bare.clone().mac(multicast_mac(ALL_NODES))),
        )
        .dropped(DropReason::Malformed),
        tagged("a tagged solicitation is answered with its tag", VLAN, TAGGED),
        tagged("a solicitation's tag keeps its priority", 0xa000 | VLAN, TAGGED),
        tagged("a solicitation's priority tag is no VLAN", 0xa000, VIP),
        Case::ingress("a tagged solicitation's answer grows behind its tag", grown)
            .becomes(Verdict::Transmitted(back().tagged(VLAN).ipv6(&answer(TAGGED))), ANSWERED),
        Case::ingress("a solicitation of many kilobytes", {
            let mut frame = group(&asked(VIP));
            frame.resize(8_000, 0);
            frame
        })
        .becomes(Verdict::Transmitted(back().ipv6(&answer(VIP))), ANSWERED)
        .jumbo(),
    ]
}

fn left_to_others() -> Vec<Case> {
    let to_another = Ethernet::new(CLIENT_MAC, FOREIGN_MAC).ipv6(&question(&asked(VIP)));
    let tagged = |target, tag| to_group(CLIENT_MAC, target).tagged(tag).ipv6(&question(&asked(target)));
    vec![
        asks("a solicitation for another address passes", NEIGHBOR),
        asks("a solicitation for a VIP announced elsewhere passes", ELSEWHERE),
        asks("an untagged solicitation for a tagged VIP passes", TAGGED),
        Case::ingress("a solicitation to another MAC passes", to_another),
        Case::ingress("a tagged solicitation for an untagged VIP passes", tagged(VIP, VLAN)),
        Case::ingress("a solicitation in another VLAN passes", tagged(TAGGED, VLAN + 1)),
        asks("a solicitation for a VIP led elsewhere is dropped", FOLLOWED).dropped(DropReason::NdpNotLeading),
        Case::ingress(
            "duplicate address detection for a VIP led elsewhere is dropped",
            to_group(CLIENT_MAC, FOLLOWED).ipv6(&probe(&Ndp::solicitation(v6(FOLLOWED)))),
        )
        .dropped(DropReason::NdpNotLeading)
        .then(|state| probed(state, FOLLOWED, CLIENT_MAC, NO_OPTION)),
        asks("a bond's unused card leaves a solicitation to the used one", VIP).given(backup),
        Case::ingress(
            "a bond's unused card does not hear duplicate address detection",
            to_group(CLIENT_MAC, FOLLOWED).ipv6(&probe(&Ndp::solicitation(v6(FOLLOWED)))),
        )
        .given(backup),
        Case::ingress(
            "a bond's unused card answers a unicast solicitation: it may just have become the used one",
            from_client().ipv6(&Ipv6::ndp(v6(NEIGHBOR), v6(VIP), &asked(VIP))),
        )
        .given(backup)
        .becomes(Verdict::Transmitted(Ethernet::new(SELF_MAC, CLIENT_MAC).ipv6(&answer(VIP))), ANSWERED),
        asks("an interface that is not attached answers no solicitation", VIP)
            .given(|state| state.interfaces.fill(abi::Interface::default())),
    ]
}

fn fenced() -> Vec<Case> {
    vec![
        asks("past the fence's deadline no solicitation is answered", VIP)
            .given(|state| state.fence.deadline = boot_time())
            .dropped(DropReason::NdpFenced),
        asks("past the deadline an IPv6 VIP led elsewhere is still another's", FOLLOWED)
            .given(|state| state.fence.deadline = boot_time())
            .dropped(DropReason::NdpNotLeading),
    ]
}

/// The deadline passed longer ago than the configured `abandon_after`.
fn abandoned() -> Vec<Case> {
    let long_ago: fn(&mut State) = |state| {
        state.config.abandon_after = 1;
        state.fence.deadline = boot_time().saturating_sub(1_000_000_000);
    };
    vec![
        asks("an abandoned program passes solicitations for a VIP", VIP).given(long_ago),
        asks("an abandoned program passes solicitations for a VIP led elsewhere", FOLLOWED).given(long_ago),
        Case::egress("an abandoned program lets the node advertise a VIP", advertises(FOLLOWED)).given(long_ago),
    ]
}

fn not_understood() -> Vec<Case> {
    let group = |packet: &Ipv6| to_group(CLIENT_MAC, VIP).ipv6(packet);
    let whole = question(&asked(VIP));
    let other_type = Ndp { kind: 133, ..asked(VIP) };
    let cut = |length: usize| {
        let mut frame = group(&question(&Ndp::solicitation(v6(VIP))));
        frame.truncate(length);
        frame
    };
    let mut short = group(&whole);
    short[19] = 23;
    vec![
        Case::ingress("a solicitation from off the link passes", group(&whole.clone().hop_limit(254))),
        Case::ingress("a solicitation with another code passes", group(&question(&Ndp { code: 1, ..asked(VIP) }))),
        Case::ingress("another message to the group passes", group(&question(&other_type))),
        Case::ingress("a solicitation cut short passes", cut(14 + 40 + 23)),
        Case::ingress("a solicitation's IPv6 header cut short passes", cut(14 + 39)),
        Case::ingress("a solicitation of a length too short passes", short),
    ]
}

/// To the peer that announced it.
fn set_yielded(state: &mut State) {
    vip_of(state, VIP).flags = VIP_YIELDED;
    claimed(state, VIP, PEER_MAC);
}

/// To all nodes, like the announcement of a moved address (RFC 4861, 7.2.6).
fn announces(source: Mac, packet: &Ipv6) -> Vec<u8> {
    Ethernet::new(source, multicast_mac(ALL_NODES)).ipv6(packet)
}

fn announcement(mac: Mac, vip: Ipv4Addr) -> Ipv6 {
    Ipv6::ndp(v6(vip), ALL_NODES, &Ndp::advertisement(v6(vip), NA_OVERRIDE).mac(mac))
}

fn announced() -> Vec<Case> {
    let by = |mac, vip| announces(mac, &announcement(mac, vip));
    let taken = |name, frame| Case::ingress(name, frame).becomes(Verdict::Untouched, YIELDED).then(set_yielded);
    let from_vip = Ipv6::ndp(v6(VIP), solicited_node(v6(NEIGHBOR)), &Ndp::solicitation(v6(NEIGHBOR)).mac(PEER_MAC));
    let to_us = Ethernet::new(PEER_MAC, SELF_MAC).ipv6(&announcement(PEER_MAC, VIP));
    let tagged = Ethernet::new(PEER_MAC, multicast_mac(ALL_NODES)).tagged(VLAN).ipv6(&announcement(PEER_MAC, TAGGED));
    let from_afar = announces(PEER_MAC, &announcement(PEER_MAC, VIP).hop_limit(64));
    let detects = to_group(PEER_MAC, VIP).ipv6(&probe(&Ndp::solicitation(v6(VIP))));
    let to_all = Ethernet::new(SELF_MAC, multicast_mac(ALL_NODES));
    vec![
        taken("a peer's advertisement takes the VIP", by(PEER_MAC, VIP)),
        taken("an advertisement by a peer behind another interface takes it too", by(FAR_MAC, VIP)).then(|state| {
            vip_of(state, VIP).flags = VIP_YIELDED;
            claimed(state, VIP, FAR_MAC);
        }),
        taken("a peer's solicitation from the VIP takes it", to_group(PEER_MAC, NEIGHBOR).ipv6(&from_vip)),
        taken("a peer's advertisement to this node takes the VIP", to_us),
        Case::ingress("a tagged advertisement takes a tagged VIP", tagged).becomes(Verdict::Untouched, YIELDED).then(
            |state| {
                vip_of(state, TAGGED).flags = VIP_YIELDED;
                claimed(state, TAGGED, PEER_MAC);
            },
        ),
        Case::ingress("an advertisement in another VLAN takes nothing", by(PEER_MAC, TAGGED)),
        Case::ingress("an advertisement of a VIP announced elsewhere takes nothing", by(PEER_MAC, ELSEWHERE)),
        Case::ingress("this node's own advertisement, looped back, takes nothing", by(SELF_MAC, VIP))
            .becomes(Verdict::Untouched, REFLECTED),
        Case::ingress("an advertisement from off the link takes nothing", from_afar),
        Case::ingress("a peer's advertisement of a VIP led elsewhere takes nothing", by(PEER_MAC, FOLLOWED))
            .then(|state| claimed(state, FOLLOWED, PEER_MAC)),
        Case::ingress("a peer's advertisement of another address changes nothing", by(PEER_MAC, NEIGHBOR)),
        Case::ingress("a peer's duplicate address detection takes nothing, and is answered", detects)
            .becomes(Verdict::Transmitted(to_all.ipv6(&advertisement(VIP, ALL_NODES, NA_OVERRIDE))), ANSWERED)
            .then(|state| probed(state, VIP, PEER_MAC, NO_OPTION)),
        asks("a yielded VIP's solicitations are left to its new leader", VIP)
            .given(set_yielded)
            .dropped(DropReason::NdpNotLeading),
    ]
}

/// Announcements with peers' MACs were forged lately, so the agent asks the peers about more of them.
fn assured() -> Vec<Case> {
    let by = |vip| announces(PEER_MAC, &announcement(PEER_MAC, vip));
    let from_vip = Ipv6::ndp(v6(VIP), solicited_node(v6(NEIGHBOR)), &Ndp::solicitation(v6(NEIGHBOR)).mac(PEER_MAC));
    let tagged = Ethernet::new(PEER_MAC, multicast_mac(ALL_NODES)).tagged(VLAN).ipv6(&announcement(PEER_MAC, TAGGED));
    let assured: fn(&mut State) = |state| state.vips.values_mut().for_each(|vip| vip.flags |= VIP_ASSURED);
    let foreign = |name, frame| Case::ingress(name, frame).given(assured).becomes(Verdict::Untouched, FOREIGN);
    vec![
        foreign("a peer's advertisement of an assured VIP takes nothing, and is noted", by(VIP))
            .then(|state| claimed(state, VIP, PEER_MAC)),
        foreign(
            "so is a solicitation from an assured VIP with a peer's MAC",
            to_group(PEER_MAC, NEIGHBOR).ipv6(&from_vip),
        )
        .then(|state| claimed(state, VIP, PEER_MAC)),
        foreign("so is a tagged advertisement of an assured tagged VIP", tagged)
            .then(|state| claimed(state, TAGGED, PEER_MAC)),
        asks("a solicitation for an assured VIP is answered", VIP)
            .given(assured)
            .becomes(Verdict::Transmitted(Ethernet::new(SELF_MAC, CLIENT_MAC).ipv6(&answer(VIP))), ANSWERED),
        Case::ingress("past the deadline a peer's advertisement takes an assured VIP", by(VIP))
            .given(|state| {
                state.vips.values_mut().for_each(|vip| vip.flags |= VIP_ASSURED);
                state.fence.deadline = boot_time();
            })
            .becomes(Verdict::Untouched, YIELDED)
            .then(set_yielded),
        Case::ingress("assurance of an IPv6 VIP led elsewhere means nothing", by(FOLLOWED))
            .given(assured)
            .then(|state| claimed(state, FOLLOWED, PEER_MAC)),
    ]
}

/// Foreign speakers and duplicate address detection are noted for the agent.
fn heard() -> Vec<Case> {
    let by = |vip| announces(FOREIGN_MAC, &announcement(FOREIGN_MAC, vip));
    let from_vip = Ipv6::ndp(v6(VIP), solicited_node(v6(NEIGHBOR)), &Ndp::solicitation(v6(NEIGHBOR)).mac(FOREIGN_MAC));
    let detects = |mac, vip| {
        let (nonce, data) = NONCE;
        to_group(mac, vip).ipv6(&probe(&Ndp::solicitation(v6(vip)).option(nonce, &data)))
    };
    let foreign = |name, frame| Case::ingress(name, frame).becomes(Verdict::Untouched, FOREIGN);
    vec![
        foreign("a foreign speaker's advertisement takes nothing, and is noted", by(VIP))
            .then(|state| claimed(state, VIP, FOREIGN_MAC)),
        foreign("a foreign speaker's answer to this node's detection is noted", by(FOLLOWED))
            .then(|state| claimed(state, FOLLOWED, FOREIGN_MAC)),
        foreign(
            "a foreign speaker's solicitation from a VIP is noted",
            to_group(FOREIGN_MAC, NEIGHBOR).ipv6(&from_vip),
        )
        .then(|state| claimed(state, VIP, FOREIGN_MAC)),
        Case::ingress("a foreign speaker's advertisement where the VIP is not announced is not noted", by(ELSEWHERE)),
        Case::ingress("this node's own detection, looped back, is not noted", detects(SELF_MAC, FOLLOWED))
            .dropped(DropReason::NdpNotLeading),
        Case::ingress("a peer's detection is noted with its nonce", detects(PEER_MAC, FOLLOWED))
            .dropped(DropReason::NdpNotLeading)
            .then(|state| probed(state, FOLLOWED, PEER_MAC, NONCE_OPTION)),
    ]
}

fn advertises(vip: Ipv4Addr) -> Vec<u8> {
    announces(SELF_MAC, &announcement(SELF_MAC, vip))
}

fn leaving() -> Vec<Case> {
    let asks_from = |source: Ipv6Addr, target: Ipv4Addr| {
        let message = Ndp::solicitation(v6(target)).mac(SELF_MAC);
        to_group(SELF_MAC, target).ipv6(&Ipv6::ndp(source, solicited_node(v6(target)), &message))
    };
    let lapsed: fn(&mut State) = |state| state.fence.deadline = boot_time();
    let tagged = Ethernet::new(SELF_MAC, multicast_mac(ALL_NODES)).tagged(VLAN).ipv6(&announcement(SELF_MAC, FOLLOWED));
    vec![
        Case::egress("the node may advertise a VIP that it leads", advertises(VIP)),
        Case::egress("the node may advertise its own address", advertises(NEIGHBOR)),
        Case::egress("the node may solicit from a VIP that it leads", asks_from(v6(VIP), NEIGHBOR)),
        Case::egress("the node may solicit a VIP led elsewhere", asks_from(v6(NEIGHBOR), FOLLOWED)),
        Case::egress(
            "the node may look for a duplicate of a VIP",
            to_group(SELF_MAC, FOLLOWED).ipv6(&probe(&Ndp::solicitation(v6(FOLLOWED)))),
        ),
        Case::egress("the node may not advertise a VIP led elsewhere", advertises(FOLLOWED))
            .dropped(DropReason::NdpEgress),
        Case::egress("nor in a tagged frame", tagged).dropped(DropReason::NdpEgress),
        Case::egress("the node may not solicit from a VIP led elsewhere", asks_from(v6(FOLLOWED), NEIGHBOR))
            .dropped(DropReason::NdpEgress),
        Case::egress("the node may not advertise a VIP where that is not announced", advertises(ELSEWHERE))
            .dropped(DropReason::NdpEgress),
        Case::egress("past the deadline the node may not advertise a VIP", advertises(VIP))
            .given(lapsed)
            .dropped(DropReason::NdpEgress),
        Case::egress("past the deadline the node may advertise its own address", advertises(NEIGHBOR)).given(lapsed),
        Case::egress("a yielded VIP is not advertised", advertises(VIP))
            .given(|state| vip_of(state, VIP).flags &= !VIP_LEADING)
            .dropped(DropReason::NdpEgress),
        Case::egress("an advertisement cut short leaves", advertises(FOLLOWED)[..14 + 40 + 23].to_vec()),
    ]
}
