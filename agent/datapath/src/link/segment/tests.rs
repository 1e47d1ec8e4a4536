//! Tests segments and their ports.

use super::*;
use crate::link::tests::interface;

fn of_kind(kind: &str) -> InterfaceKind {
    InterfaceKind::Virtual(kind.to_owned())
}

fn vlan(parent: u32, id: u16) -> InterfaceKind {
    InterfaceKind::Vlan { parent: Some(parent), id, customer: true }
}

fn port(controller: u32, interface: Interface) -> Interface {
    Interface { controller: Some(controller), ..interface }
}

fn links(interfaces: impl IntoIterator<Item = Interface>) -> Links {
    let interfaces = interfaces.into_iter().map(|interface| (interface.ifindex, interface)).collect();
    Links { interfaces, ..Links::default() }
}

/// Returns a node with one interface of each kind.
fn node() -> Links {
    links([
        interface(2, "eth0", InterfaceKind::Device, &["192.0.2.1/24"]),
        interface(3, "eth0.100", vlan(2, 100), &["198.51.100.1/24"]),
        port(6, interface(4, "eth1", InterfaceKind::Device, &[])),
        port(6, interface(5, "eth2", InterfaceKind::Device, &[])),
        interface(6, "bond0", of_kind("bond"), &["203.0.113.1/24"]),
        interface(7, "bond0.7", vlan(6, 7), &["10.7.0.1/24"]),
        port(10, interface(8, "eth3", InterfaceKind::Device, &[])),
        port(10, interface(9, "veth0", of_kind("veth"), &[])),
        interface(10, "br0", of_kind("bridge"), &["10.0.0.1/16"]),
        interface(11, "br0.9", vlan(10, 9), &["10.9.0.1/24"]),
        interface(12, "eth4", InterfaceKind::Device, &[]),
        port(14, interface(13, "eth4.4", vlan(12, 4), &[])),
        interface(14, "br4", of_kind("bridge"), &["10.4.0.1/24"]),
        port(16, interface(15, "tap0", of_kind("tun"), &[])),
        interface(16, "br-vms", of_kind("bridge"), &["10.5.0.1/24"]),
        interface(17, "eth0.100.5", vlan(3, 5), &[]),
        interface(18, "s-tag", InterfaceKind::Vlan { parent: Some(2), id: 8, customer: false }, &[]),
        interface(19, "moved", InterfaceKind::Vlan { parent: None, id: 8, customer: true }, &[]),
        port(21, interface(20, "eth5", InterfaceKind::Device, &["10.6.0.1/24"])),
        interface(21, "blue", of_kind("vrf"), &[]),
        port(31, interface(30, "eth7", InterfaceKind::Device, &[])),
        port(32, interface(31, "bond1", of_kind("bond"), &[])),
        interface(32, "br1", of_kind("bridge"), &["10.8.0.1/24"]),
    ])
}

fn segments(links: &Links, names: &[&str]) -> Result<Segments, InterfaceError> {
    let mut segments = Segments::default();
    for name in names {
        segments.add(links, links.segment(links.named(name)?)?)?;
    }
    Ok(segments)
}

#[test]
fn frames_come_in_below_the_interface_that_has_the_address() {
    let links = node();
    for (name, address_on, ports, vlan) in [
        ("eth0", 2, vec![2], 0),
        ("eth0.100", 3, vec![2], 100),
        ("bond0", 6, vec![6], 0),
        ("eth1", 6, vec![6], 0),
        ("bond0.7", 7, vec![6], 7),
        ("br0", 10, vec![8], 0),
        ("br0.9", 11, vec![8], 9),
        ("veth0", 10, vec![9], 0),
        ("br4", 14, vec![12], 4),
        ("eth5", 20, vec![20], 0),
        ("eth7", 32, vec![31], 0),
    ] {
        let segment = links.segment(links.named(name).unwrap()).unwrap();
        let found = (segment.ifindex, segment.ports.into_iter().collect::<Vec<_>>(), segment.vlan);
        assert_eq!(found, (address_on, ports, vlan), "{name}");
    }
}

