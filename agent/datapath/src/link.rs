//! The node's network interfaces, and its neighbors on them.
//!
//! [`Links`] is the current state of interfaces. It serves to choose interfaces, and to refuse a
//! VIP that is already an address of the node. [`Monitor`] keeps it up to date, and has the kernel
//! keep the Nodes' MAC addresses resolved.

mod connection;
mod ethtool;
mod fdb;
mod kernel;
mod lingering;
mod monitor;
mod neighbor_table;
mod neighbors;
mod probing;
mod routes;
mod segment;
mod shared_subnet;
#[cfg(test)]
mod tests;
mod unreachability;
mod veth;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use nix::net::if_::if_indextoname;
use tokio::time::Instant;
use vipmux_common::abi::{Mac, capacity};

pub use self::{
    connection::LinkError,
    ethtool::{Ethtool, EthtoolError},
    monitor::Monitor,
    neighbors::{Neighbor, ResolvedNeighbors, remove_neighbors},
    probing::{PeersBySegment, SegmentPeers, SegmentReaches},
    routes::gateways,
    segment::{NetworkSegment, SegmentPort, Segments},
    shared_subnet::{CardReason, SharedSubnet},
    unreachability::{Doubt, Doubts},
    veth::{Delivery, OtherEnd, other_ends},
};
use self::{
    lingering::{AddressOf, Lingering},
    routes::Routes,
};

/// kube-proxy's dummy interface in ipvs mode, which has every VIP.
const KUBE_IPVS: &str = "kube-ipvs0";

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Its MAC. `None`: it is no Ethernet interface, or has no MAC.
    pub mac: Option<Mac>,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Its kind.
    pub kind: InterfaceKind,
    /// The index of the bridge, bond or other interface whose port it is.
    pub controller: Option<u32>,
    /// It is a card of a bond that uses another one now.
    pub backup: bool,
    /// It is up, has a carrier, and sends frames.
    pub carrier: bool,
    /// The number of times that its carrier came up. It shows that a carrier was away for a short
    /// time.
    pub carrier_ups: u32,
    /// The node's addresses on it, with the prefix length of the subnet in bits. A [`Monitor`] keeps those
    /// that were removed for five seconds more.
    pub addresses: BTreeSet<(IpAddr, u8)>,
}

/// The kind of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// The loopback interface.
    Loopback,
    /// A network card, physical or emulated.
    Device,
    /// A dummy interface, which discards what is sent.
    Dummy,
    /// One VLAN of another interface.
    Vlan {
        /// The index of that interface. `None`: it is in another network namespace.
        parent: Option<u32>,
        /// The VLAN's id.
        id: u16,
        /// Its tags are 802.1Q customer tags, not 802.1ad service tags.
        customer: bool,
    },
    /// Another virtual interface, by the kernel's name for its kind: `veth`, `bridge`, `bond`.
    Virtual(String),
}

impl InterfaceKind {
    /// Returns whether this is a bond or a team: several cards that act as one.
    fn is_aggregate(&self) -> bool {
        matches!(self, Self::Virtual(kind) if kind == "bond" || kind == "team")
    }

    fn is_bridge(&self) -> bool {
        matches!(self, Self::Virtual(kind) if kind == "bridge")
    }

    fn is_veth(&self) -> bool {
        matches!(self, Self::Virtual(kind) if kind == "veth")
    }
}

impl fmt::Display for InterfaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "loopback",
            Self::Device => "device",
            Self::Dummy => "dummy",
            Self::Vlan { .. } => "vlan",
            Self::Virtual(kind) => kind,
        })
    }
}

