//! Tests which interfaces routes use to reach gateways, with messages and with the kernel.

use netlink_packet_route::route::{RouteProtocol, RouteScope};
use rtnetlink::{LinkMessageBuilder, RouteNextHopBuilder};

use vipmux_testing::netns::{Namespace, index};

use super::*;
use crate::link::{
    Interface, InterfaceKind, Links, Monitor,
    tests::{interface, until},
};
use vipmux_supervisor::Supervisor;

#[test]
fn gateways_of_all_routes_are_found() {
    let Some([node, lan]) = Namespace::new() else { return };
    node.veth("eth0", &lan, "lan0");
    assert_eq!(node.run(async |_| gateways().await.unwrap()), BTreeSet::new(), "no gateway, no route");
    node.address("eth0", "192.0.2.1", 24);
    node.address("eth0", "2001:db8::1", 64);
    node.default_via("192.0.2.254");
    node.run(async |handle| {
        let route = |network: [u8; 4]| RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(network.into(), 24);
        let hop = |address: [u8; 4]| RouteNextHopBuilder::new_ipv4().via(IpAddr::from(address)).unwrap().build();
        let single = route([198, 51, 100, 0]).gateway([192, 0, 2, 253].into()).table_id(100);
        let multiple = route([203, 0, 113, 0]).multipath(vec![hop([192, 0, 2, 251]), hop([192, 0, 2, 252])]);
        let v6 = |network: u16| {
            RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, 0), 48)
        };
        let router = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        let v6_hop = |last| RouteNextHopBuilder::new_ipv6().via(router(last).into()).unwrap().build();
        let v6_single = v6(1).gateway(router(0xfd)).table_id(100);
        let v6_multiple = v6(2).multipath(vec![v6_hop(0xfb), v6_hop(0xfc)]);
        for route in [single.build(), multiple.build(), v6_single.build(), v6_multiple.build()] {
            handle.route().add(route).execute().await.unwrap();
        }
    });
    let expected = ["192.0.2.251", "192.0.2.252", "192.0.2.253", "192.0.2.254"];
    let v6_expected = ["2001:db8::fb", "2001:db8::fc", "2001:db8::fd"];
    let expected = expected.into_iter().chain(v6_expected).map(|address| address.parse::<IpAddr>().unwrap());
    assert_eq!(node.run(async |_| gateways().await.unwrap()), expected.collect());
}

fn v4() -> RouteMessageBuilder<Ipv4Addr> {
    RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix([198, 51, 100, 0].into(), 24)
}

fn v6() -> RouteMessageBuilder<Ipv6Addr> {
    RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix("2001:db8:1::".parse().unwrap(), 48)
}

#[test]
fn a_unicast_route_of_the_main_table_leads_out_where_its_gateways_are() {
    let (gateway, gateway_v6): (Ipv4Addr, Ipv6Addr) = ([192, 0, 2, 254].into(), "fe80::1".parse().unwrap());
    let hop = |ifindex| RouteNextHopBuilder::new_ipv4().interface(ifindex);
    let far = |ifindex| hop(ifindex).via(gateway.into()).unwrap().build();
    let far_v6 = |ifindex| RouteNextHopBuilder::new_ipv6().interface(ifindex).via(gateway_v6.into()).unwrap().build();
    for (what, route, expected) in [
        ("a gateway", v4().output_interface(2).gateway(gateway).build(), &[2][..]),
        ("IPv6", v6().output_interface(2).gateway(gateway_v6).build(), &[2]),
        ("IPv4 by an IPv6 gateway", v4().output_interface(2).via(gateway_v6).build(), &[2]),
        ("no gateway", v4().output_interface(2).build(), &[]),
        ("several next hops", v4().multipath(vec![far(3), far(2), far(3)]).build(), &[2, 3]),
        ("several in IPv6", v6().multipath(vec![far_v6(2), far_v6(3)]).build(), &[2, 3]),
        ("one next hop of two with a gateway", v4().multipath(vec![far(3), hop(2).build()]).build(), &[3]),
        ("another table", v4().output_interface(2).gateway(gateway).table_id(100).build(), &[]),
        ("a table with a long number", v4().output_interface(2).gateway(gateway).table_id(1000).build(), &[]),
        ("the way to nowhere", v4().output_interface(2).gateway(gateway).kind(RouteType::Unreachable).build(), &[]),
    ] {
        assert_eq!(exits(&route), expected.iter().copied().collect(), "{what}");
    }
}

