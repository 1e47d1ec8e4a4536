//! Tests the table of neighbors.

use netlink_packet_route::neighbour::NeighbourState::{self, Failed, Incomplete, Permanent, Probe, Reachable, Stale};
use vipmux_common::abi::Mac;

use super::*;
use crate::link::{Interface, InterfaceKind};

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
            kind: InterfaceKind::Device,
            controller: None,
            carrier: true,
            backup: false,
            carrier_ups: 1,
            addresses: [(ip(address), 24)].into(),
        };
        links.interfaces.insert(ifindex, interface);
    }
    links
}

fn wanted(addresses: &[&str]) -> ResolveTargets {
    ResolveTargets { interfaces: [ETH0, ETH1].into(), addresses: addresses.iter().map(|text| ip(text)).collect() }
}

fn entry(state: NeighbourState) -> NeighborEntry {
    NeighborEntry { state, mac: Some(MAC), managed: false, ours: false }
}

/// Returns a table that resolves 192.0.2.2 on eth0.
fn neighbor_table() -> NeighborTable {
    let mut neighbor_table = NeighborTable::default();
    assert_eq!(neighbor_table.set_targets(&wanted(&["192.0.2.2"]), &links(&[(ETH0, "192.0.2.1")])), []);
    neighbor_table
}

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
const KEEP: NeighborRequest = NeighborRequest::Keep { ifindex: ETH0, address: PEER };

#[test]
fn only_states_that_the_kernel_sends_in_have_a_mac() {
    for (state, resolved) in
        [(Reachable, true), (Stale, true), (Probe, true), (Permanent, true), (Incomplete, false), (Failed, false)]
    {
        let mut neighbor_table = neighbor_table();
        neighbor_table.observe(ETH0, PEER, Some(entry(state)));
        assert_eq!(neighbor_table.neighbors()[&PEER].mac().is_some(), resolved, "{state:?}");
    }
}

#[test]
fn a_neighbor_is_pending_until_the_kernel_gives_up() {
    let (pending, silent) = (Neighbor::Pending { ifindex: ETH0 }, Neighbor::Unresolved { ifindex: ETH0 });
    let resolved = Neighbor::Resolved { ifindex: ETH0, mac: MAC, port: None };
    let mut neighbor_table = neighbor_table();
    for (seen, expected) in [
        (None, pending),
        (Some(Incomplete), pending),
        (Some(Failed), silent),
        // It tries again now and then, which says nothing about the neighbor.
        (Some(Incomplete), silent),
        (Some(Reachable), resolved),
        (Some(Stale), resolved),
        (Some(Incomplete), pending),
        (Some(Failed), silent),
        (None, pending),
    ] {
        neighbor_table.observe(ETH0, PEER, seen.map(entry));
        assert_eq!(neighbor_table.neighbors()[&PEER], expected, "{seen:?}");
    }
}

#[test]
fn a_change_is_reported_only_where_it_is_seen() {
    let mut neighbor_table = neighbor_table();
    assert!(neighbor_table.observe(ETH0, PEER, Some(entry(Reachable))));
    assert!(!neighbor_table.observe(ETH0, PEER, Some(entry(Stale))), "the same MAC");
    assert!(!neighbor_table.observe(ETH1, PEER, Some(entry(Failed))), "another interface's entry");
    assert!(!neighbor_table.observe(ETH0, ip("192.0.2.9"), Some(entry(Failed))), "nobody wants it");
    assert!(neighbor_table.observe(
        ETH0,
        PEER,
        Some(NeighborEntry { mac: Some(Mac::new([0x0e, 0, 0, 0, 0, 1])), ..entry(Stale) })
    ));
    assert!(neighbor_table.observe(ETH0, PEER, None));
}

#[test]
fn a_missing_entry_is_asked_for_until_it_is_there() {
    let mut neighbor_table = neighbor_table();
    assert!(neighbor_table.is_incomplete());
    assert_eq!(neighbor_table.refresh(), [KEEP]);
    assert!(neighbor_table.needs_refresh(), "the request may have been refused");
    neighbor_table.observe(ETH0, PEER, Some(NeighborEntry { managed: true, ours: true, ..entry(Incomplete) }));
    assert!(!neighbor_table.needs_refresh());
    neighbor_table.observe(ETH0, PEER, None);
    assert_eq!(neighbor_table.refresh(), [KEEP], "somebody removed it");
}

#[test]
fn a_managed_or_static_entry_is_left_to_the_kernel() {
    for entry in [
        NeighborEntry { managed: true, ..entry(Failed) },
        NeighborEntry { managed: true, ..entry(Stale) },
        entry(Permanent),
    ] {
        let mut neighbor_table = neighbor_table();
        neighbor_table.observe(ETH0, PEER, Some(entry));
        assert_eq!(neighbor_table.refresh(), [], "{entry:?}");
    }
}

