//! Tests what is known of the other ends of veths.

use std::sync::Arc;

use nix::net::if_::if_nametoindex;

use super::*;
use crate::{
    bpf::{attach::XdpAttachMode, load::load},
    fixture::mounted,
    link::{
        InterfaceKind, Monitor, Segments,
        tests::{interface, until},
    },
};
use vipmux_supervisor::Supervisor;
use vipmux_testing::netns::Namespace;

fn kind(name: &str) -> InterfaceKind {
    InterfaceKind::Virtual(name.to_owned())
}

/// A card (1), two veths (2, 3), a bond (4) with these cards, and the other ends.
fn links(cards: &[u32], other_ends: &[(u32, OtherEnd)]) -> Links {
    let kinds = [(1, InterfaceKind::Device), (2, kind("veth")), (3, kind("veth")), (4, kind("bond"))];
    let interfaces = kinds.into_iter().map(|(ifindex, kind)| {
        let controller = cards.contains(&ifindex).then_some(4);
        let name = format!("if{ifindex}");
        (ifindex, Interface { controller, ..interface(ifindex, &name, kind, &["192.0.2.1/24"]) })
    });
    Links { interfaces: interfaces.collect(), other_ends: other_ends.iter().copied().collect(), ..Links::default() }
}

/// Returns the segments of this interface.
fn segments(links: &Links, ifindex: u32) -> Segments {
    let mut segments = Segments::default();
    let segment = links.segment(links.get(ifindex).unwrap()).unwrap();
    segments.add(links, segment).unwrap();
    segments
}

#[test]
fn frames_are_lost_where_each_card_of_a_port_is_a_veth_without_a_program_at_its_other_end() {
    use OtherEnd::{NoProgram, Program, Unknown};
    type Case = (u32, &'static [u32], &'static [(u32, OtherEnd)], Delivery);
    let cases: [Case; 12] = [
        (1, &[], &[], Delivery::Arrives),
        (2, &[], &[], Delivery::Unread),
        (2, &[], &[(3, NoProgram)], Delivery::Unread),
        (2, &[], &[(2, NoProgram)], Delivery::Lost),
        (2, &[], &[(2, Program)], Delivery::Arrives),
        (2, &[], &[(2, Unknown)], Delivery::Arrives),
        (4, &[1], &[], Delivery::Arrives),
        (4, &[1, 2], &[(2, NoProgram)], Delivery::Arrives),
        (4, &[2, 3], &[(2, NoProgram)], Delivery::Unread),
        (4, &[2, 3], &[(2, NoProgram), (3, Program)], Delivery::Arrives),
        (4, &[2, 3], &[(2, NoProgram), (3, NoProgram)], Delivery::Lost),
        (4, &[], &[(2, NoProgram)], Delivery::Arrives),
    ];
    for (ifindex, cards, ends, expected) in cases {
        let links = links(cards, ends);
        let segments = segments(&links, ifindex);
        assert_eq!(links.delivery(&segments.ports()[&ifindex]), expected, "{ifindex}: {cards:?}, {ends:?}");
    }
}

#[test]
fn a_veth_is_found_as_a_port_and_behind_a_bond() {
    for (ifindex, cards, expected) in
        [(1, &[][..], &[][..]), (2, &[], &[2]), (4, &[1], &[]), (4, &[1, 3], &[3]), (4, &[2, 3], &[2, 3])]
    {
        let links = links(cards, &[]);
        let segments = segments(&links, ifindex);
        let found: Vec<_> = links.veths_of(&segments.ports()[&ifindex]).map(|veth| veth.ifindex).collect();
        assert_eq!((found.as_slice(), links.has_veth(&segments)), (expected, !expected.is_empty()), "{ifindex}");
    }
}

#[test]
fn a_native_program_at_the_other_end_is_seen_wherever_that_is() {
    let Some(pins) = mounted() else { return };
    let Some([node, elsewhere]) = Namespace::new() else { return };
    let (mut programs, _) = load(&pins, 1024).unwrap();
    for peer in [&elsewhere, &node] {
        node.veth("card0", peer, "peer0");
        let veth = node.enter(|| if_nametoindex("card0").unwrap());
        let end = || node.run(async |_| other_ends(&[veth].into()).await.unwrap()[&veth]);
        assert_eq!(end(), OtherEnd::NoProgram);
        let peer_index = peer.enter(|| if_nametoindex("peer0").unwrap());
        let mut attached = None;
        for (mode, expected) in
            [(XdpAttachMode::Generic, OtherEnd::NoProgram), (XdpAttachMode::Native, OtherEnd::Program)]
        {
            attached = Some(peer.enter(|| programs.attach_xdp("peer0", (peer_index, 1500), mode, attached).unwrap()));
            assert_eq!(end(), expected, "{mode:?}");
        }
        programs.detach(peer_index).unwrap();
        assert_eq!(end(), OtherEnd::NoProgram);
        node.run(async |handle| handle.link().del(veth).execute().await.unwrap());
        assert_eq!(end(), OtherEnd::Unknown, "it is gone");
    }
}

#[test]
fn a_program_that_comes_to_the_other_end_and_goes_is_followed() {
    let Some(pins) = mounted() else { return };
    let Some([node, switch]) = Namespace::new() else { return };
    node.veth("eth0", &switch, "port0");
    let (mut programs, _) = load(&pins, 1024).unwrap();
    let veth = node.enter(|| if_nametoindex("eth0").unwrap());
    let port = switch.enter(|| if_nametoindex("port0").unwrap());
    node.run(async |_| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        let await_end = async |expected: Option<OtherEnd>| {
            let is_it = |links: &Arc<Links>| links.other_ends.get(&veth).copied() == expected;
            until(monitor.links(), is_it).await;
        };
        await_end(None).await;
        monitor.follow_veths([veth].into());
        await_end(Some(OtherEnd::NoProgram)).await;
        switch.enter(|| programs.attach_xdp("port0", (port, 1500), XdpAttachMode::Native, None).unwrap());
        await_end(Some(OtherEnd::Program)).await;
        programs.detach(port).unwrap();
        await_end(Some(OtherEnd::NoProgram)).await;
        monitor.follow_veths(BTreeSet::new());
        await_end(None).await;
        monitor.stop().await;
    });
}
