//! Tests interfaces, in network namespaces.

use std::{net::UdpSocket, sync::Arc, time::Duration};

use netlink_packet_route::neighbour::NeighbourState;
use nix::net::if_::if_nametoindex;
use rtnetlink::LinkMessageBuilder;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use vipmux_testing::netns::{self, Namespace};

use super::*;
use crate::announce::{Announcer, Sender};
use vipmux_model::Vip;
use vipmux_supervisor::Supervisor;

pub(super) fn interface(ifindex: u32, name: &str, kind: InterfaceKind, addresses: &[&str]) -> Interface {
    let parse = |text: &&str| {
        let (address, prefix) = text.split_once('/').unwrap();
        (address.parse().unwrap(), prefix.parse().unwrap())
    };
    Interface {
        name: name.to_owned(),
        ifindex,
        mac: Some(Mac::new([2, 0, 0, 0, 0, 1])),
        mtu: 1500,
        kind,
        controller: None,
        carrier: true,
        backup: false,
        carrier_ups: 1,
        addresses: addresses.iter().map(parse).collect(),
    }
}

fn node() -> Links {
    let interfaces = [
        Interface {
            mac: None,
            ..interface(1, "lo", InterfaceKind::Loopback, &["127.0.0.1/8", "::1/128", "198.51.100.1/32"])
        },
        interface(2, "eth0", InterfaceKind::Device, &["192.0.2.1/24", "2001:db8::1/64"]),
        interface(3, "eth1", InterfaceKind::Virtual("bond".to_owned()), &["192.0.2.129/25", "10.0.0.1/8"]),
        interface(4, "kube-ipvs0", InterfaceKind::Dummy, &["192.0.2.200/32"]),
        interface(5, "nodelocaldns", InterfaceKind::Dummy, &["169.254.20.10/32"]),
        Interface {
            mac: None,
            ..interface(6, "wg0", InterfaceKind::Virtual("wireguard".to_owned()), &["10.9.0.1/24"])
        },
        interface(70_000, "eth9", InterfaceKind::Device, &["203.0.113.1/24"]),
    ];
    let interfaces = interfaces.into_iter().map(|interface| (interface.ifindex, interface)).collect();
    Links { interfaces, ..Links::default() }
}

#[test]
fn subnets_are_compared_bit_by_bit() {
    for (a, b, prefix, same) in [
        ("192.0.2.1", "192.0.2.254", 24, true),
        ("192.0.2.1", "192.0.3.1", 24, false),
        ("192.0.2.127", "192.0.2.128", 25, false),
        ("192.0.2.1", "203.0.113.1", 0, true),
        ("192.0.2.1", "192.0.2.1", 32, true),
        ("192.0.2.1", "192.0.2.0", 32, false),
        ("192.0.2.1", "192.0.2.0", 255, false),
        ("2001:db8::1", "2001:db8::2", 64, true),
        ("2001:db8::1", "2001:db8:0:1::1", 64, false),
        ("2001:db8::1", "fe80::1", 0, true),
        ("::ffff:192.0.2.1", "192.0.2.1", 0, false),
    ] {
        assert_eq!(same_subnet(a.parse().unwrap(), b.parse().unwrap(), prefix), same, "{a} {b} /{prefix}");
    }
}

#[test]
fn an_interface_that_cannot_be_used_is_refused_with_the_reason() {
    let links = node();
    assert_eq!(links.named("eth0").unwrap().ifindex, 2);
    for (name, message) in [
        ("lo", "interface \"lo\" is the loopback: no VIP can be announced there"),
        ("wg0", "interface \"wg0\" has no MAC address: it is no Ethernet interface; name the one on the VIPs' network"),
        ("eth9", "interface \"eth9\" has the index 70000: only indices below 65536 can be used"),
        ("eth5", "interface \"eth5\" does not exist; present: lo, eth0, eth1, kube-ipvs0, nodelocaldns, wg0, eth9"),
    ] {
        assert_eq!(links.named(name).unwrap_err().to_string(), message);
    }
}

