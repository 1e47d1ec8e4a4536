//! Addresses, carriers and routes that are gone for a short time: a DHCP renewal, a reload of networkd
//! or a change of a card's settings takes them away for some milliseconds. No flow may end for that. So
//! they count for [`LINGER`] more, where paths to other nodes are chosen. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    time::Duration,
};

use netlink_packet_route::RouteNetlinkMessage;
use tokio::time::Instant;

use super::{Links, kernel::address, same_subnet};

/// The time for which something that is gone still counts.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// Things that are gone, and until when they count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lingering<T>(BTreeMap<T, Instant>);

impl<T> Default for Lingering<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone> Lingering<T> {
    fn add(&mut self, gone: T, now: Instant) {
        self.0.entry(gone).or_insert(now + LINGER);
    }

    pub(super) fn contains(&self, item: &T) -> bool {
        self.0.contains_key(item)
    }

    /// Removes what counts no more, and returns it.
    fn expired(&mut self, now: Instant) -> Vec<T> {
        let expired: Vec<_> = self.0.iter().filter(|(_, until)| **until <= now).map(|(item, _)| item.clone()).collect();
        self.0.retain(|_, until| *until > now);
        expired
    }
}

/// An address on an interface: the interface's index, the address and the prefix length.
pub(super) type AddressOf = (u32, IpAddr, u8);

impl Links {
    /// Applies a notification. Removed addresses and carriers linger. Returns whether anything changed.
    pub(super) fn follow(&mut self, message: &RouteNetlinkMessage, now: Instant) -> bool {
        match message {
            RouteNetlinkMessage::DelAddress(removed) => {
                let Some((address, prefix)) = address(removed) else { return false };
                self.remove_later((removed.header.index, address, prefix), now)
            }
            RouteNetlinkMessage::NewAddress(added) => {
                let has_returned = address(added).is_some_and(|(address, _)| self.forget_removed(address));
                self.apply(message) || has_returned
            }
            RouteNetlinkMessage::NewLink(link) => {
                let had_carrier = self.get(link.header.index).is_some_and(|link| link.carrier);
                let changed = self.apply(message);
                self.note_carrier(link.header.index, had_carrier, now);
                changed
            }
            message => {
                let changed = self.apply(message);
                self.forget_absent();
                changed
            }
        }
    }

    /// Lets linger what an earlier state has, and this one, which was read anew, has not.
    pub(super) fn linger(&mut self, before: &Self, now: Instant) {
        (self.removed, self.lost_carriers) = (before.removed.clone(), before.lost_carriers.clone());
        for interface in before.iter() {
            for (address, prefix) in &interface.addresses {
                let removed = (interface.ifindex, *address, *prefix);
                let known = self.interfaces.get_mut(&interface.ifindex);
                if known.is_some_and(|known| known.addresses.insert((*address, *prefix))) {
                    self.remove_later(removed, now);
                } else {
                    self.removed.0.remove(&removed);
                }
            }
            self.note_carrier(interface.ifindex, interface.carrier, now);
        }
        self.forget_absent();
        let fresh = mem::take(&mut self.routed);
        (self.routed, self.lost_routes) = (before.routed.clone(), before.lost_routes.clone());
        self.set_routed(fresh, now);
    }

    /// Sets the interfaces that routes use to reach gateways. Others linger. Returns whether anything changed.
    pub(super) fn set_routed(&mut self, mut fresh: BTreeSet<u32>, now: Instant) -> bool {
        self.lost_routes.0.retain(|ifindex, _| !fresh.contains(ifindex));
        self.routed.difference(&fresh).for_each(|ifindex| self.lost_routes.add(*ifindex, now));
        fresh.extend(self.lost_routes.0.keys());
        mem::replace(&mut self.routed, fresh) != self.routed
    }

    /// Removes what has lingered for long enough. Returns whether anything changed.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let removed = self.removed.expired(now);
        for (ifindex, address, prefix) in &removed {
            if let Some(interface) = self.interfaces.get_mut(ifindex) {
                interface.addresses.remove(&(*address, *prefix));
            }
        }
        let routes = self.lost_routes.expired(now);
        self.routed.retain(|ifindex| !routes.contains(ifindex));
        let carriers = self.lost_carriers.expired(now);
        !(removed.is_empty() && routes.is_empty() && carriers.is_empty())
    }

    /// Returns when to call [`Self::expire`].
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let removed = self.removed.0.values();
        removed.chain(self.lost_carriers.0.values()).chain(self.lost_routes.0.values()).min().copied()
    }

    /// Returns whether an interface has a carrier, or had one a short time ago.
    pub fn had_carrier(&self, ifindex: u32) -> bool {
        self.lost_carriers.contains(&ifindex) || self.get(ifindex).is_some_and(|interface| interface.carrier)
    }

    /// Returns whether this node's own address in the subnet of another one is gone. Then the kernel asks
    /// nobody there, and silence proves nothing.
    pub(super) fn cannot_ask(&self, other: IpAddr) -> bool {
        let mut there =
            self.iter().flat_map(|link| link.addresses.iter().map(|&(own, prefix)| (link.ifindex, own, prefix)));
        self.removed.0.keys().any(|(_, own, prefix)| same_subnet(*own, other, *prefix))
            && !there.any(|address| same_subnet(address.1, other, address.2) && !self.removed.contains(&address))
    }

    /// Lets an address linger, unless another interface has it, too.
    fn remove_later(&mut self, removed: AddressOf, now: Instant) -> bool {
        let (ifindex, address, prefix) = removed;
        let has_moved =
            self.iter().any(|other| other.ifindex != ifindex && other.addresses.iter().any(|(own, _)| *own == address));
        let Some(interface) = self.interfaces.get_mut(&ifindex) else { return false };
        if has_moved {
            self.removed.0.remove(&removed);
            return interface.addresses.remove(&(address, prefix));
        }
        let is_known = interface.addresses.contains(&(address, prefix)) && !self.removed.contains(&removed);
        if is_known {
            self.removed.add(removed, now);
        }
        is_known
    }

    /// Ends the lingering of an address that is back, on whatever interface. Returns whether it lingered.
    fn forget_removed(&mut self, address: IpAddr) -> bool {
        let lingered: Vec<_> = self.removed.0.keys().filter(|(_, removed, _)| *removed == address).copied().collect();
        for removed @ (ifindex, _, prefix) in &lingered {
            self.removed.0.remove(removed);
            if let Some(interface) = self.interfaces.get_mut(ifindex) {
                interface.addresses.remove(&(address, *prefix));
            }
        }
        !lingered.is_empty()
    }

    fn note_carrier(&mut self, ifindex: u32, had_carrier: bool, now: Instant) {
        match self.get(ifindex).map(|interface| interface.carrier) {
            Some(false) if had_carrier => self.lost_carriers.add(ifindex, now),
            Some(false) => {}
            Some(true) | None => {
                self.lost_carriers.0.remove(&ifindex);
            }
        }
    }

    /// Forgets what lingers on interfaces that are gone: their indices do not come back.
    fn forget_absent(&mut self) {
        let interfaces = &self.interfaces;
        self.removed.0.retain(|(ifindex, ..), _| interfaces.contains_key(ifindex));
        self.lost_carriers.0.retain(|ifindex, _| interfaces.contains_key(ifindex));
    }
}

#[cfg(test)]
mod tests;
