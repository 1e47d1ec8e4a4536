//! Defines the desired state of one node's data plane.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
};

use imbl::OrdMap;
use vipmux_common::abi::Mac;

#[cfg(doc)]
use crate::PortNumber;
use crate::{NodeName, PortClaim, ServiceName, Vip, hashing::Hashing, prefix::Prefix};

/// The desired state of one node's data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The node that this is.
    pub local: NodeName,
    /// Nodes, with how they are reached from here. Backends on other nodes are left out of the
    /// tables.
    pub nodes: BTreeMap<NodeName, DesiredNode>,
    /// Further MACs with which nodes announce VIPs. They are on other segments than the one that
    /// leads to the node.
    pub speakers: BTreeMap<Mac, NodeName>,
    /// The source MACs of frames that each node hands over: the one in use first. There are two
    /// while a gossip key is replaced.
    pub handover_macs: Arc<BTreeMap<NodeName, Vec<Mac>>>,
    /// VIPs.
    pub vips: BTreeMap<Vip, DesiredVip>,
    /// Port claims. A claim whose VIP is not in `vips` is an error of the caller. One with
    /// [`PortNumber::Every`] has every port that no other claim names.
    pub services: OrdMap<PortClaim, DesiredService>,
    /// The treatment of a claim if all its endpoints that take new flows are on nodes that are not
    /// in `nodes`.
    pub unreachable: Unreachable,
    /// How backends are chosen for new flows.
    pub hashing: Hashing,
}

impl Desired {
    /// Whether the backend is on a node in [`Self::nodes`].
    pub fn reaches(&self, backend: &DesiredBackend) -> bool {
        backend.node.as_ref().is_some_and(|node| self.nodes.contains_key(node))
    }
}

/// The treatment of packets to a Service port if no frame can be handed over to any of its
/// endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreachable {
    /// Packets are left to the node's own stack, that is to kube-proxy, which hides the client's
    /// address.
    Kernel,
    /// Packets are refused, as if there were no endpoint.
    #[default]
    Refuse,
}

/// A node as it is reached from this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredNode {
    /// The path by its InternalIP.
    pub path: DesiredPath,
    /// The paths for VIPs of a segment, by the segment's number ([`DesiredVip::segment`]).
    pub by_segment: BTreeMap<u8, DesiredPath>,
}

/// A path to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredPath {
    /// Its MAC at the end of the path; `None`: not resolved (yet).
    pub mac: Option<Mac>,
    /// The local interface that leads to it.
    pub ifindex: u32,
    /// The 802.1Q VLAN id of frames to it, 0 for untagged; `None`: not known (yet).
    pub vlan: Option<u16>,
    /// The interface's MTU, bytes.
    pub mtu: u32,
    /// Whether frames may be handed over to it.
    pub reach: Reach,
}

/// Whether frames may be handed over to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// They may.
    Attached,
    /// Its MAC is not known, or the interface that leads to it has no program.
    Detached,
    /// Neither its agent nor its kernel answers.
    Silent,
}

/// A VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredVip {
    /// Whether this node leads it.
    pub leading: bool,
    /// Bits of the interfaces it is announced on ([`bit`](vipmux_common::abi::Interface::bit)).
    pub interfaces: u32,
    /// The VLAN it is announced on; `None`: untagged.
    pub vlan: Option<NonZeroU16>,
    /// The number of its segment, which decides how nodes are reached; 0: by their InternalIPs.
    pub segment: u8,
    /// The epoch of the leadership.
    pub epoch: u64,
}

/// A Service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredService {
    /// The Service.
    pub owner: ServiceName,
    /// Its endpoints for this port. Services with equal sets share one allocation, so that
    /// comparing is cheap.
    pub backends: Arc<BTreeSet<DesiredBackend>>,
    /// How its packets are treated.
    pub treatment: Treatment,
}

/// How a Service port's packets are treated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// The addresses that clients may have, all of the VIP's family; `None`: any. Equal sets share
    /// one allocation.
    pub sources: Option<Arc<BTreeSet<Prefix>>>,
    /// How long a client without packets is remembered, seconds; `None`: no session affinity.
    pub affinity: Option<u32>,
    /// The time after which an idle flow is forgotten, seconds; `None`: the default for the
    /// protocol.
    pub idle: Option<u32>,
    /// Whether backends get packets with the VIP as their destination.
    pub direct: bool,
    /// Whether packets are left to the node's own stack.
    pub kernel: bool,
}

/// An endpoint of a Service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DesiredBackend {
    /// The endpoint's address.
    pub address: IpAddr,
    /// The endpoint's port; `None`: the port that the client used.
    pub port: Option<NonZeroU16>,
    /// The node that it is on; `None`: its EndpointSlice names no node, and no node has its
    /// address.
    pub node: Option<NodeName>,
    /// The flows that it takes.
    pub readiness: Readiness,
}

impl DesiredBackend {
    /// Returns the port as in the maps and in JSON; 0: the port that the client used.
    pub fn port_number(&self) -> u16 {
        self.port.map_or(0, NonZeroU16::get)
    }
}

/// The flows that a backend takes. All backends keep their established connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Readiness {
    /// It takes no new flows: it is terminating, and serves no more.
    Stopping,
    /// It is not ready, and does not terminate. It takes only new flows that another node hands over,
    /// since that node may know sooner that the backend became ready.
    NotReady,
    /// It is terminating and still serves. It takes only new flows that another node hands over,
    /// since that node does not know yet that the backend drains.
    Draining,
    /// It takes no new flows, since it fails its health probe.
    Failing,
    /// It takes new flows.
    Ready,
    /// It takes new flows although it fails its health probe, since all backends that would take
    /// new flows fail.
    ReadyThoughFailing,
}

impl Readiness {
    /// Whether it takes new flows.
    pub const fn is_ready(self) -> bool {
        matches!(self, Self::Ready | Self::ReadyThoughFailing)
    }

    /// Whether it takes no flows of datagrams, not even established ones.
    pub const fn is_stopping(self) -> bool {
        matches!(self, Self::Stopping | Self::NotReady | Self::Failing)
    }

    /// Whether it fails its health probe.
    pub const fn is_failing(self) -> bool {
        matches!(self, Self::Failing | Self::ReadyThoughFailing)
    }
}