#[test]
fn the_default_is_every_usable_interface_on_the_nodes_subnet() {
    let links = node();
    let names = |addresses: &[&str]| {
        let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        links.holding(&addresses).map(|found| found.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>())
    };
    assert_eq!(names(&["192.0.2.1"]).unwrap(), ["eth0"]);
    assert_eq!(names(&["192.0.2.129"]).unwrap(), ["eth0", "eth1"]);
    assert_eq!(names(&["2001:db8::1", "10.0.0.1"]).unwrap(), ["eth0", "eth1"]);
    assert_eq!(names(&["10.9.0.1"]).unwrap(), ["eth1"], "wg0 holds it too, and is no Ethernet");
    assert_eq!(names(&["127.0.0.1"]).unwrap_err(), InterfaceError::Loopback { name: "lo".to_owned() });
    assert_eq!(
        names(&["169.254.20.10"]).unwrap_err().to_string(),
        "no interface is on the subnet of this Node's addresses (169.254.20.10), so name one; present: lo, eth0, eth1, \
         kube-ipvs0, nodelocaldns, wg0, eth9"
    );
}

#[test]
fn an_address_on_a_dummy_has_no_real_owner() {
    let links = node();
    for (address, owner) in [
        ("192.0.2.1", Some("eth0")),
        ("2001:db8::1", Some("eth0")),
        ("198.51.100.1", Some("lo")),
        ("192.0.2.200", None),
        ("169.254.20.10", None),
        ("192.0.2.2", None),
    ] {
        let found = links.owners().get(&address.parse::<IpAddr>().unwrap()).map(|interface| interface.name.as_str());
        assert_eq!(found, owner, "{address}");
    }
}

#[test]
fn the_longest_prefix_leads_to_a_neighbor() {
    let (links, all) = (node(), BTreeSet::from([2, 3]));
    let to = |address: &str, allowed: &BTreeSet<u32>| links.on_link(address.parse().unwrap(), allowed);
    assert_eq!(to("192.0.2.7", &all), Some(2));
    assert_eq!(to("192.0.2.130", &all), Some(3));
    assert_eq!(to("192.0.2.130", &BTreeSet::from([2])), Some(2));
    assert_eq!(to("198.51.100.9", &all), None);
    assert_eq!(to("10.9.0.2", &BTreeSet::from([6, 77])), Some(6));
}

#[test]
fn a_subnet_begins_with_its_first_address() {
    for (address, prefix, first) in [
        ("192.0.2.130", 24, "192.0.2.0"),
        ("192.0.2.130", 25, "192.0.2.128"),
        ("192.0.2.130", 0, "0.0.0.0"),
        ("192.0.2.130", 32, "192.0.2.130"),
        ("2001:db8::1:2", 64, "2001:db8::"),
        ("2001:db8::1:2", 0, "::"),
    ] {
        assert_eq!(network(address.parse().unwrap(), prefix), first.parse::<IpAddr>().unwrap(), "{address}/{prefix}");
    }
}

/// Waits until a watched value meets a condition.
pub(super) async fn until<T: fmt::Debug>(
    mut value: watch::Receiver<Arc<T>>,
    condition: impl FnMut(&Arc<T>) -> bool,
) -> Arc<T> {
    let outcome = timeout(Duration::from_secs(20), value.wait_for(condition)).await.map(|seen| seen.unwrap().clone());
    outcome.unwrap_or_else(|_| panic!("it never came to that; last: {:?}", value.borrow()))
}

/// Two nodes on one wire: 192.0.2.1 and 192.0.2.2, 2001:db8::1 and 2001:db8::2, on "eth0" both,
/// ready to send.
fn wire() -> Option<[Namespace; 2]> {
    let [node, peer] = Namespace::new()?;
    node.veth("eth0", &peer, "eth0");
    for (namespace, host) in [(&node, 1), (&peer, 2)] {
        namespace.address("eth0", &format!("192.0.2.{host}"), 24);
        namespace.address("eth0", &format!("2001:db8::{host}"), 64);
        namespace.ready("eth0");
    }
    Some([node, peer])
}

