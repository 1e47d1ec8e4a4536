use netlink_packet_route::{
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkHeader, LinkLayerType, LinkMessage},
};

use super::*;

const OWN: &str = "192.0.2.1";

fn link(ifindex: u32, carrier: bool) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    let up = LinkFlags::Up | if carrier { LinkFlags::LowerUp | LinkFlags::Running } else { LinkFlags::empty() };
    link.header =
        LinkHeader { index: ifindex, link_layer_type: LinkLayerType::Ether, flags: up, ..LinkHeader::default() };
    let mac = LinkAttribute::Address(vec![2, 0, 0, 0, 0, u8::try_from(ifindex).unwrap()]);
    link.attributes = vec![LinkAttribute::IfName(format!("eth{ifindex}")), mac, LinkAttribute::Mtu(1500)];
    RouteNetlinkMessage::NewLink(link)
}

fn address_of(ifindex: u32, own: &str, prefix: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    (message.header.index, message.header.prefix_len) = (ifindex, prefix);
    let own = own.parse().unwrap();
    message.attributes = vec![AddressAttribute::Address(own), AddressAttribute::Local(own)];
    message
}

fn added(ifindex: u32, own: &str, prefix: u8) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewAddress(address_of(ifindex, own, prefix))
}

fn removed(ifindex: u32, own: &str, prefix: u8) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelAddress(address_of(ifindex, own, prefix))
}

fn deleted(ifindex: u32) -> RouteNetlinkMessage {
    match link(ifindex, true) {
        RouteNetlinkMessage::NewLink(link) => RouteNetlinkMessage::DelLink(link),
        _ => unreachable!(),
    }
}

/// Returns two interfaces, of which the first one has an address.
fn links(now: Instant) -> Links {
    let mut links = Links::default();
    for message in [link(1, true), link(2, true), added(1, OWN, 24)] {
        assert!(links.follow(&message, now));
    }
    links
}

/// Returns the interface that leads to another host of the subnet.
fn outlet(links: &Links) -> Option<u32> {
    links.on_link("192.0.2.7".parse().unwrap(), &BTreeSet::from([1, 2]))
}

#[test]
fn a_removed_address_leads_to_its_subnet_for_a_short_time() {
    let start = Instant::now();
    let mut links = links(start);
    let before = links.clone();
    let second = Duration::from_secs(1);
    assert!(links.follow(&removed(1, OWN, 24), start));
    assert!(!links.follow(&removed(1, OWN, 24), start + second), "once more");
    assert!(links.owners().is_empty(), "a VIP may have this address now");
    assert!(links.cannot_ask("192.0.2.7".parse().unwrap()) && !links.cannot_ask("198.51.100.7".parse().unwrap()));
    assert_eq!((outlet(&links), links.next_expiry()), (Some(1), Some(start + LINGER)));
    assert!(links.follow(&added(1, "192.0.2.99", 24), start + second));
    assert!(!links.cannot_ask("192.0.2.7".parse().unwrap()), "another own address is there");
    assert!(links.follow(&removed(1, "192.0.2.99", 24), start + second) && links.expire(start + second + LINGER));
    let mut links = before.clone();
    assert!(links.follow(&removed(1, OWN, 24), start));
    assert!(links.follow(&added(1, OWN, 24), start + second));
    assert_eq!(links, before);

    assert!(links.follow(&removed(1, OWN, 24), start));
    assert!(!links.expire(start + LINGER / 2) && links.expire(start + LINGER));
    assert_eq!((outlet(&links), links.next_expiry()), (None, None));
}

#[test]
fn an_address_that_moves_does_not_linger() {
    let now = Instant::now();
    for (name, first, second) in [
        ("removed first", removed(1, OWN, 24), added(2, OWN, 24)),
        ("added first", added(2, OWN, 24), removed(1, OWN, 24)),
    ] {
        let mut links = links(now);
        links.follow(&first, now);
        links.follow(&second, now);
        assert_eq!((outlet(&links), links.next_expiry()), (Some(2), None), "{name}");
    }
    let mut links = links(now);
    links.follow(&removed(1, OWN, 24), now);
    links.follow(&added(1, OWN, 32), now);
    assert_eq!((outlet(&links), links.next_expiry()), (None, None), "another prefix length");
    links.follow(&removed(1, OWN, 32), now);
    links.follow(&deleted(1), now);
    assert_eq!(links.next_expiry(), None, "its interface is gone");
}

#[test]
fn a_carrier_counts_for_a_short_time_after_it_is_lost() {
    let start = Instant::now();
    let mut links = links(start);
    assert!(links.follow(&link(1, false), start));
    assert!(links.had_carrier(1) && !links.get(1).unwrap().carrier);
    assert!(links.follow(&link(1, true), start) && links.next_expiry().is_none());
    assert!(links.follow(&link(1, false), start));
    assert!(!links.follow(&link(1, false), start + LINGER / 2), "once more");
    assert!(links.expire(start + LINGER) && !links.had_carrier(1));
    assert!(links.had_carrier(2) && !links.had_carrier(3));
}

#[test]
fn an_interface_that_led_to_a_gateway_counts_for_a_short_time() {
    let start = Instant::now();
    let mut links = links(start);
    links.set_routed(BTreeSet::from([1, 2]), start);
    links.set_routed(BTreeSet::from([2]), start);
    assert_eq!(links.routed, BTreeSet::from([1, 2]));
    links.set_routed(BTreeSet::from([1]), start + LINGER / 2);
    assert_eq!((links.routed.clone(), links.next_expiry()), (BTreeSet::from([1, 2]), Some(start + LINGER * 3 / 2)));
    assert!(links.expire(start + LINGER * 3 / 2));
    assert_eq!(links.routed, BTreeSet::from([1]));
}

/// After a loss of notifications.
#[test]
fn what_is_gone_in_a_new_reading_lingers() {
    let start = Instant::now();
    let before = links(start);
    let mut fresh = Links::default();
    for message in [link(1, false), link(2, true)] {
        fresh.apply(&message);
    }
    fresh.linger(&before, start);
    assert_eq!((outlet(&fresh), fresh.had_carrier(1)), (Some(1), true));
    let mut again = Links::default();
    for message in [link(1, true), link(2, true), added(1, OWN, 24)] {
        again.apply(&message);
    }
    again.linger(&fresh, start + LINGER / 2);
    assert_eq!(again, before);
    assert!(fresh.expire(start + LINGER));
    assert_eq!((outlet(&fresh), fresh.had_carrier(1)), (None, false));
}
