//! The routers that this node sends to.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use futures_util::TryStreamExt;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteVia};
use rtnetlink::RouteMessageBuilder;

use super::{LinkError, kernel};

/// The gateways of all routes of both families, in every table of the calling thread's network namespace: the default ones
/// and other next hops, those of multipath routes too. IPv4 routes may have gateways with IPv6 addresses (RFC 5549).
pub async fn gateways() -> Result<BTreeSet<IpAddr>, LinkError> {
    let handle = kernel::connect()?;
    let mut found = BTreeSet::new();
    let families = [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
    for family in families {
        let mut routes = handle.route().get(family).execute();
        while let Some(route) = routes.try_next().await.map_err(LinkError::request("list routes"))? {
            collect(&route.attributes, &mut found);
        }
    }
    Ok(found)
}

fn collect(attributes: &[RouteAttribute], found: &mut BTreeSet<IpAddr>) {
    for attribute in attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(address)) | RouteAttribute::Via(RouteVia::Inet(address)) => {
                found.insert((*address).into());
            }
            RouteAttribute::Gateway(RouteAddress::Inet6(address)) | RouteAttribute::Via(RouteVia::Inet6(address)) => {
                found.insert((*address).into());
            }
            // The kernel does not nest these.
            RouteAttribute::MultiPath(hops) => hops.iter().for_each(|hop| collect(&hop.attributes, found)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::RouteNextHopBuilder;

    use super::*;
    use crate::link::netns::Namespace;

    #[test]
    fn gateways_of_all_routes_are_found() {
        let Some([node, lan]) = Namespace::new() else { return };
        node.veth("eth0", &lan, "lan0");
        assert_eq!(node.run(async |_| gateways().await.unwrap()), BTreeSet::new(), "no gateway, no route");
        node.address("eth0", "192.0.2.1", 24);
        node.address("eth0", "2001:db8::1", 64);
        node.default_via("192.0.2.254");
        node.run(async |handle| {
            let route =
                |network: [u8; 4]| RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(network.into(), 24);
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
}
