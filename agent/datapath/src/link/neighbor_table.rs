//! Tracks the addresses to resolve and the kernel's neighbor entries for them. Pure: it returns the
//! requests to send.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use super::{
    Links, Neighbor, ResolvedNeighbors,
    neighbors::{NeighborEntry, NeighborRequest},
};

/// The addresses to resolve, and the interfaces on which to resolve them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResolveTargets {
    pub(super) interfaces: BTreeSet<u32>,
    pub(super) addresses: BTreeSet<IpAddr>,
}

/// The addresses to resolve and the kernel's entries for them.
#[derive(Debug, Default)]
pub(super) struct NeighborTable {
    targets: BTreeMap<IpAddr, NeighborTarget>,
}

#[derive(Clone, Copy, Debug)]
enum NeighborTarget {
    Local {
        ifindex: u32,
    },
    /// `asked`: the kernel was asked to resolve it. `silent`: resolution failed, and there was no
    /// answer since.
    OnLink {
        ifindex: u32,
        entry: Option<NeighborEntry>,
        asked: bool,
        silent: bool,
    },
    OffLink,
}

impl NeighborTarget {
    fn locate(address: IpAddr, links: &Links, interfaces: &BTreeSet<u32>) -> Self {
        let own = links.iter().find(|link| link.has(address));
        match (own, links.on_link(address, interfaces)) {
            (Some(link), _) => Self::Local { ifindex: link.ifindex },
            (None, Some(ifindex)) => Self::OnLink { ifindex, entry: None, asked: false, silent: false },
            (None, None) => Self::OffLink,
        }
    }

    fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local { ifindex: a }, Self::Local { ifindex: b })
            | (Self::OnLink { ifindex: a, .. }, Self::OnLink { ifindex: b, .. }) => a == b,
            (Self::OffLink, Self::OffLink) => true,
            _ => false,
        }
    }

    fn delete_request(self, address: IpAddr) -> Option<NeighborRequest> {
        match self {
            Self::OnLink { ifindex, entry: Some(entry), .. } if entry.ours => {
                Some(NeighborRequest::Delete { ifindex, address })
            }
            _ => None,
        }
    }

    fn neighbor(&self) -> Neighbor {
        match *self {
            Self::Local { ifindex } => Neighbor::Local { ifindex },
            Self::OnLink { ifindex, entry, silent, .. } => match entry.as_ref().and_then(NeighborEntry::valid) {
                Some(mac) => Neighbor::Resolved { ifindex, mac, port: None },
                None if silent => Neighbor::Unresolved { ifindex },
                None => Neighbor::Pending { ifindex },
            },
            Self::OffLink => Neighbor::OffLink,
        }
    }
}

impl NeighborTable {
    /// Sets the addresses to resolve and locates each. Returns requests for addresses that moved or
    /// are no longer needed. New addresses have no entry until one is [observed](Self::observe).
    pub(super) fn set_targets(&mut self, resolve: &ResolveTargets, links: &Links) -> Vec<NeighborRequest> {
        let mut before = mem::take(&mut self.targets);
        let mut requests = Vec::new();
        for &address in &resolve.addresses {
            let target = NeighborTarget::locate(address, links, &resolve.interfaces);
            let target = match before.remove(&address) {
                Some(known) if known.is_same_place(&target) => known,
                Some(known) => {
                    requests.extend(known.delete_request(address));
                    target
                }
                None => target,
            };
            self.targets.insert(address, target);
        }
        requests.extend(before.into_iter().filter_map(|(address, target)| target.delete_request(address)));
        requests
    }

    /// Records an entry, or that it is gone. Returns whether the [`Neighbor`] of the address
    /// changed.
    pub(super) fn observe(&mut self, ifindex: u32, address: IpAddr, seen: Option<NeighborEntry>) -> bool {
        let Some(target) = self.targets.get_mut(&address) else { return false };
        let before = target.neighbor();
        if let NeighborTarget::OnLink { ifindex: own, entry, asked, silent } = target
            && *own == ifindex
        {
            *silent = seen.is_some_and(|seen| seen.has_failed() || *silent && seen.valid().is_none());
            *entry = seen;
            *asked &= seen.is_some();
        }
        target.neighbor() != before
    }

