//! Neighbours: which MAC a Node's address has on the segment.
//!
//! The kernel resolves them and keeps them fresh: each gets an entry with `NTF_EXT_MANAGED` (Linux 5.16,
//! include/uapi/linux/neighbour.h), which the kernel probes for as long as it is there. Older kernels ignore that flag;
//! there the entry is *used* (`NTF_USE`) again whenever it gets stale.
//!
//! Each carries [`ORIGIN`], so that it is known for our own, also after a restart and by `unload`: the kernel takes that
//! mark for an entry that it had before, too (`neigh_add` in net/core/neighbour.c). At the end they are deleted, which
//! costs the kernel one question when it next sends there.

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

use super::{LinkError, kernel};

/// `NDA_PROTOCOL` of the entries that are ours: "v"; no protocol of include/uapi/linux/rtnetlink.h.
const ORIGIN: RouteProtocol = RouteProtocol::Other(b'v');

/// How an address is reached from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbor {
    /// It is this node's own, on that interface.
    Local {
        /// The interface.
        ifindex: u32,
    },
    /// Its MAC is known.
    Resolved {
        /// The interface that leads to it.
        ifindex: u32,
        /// Its MAC on that segment.
        mac: Mac,
        /// The port behind which it is, where that interface is a bridge that has learnt it, or a VLAN of one.
        port: Option<u32>,
    },
    /// It is on that interface's subnet, and the kernel is asking: nothing speaks against what was known before.
    Pending {
        /// The interface.
        ifindex: u32,
    },
    /// It is on that interface's subnet, and does not answer.
    Unresolved {
        /// The interface.
        ifindex: u32,
    },
    /// It is on no subnet of the interfaces in use: behind a router, which frames cannot be handed over through.
    OffLink,
}

impl Neighbor {
    /// The interface that leads to it.
    pub fn ifindex(self) -> Option<u32> {
        match self {
            Self::Local { ifindex }
            | Self::Resolved { ifindex, .. }
            | Self::Pending { ifindex }
            | Self::Unresolved { ifindex } => Some(ifindex),
            Self::OffLink => None,
        }
    }

    /// Its MAC, if it is another machine's and known.
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
            Self::OffLink => f.write_str("not on a subnet of the announcing interfaces (behind a router)"),
        }
    }
}

/// The wanted addresses, and how each is reached.
pub type Neighbors = BTreeMap<IpAddr, Neighbor>;

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) state: NeighbourState,
    pub(super) mac: Option<Mac>,
    pub(super) managed: bool,
    pub(super) ours: bool,
}

impl Entry {
    /// The interface, the address, and the entry; `None` for what is no neighbour of an IP address.
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

    /// The MAC, if the kernel would send to it (`NUD_VALID`).
    pub(super) fn valid(&self) -> Option<Mac> {
        use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
        self.mac.filter(|_| matches!(self.state, Reachable | Stale | Delay | Probe | Permanent | Noarp))
    }

    /// The kernel asked for it in vain.
    pub(super) fn has_failed(&self) -> bool {
        self.state == NeighbourState::Failed
    }

    /// Somebody configured it, and it needs no care.
    pub(super) fn is_static(&self) -> bool {
        matches!(self.state, NeighbourState::Permanent | NeighbourState::Noarp)
    }

    /// The kernel is resolving it, or has done so a short while ago.
    pub(super) fn is_fresh(&self) -> bool {
        use NeighbourState::{Delay, Incomplete, Probe, Reachable};
        matches!(self.state, Reachable | Delay | Probe | Incomplete)
    }
}

/// What is to be asked of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Resolve, and keep resolved.
    Keep { ifindex: u32, address: IpAddr },
    /// Our entry goes.
    Delete { ifindex: u32, address: IpAddr },
}

/// Carries out a command.
pub(super) async fn execute(handle: &Handle, command: Command) -> Result<(), LinkError> {
    match command {
        Command::Keep { ifindex, address } => {
            // No state: an entry keeps the one it has, and a missing one is made.
            let request = handle.neighbours().add(ifindex, address).state(NeighbourState::None);
            let mut request = request.flags(NeighbourFlags::Use).replace();
            let attributes = &mut request.message_mut().attributes;
            attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
            attributes.push(NeighbourAttribute::Protocol(ORIGIN));
            request.execute().await.map_err(LinkError::request("have a neighbour resolved"))
        }
        Command::Delete { ifindex, address } => {
            let mut message = NeighbourMessage::default();
            message.header.ifindex = ifindex;
            let (family, destination) = match address {
                IpAddr::V4(v4) => (AddressFamily::Inet, NeighbourAddress::Inet(v4)),
                IpAddr::V6(v6) => (AddressFamily::Inet6, NeighbourAddress::Inet6(v6)),
            };
            message.header.family = family;
            message.attributes.push(NeighbourAttribute::Destination(destination));
            handle.neighbours().del(message).execute().await.map_err(LinkError::request("remove a neighbour entry"))
        }
    }
}

/// All entries that the kernel has.
pub(super) async fn entries(handle: &Handle) -> Result<Vec<(u32, IpAddr, Entry)>, LinkError> {
    let mut found = Vec::new();
    let mut neighbors = handle.neighbours().get().execute();
    while let Some(neighbor) = neighbors.try_next().await.map_err(LinkError::request("list neighbours"))? {
        found.extend(Entry::parse(&neighbor));
    }
    Ok(found)
}

/// Removes every neighbour entry that an agent kept and left behind; how many there were.
pub async fn remove_neighbors() -> Result<usize, LinkError> {
    let handle = kernel::connect()?;
    let ours: Vec<_> = entries(&handle).await?.into_iter().filter(|(_, _, entry)| entry.ours).collect();
    for &(ifindex, address, _) in &ours {
        execute(&handle, Command::Delete { ifindex, address }).await?;
    }
    Ok(ours.len())
}
