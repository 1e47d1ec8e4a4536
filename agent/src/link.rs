//! The node's network interfaces, and its neighbours on them.
//!
//! [`Links`] is what the kernel has now: for choosing interfaces, and for refusing a VIP that the node already has on one.
//! [`Monitor`] keeps it up to date, and has the kernel keep the Nodes' MAC addresses resolved.

mod book;
mod ethtool;
mod fdb;
mod kernel;
mod monitor;
mod neighbors;
#[cfg(test)]
pub(crate) mod netns;
mod routes;
mod segment;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use nix::net::if_::if_indextoname;
use vipmux_common::abi::{Mac, capacity};

pub use self::{
    ethtool::{Ethtool, EthtoolError},
    kernel::LinkError,
    monitor::Monitor,
    neighbors::{Neighbor, Neighbors, remove_neighbors},
    routes::gateways,
    segment::{Port, Segment, Segments},
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
    /// Its MAC; `None` where it is no Ethernet, or has none.
    pub mac: Option<Mac>,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// What it is.
    pub kind: Kind,
    /// The bridge, bond or other interface that it is a port of, by index.
    pub controller: Option<u32>,
    /// It is up, has a carrier, and what is sent on it leaves.
    pub carrier: bool,
    /// How often its carrier came, so that it is told from one that was never away.
    pub carrier_ups: u32,
    /// The addresses that the node has on it, with the length of the subnet's prefix in bits.
    pub addresses: BTreeSet<(IpAddr, u8)>,
}

/// What an interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The loopback interface.
    Loopback,
    /// A network card, or what a hypervisor shows as one.
    Device,
    /// A dummy: what is sent there is gone.
    Dummy,
    /// One VLAN of another interface.
    Vlan {
        /// That interface; `None` where it is in another network namespace.
        parent: Option<u32>,
        /// The VLAN's id.
        id: u16,
        /// Its tags are 802.1Q customer tags, not 802.1ad service tags.
        customer: bool,
    },
    /// Another virtual interface, by the kernel's name: `veth`, `bridge`, `bond`.
    Virtual(String),
}

impl Kind {
    /// A bond or a team: several cards that act as one.
    fn is_aggregate(&self) -> bool {
        matches!(self, Self::Virtual(kind) if kind == "bond" || kind == "team")
    }

    fn is_bridge(&self) -> bool {
        matches!(self, Self::Virtual(kind) if kind == "bridge")
    }
}

impl fmt::Display for Kind {
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
    /// None has that name.
    #[error("interface {name:?} is not there; present: {}", present.join(", "))]
    Absent {
        /// The name that was asked for.
        name: String,
        /// The names of those that are.
        present: Vec<String>,
    },
    /// The loopback interface has no wire.
    #[error("interface {name:?} is the loopback: no VIP can be announced there")]
    Loopback {
        /// Its name.
        name: String,
    },
    /// A tunnel, for one.
    #[error("interface {name:?} has no MAC address: it is no Ethernet")]
    NoMac {
        /// Its name.
        name: String,
    },
    /// The data plane's table of interfaces ends before it.
    #[error("interface {name:?} has the index {ifindex}: those below {limit} can be used", limit = capacity::INTERFACES)]
    Index {
        /// Its name.
        name: String,
        /// Its index.
        ifindex: u32,
    },
    /// What a VLAN interface is on is not here.
    #[error("VLAN interface {name:?} is on one of another network namespace: VIPs can be announced only where that is")]
    ParentElsewhere {
        /// Its name.
        name: String,
    },
    /// Two tags, or one that the data plane does not read.
    #[error(
        "interface {name:?} has frames with two tags, or with 802.1ad ones: the data plane reads one 802.1Q tag; name \
         an untagged interface, or one with a single tag"
    )]
    Stacked {
        /// Its name.
        name: String,
    },
    /// All ports of a bridge lead to pods or virtual machines, as far as can be told.
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
    /// Frames of one bridge have different tags on its ports.
    #[error("the ports of bridge {name:?} have different VLAN tags, and a VIP has one: name one of the ports instead")]
    MixedTags {
        /// The bridge's name.
        name: String,
    },
    /// One interface takes frames in the name of two.
    #[error(
        "{port:?} takes frames for the interface with the MAC {first} and for that with {second}, and can do so for \
         one MAC only: give both interfaces the same"
    )]
    TwoMacs {
        /// The port's name.
        port: String,
        /// A MAC.
        first: Mac,
        /// Another.
        second: Mac,
    },
    /// No interface to take without being told.
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

/// An interface's name in the network namespace of the calling thread, or `if` and its index where it is gone.
pub fn interface_name(ifindex: u32) -> String {
    let name = if_indextoname(ifindex).ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("if{ifindex}"))
}

impl Interface {
    /// Itself, if VIPs can be announced on it.
    pub fn suitable(&self) -> Result<&Self, InterfaceError> {
        let name = || self.name.clone();
        if self.kind == Kind::Loopback {
            Err(InterfaceError::Loopback { name: name() })
        } else if self.mac.is_none() {
            Err(InterfaceError::NoMac { name: name() })
        } else if self.ifindex >= capacity::INTERFACES {
            Err(InterfaceError::Index { name: name(), ifindex: self.ifindex })
        } else {
            Ok(self)
        }
    }

