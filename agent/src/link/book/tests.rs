use netlink_packet_route::neighbour::NeighbourState::{self, Failed, Incomplete, Permanent, Probe, Reachable, Stale};
use vipmux_common::abi::Mac;

use super::*;
use crate::link::{Interface, Kind};

const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 2]);
const ETH0: u32 = 2;
const ETH1: u32 = 3;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn links(addresses: &[(u32, &str)]) -> Links {
    let mut links = Links::default();
    for &(ifindex, address) in addresses {
        let interface = Interface {
            name: format!("eth{ifindex}"),
            ifindex,
            mac: Some(MAC),
            mtu: 1500,
            kind: Kind::Device,
            controller: None,
            carrier: true,
            carrier_ups: 1,
            addresses: [(ip(address), 24)].into(),
        };
        links.interfaces.insert(ifindex, interface);
    }
    links
}

fn wanted(addresses: &[&str]) -> Wanted {
    Wanted { interfaces: [ETH0, ETH1].into(), addresses: addresses.iter().map(|text| ip(text)).collect() }
}

fn entry(state: NeighbourState) -> Entry {
    Entry { state, mac: Some(MAC), managed: false, ours: false }
}

/// A book that wants 192.0.2.2, which is on eth0.
fn book() -> Book {
    let mut book = Book::default();
    assert_eq!(book.place(&wanted(&["192.0.2.2"]), &links(&[(ETH0, "192.0.2.1")])), []);
    book
}

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
const KEEP: Command = Command::Keep { ifindex: ETH0, address: PEER };

#[test]
fn only_states_that_the_kernel_sends_in_have_a_mac() {
    for (state, resolved) in
        [(Reachable, true), (Stale, true), (Probe, true), (Permanent, true), (Incomplete, false), (Failed, false)]
    {
        let mut book = book();
        book.observe(ETH0, PEER, Some(entry(state)));
        assert_eq!(book.neighbors()[&PEER].mac().is_some(), resolved, "{state:?}");
    }
}

#[test]
fn a_neighbour_is_pending_until_the_kernel_gives_up() {
    let (pending, silent) = (Neighbor::Pending { ifindex: ETH0 }, Neighbor::Unresolved { ifindex: ETH0 });
    let resolved = Neighbor::Resolved { ifindex: ETH0, mac: MAC, port: None };
    let mut book = book();
    for (seen, expected) in [
        (None, pending),
        (Some(Incomplete), pending),
        (Some(Failed), silent),
        // It tries again now and then, which says nothing of the neighbour.
        (Some(Incomplete), silent),
        (Some(Reachable), resolved),
        (Some(Stale), resolved),
        (Some(Incomplete), pending),
        (Some(Failed), silent),
        (None, pending),
    ] {
        book.observe(ETH0, PEER, seen.map(entry));
        assert_eq!(book.neighbors()[&PEER], expected, "{seen:?}");
    }
}

#[test]
fn a_change_is_told_only_where_it_is_seen() {
    let mut book = book();
    assert!(book.observe(ETH0, PEER, Some(entry(Reachable))));
    assert!(!book.observe(ETH0, PEER, Some(entry(Stale))), "the same MAC");
    assert!(!book.observe(ETH1, PEER, Some(entry(Failed))), "another interface's entry");
    assert!(!book.observe(ETH0, ip("192.0.2.9"), Some(entry(Failed))), "nobody wants it");
    assert!(book.observe(ETH0, PEER, Some(Entry { mac: Some(MAC.handover()), ..entry(Stale) })));
    assert!(book.observe(ETH0, PEER, None));
}

#[test]
fn a_missing_entry_is_asked_for_until_it_is_there() {
    let mut book = book();
    assert!(book.is_incomplete());
    assert_eq!(book.care(), [KEEP]);
    assert!(book.needs_care(), "the request may have been refused");
    book.observe(ETH0, PEER, Some(Entry { managed: true, ours: true, ..entry(Incomplete) }));
    assert!(!book.needs_care());
    book.observe(ETH0, PEER, None);
    assert_eq!(book.care(), [KEEP], "somebody removed it");
}

