//! Reads routes: the gateways, and the interfaces that lead to them.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use futures_util::TryStreamExt;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};
use tokio::time::Instant;

use super::{LinkError, Subnet, connection, network};

/// The shortest pause between two reads of the routes.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause is at least this many times the duration of a read. So reads take a bounded share of
/// the time, however large the tables are.
const SHARE: u32 = 10;

/// Returns the gateways of all routes of both families, in all tables of the calling thread's
/// network namespace. Next hops of multipath routes are included. IPv4 routes may have gateways
/// with IPv6 addresses (RFC 5549).
pub async fn gateways() -> Result<BTreeSet<IpAddr>, LinkError> {
    let handle = connection::connect()?;
    let mut found = BTreeSet::new();
    for_each(&handle, |route| collect(&route.attributes, &mut found)).await?;
    Ok(found)
}

/// What unicast routes of the main table say, of both families.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// The interfaces by which routes lead to a gateway.
    pub(super) exits: BTreeSet<u32>,
    /// The interface that leads to each subnet without a gateway.
    pub(super) subnets: BTreeMap<Subnet, u32>,
}

/// Reads the routes. Routes with nexthop objects show their interface unless
/// `net.ipv4.nexthop_compat_mode` is 0.
pub(super) async fn read(handle: &Handle) -> Result<Routes, LinkError> {
    let (mut routes, mut metrics) = (Routes::default(), BTreeMap::new());
    for_each(handle, |route| {
        routes.exits.extend(exits(route));
        let Some(SubnetRoute { subnet, metric, ifindex }) = subnet(route) else { return };
        // Of equal metrics the kernel uses the first one (fib_table_lookup, net/ipv4/fib_trie.c).
        match metrics.entry(subnet) {
            Entry::Occupied(best) if *best.get() <= metric => return,
            Entry::Occupied(mut best) => *best.get_mut() = metric,
            Entry::Vacant(place) => drop(place.insert(metric)),
        }
        routes.subnets.insert(subnet, ifindex);
    })
    .await?;
    Ok(routes)
}

/// Calls `take` with all routes of both families, in all tables.
async fn for_each(handle: &Handle, mut take: impl FnMut(&RouteMessage)) -> Result<(), LinkError> {
    let families = [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
    for family in families {
        let mut routes = handle.route().get(family).execute();
        while let Some(route) = routes.try_next().await.map_err(LinkError::request("list routes"))? {
            take(&route);
        }
    }
    Ok(())
}

/// Returns the interfaces by which this route leads to a gateway, if it is a unicast route of the
/// main table.
pub(super) fn exits(route: &RouteMessage) -> BTreeSet<u32> {
    if !is_unicast_of_main(route) {
        return BTreeSet::new();
    }
    let single = has_gateway(&route.attributes);
    let of = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Oif(ifindex) if single => vec![*ifindex],
        RouteAttribute::MultiPath(hops) => {
            hops.iter().filter(|hop| has_gateway(&hop.attributes)).map(|hop| hop.interface_index).collect()
        }
        _ => Vec::new(),
    };
    route.attributes.iter().flat_map(of).collect()
}

/// A route to a subnet that the node is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubnetRoute {
    subnet: Subnet,
    metric: u32,
    ifindex: u32,
}

/// Returns what a route says about a subnet, if it is a unicast route of the main table without a
/// gateway. One whose interface has no carrier is none, though the kernel may still use it.
pub(super) fn subnet(route: &RouteMessage) -> Option<SubnetRoute> {
    let is_down = route.header.flags.intersects(RouteFlags::Linkdown | RouteFlags::Dead);
    if is_down || !is_unicast_of_main(route) || has_gateway(&route.attributes) {
        return None;
    }
    let (mut destination, mut ifindex, mut metric) = (None, None, 0);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => destination = Some(IpAddr::V4(*address)),
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => destination = Some(IpAddr::V6(*address)),
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Priority(priority) => metric = *priority,
            _ => {}
        }
    }
    let (destination, prefix) = (destination?, route.header.destination_prefix_length);
    // Routes to pods and other hosts come and go.
    let is_subnet = prefix < if destination.is_ipv4() { 32 } else { 128 };
    is_subnet.then_some(SubnetRoute { subnet: (network(destination, prefix), prefix), metric, ifindex: ifindex? })
}

fn is_unicast_of_main(route: &RouteMessage) -> bool {
    // The header's field is too small for most table numbers.
    let numbered = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    let table = numbered.unwrap_or(route.header.table.into());
    table == u32::from(RouteHeader::RT_TABLE_MAIN) && route.header.kind == RouteType::Unicast
}

fn has_gateway(attributes: &[RouteAttribute]) -> bool {
    attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)))
}

/// Decides when to read routes: at once after a notification, and again after a pause. The second
/// read sees changes that were still in progress, and those without a notification (IPv4 routes of
/// an interface that is set down).
#[derive(Debug)]
pub(super) struct RouteReadTimer {
    due: Option<Instant>,
    /// Remaining reads.
    left: u8,
    earliest: Instant,
}

impl RouteReadTimer {
    /// Creates a timer. The routes have just been read.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: None, left: 0, earliest: now + PAUSE }
    }

    /// Returns the time of the next read, if one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Schedules reads, since routes may have changed.
    pub(super) fn routes_changed(&mut self, now: Instant) {
        self.left = 2;
        self.due.get_or_insert(self.earliest.max(now));
    }

    /// Records a read that took from one instant to another.
    pub(super) fn read(&mut self, from: Instant, to: Instant) {
        self.left = self.left.saturating_sub(1);
        self.earliest = to + PAUSE.max((to - from) * SHARE);
        self.due = (self.left > 0).then_some(self.earliest);
    }
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
            // The kernel does not nest multipath routes.
            RouteAttribute::MultiPath(hops) => hops.iter().for_each(|hop| collect(&hop.attributes, found)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
