//! The sync engine: from what the kernel holds to what it should hold, in an order that never shows a packet a mixture.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use vipmux_common::abi::{self, Mac};

use crate::model::{NodeName, PortClaim, ServiceName, Vip};

/// What the data plane of one node should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The node that this is.
    pub local: NodeName,
    /// Nodes, with how they are reached from here. Backends on a node that is not in here are left out of the tables.
    pub nodes: BTreeMap<NodeName, DesiredNode>,
    /// VIPs.
    pub vips: BTreeMap<Vip, DesiredVip>,
    /// Port claims. A claim whose VIP is not in `vips` is an error of the caller.
    pub services: BTreeMap<PortClaim, DesiredService>,
}

/// A node as it is reached from this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredNode {
    /// Its MAC on the segment; `None`: not resolved (yet).
    pub mac: Option<Mac>,
    /// The local interface that leads to it.
    pub ifindex: u32,
    /// That interface's MTU, bytes.
    pub mtu: u32,
    /// Its program is attached.
    pub attached: bool,
}

/// A VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredVip {
    /// This node answers for it.
    pub leading: bool,
    /// Bits of the interfaces it is announced on ([`abi::Interface::bit`]).
    pub interfaces: u32,
    /// The VLAN it is announced on; 0 for untagged.
    pub vlan: u16,
    /// The epoch of the leadership.
    pub epoch: u64,
}

/// A Service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredService {
    /// The Service.
    pub owner: ServiceName,
    /// Its endpoints for this port; shared between Services where equal, so that comparing is cheap.
    pub backends: Arc<BTreeSet<DesiredBackend>>,
}

/// An endpoint of a Service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DesiredBackend {
    /// The endpoint's address.
    pub address: IpAddr,
    /// The endpoint's port.
    pub port: u16,
    /// The node that it is on.
    pub node: NodeName,
    /// It takes new flows; otherwise it keeps the flows that it has (it drains).
    pub ready: bool,
}

/// One write to the kernel. Steps are executed in order; each is atomic for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// `CONFIG[0]`.
    Config(abi::Config),
    /// `NODE_NAMES[index]`; `None` frees the index.
    NodeName(u32, Option<NodeName>),
    /// `NODES[index]`.
    Node(u32, abi::Node),
    /// `PEERS[mac] = node index`, or the entry goes.
    Peer(Mac, Option<u32>),
    /// `BACKENDS[index]`.
    Backend(u32, abi::Backend),
    /// `TABLES[offset..]`: backend indices.
    Table(u32, Arc<[u32]>),
    /// `SERVICE_NAMES[slot]`; `None` frees the slot.
    ServiceName(u32, Option<ServiceName>),
    /// `SERVICE_STATES[slot]`.
    ServiceState(u32, abi::ServiceState),
    /// `SERVICES[key]`, or the entry goes.
    Service(abi::ServiceKey, Option<abi::ServiceValue>),
    /// `VIPS[address]`, or the entry goes.
    Vip(abi::Address, Option<abi::VipValue>),
}