/// An interface cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceError {
    /// No interface has this name.
    #[error("interface {name:?} does not exist; present: {}", present.join(", "))]
    Absent {
        /// The given name.
        name: String,
        /// The names of existing interfaces.
        present: Vec<String>,
    },
    /// The loopback interface has no wire.
    #[error("interface {name:?} is the loopback: no VIP can be announced there")]
    Loopback {
        /// Its name.
        name: String,
    },
    /// It has no MAC, as a tunnel for instance.
    #[error("interface {name:?} has no MAC address: it is no Ethernet interface; name the one on the VIPs' network")]
    NoMac {
        /// Its name.
        name: String,
    },
    /// Its index exceeds the data plane's table of interfaces.
    #[error("interface {name:?} has the index {ifindex}: only indices below {limit} can be used", limit = capacity::INTERFACES)]
    Index {
        /// Its name.
        name: String,
        /// Its index.
        ifindex: u32,
    },
    /// The parent of a VLAN interface is in another network namespace.
    #[error("the parent of VLAN interface {name:?} is in another network namespace: VIPs can be announced only there")]
    ParentElsewhere {
        /// Its name.
        name: String,
    },
    /// Its frames have two tags, or one that the data plane does not read.
    #[error(
        "frames on interface {name:?} have two tags, or 802.1ad tags: the data plane reads one 802.1Q tag; name an \
         untagged interface, or one with a single tag"
    )]
    Stacked {
        /// Its name.
        name: String,
    },
    /// All ports of a bridge seem to lead to pods or virtual machines.
    #[error(
        "bridge {name:?} has no port that is a network card, a bond or a VLAN of one, so name the port that leads to \
         the LAN instead of the bridge; its ports: {}",
        ports.join(", ")
    )]
    NoUplink {
        /// Its name.
        name: String,
        /// The names of its ports.
        ports: Vec<String>,
    },
    /// A bridge's ports have different VLAN tags.
    #[error("the ports of bridge {name:?} have different VLAN tags, and a VIP has one: name one of the ports instead")]
    MixedTags {
        /// The bridge's name.
        name: String,
    },
    /// One port serves two interfaces with different MACs.
    #[error(
        "{port:?} receives frames for two interfaces, with the MACs {first} and {second}, and supports one MAC only: \
         give both interfaces the same MAC"
    )]
    TwoMacs {
        /// The port's name.
        port: String,
        /// A MAC.
        first: Mac,
        /// Another.
        second: Mac,
    },
    /// No interface is named, and none can be chosen.
    #[error(
        "no interface is on the subnet of this Node's addresses ({}), so name one; present: {}",
        list(addresses),
        present.join(", ")
    )]
    NoneHolds {
        /// The Node's addresses.
        addresses: Vec<IpAddr>,
        /// The names of the interfaces.
        present: Vec<String>,
    },
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns an interface's name in the network namespace of the calling thread, or `if` and its
/// index if it is gone.
pub fn interface_name(ifindex: u32) -> String {
    let name = if_indextoname(ifindex).ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("if{ifindex}"))
}

impl Interface {
    /// Returns the interface itself if VIPs can be announced on it.
    pub fn suitable(&self) -> Result<&Self, InterfaceError> {
        let name = || self.name.clone();
        if self.kind == InterfaceKind::Loopback {
            Err(InterfaceError::Loopback { name: name() })
        } else if self.mac.is_none() {
            Err(InterfaceError::NoMac { name: name() })
        } else if self.ifindex >= capacity::INTERFACES {
            Err(InterfaceError::Index { name: name(), ifindex: self.ifindex })
        } else {
            Ok(self)
        }
    }

    /// Returns whether it may be the node's end of a link to a pod or container: one of a pair, on
    /// which the node has no address or only a host address. If the node itself is a container, its
    /// uplinks are of the same kind, but have addresses in subnets.
    pub fn may_lead_to_a_pod(&self) -> bool {
        let is_paired = matches!(&self.kind, InterfaceKind::Virtual(kind) if kind == "veth" || kind == "netkit");
        is_paired && self.subnet_addresses().next().is_none()
    }