#[test]
fn a_managed_or_static_entry_is_left_to_the_kernel() {
    for entry in [Entry { managed: true, ..entry(Failed) }, Entry { managed: true, ..entry(Stale) }, entry(Permanent)] {
        let mut book = book();
        book.observe(ETH0, PEER, Some(entry));
        assert_eq!(book.care(), [], "{entry:?}");
    }
}

#[test]
fn where_the_kernel_manages_nothing_stale_entries_are_used_again() {
    let mut book = book();
    book.observe(ETH0, PEER, Some(entry(Reachable)));
    assert_eq!(book.care(), [KEEP], "it may be able to manage it");
    for (state, asked) in [(Reachable, false), (Stale, true), (Probe, false), (Failed, true), (Incomplete, false)] {
        book.observe(ETH0, PEER, Some(entry(state)));
        assert_eq!(book.needs_care(), asked, "{state:?}");
    }
}

#[test]
fn what_is_no_longer_wanted_is_given_back() {
    let (managed, gone) = (Entry { managed: true, ..entry(Reachable) }, links(&[(ETH0, "192.0.2.1")]));
    for (entry, command) in [
        (Entry { ours: true, ..managed }, Some(Command::Delete { ifindex: ETH0, address: PEER })),
        // Another program's.
        (managed, None),
        (entry(Reachable), None),
    ] {
        let mut book = book();
        book.observe(ETH0, PEER, Some(entry));
        let commands = book.place(&wanted(&[]), &gone);
        assert_eq!(commands, command.into_iter().collect::<Vec<_>>(), "{entry:?}");
        assert!(book.neighbors().is_empty() && book.leave().is_empty());
    }
}

#[test]
fn an_address_follows_its_subnet_to_another_interface() {
    let mut book = book();
    book.observe(ETH0, PEER, Some(Entry { managed: true, ours: true, ..entry(Reachable) }));
    let both = links(&[(ETH0, "192.0.2.1"), (ETH1, "192.0.2.3")]);
    assert_eq!(book.place(&wanted(&["192.0.2.2"]), &both), [], "it stays where it is");
    let moved = links(&[(ETH0, "198.51.100.1"), (ETH1, "192.0.2.3")]);
    let commands = book.place(&wanted(&["192.0.2.2"]), &moved);
    assert_eq!(commands, [Command::Delete { ifindex: ETH0, address: PEER }]);
    assert_eq!(book.neighbors()[&PEER], Neighbor::Pending { ifindex: ETH1 });
    book.place(&wanted(&["192.0.2.2"]), &links(&[(ETH1, "192.0.2.2")]));
    assert_eq!(book.neighbors()[&PEER], Neighbor::Local { ifindex: ETH1 });
    book.place(&wanted(&["192.0.2.2"]), &links(&[]));
    assert_eq!(book.neighbors()[&PEER], Neighbor::OffLink);
    assert!(!book.needs_care());
}

#[test]
fn after_lost_notifications_nothing_is_believed() {
    let mut book = book();
    book.care();
    book.observe(ETH0, PEER, Some(Entry { managed: true, ..entry(Reachable) }));
    book.forget();
    assert!(book.is_incomplete() && book.needs_care());
}

#[test]
fn only_those_that_do_not_answer_are_hurried() {
    let mut book = book();
    assert_eq!(book.hurry(), [], "it was not asked yet");
    book.observe(ETH0, PEER, Some(Entry { managed: true, ..entry(Failed) }));
    assert_eq!(book.hurry(), [KEEP]);
    book.observe(ETH0, PEER, Some(Entry { managed: true, ..entry(Stale) }));
    assert_eq!(book.hurry(), []);
}