#[test]
fn segments_that_the_programs_cannot_serve_are_refused_with_the_reason() {
    let links = node();
    for (name, message) in [
        ("eth0.100.5", "two tags"),
        ("s-tag", "802.1ad"),
        ("moved", "another network namespace"),
        ("br-vms", "name the port that leads to the LAN instead of the bridge; its ports: tap0"),
    ] {
        let error = segments(&links, &[name]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(message), "{error}");
    }
}

#[test]
fn a_bridge_whose_ports_have_different_tags_is_refused() {
    let mut links = node();
    links.interfaces.insert(22, port(14, interface(22, "eth6", InterfaceKind::Device, &[])));
    assert_eq!(segments(&links, &["br4"]).unwrap_err(), InterfaceError::MixedTags { name: "br4".to_owned() });
    assert_eq!(segments(&links, &["eth6"]).unwrap().get(14).unwrap().vlan, 0, "by one port alone it will do");
    let both = segments(&links, &["eth6", "eth4.4"]).unwrap_err();
    assert_eq!(both, InterfaceError::MixedTags { name: "br4".to_owned() });
}

#[test]
fn two_ports_of_one_bridge_are_one_segment() {
    let both = segments(&node(), &["veth0", "eth3"]).unwrap();
    assert_eq!(both.iter().count(), 1);
    assert_eq!(both.get(10).unwrap().ports, BTreeSet::from([8, 9]));
    assert_eq!(both.outlets(), BTreeSet::from([8, 9, 10]));
}

#[test]
fn a_port_of_two_segments_needs_one_mac() {
    let mut links = node();
    let both = segments(&links, &["eth0", "eth0.100"]).unwrap();
    let ports: Vec<_> = both.ports().iter().map(|(port, of)| (*port, of.tagged)).collect();
    assert_eq!(ports, [(2, true)]);
    links.interfaces.get_mut(&3).unwrap().mac = Some(Mac::new([2, 0, 0, 0, 0, 9]));
    let error = segments(&links, &["eth0", "eth0.100"]).unwrap_err();
    assert!(matches!(error, InterfaceError::TwoMacs { ref port, .. } if port == "eth0"), "{error}");
    assert!(segments(&links, &["eth0.100"]).is_ok(), "by itself it may have its own");
}

#[test]
fn a_bond_sees_frames_at_its_cards_too() {
    let bond = segments(&node(), &["bond0"]).unwrap();
    assert_eq!(bond.ports()[&6].receivers, BTreeSet::from([4, 5, 6]));
    assert_eq!(bond.outlets(), BTreeSet::from([6]));
    assert!(bond.ports()[&6].backups.is_empty());
    let mut links = node();
    links.interfaces.get_mut(&5).unwrap().backup = true;
    assert_eq!(segments(&links, &["bond0"]).unwrap().ports()[&6].backups, BTreeSet::from([5]));
    assert_eq!(segments(&node(), &["br0"]).unwrap().ports()[&8].receivers, BTreeSet::from([8]));
}

#[test]
fn generic_programs_are_at_a_bonds_cards_and_native_ones_at_the_bond() {
    let empty = links([interface(6, "bond0", of_kind("bond"), &["203.0.113.1/24"])]);
    let (bond, team) = (node(), {
        let mut links = node();
        links.interfaces.get_mut(&6).unwrap().kind = of_kind("team");
        links
    });
    for (links, name, port, generic, expected) in [
        (&bond, "bond0", 6, false, vec![6]),
        (&bond, "bond0", 6, true, vec![4, 5]),
        (&bond, "bond0.7", 6, true, vec![4, 5]),
        (&team, "bond0", 6, true, vec![4, 5]),
        (&bond, "br1", 31, true, vec![30]),
        (&bond, "eth0.100", 2, true, vec![2]),
        (&bond, "br0", 8, true, vec![8]),
        (&empty, "bond0", 6, true, vec![6]),
    ] {
        let segments = segments(links, &[name]).unwrap();
        let places = segments.ports()[&port].program_places(port, generic);
        assert_eq!(places, BTreeSet::from_iter(expected), "{name}, generic: {generic}");
    }
}