    /// Returns whether the node has this address on it.
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }

    /// Returns the node's addresses on it that are in a subnet and not link-local.
    pub fn subnet_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().filter(|(own, prefix)| is_on_subnet(*own, *prefix)).map(|(own, _)| *own)
    }

    /// Returns its subnets, without link-local ones.
    pub fn subnets(&self) -> impl Iterator<Item = Subnet> {
        let own = self.addresses.iter().filter(|(own, prefix)| is_on_subnet(*own, *prefix));
        own.map(|&(own, prefix)| (network(own, prefix), prefix))
    }

    /// Returns whether it is a dummy, like kube-proxy's: it has no wire, and its addresses are not
    /// visible outside.
    pub fn is_dummy(&self) -> bool {
        self.kind == InterfaceKind::Dummy || self.name == KUBE_IPVS
    }

    /// Returns the length of its longest subnet prefix that contains `address`, in bits.
    pub fn subnet(&self, address: IpAddr) -> Option<u8> {
        let prefixes = self.addresses.iter().filter(|(own, prefix)| same_subnet(*own, address, *prefix));
        prefixes.map(|&(_, prefix)| prefix).max()
    }
}

/// A subnet: its first address, and the length of its prefix in bits.
pub type Subnet = (IpAddr, u8);

/// Returns whether an address is in a subnet that is not link-local.
fn is_on_subnet(own: IpAddr, prefix: u8) -> bool {
    match own {
        IpAddr::V4(own) => prefix < 32 && !own.is_link_local(),
        IpAddr::V6(own) => prefix < 128 && !own.is_unicast_link_local(),
    }
}

/// Returns the first address of a subnet.
fn network(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(own) => {
            let mask = u32::MAX.checked_shl(u32::from(32_u8.saturating_sub(prefix))).unwrap_or(0);
            Ipv4Addr::from_bits(own.to_bits() & mask).into()
        }
        IpAddr::V6(own) => {
            let mask = u128::MAX.checked_shl(u32::from(128_u8.saturating_sub(prefix))).unwrap_or(0);
            Ipv6Addr::from_bits(own.to_bits() & mask).into()
        }
    }
}

/// Returns whether two addresses have the same family and the same first `prefix` bits.
fn same_subnet(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let (difference, width) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
        _ => return false,
    };
    let host_bits = width - u32::from(prefix).min(width);
    difference.checked_shr(host_bits).unwrap_or(0) == 0
}

/// The interfaces of a network namespace, and those that routes use to reach gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    interfaces: BTreeMap<u32, Interface>,
    /// By [`routes::read`].
    routed: BTreeSet<u32>,
    /// The interface by which the kernel sends to each subnet that the node is in.
    subnet_routes: BTreeMap<Subnet, u32>,
    /// The other ends of the veths that [`Monitor::follow_veths`] names, by the veths' indices.
    other_ends: BTreeMap<u32, OtherEnd>,
    /// The interfaces among those of [`Monitor::follow_tags`] that take VLAN tags out of frames.
    strips_tags: BTreeSet<u32>,
    /// The number of notifications about the interfaces of `strips_tags`. Readers wake up for each, since
    /// the offload may have been off in between.
    tag_notifications: u64,
    /// Addresses of `interfaces` that were removed a short time ago.
    removed: Lingering<AddressOf>,
    /// Interfaces that lost their carrier a short time ago.
    lost_carriers: Lingering<u32>,
    /// Interfaces of `routed` whose routes were removed a short time ago.
    lost_routes: Lingering<u32>,
}

impl Links {
    /// Reads the interfaces of the calling thread's network namespace.
    pub async fn read() -> Result<Self, LinkError> {
        let handle = connection::connect()?;
        kernel::links(&handle).await
    }

