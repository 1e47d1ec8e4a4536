//! The routers that this node sends to, and the interfaces that lead to them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use futures_util::TryStreamExt;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia};
use rtnetlink::{Handle, RouteMessageBuilder};
use tokio::time::Instant;

use super::{LinkError, kernel};

/// The shortest pause between two readings of the routes.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause is so many times as long as the reading took, so that tables of any length take at most a part of the time.
const SHARE: u32 = 10;

/// The gateways of all routes of both families, in every table of the calling thread's network namespace: the default ones
/// and other next hops, those of multipath routes too. IPv4 routes may have gateways with IPv6 addresses (RFC 5549).
pub async fn gateways() -> Result<BTreeSet<IpAddr>, LinkError> {
    let handle = kernel::connect()?;
    let mut found = BTreeSet::new();
    for_each(&handle, |route| collect(&route.attributes, &mut found)).await?;
    Ok(found)
}

/// The interfaces that unicast routes of the main table lead to a gateway by, of both families, by index. Routes by nexthop
/// objects tell it unless `net.ipv4.nexthop_compat_mode` is 0.
pub(super) async fn read(handle: &Handle) -> Result<BTreeSet<u32>, LinkError> {
    let mut found = BTreeSet::new();
    for_each(handle, |route| found.extend(exits(route))).await?;
    Ok(found)
}

/// Hands over all routes of both families, in every table.
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

/// The interfaces that this route leads to a gateway by, if it is a unicast route of the main table.
pub(super) fn exits(route: &RouteMessage) -> BTreeSet<u32> {
    // The header has no room for the numbers of most tables.
    let numbered = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    let table = numbered.unwrap_or(route.header.table.into());
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) || route.header.kind != RouteType::Unicast {
        return BTreeSet::new();
    }
    let has_gateway = |attributes: &[RouteAttribute]| {
        attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)))
    };
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

/// When routes are read: at once when something was heard of, and again after a pause. What the kernel was still at, or
/// does without a word (IPv4 routes of an interface that is set down), is seen then, however long it goes on.
#[derive(Debug)]
pub(super) struct Pace {
    due: Option<Instant>,
    /// Readings still to come.
    left: u8,
    rested: Instant,
}

impl Pace {
    /// The routes have just been read.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: None, left: 0, rested: now + PAUSE }
    }

    /// When the next reading is due, if there is to be one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Routes may have changed.
    pub(super) fn heard(&mut self, now: Instant) {
        self.left = 2;
        self.due.get_or_insert(self.rested.max(now));
    }

    /// The routes were read, from one instant to another.
    pub(super) fn read(&mut self, from: Instant, to: Instant) {
        self.left = self.left.saturating_sub(1);
        self.rested = to + PAUSE.max((to - from) * SHARE);
        self.due = (self.left > 0).then_some(self.rested);
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
            // The kernel does not nest these.
            RouteAttribute::MultiPath(hops) => hops.iter().for_each(|hop| collect(&hop.attributes, found)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