fn eth0(namespace: &Namespace) -> (u32, Mac) {
    namespace.run(async |_| {
        let links = Links::read().await.unwrap();
        let interface = links.named("eth0").unwrap();
        (interface.ifindex, interface.mac.unwrap())
    })
}

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PEER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));

async fn kernel_entry(handle: &rtnetlink::Handle, address: IpAddr) -> Option<neighbors::NeighborEntry> {
    let entries = neighbors::entries(handle).await.unwrap();
    entries.into_iter().find(|entry| entry.1 == address).map(|entry| entry.2)
}

#[test]
fn interfaces_are_read_with_all_that_matters() {
    let Some([node, _peer]) = wire() else { return };
    // A bridge, since not every kernel has dummies. kube-proxy's dummy is known by its name too.
    node.bridge("kube-ipvs0");
    node.address("kube-ipvs0", "192.0.2.200", 32);
    node.set("eth0", |link| link.mtu(1400).address(vec![2, 0, 0, 0, 0, 9]));
    let links = node.run(async |_| Links::read().await.unwrap());
    let eth0 = links.named("eth0").unwrap();
    assert_eq!((eth0.mac, eth0.mtu), (Some(Mac::new([2, 0, 0, 0, 0, 9])), 1400));
    assert_eq!(eth0.kind, InterfaceKind::Virtual("veth".to_owned()));
    assert!(eth0.carrier && eth0.addresses.contains(&("192.0.2.1".parse().unwrap(), 24)));
    let ipvs = links.named("kube-ipvs0").unwrap();
    assert_eq!(ipvs.kind, InterfaceKind::Virtual("bridge".to_owned()));
    assert!(ipvs.addresses.contains(&("192.0.2.200".parse().unwrap(), 32)));
    assert!(matches!(links.named("lo"), Err(InterfaceError::Loopback { .. })));
    assert!(!links.owners().contains_key(&"192.0.2.200".parse::<IpAddr>().unwrap()));
}

#[test]
fn changes_of_an_interface_are_followed() {
    let Some([node, peer]) = wire() else { return };
    node.run(async |_| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        let eth0 = |links: &Links| links.iter().find(|link| link.name == "eth0").cloned();
        let follow = async |condition: fn(Interface) -> bool| {
            until(monitor.links(), |links| eth0(links).is_some_and(condition)).await;
        };
        follow(|link| link.carrier).await;
        peer.set("eth0", LinkMessageBuilder::down);
        follow(|link| !link.carrier).await;
        peer.up("eth0");
        follow(|link| link.carrier).await;
        node.set("eth0", |link| link.mtu(1300));
        follow(|link| link.mtu == 1300).await;
        node.set("eth0", |link| link.address(vec![2, 0, 0, 0, 0, 7]));
        follow(|link| link.mac == Some(Mac::new([2, 0, 0, 0, 0, 7]))).await;
        node.address("eth0", "198.51.100.1", 24);
        follow(|link| link.addresses.contains(&("198.51.100.1".parse().unwrap(), 24))).await;
        node.run(async |handle| {
            let index = netns::index(&handle, "eth0").await;
            handle.link().del(index).execute().await.unwrap();
        });
        until(monitor.links(), |links| eth0(links).is_none()).await;
        monitor.stop().await;
    });
}