    /// Whether it may be the node's end of a pod's or container's link: one that is made in pairs, where the node has no
    /// address, or that of a host alone. A node that is a container has its uplinks of the same kind, on their subnets.
    pub(crate) fn may_lead_to_a_pod(&self) -> bool {
        let is_paired = matches!(&self.kind, Kind::Virtual(kind) if kind == "veth" || kind == "netkit");
        let on_subnet = |&(own, prefix): &(IpAddr, u8)| match own {
            IpAddr::V4(own) => prefix < 32 && !own.is_link_local(),
            IpAddr::V6(own) => prefix < 128 && !own.is_unicast_link_local(),
        };
        is_paired && !self.addresses.iter().any(on_subnet)
    }

    /// Whether it has no wire and its addresses mean nothing outside: a dummy, as kube-proxy's.
    pub(crate) fn is_dummy(&self) -> bool {
        self.kind == Kind::Dummy || self.name == KUBE_IPVS
    }

    /// The length of the longest of its subnets' prefixes that holds `address`, in bits.
    pub fn subnet(&self, address: IpAddr) -> Option<u8> {
        let prefixes = self.addresses.iter().filter(|(own, prefix)| same_subnet(*own, address, *prefix));
        prefixes.map(|&(_, prefix)| prefix).max()
    }
}

/// Whether two addresses of one family have the same first `prefix` bits.
fn same_subnet(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let (difference, width) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
        _ => return false,
    };
    let host_bits = width - u32::from(prefix).min(width);
    difference.checked_shr(host_bits).unwrap_or(0) == 0
}

/// The interfaces of a network namespace, by index, and which of them routes lead out of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    interfaces: BTreeMap<u32, Interface>,
    /// By [`routes::read`].
    routed: BTreeSet<u32>,
}

impl Links {
    /// Reads them, in the network namespace of the calling thread.
    pub async fn read() -> Result<Self, LinkError> {
        let handle = kernel::connect()?;
        kernel::links(&handle).await
    }

    /// All of them, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.values()
    }

    /// The one with that index.
    pub fn get(&self, ifindex: u32) -> Option<&Interface> {
        self.interfaces.get(&ifindex)
    }

    /// The one with that name, if VIPs can be announced on it.
    pub fn named(&self, name: &str) -> Result<&Interface, InterfaceError> {
        match self.iter().find(|interface| interface.name == name) {
            Some(interface) => interface.suitable(),
            None => Err(InterfaceError::Absent { name: name.to_owned(), present: self.names() }),
        }
    }

    /// Those to announce VIPs on if none is named: whose subnet holds one of this Node's own addresses (its
    /// InternalIPs). Dummies do not count.
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

    /// The real interfaces' addresses, each with the interface that has it: a VIP that is one of them must be refused, since
    /// this node's kernel takes it for its own.
    ///
    /// Dummies do not count, `kube-ipvs0` among them: kube-proxy and others put VIPs there so that the node's own
    /// traffic finds them, nothing on a wire reaches a dummy, and the data plane keeps the kernel from answering for
    /// the address elsewhere. The loopback interface counts: the kernel answers for its addresses on every other.
    pub fn owners(&self) -> BTreeMap<IpAddr, &Interface> {
        let real = self.iter().filter(|interface| !interface.is_dummy());
        real.flat_map(|interface| interface.addresses.iter().map(move |&(own, _)| (own, interface))).collect()
    }

    /// The interfaces by which routes lead out to a gateway, for replies to leave by: Ethernet, dummies and links to pods
    /// left out.
    pub fn exits(&self) -> impl Iterator<Item = &Interface> {
        let is_exit = |interface: &&Interface| {
            interface.suitable().is_ok() && !interface.is_dummy() && !interface.may_lead_to_a_pod()
        };
        self.routed.iter().filter_map(|ifindex| self.get(*ifindex)).filter(is_exit)
    }

    /// All interfaces by which routes lead out to a gateway, also those that are no way for replies.
    pub fn routed(&self) -> impl Iterator<Item = &Interface> {
        self.routed.iter().filter_map(|ifindex| self.get(*ifindex))
    }

    /// The interface among `allowed` on whose subnet `address` is: the longest prefix decides, then the lowest index.
    fn on_link(&self, address: IpAddr, allowed: &BTreeSet<u32>) -> Option<u32> {
        let candidates = allowed.iter().filter_map(|ifindex| self.get(*ifindex));
        let longest = candidates.filter_map(|interface| Some((interface.subnet(address)?, interface.ifindex)));
        longest.max_by_key(|&(prefix, ifindex)| (prefix, std::cmp::Reverse(ifindex))).map(|(_, ifindex)| ifindex)
    }

    fn names(&self) -> Vec<String> {
        self.iter().map(|interface| interface.name.clone()).collect()
    }
}
