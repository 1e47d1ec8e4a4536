//! Reads and writes the kernel's neighbor entries, which give the MAC of a Node's address on the
//! segment.
//!
//! The kernel resolves the addresses and keeps them fresh. Each gets an entry with
//! `NTF_EXT_MANAGED` (Linux 5.16, include/uapi/linux/neighbour.h), which the kernel refreshes as
//! long as it exists. Older kernels ignore that flag. There the entry is *used* (`NTF_USE`) again
//! whenever it becomes stale.
//!
//! Each entry carries [`ORIGIN`], so that a restarted agent and `unload` recognize it. The kernel
//! also sets this mark on an entry that existed before (`neigh_add` in net/core/neighbour.c). At
//! the end the entries are deleted. This costs the kernel one solicitation when it next sends to
//! the address.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use futures_util::TryStreamExt;
use netlink_packet_route::{
    AddressFamily,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
    route::RouteProtocol,
};
use rtnetlink::Handle;
use vipmux_common::abi::Mac;

use super::{LinkError, connection};

/// `NDA_PROTOCOL` of vipmux's entries: "v", which is no protocol of include/uapi/linux/rtnetlink.h.
const ORIGIN: RouteProtocol = RouteProtocol::Other(b'v');

/// How this node reaches an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbor {
    /// The address is this node's own.
    Local {
        /// The interface with the address.
        ifindex: u32,
    },
    /// The MAC is known.
    Resolved {
        /// The interface that leads to it.
        ifindex: u32,
        /// Its MAC on that segment.
        mac: Mac,
        /// The port that leads to it, if the interface is a bridge that has learned the MAC, or a
        /// VLAN of such a bridge.
        port: Option<u32>,
    },
    /// The address is in the interface's subnet, and the kernel is resolving it. A MAC known before
    /// may still be right.
    Pending {
        /// The interface.
        ifindex: u32,
    },
    /// The address is in the interface's subnet, and does not answer.
    Unresolved {
        /// The interface.
        ifindex: u32,
    },
    /// Its kernel does not answer, nor does its agent: the node is dead, or cut off.
    Silent {
        /// The interface that led to it.
        ifindex: u32,
    },
    /// The address is in no subnet of the used interfaces: it is behind a router, so no frames can
    /// be handed over to it.
    OffLink,
}

impl Neighbor {
    /// Returns the interface that leads to the address.
    pub fn ifindex(self) -> Option<u32> {
        match self {
            Self::Local { ifindex }
            | Self::Resolved { ifindex, .. }
            | Self::Pending { ifindex }
            | Self::Unresolved { ifindex }
            | Self::Silent { ifindex } => Some(ifindex),
            Self::OffLink => None,
        }
    }

    /// Makes it silent, if it is another machine on a segment.
    pub(super) fn set_silent(&mut self) {
        if let Self::Resolved { ifindex, .. } | Self::Pending { ifindex } | Self::Unresolved { ifindex } = *self {
            *self = Self::Silent { ifindex };
        }
    }

    /// Returns the MAC, if it is another machine's and known.
    pub fn mac(self) -> Option<Mac> {
        match self {
            Self::Resolved { mac, .. } => Some(mac),
            _ => None,
        }
    }
}

impl fmt::Display for Neighbor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { .. } => f.write_str("this node"),
            Self::Resolved { mac, .. } => mac.fmt(f),
            Self::Pending { .. } => f.write_str("being resolved"),
            Self::Unresolved { .. } => f.write_str("does not answer ARP or NDP"),
            Self::Silent { .. } => f.write_str("silent: neither its agent nor its kernel answers"),
            Self::OffLink => f.write_str("not on a subnet of the announcing interfaces (behind a router)"),
        }
    }
}

/// The resolved addresses, and how each is reached.
pub type ResolvedNeighbors = BTreeMap<IpAddr, Neighbor>;

/// The kernel's entry for a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighborEntry {
    pub(super) state: NeighbourState,
    pub(super) mac: Option<Mac>,
    pub(super) managed: bool,
    pub(super) ours: bool,
}