#[test]
fn nodes_are_resolved_and_the_kernel_keeps_them_so() {
    let Some([node, peer]) = wire() else { return };
    let ((ifindex, _), (_, mac)) = (eth0(&node), eth0(&peer));
    for family in ["ipv4", "ipv6"] {
        // It gives up after so many seconds, and not before the peer has answered on a busy
        // machine.
        node.sysctl(&format!("{family}/neigh/eth0/mcast_solicit"), "60");
    }
    node.run(async |handle| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        let v4 = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.7"];
        let v6 = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::7"];
        let addresses: Vec<IpAddr> = v4.into_iter().chain(v6).map(|text| text.parse().unwrap()).collect();
        monitor.resolve([ifindex].into(), addresses.iter().copied().collect());
        let resolved =
            |found: &ResolvedNeighbors, address| found.get(address).is_some_and(|n: &Neighbor| n.mac().is_some());
        let both = |found: &Arc<ResolvedNeighbors>| resolved(found, &PEER) && resolved(found, &PEER_V6);
        let neighbors = until(monitor.neighbors(), both).await;
        // The kernel may have given up meanwhile on an address that nobody has.
        let known = neighbors.values().map(|found| match *found {
            Neighbor::Unresolved { ifindex } => Neighbor::Pending { ifindex },
            found => found,
        });
        let expected = [
            Neighbor::Local { ifindex },
            Neighbor::Resolved { ifindex, mac, port: None },
            Neighbor::Pending { ifindex },
            Neighbor::OffLink,
        ];
        assert_eq!(known.collect::<Vec<_>>(), [expected, expected].concat(), "{neighbors:?}");
        for peer in [PEER, PEER_V6] {
            let entry = kernel_entry(&handle, peer).await.unwrap();
            assert!(entry.managed && entry.ours, "{entry:?}");
        }
        monitor.stop().await;
        for peer in [PEER, PEER_V6] {
            assert_eq!(kernel_entry(&handle, peer).await, None, "it was made by the monitor");
        }
    });
}

/// The peer still sends, which shows that the node's own link works.
#[test]
fn a_peer_whose_kernel_does_not_answer_is_silent_until_its_agent_is_heard() {
    let Some([node, peer]) = wire() else { return };
    let (ifindex, _) = eth0(&node);
    let socket = peer.enter(|| UdpSocket::bind("192.0.2.2:0").unwrap());
    socket.set_broadcast(true).unwrap();
    node.run(async |_| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        monitor.resolve([ifindex].into(), [PEER, PEER_V6].into());
        let both = |found: &ResolvedNeighbors, is: fn(&Neighbor) -> bool| {
            [PEER, PEER_V6].iter().all(|peer| found.get(peer).is_some_and(is))
        };
        until(monitor.neighbors(), |found| both(found, |found| found.mac().is_some())).await;

        peer.sysctl("ipv4/conf/eth0/arp_ignore", "8");
        peer.sysctl("ipv6/conf/eth0/disable_ipv6", "1");
        let sending = tokio::spawn(async move {
            loop {
                socket.send_to(b"anything", "192.0.2.255:9").unwrap();
                sleep(Duration::from_millis(5)).await;
            }
        });
        let down = Doubt { is_down: true, was_silent: false };
        monitor.doubt([(PEER, down), (PEER_V6, down)].into(), [ifindex].into());
        let is_silent = |found: &Neighbor| matches!(found, Neighbor::Silent { .. });
        until(monitor.neighbors(), |found| both(found, is_silent)).await;
        monitor.doubt(Doubts::new(), [ifindex].into());
        until(monitor.neighbors(), |found| both(found, |found| !matches!(found, Neighbor::Silent { .. }))).await;
        sending.abort();
        monitor.stop().await;
    });
}

#[test]
fn an_entry_that_somebody_removed_comes_back() {
    let Some([node, _peer]) = wire() else { return };
    let (ifindex, _) = eth0(&node);
    node.run(async |handle| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        monitor.resolve([ifindex].into(), [PEER].into());
        let resolved = |found: &Arc<ResolvedNeighbors>| found.get(&PEER).is_some_and(|n| n.mac().is_some());
        until(monitor.neighbors(), resolved).await;
        let delete = neighbors::NeighborRequest::Delete { ifindex, address: PEER };
        neighbors::execute(&handle, delete).await.unwrap();
        until(monitor.neighbors(), |found| !resolved(found)).await;
        until(monitor.neighbors(), resolved).await;
    });
}