#[test]
fn a_bridge_without_a_cable_has_no_carrier_whatever_its_other_ports_do() {
    let mut links = node();
    assert!(segments(&links, &["br0"]).unwrap().get(10).unwrap().carrier);
    links.interfaces.get_mut(&8).unwrap().carrier = false;
    assert!(!segments(&links, &["br0"]).unwrap().get(10).unwrap().carrier);
}

#[test]
fn a_carrier_that_came_back_between_two_looks_is_recognized_by_its_count() {
    let ups = |links: &Links| segments(links, &["br0"]).unwrap().get(10).unwrap().carrier_ups;
    let mut links = node();
    for ifindex in [8, 10] {
        let before = ups(&links);
        assert_eq!(ups(&links), before);
        links.interfaces.get_mut(&ifindex).unwrap().carrier_ups += 1;
        assert_ne!(ups(&links), before, "{ifindex}");
    }
}

#[test]
fn a_vip_is_announced_where_its_subnet_is() {
    let links = node();
    for (names, vip, ports, vlan) in [
        (vec!["eth0", "eth0.100", "bond0"], "192.0.2.200", vec![2], 0),
        (vec!["eth0", "eth0.100", "bond0"], "198.51.100.200", vec![2], 100),
        (vec!["eth0", "eth0.100", "bond0"], "172.16.0.1", vec![2, 6], 0),
        (vec!["eth0.100", "bond0.7"], "172.16.0.1", vec![2], 100),
        (vec!["br0", "br0.9"], "10.0.0.9", vec![8], 0),
        (vec!["br0", "br0.9"], "10.9.0.9", vec![8], 9),
        (vec!["eth0"], "2001:db8::1", vec![2], 0),
        (vec![], "192.0.2.200", vec![], 0),
    ] {
        let (found, tag) =
            segments(&links, &names).unwrap().announcing_ports(&links, vip.parse().unwrap(), |_| true, |_| true);
        assert_eq!((found.into_iter().collect::<Vec<_>>(), tag), (ports, vlan), "{vip} on {names:?}");
    }
}

#[test]
fn of_equal_subnets_the_lowest_index_chooses_the_vlan() {
    let mut links = node();
    let addresses = links.interfaces[&3].addresses.clone();
    for ifindex in [2, 7] {
        links.interfaces.get_mut(&ifindex).unwrap().addresses = addresses.clone();
    }
    let place = |names: &[&str]| {
        segments(&links, names).unwrap().announcing_ports(&links, "198.51.100.200".parse().unwrap(), |_| true, |_| true)
    };
    assert_eq!(place(&["eth0.100", "bond0.7"]), (BTreeSet::from([2]), 100));
    assert_eq!(place(&["eth0.100", "eth0", "bond0.7"]), (BTreeSet::from([2]), 0));
}

#[test]
fn a_neighbor_is_behind_the_port_that_the_bridge_learned() {
    let links = node();
    let both = segments(&links, &["veth0", "eth3"]).unwrap();
    let to = |port| both.port_to(Neighbor::Resolved { ifindex: 10, mac: Mac::default(), port });
    assert_eq!((to(Some(8)), to(Some(9))), (Some(8), Some(9)));
    assert_eq!((to(None), to(Some(2))), (Some(8), Some(8)), "not learned, or behind a port that is not used");
    assert_eq!(both.port_to(Neighbor::OffLink), None);
    assert_eq!((links.bridge(10), links.bridge(11), links.bridge(3)), (Some(10), Some(10), None));
}

#[test]
fn a_segment_that_cannot_be_used_takes_its_own_ports_along() {
    let mut all = segments(&node(), &["eth0", "eth0.100", "br0"]).unwrap();
    all.remove(3);
    all.remove(10);
    assert_eq!(all.ports().keys().copied().collect::<Vec<_>>(), [2]);
    all.remove(2);
    assert!(all.is_empty() && all.ports().is_empty());
}