impl NeighborEntry {
    /// Returns the interface, the address and the entry. `None`: the message is not about a
    /// neighbor with an IP address.
    pub(super) fn parse(message: &NeighbourMessage) -> Option<(u32, IpAddr, Self)> {
        if message.header.flags.contains(NeighbourFlags::Proxy) {
            return None;
        }
        let mut entry = Self { state: message.header.state, mac: None, managed: false, ours: false };
        let mut address = None;
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some((*v4).into()),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some((*v6).into()),
                NeighbourAttribute::LinkLayerAddress(bytes) => {
                    entry.mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac::new);
                }
                NeighbourAttribute::ExtFlags(flags) => entry.managed = flags.contains(NeighbourExtFlags::Managed),
                NeighbourAttribute::Protocol(protocol) => entry.ours = *protocol == ORIGIN,
                _ => {}
            }
        }
        Some((message.header.ifindex, address?, entry))
    }

    /// Returns the MAC, if the kernel would send to it (`NUD_VALID`).
    pub(super) fn valid(&self) -> Option<Mac> {
        use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
        self.mac.filter(|_| matches!(self.state, Reachable | Stale | Delay | Probe | Permanent | Noarp))
    }

    /// Returns whether the kernel's resolution failed.
    pub(super) fn has_failed(&self) -> bool {
        self.state == NeighbourState::Failed
    }

    /// Returns whether the neighbor answered since it was last asked.
    pub(super) fn is_confirmed(&self) -> bool {
        self.state == NeighbourState::Reachable
    }

    /// Returns whether it is configured statically, so that it needs no refresh.
    pub(super) fn is_static(&self) -> bool {
        matches!(self.state, NeighbourState::Permanent | NeighbourState::Noarp)
    }

    /// Returns whether the kernel is resolving it, or has resolved it a short time ago.
    pub(super) fn is_fresh(&self) -> bool {
        use NeighbourState::{Delay, Incomplete, Probe, Reachable};
        matches!(self.state, Reachable | Delay | Probe | Incomplete)
    }
}

/// A request to the kernel about a neighbor entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighborRequest {
    /// Resolve the address, and keep it resolved.
    Keep { ifindex: u32, address: IpAddr },
    /// Ask the known MAC now whether it still has the address. An answer makes the entry reachable.
    /// Then [`Keep`](Self::Keep) is needed again.
    Ask { ifindex: u32, address: IpAddr },
    /// Delete vipmux's entry.
    Delete { ifindex: u32, address: IpAddr },
}

/// Executes a request.
pub(super) async fn execute(handle: &Handle, request: NeighborRequest) -> Result<(), LinkError> {
    match request {
        NeighborRequest::Keep { ifindex, address } => {
            // Without a state: an existing entry keeps its own, and a missing entry is made.
            let request = handle.neighbours().add(ifindex, address).state(NeighbourState::None);
            let mut request = request.flags(NeighbourFlags::Use).replace();
            let attributes = &mut request.message_mut().attributes;
            attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
            attributes.push(NeighbourAttribute::Protocol(ORIGIN));
            request.execute().await.map_err(LinkError::request("resolve a neighbor"))
        }
        NeighborRequest::Ask { ifindex, address } => {
            // The kernel asks when the state becomes `NUD_PROBE`, so first it must be another one.
            // It repeats this after a second, and gives up after three.
            for state in [NeighbourState::Stale, NeighbourState::Probe] {
                let request = handle.neighbours().add(ifindex, address).state(state).replace();
                request.execute().await.map_err(LinkError::request("ask a neighbor"))?;
            }
            Ok(())
        }
        NeighborRequest::Delete { ifindex, address } => {
            let mut message = NeighbourMessage::default();
            message.header.ifindex = ifindex;
            let (family, destination) = match address {
                IpAddr::V4(v4) => (AddressFamily::Inet, NeighbourAddress::Inet(v4)),
                IpAddr::V6(v6) => (AddressFamily::Inet6, NeighbourAddress::Inet6(v6)),
            };
            message.header.family = family;
            message.attributes.push(NeighbourAttribute::Destination(destination));
            handle.neighbours().del(message).execute().await.map_err(LinkError::request("remove a neighbor entry"))
        }
    }
}

/// Returns all entries of the kernel.
pub(super) async fn entries(handle: &Handle) -> Result<Vec<(u32, IpAddr, NeighborEntry)>, LinkError> {
    let mut found = Vec::new();
    let mut neighbors = handle.neighbours().get().execute();
    while let Some(neighbor) = neighbors.try_next().await.map_err(LinkError::request("list neighbors"))? {
        found.extend(NeighborEntry::parse(&neighbor));
    }
    Ok(found)
}

/// Removes all neighbor entries that an agent left behind. Returns their number.
pub async fn remove_neighbors() -> Result<usize, LinkError> {
    let handle = connection::connect()?;
    let ours: Vec<_> = entries(&handle).await?.into_iter().filter(|(_, _, entry)| entry.ours).collect();
    for &(ifindex, address, _) in &ours {
        execute(&handle, NeighborRequest::Delete { ifindex, address }).await?;
    }
    Ok(ours.len())
}