#[test]
fn a_node_that_comes_late_is_found() {
    let Some([node, peer]) = wire() else { return };
    let (ifindex, _) = eth0(&node);
    let late: IpAddr = "192.0.2.3".parse().unwrap();
    // A peer that does not announce its new address.
    peer.sysctl("ipv4/conf/eth0/arp_notify", "0");
    node.run(async |handle| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        monitor.resolve([ifindex].into(), [late].into());
        let unresolved = Neighbor::Unresolved { ifindex };
        until(monitor.neighbors(), |found| found.get(&late) == Some(&Neighbor::Pending { ifindex })).await;
        until(monitor.neighbors(), |found| found.get(&late) == Some(&unresolved)).await;
        // Until the kernel has given up. Then a plain entry would stay unresolved.
        timeout(Duration::from_secs(20), async {
            while kernel_entry(&handle, late).await.is_none_or(|entry| entry.state != NeighbourState::Failed) {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap();
        peer.address("eth0", "192.0.2.3", 24);
        until(monitor.neighbors(), |found| found.get(&late).is_some_and(|n| n.mac().is_some())).await;
    });
}

#[test]
fn an_entry_that_the_kernel_had_is_known_for_our_own_and_a_static_one_is_left_alone() {
    let Some([node, _peer]) = wire() else { return };
    let (ifindex, _) = eth0(&node);
    let fixed: IpAddr = "192.0.2.3".parse().unwrap();
    node.run(async |handle| {
        let add = |address, state| handle.neighbours().add(ifindex, address).state(state);
        add(PEER, NeighbourState::Stale).link_layer_address(&[2, 0, 0, 0, 0, 2]).execute().await.unwrap();
        add(fixed, NeighbourState::Permanent).link_layer_address(&[2, 0, 0, 0, 0, 3]).execute().await.unwrap();
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        monitor.resolve([ifindex].into(), [PEER, fixed].into());
        let mac = |found: &ResolvedNeighbors, address| found.get(&address).and_then(|n: &Neighbor| n.mac());
        let found = until(monitor.neighbors(), |found| mac(found, PEER).is_some()).await;
        assert_eq!(mac(&found, fixed), Some(Mac::new([2, 0, 0, 0, 0, 3])));
        let entry = kernel_entry(&handle, PEER).await.unwrap();
        assert!(entry.managed && entry.ours, "{entry:?}");
        monitor.stop().await;
        assert_eq!(kernel_entry(&handle, PEER).await, None);
        let entry = kernel_entry(&handle, fixed).await.unwrap();
        assert!(entry.state == NeighbourState::Permanent && !entry.managed && !entry.ours, "{entry:?}");
    });
}

#[test]
fn leftovers_of_a_killed_agent_are_found_and_removed() {
    let Some([node, _peer]) = wire() else { return };
    let (ifindex, _) = eth0(&node);
    // The runtime ends with the monitor in it, so no entry is removed.
    node.run(async |_| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        monitor.resolve([ifindex].into(), [PEER].into());
        until(monitor.neighbors(), |found| found.get(&PEER).is_some_and(|n| n.mac().is_some())).await;
        std::mem::forget(monitor);
    });
    node.run(async |handle| {
        assert!(kernel_entry(&handle, PEER).await.unwrap().ours);
        assert_eq!(remove_neighbors().await.unwrap(), 1);
        assert_eq!(remove_neighbors().await.unwrap(), 0);
    });
}

#[test]
fn nothing_is_missed_when_the_kernel_drops_notifications() {
    let Some([node, _peer]) = wire() else { return };
    node.run(async |_| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        let addresses: Vec<IpAddr> = (1..=2000).map(|n| Ipv4Addr::from_bits(0x0a00_0000 + n).into()).collect();
        let (gone, kept) = addresses.split_at(1000);
        // This thread is the runtime: nobody reads while it waits here, and the socket's buffer
        // overflows. Of addresses that come and go, only the arrival is reported.
        node.run(async |handle| {
            let index = netns::index(&handle, "eth0").await;
            let add = |address: &IpAddr| handle.address().add(index, *address, 32);
            for address in &addresses {
                add(address).execute().await.unwrap();
            }
            for address in gone {
                let message = add(address).message_mut().clone();
                handle.address().del(message).execute().await.unwrap();
            }
        });
        let has = |links: &Links, address: &IpAddr| {
            links.named("eth0").is_ok_and(|eth0| eth0.addresses.contains(&(*address, 32)))
        };
        until(monitor.links(), |links| kept.iter().all(|address| has(links, address))).await;
        node.address("eth0", "198.51.100.1", 32);
        let later = "198.51.100.1".parse().unwrap();
        // Earlier notifications are older. A removed address lingers for some seconds.
        until(monitor.links(), |links| has(links, &later) && !gone.iter().any(|address| has(links, address))).await;
        monitor.stop().await;
    });
}