    /// Returns all interfaces, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.values()
    }

    /// Returns the interface with this index.
    pub fn get(&self, ifindex: u32) -> Option<&Interface> {
        self.interfaces.get(&ifindex)
    }

    /// Returns the interface with this name, if VIPs can be announced on it.
    pub fn named(&self, name: &str) -> Result<&Interface, InterfaceError> {
        match self.iter().find(|interface| interface.name == name) {
            Some(interface) => interface.suitable(),
            None => Err(InterfaceError::Absent { name: name.to_owned(), present: self.names() }),
        }
    }

    /// Returns the interfaces to announce VIPs on if none is named: those whose subnet contains one
    /// of this Node's own addresses (its InternalIPs). Dummies do not count.
    pub fn holding(&self, addresses: &[IpAddr]) -> Result<Vec<&Interface>, InterfaceError> {
        let holds = |interface: &&Interface| addresses.iter().any(|&address| interface.subnet(address).is_some());
        let found = self.iter().filter(|interface| !interface.is_dummy()).filter(holds);
        let (suitable, refused): (Vec<_>, Vec<_>) = found.map(Interface::suitable).partition(Result::is_ok);
        if !suitable.is_empty() {
            return Ok(suitable.into_iter().flatten().collect());
        }
        Err(refused
            .into_iter()
            .find_map(Result::err)
            .unwrap_or_else(|| InterfaceError::NoneHolds { addresses: addresses.to_vec(), present: self.names() }))
    }

    /// Returns the addresses of real interfaces, each with its interface. A VIP among them must be
    /// refused, since the node's kernel treats it as its own.
    ///
    /// Dummies do not count, `kube-ipvs0` among them. kube-proxy and others put VIPs there for the
    /// node's own traffic. No frame from a wire reaches a dummy, and the data plane keeps the
    /// kernel from answering for the address on other interfaces. The loopback interface counts:
    /// the kernel answers for its addresses on all interfaces.
    pub fn owners(&self) -> BTreeMap<IpAddr, &Interface> {
        let real = self.iter().filter(|interface| !interface.is_dummy());
        let owned = real.flat_map(|interface| interface.addresses.iter().map(move |address| (*address, interface)));
        let is_removed = |(own, prefix): (IpAddr, u8), interface: &Interface| {
            self.removed.contains(&(interface.ifindex, own, prefix))
        };
        owned.filter(|(own, interface)| !is_removed(*own, interface)).map(|((own, _), at)| (own, at)).collect()
    }

    /// Returns the interfaces by which replies leave through a gateway: Ethernet, without dummies
    /// and links to pods.
    pub fn exits(&self) -> impl Iterator<Item = &Interface> {
        let is_exit = |interface: &&Interface| {
            interface.suitable().is_ok() && !interface.is_dummy() && !interface.may_lead_to_a_pod()
        };
        self.routed.iter().filter_map(|ifindex| self.get(*ifindex)).filter(is_exit)
    }

    /// Returns all interfaces by which routes lead to a gateway, even if no replies leave there.
    pub fn routed(&self) -> impl Iterator<Item = &Interface> {
        self.routed.iter().filter_map(|ifindex| self.get(*ifindex))
    }

    /// Returns whether an interface takes VLAN tags out of received frames. False for interfaces that
    /// [`Monitor::follow_tags`] does not name.
    pub fn strips_tags(&self, ifindex: u32) -> bool {
        self.strips_tags.contains(&ifindex)
    }

    /// Returns the interface among `allowed` whose subnet contains `address`: the longest prefix
    /// wins, then one with a carrier, then the one that the kernel sends by, then the lowest index.
    pub fn on_link(&self, address: IpAddr, allowed: &BTreeSet<u32>) -> Option<u32> {
        let rank = |interface: &Interface| {
            let prefix = interface.subnet(address)?;
            let is_routed = self.subnet_routes.get(&(network(address, prefix), prefix)) == Some(&interface.ifindex);
            Some((prefix, interface.carrier, is_routed, Reverse(interface.ifindex)))
        };
        let candidates = allowed.iter().filter_map(|ifindex| self.get(*ifindex));
        candidates.filter_map(rank).max().map(|(.., Reverse(ifindex))| ifindex)
    }

    /// Sets what routes say. Returns whether that changed.
    fn set_routes(&mut self, routes: Routes, now: Instant) -> bool {
        let Routes { exits, subnets } = routes;
        let mut changed = self.set_routed(exits, now);
        changed |= self.subnet_routes != subnets;
        self.subnet_routes = subnets;
        changed
    }

    fn names(&self) -> Vec<String> {
        self.iter().map(|interface| interface.name.clone()).collect()
    }
}