#[test]
fn a_route_without_a_gateway_says_which_interface_leads_to_a_subnet() {
    let route = |metric, ifindex| Some(SubnetRoute { subnet: ("198.51.100.0".parse().unwrap(), 24), metric, ifindex });
    let v6_route = SubnetRoute { subnet: ("2001:db8:1::".parse().unwrap(), 48), metric: 0, ifindex: 2 };
    let down = |flag| {
        let mut route = v4().output_interface(2).build();
        route.header.flags = flag;
        route
    };
    let host = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix([10, 0, 0, 1].into(), 32);
    for (what, message, expected) in [
        ("a subnet", v4().output_interface(2).build(), route(0, 2)),
        ("with a metric", v4().output_interface(3).priority(100).build(), route(100, 3)),
        ("IPv6", v6().output_interface(2).build(), Some(v6_route)),
        ("a gateway", v4().output_interface(2).gateway([192, 0, 2, 254].into()).build(), None),
        ("another table", v4().output_interface(2).table_id(100).build(), None),
        ("a host", host.output_interface(2).build(), None),
        ("no carrier", down(RouteFlags::Linkdown), None),
        ("no carrier, and not used", down(RouteFlags::Linkdown | RouteFlags::Dead), None),
    ] {
        assert_eq!(subnet(&message), expected, "{what}");
    }
}

#[test]
fn of_several_routes_to_a_subnet_the_kernel_uses_the_lowest_metric_and_then_the_first() {
    let Some([node, lan]) = Namespace::new() else { return };
    for (name, peer, address) in [("eth0", "lan0", "192.0.2.1"), ("eth1", "lan1", "192.0.2.2")] {
        node.veth(name, &lan, peer);
        node.address(name, address, 24);
        node.ready(name);
    }
    let (first, second) = node.run(async |handle| (index(&handle, "eth0").await, index(&handle, "eth1").await));
    let chosen = || {
        let routes = node.run(async |handle| read(&handle).await.unwrap());
        routes.subnets.get(&("192.0.2.0".parse().unwrap(), 24)).copied()
    };
    assert_eq!(chosen(), Some(first));
    // The kernel's own routes have metric 0.
    node.run(async |handle| {
        let subnet = || RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix([192, 0, 2, 0].into(), 24);
        let by_first = subnet().output_interface(first).scope(RouteScope::Link).protocol(RouteProtocol::Unspec).build();
        handle.route().del(by_first.clone()).execute().await.unwrap();
        let later = subnet().output_interface(first).scope(RouteScope::Link).priority(100).build();
        handle.route().add(later).execute().await.unwrap();
    });
    assert_eq!(chosen(), Some(second));
}

#[test]
fn replies_leave_by_ethernet_interfaces_that_lead_elsewhere_than_to_pods() {
    let paired =
        |kind: &str, addresses: &[&str]| interface(7, "eth1", InterfaceKind::Virtual(kind.to_owned()), addresses);
    let device = || interface(7, "eth1", InterfaceKind::Device, &["203.0.113.1/24"]);
    let vlan = InterfaceKind::Vlan { parent: Some(2), id: 100, customer: true };
    for (what, interface, is_exit) in [
        ("a card", device(), true),
        ("a card without an address", interface(7, "eth1", InterfaceKind::Device, &[]), true),
        ("a VLAN", interface(7, "eth1.100", vlan, &["203.0.113.1/24"]), true),
        ("a bond", paired("bond", &["203.0.113.1/24"]), true),
        ("a tunnel with Ethernet", paired("vxlan", &["10.244.0.0/32"]), true),
        ("a tunnel without", Interface { mac: None, ..paired("wireguard", &["10.9.0.1/24"]) }, false),
        ("the loopback", interface(7, "lo", InterfaceKind::Loopback, &["203.0.113.1/24"]), false),
        ("a dummy", interface(7, "dummy0", InterfaceKind::Dummy, &["203.0.113.1/24"]), false),
        ("kube-proxy's", interface(7, "kube-ipvs0", InterfaceKind::Device, &["203.0.113.1/24"]), false),
        ("a veth on a subnet", paired("veth", &["203.0.113.1/24", "fe80::1/64"]), true),
        ("a veth on an IPv6 subnet", paired("veth", &["2001:db8::1/64"]), true),
        ("a pod's veth", paired("veth", &["fe80::1/64"]), false),
        ("a pod's veth with a host's addresses", paired("veth", &["10.244.0.1/32", "2001:db8::1/128"]), false),
        ("a pod's veth with a link-local address", paired("veth", &["169.254.1.1/16"]), false),
        ("a pod's netkit", paired("netkit", &[]), false),
        ("an index beyond the maps", Interface { ifindex: 70_000, ..device() }, false),
    ] {
        let ifindex = interface.ifindex;
        let links =
            Links { interfaces: [(ifindex, interface)].into(), routed: [ifindex, 99].into(), ..Links::default() };
        let found: Vec<_> = links.exits().map(|exit| exit.ifindex).collect();
        assert_eq!(found, Vec::from_iter(is_exit.then_some(ifindex)), "{what}");
        assert_eq!(Links { routed: BTreeSet::new(), ..links }.exits().count(), 0, "{what}, without a route");
    }
}