#[test]
fn an_announcement_moves_a_peers_neighbor_entry() {
    let Some([node, peer]) = wire() else { return };
    let ((ifindex, mac), (peer_index, _)) = (eth0(&node), eth0(&peer));
    assert_eq!(peer.enter(|| if_nametoindex("eth0").unwrap()), peer_index);
    peer.run(async |handle| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        for vip in ["192.0.2.50", "2001:db8::50"] {
            let vip: IpAddr = vip.parse().unwrap();
            let old = handle.neighbours().add(peer_index, vip).link_layer_address(&[2, 0, 0, 0, 0, 0x63]);
            old.state(NeighbourState::Stale).execute().await.unwrap();
            monitor.resolve([peer_index].into(), [vip].into());
            let at =
                |mac: Mac| move |found: &Arc<ResolvedNeighbors>| found.get(&vip).is_some_and(|n| n.mac() == Some(mac));
            until(monitor.neighbors(), at(Mac::new([2, 0, 0, 0, 0, 0x63]))).await;
            node.enter(|| {
                let (sender, mut announcer, now) =
                    (Sender::open().unwrap(), Announcer::default(), std::time::Instant::now());
                announcer.gained(Vip::new(vip), ifindex, mac, now);
                announcer.due(now).iter().for_each(|frame| sender.send(frame).unwrap());
            });
            until(monitor.neighbors(), at(mac)).await;
        }
        monitor.stop().await;
    });
}

#[test]
fn sending_on_an_interface_that_is_gone_is_an_error() {
    let Some([node]) = Namespace::new() else { return };
    let sender = node.enter(|| Sender::open().unwrap());
    let frame = crate::announce::Frame { ifindex: 4711, bytes: vec![0; 42] };
    let error = sender.send(&frame).unwrap_err();
    assert_eq!(error.to_string(), "cannot send an announcement on interface 4711");
}

#[test]
fn a_neighbor_is_found_behind_the_port_of_a_bridge_and_followed_to_another() {
    let Some([node, one, other]) = Namespace::new() else { return };
    node.bridge("br0");
    node.address("br0", "192.0.2.1", 24);
    let bridge = node.enter(|| if_nametoindex("br0").unwrap());
    // The same machine, with its MAC and address, first behind one port, then behind the other.
    for (port, peer) in [("port1", &one), ("port2", &other)] {
        node.veth(port, peer, "eth0");
        node.set(port, |change| change.controller(bridge));
        peer.set("eth0", |change| change.address(vec![2, 0, 0, 0, 0, 2]));
    }
    let port = |name: &'static str| node.enter(|| if_nametoindex(name).unwrap());
    let (first, second) = (port("port1"), port("port2"));
    one.address("eth0", "192.0.2.2", 24);
    node.run(async |_| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        monitor.resolve([bridge].into(), [PEER].into());
        let behind = |wanted: u32| {
            move |found: &Arc<ResolvedNeighbors>| {
                matches!(found.get(&PEER), Some(Neighbor::Resolved { port, .. }) if *port == Some(wanted))
            }
        };
        until(monitor.neighbors(), behind(first)).await;
        let links = monitor.links().borrow().clone();
        assert_eq!(links.get(first).unwrap().controller, Some(bridge));
        // The bridge learns the new port from a frame.
        one.set("eth0", LinkMessageBuilder::down);
        other.sysctl("ipv4/conf/eth0/arp_notify", "1");
        other.address("eth0", "192.0.2.2", 24);
        other.set("eth0", LinkMessageBuilder::down);
        other.up("eth0");
        until(monitor.neighbors(), behind(second)).await;
        monitor.stop().await;
    });
}