    /// Returns whether an address has no entry yet that was read or requested.
    pub(super) fn is_incomplete(&self) -> bool {
        self.targets.values().any(|target| matches!(target, NeighborTarget::OnLink { entry: None, asked: false, .. }))
    }

    /// Forgets all entries, before they are read again.
    pub(super) fn clear_entries(&mut self) {
        for target in self.targets.values_mut() {
            if let NeighborTarget::OnLink { entry, asked, .. } = target {
                (*entry, *asked) = (None, false);
            }
        }
    }

    /// Returns the requests with which the kernel resolves all addresses and keeps them resolved.
    pub(super) fn refresh(&mut self) -> Vec<NeighborRequest> {
        let mut requests = Vec::new();
        for (&address, target) in &mut self.targets {
            if let Some(request) = target.keep_request(address)
                && let NeighborTarget::OnLink { asked, .. } = target
            {
                *asked = true;
                requests.push(request);
            }
        }
        requests
    }

    /// Returns requests to resolve now all addresses that did not answer. Call it when a cable may
    /// have been plugged in.
    pub(super) fn retry_unresolved(&self) -> Vec<NeighborRequest> {
        let unresolved = |(&address, target): (&IpAddr, &NeighborTarget)| match *target {
            NeighborTarget::OnLink { ifindex, entry: Some(entry), .. } if entry.valid().is_none() => {
                Some(NeighborRequest::Keep { ifindex, address })
            }
            _ => None,
        };
        self.targets.iter().filter_map(unresolved).collect()
    }

    /// Returns whether this is where the address is resolved.
    pub(super) fn is_at(&self, ifindex: u32, address: IpAddr) -> bool {
        let target = self.targets.get(&address);
        matches!(target, Some(NeighborTarget::OnLink { ifindex: own, .. }) if *own == ifindex)
    }

    /// Returns the request that makes the kernel ask for the address now. `None`: it is not on a
    /// segment, or its entry is static, so that it is never asked for.
    pub(super) fn ask_request(&self, address: IpAddr) -> Option<NeighborRequest> {
        match *self.targets.get(&address)? {
            NeighborTarget::OnLink { entry: Some(entry), .. } if entry.is_static() => None,
            NeighborTarget::OnLink { ifindex, entry: Some(entry), .. } if entry.valid().is_some() => {
                Some(NeighborRequest::Ask { ifindex, address })
            }
            NeighborTarget::OnLink { ifindex, .. } => Some(NeighborRequest::Keep { ifindex, address }),
            NeighborTarget::Local { .. } | NeighborTarget::OffLink => None,
        }
    }

    /// Returns whether [`Self::refresh`] would return requests.
    pub(super) fn needs_refresh(&self) -> bool {
        self.targets.iter().any(|(&address, target)| target.keep_request(address).is_some())
    }

    /// Removes all addresses. Returns the requests that delete vipmux's entries.
    pub(super) fn clear(&mut self) -> Vec<NeighborRequest> {
        mem::take(&mut self.targets)
            .into_iter()
            .filter_map(|(address, target)| target.delete_request(address))
            .collect()
    }

    /// Returns all addresses, and how each is reached.
    pub(super) fn neighbors(&self) -> ResolvedNeighbors {
        self.targets.iter().map(|(&address, target)| (address, target.neighbor())).collect()
    }
}

impl NeighborTarget {
    /// Returns the request that the address needs, if the kernel does not keep it resolved already.
    fn keep_request(&self, address: IpAddr) -> Option<NeighborRequest> {
        let Self::OnLink { ifindex, entry, asked, .. } = *self else { return None };
        let is_kept = |entry: NeighborEntry| entry.managed || entry.is_static() || (asked && entry.is_fresh());
        let request = NeighborRequest::Keep { ifindex, address };
        (!entry.is_some_and(is_kept)).then_some(request)
    }
}

#[cfg(test)]
mod tests;