#[test]
fn routes_are_read_at_once_and_again_after_a_pause() {
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    let mut timer = RouteReadTimer::new(start);
    assert_eq!(timer.due(), None);
    // The routes have just been read: the next read is after the pause.
    timer.routes_changed(at(300));
    assert_eq!(timer.due(), Some(at(1_000)));
    timer.routes_changed(at(900));
    assert_eq!(timer.due(), Some(at(1_000)), "it is put off no further");
    timer.read(at(1_000), at(1_010));
    assert_eq!(timer.due(), Some(at(2_010)), "once more");
    timer.read(at(2_010), at(2_020));
    assert_eq!(timer.due(), None);
    timer.routes_changed(at(9_000));
    assert_eq!(timer.due(), Some(at(9_000)), "at once");
    timer.read(at(9_000), at(9_500));
    assert_eq!(timer.due(), Some(at(14_500)), "slow reads are rare");
    timer.routes_changed(at(10_000));
    timer.read(at(14_500), at(14_510));
    assert_eq!(timer.due(), Some(at(15_510)), "a second after the last that was heard");
}

/// Uses two cards, and every notification about their routes.
#[test]
fn routes_are_followed_from_one_interface_to_another() {
    let Some([node, lan]) = Namespace::new() else { return };
    for (card, network) in [("eth0", 2), ("eth1", 3)] {
        node.veth(card, &lan, card);
        node.address(card, &format!("192.0.{network}.1"), 24);
        node.address(card, &format!("2001:db8:{network}::1"), 64);
    }
    node.default_via("192.0.2.254");
    node.run(async |handle| {
        let [eth0, eth1] = [index(&handle, "eth0").await, index(&handle, "eth1").await];
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        let exits = async |expected: &[u32]| {
            until(monitor.links(), |links| links.exits().map(|exit| exit.ifindex).eq(expected.iter().copied())).await;
        };
        exits(&[eth0]).await;
        let beyond = v6().gateway("2001:db8:3::ff".parse().unwrap()).build();
        handle.route().add(beyond.clone()).execute().await.unwrap();
        exits(&[eth0, eth1]).await;
        handle.route().del(beyond).execute().await.unwrap();
        exits(&[eth0]).await;
        let moved = RouteMessageBuilder::<Ipv4Addr>::new().gateway([192, 0, 3, 254].into()).build();
        handle.route().add(moved).replace().execute().await.unwrap();
        exits(&[eth1]).await;
        // The kernel sends no notification for IPv4 routes that go with an interface.
        node.set("eth1", LinkMessageBuilder::down);
        exits(&[]).await;
        // As many notifications as no socket holds, none of which is read meanwhile: this thread is
        // the runtime.
        node.run(async |handle| {
            let route = |n: u32| {
                let destination = Ipv4Addr::from_bits(0x0a00_0000 + n);
                let route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(destination, 32);
                route.gateway([192, 0, 2, 254].into()).build()
            };
            for n in 1..=3_001 {
                handle.route().add(route(n)).execute().await.unwrap();
            }
            for n in 1..=3_000 {
                handle.route().del(route(n)).execute().await.unwrap();
            }
        });
        exits(&[eth0]).await;
        monitor.stop().await;
    });
}