#[test]
fn stale_entries_are_used_again_where_the_kernel_manages_nothing() {
    let mut neighbor_table = neighbor_table();
    neighbor_table.observe(ETH0, PEER, Some(entry(Reachable)));
    assert_eq!(neighbor_table.refresh(), [KEEP], "it may be able to manage it");
    for (state, asked) in [(Reachable, false), (Stale, true), (Probe, false), (Failed, true), (Incomplete, false)] {
        neighbor_table.observe(ETH0, PEER, Some(entry(state)));
        assert_eq!(neighbor_table.needs_refresh(), asked, "{state:?}");
    }
}

#[test]
fn unwanted_entries_are_given_back() {
    let (managed, gone) = (NeighborEntry { managed: true, ..entry(Reachable) }, links(&[(ETH0, "192.0.2.1")]));
    for (entry, command) in [
        (NeighborEntry { ours: true, ..managed }, Some(NeighborRequest::Delete { ifindex: ETH0, address: PEER })),
        // Another program's entry.
        (managed, None),
        (entry(Reachable), None),
    ] {
        let mut neighbor_table = neighbor_table();
        neighbor_table.observe(ETH0, PEER, Some(entry));
        let commands = neighbor_table.set_targets(&wanted(&[]), &gone);
        assert_eq!(commands, command.into_iter().collect::<Vec<_>>(), "{entry:?}");
        assert!(neighbor_table.neighbors().is_empty() && neighbor_table.clear().is_empty());
    }
}

#[test]
fn an_address_follows_its_subnet_to_another_interface() {
    let mut neighbor_table = neighbor_table();
    neighbor_table.observe(ETH0, PEER, Some(NeighborEntry { managed: true, ours: true, ..entry(Reachable) }));
    let both = links(&[(ETH0, "192.0.2.1"), (ETH1, "192.0.2.3")]);
    assert_eq!(neighbor_table.set_targets(&wanted(&["192.0.2.2"]), &both), [], "it stays where it is");
    let moved = links(&[(ETH0, "198.51.100.1"), (ETH1, "192.0.2.3")]);
    let commands = neighbor_table.set_targets(&wanted(&["192.0.2.2"]), &moved);
    assert_eq!(commands, [NeighborRequest::Delete { ifindex: ETH0, address: PEER }]);
    assert_eq!(neighbor_table.neighbors()[&PEER], Neighbor::Pending { ifindex: ETH1 });
    neighbor_table.set_targets(&wanted(&["192.0.2.2"]), &links(&[(ETH1, "192.0.2.2")]));
    assert_eq!(neighbor_table.neighbors()[&PEER], Neighbor::Local { ifindex: ETH1 });
    neighbor_table.set_targets(&wanted(&["192.0.2.2"]), &links(&[]));
    assert_eq!(neighbor_table.neighbors()[&PEER], Neighbor::OffLink);
    assert!(!neighbor_table.needs_refresh());
}

#[test]
fn after_lost_notifications_nothing_is_believed() {
    let mut neighbor_table = neighbor_table();
    neighbor_table.refresh();
    neighbor_table.observe(ETH0, PEER, Some(NeighborEntry { managed: true, ..entry(Reachable) }));
    neighbor_table.clear_entries();
    assert!(neighbor_table.is_incomplete() && neighbor_table.needs_refresh());
}

#[test]
fn a_known_mac_is_asked_and_an_unknown_one_is_resolved_but_a_static_one_is_believed() {
    let ask = NeighborRequest::Ask { ifindex: ETH0, address: PEER };
    let mut neighbor_table = neighbor_table();
    assert_eq!(neighbor_table.ask_request(PEER), Some(KEEP));
    for (state, request) in [
        (Reachable, Some(ask)),
        (Stale, Some(ask)),
        (Probe, Some(ask)),
        (Incomplete, Some(KEEP)),
        (Failed, Some(KEEP)),
        (Permanent, None),
    ] {
        neighbor_table.observe(ETH0, PEER, Some(entry(state)));
        assert_eq!(neighbor_table.ask_request(PEER), request, "{state:?}");
    }
    assert_eq!(neighbor_table.ask_request(ip("192.0.2.9")), None, "nobody wants it");
    assert!(neighbor_table.is_at(ETH0, PEER) && !neighbor_table.is_at(ETH1, PEER));
    neighbor_table.set_targets(&wanted(&["192.0.2.2"]), &links(&[(ETH0, "192.0.2.2")]));
    assert_eq!(neighbor_table.ask_request(PEER), None, "it is this node's own");
}

#[test]
fn only_those_that_do_not_answer_are_hurried() {
    let mut neighbor_table = neighbor_table();
    assert_eq!(neighbor_table.retry_unresolved(), [], "it was not asked yet");
    neighbor_table.observe(ETH0, PEER, Some(NeighborEntry { managed: true, ..entry(Failed) }));
    assert_eq!(neighbor_table.retry_unresolved(), [KEEP]);
    neighbor_table.observe(ETH0, PEER, Some(NeighborEntry { managed: true, ..entry(Stale) }));
    assert_eq!(neighbor_table.retry_unresolved(), []);
}
