//! The sync engine: from what the kernel holds to what it should hold, in an order that never shows a packet a mixture.
//!
//! [`plan()`] compares [`Desired`] with [`Observed`], the mirror of the kernel's maps, and gives [`Step`]s. Whoever
//! executes them tells the mirror of each with [`Observed::record`], so that after a failure in the middle the next plan
//! starts from what the kernel really holds. What packets may read is never written to, except where any single write
//! is safe (a backend's flags, a node's MACs and epoch, a VIP's flags): new tables, backends and Service slots go to free
//! places, one write of `SERVICES` switches over, and old places rest for [`REST`] before they are used again.

mod arena;
mod backends;
mod differences;
mod endpoints;
mod nodes;
mod observed;
mod pool;
mod services;
mod settled;
mod sources;
mod vips;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;
use vipmux_common::abi::{self, Mac};

pub use self::differences::Difference;
pub use self::observed::{Capacities, Entries, Observed};
use self::{backends::Placements, nodes::Nodes, services::Services, vips::Vips};
use crate::model::{NodeName, PortClaim, ServiceName, Vip, prefix::Prefix};

/// How long a place in a map stays unused after packets stopped being led to it: far longer than a program runs, so
/// that no packet in flight finds another's entry there. Within one agent's life; a restart takes longer than a packet.
pub const REST: Duration = Duration::from_secs(1);

/// What the data plane of one node should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The node that this is.
    pub local: NodeName,
    /// Nodes, with how they are reached from here. Backends on a node that is not in here are left out of the tables.
    pub nodes: BTreeMap<NodeName, DesiredNode>,
    /// Further MACs that nodes speak for VIPs by, on other segments than that which leads to them.
    pub speakers: BTreeMap<Mac, NodeName>,
    /// VIPs.
    pub vips: BTreeMap<Vip, DesiredVip>,
    /// Port claims. A claim whose VIP is not in `vips` is an error of the caller. One with port 0 has every port that no
    /// other claim names.
    pub services: OrdMap<PortClaim, DesiredService>,
    /// What becomes of claims none of whose endpoints that take new flows is on a node in `nodes`.
    pub unreachable: Unreachable,
}

/// What becomes of a Service port whose endpoints no frame can be handed over to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unreachable {
    /// Packets are left to the node's own stack: kube-proxy, which hides the client's address
    Kernel,
    /// As where there is no endpoint
    #[default]
    Refuse,
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
    /// How its packets are treated.
    pub treatment: Treatment,
}

/// How a Service port's packets are treated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// The addresses that clients may have, all of the VIP's family; `None`: any. Shared where equal.
    pub sources: Option<Arc<BTreeSet<Prefix>>>,
    /// For how long a client without packets is remembered, seconds; `None`: no session affinity.
    pub affinity: Option<u32>,
    /// An idle flow's life, seconds; `None`: the default for the protocol.
    pub idle: Option<u32>,
    /// Backends get packets with the VIP as their destination.
    pub direct: bool,
    /// Packets are left to the node's own stack.
    pub kernel: bool,
}

/// An endpoint of a Service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DesiredBackend {
    /// The endpoint's address.
    pub address: IpAddr,
    /// The endpoint's port; 0: the one that the client asked for.
    pub port: u16,
    /// The node that it is on.
    pub node: NodeName,
    /// It takes new flows; otherwise it keeps the flows that it has (it drains).
    pub ready: bool,
    /// Not ready, it serves new flows while it drains: those that another node, which does not know of that yet, hands over.
    pub serving: bool,
    /// It fails its health probe. Not ready for that, unless all do.
    pub failing: bool,
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
    /// The key of `SOURCE_RANGES` (how many of its bits count, and the bits), or the entry goes.
    SourceRange((u32, abi::Range), bool),
    /// `VIPS[address]`, or the entry goes.
    Vip(abi::Address, Option<abi::VipValue>),
}

/// What to write to the kernel, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The writes, in the order in which they are safe.
    pub steps: Vec<Step>,
    /// What found no room. A claim that is served by the same owner already goes on with its old endpoints. If there is
    /// any, it is worth to plan again after [`REST`]: places that rest now may be free then.
    pub refused: Vec<Refusal>,
    /// Claims that have endpoints, none of which can be reached ([`Desired::unreachable`]).
    pub unreachable: Vec<PortClaim>,
}

/// Something that found no room in a map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject} is not served as wanted: {shortage}")]
pub struct Refusal {
    /// What it is.
    pub subject: Subject,
    /// What it lacks.
    #[source]
    pub shortage: Shortage,
}

/// What a [`Refusal`] is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A node: its endpoints are left out of the tables, or its announcements are taken for a stranger's.
    Node(NodeName),
    /// A VIP: none of its claims is served.
    Vip(Vip),
    /// A claim: new ones are not served.
    Claim(PortClaim),
}

/// A map is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the map {map} lacks room: {needed} needed, {free} free of {capacity}")]
pub struct Shortage {
    /// The map.
    pub map: CapacityMap,
    /// Its entries.
    pub capacity: u32,
    /// Those of them that are free and have rested; in `TABLES` they may lie scattered.
    pub free: u32,
    /// How many are needed at once.
    pub needed: u32,
}

/// A map that can be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CapacityMap {
    /// `VIPS`.
    Vips,
    /// `SERVICES` and the arrays indexed by slot.
    Services,
    /// `TABLES`.
    Tables,
    /// `BACKENDS`.
    Backends,
    /// `NODES`.
    Nodes,
    /// `PEERS`.
    Peers,
    /// `SOURCE_RANGES`.
    SourceRanges,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The caller contradicts itself.
    #[error("{claim} is wanted, but not its VIP")]
    UnknownVip {
        /// The claim.
        claim: PortClaim,
    },
    /// After four billion new VIPs. Only new maps help.
    #[error("no VIP id is left that was never used: unload the data plane and start again")]
    VipIdsExhausted,
    /// After four billion plans. Only new maps help.
    #[error("no generation is left that was never used: unload the data plane and start again")]
    GenerationsExhausted,
}

/// The steps from `observed` to `desired`, at the monotonic time `now`. None if both agree.
///
/// All claims and all of `observed` are looked at, unless that was [settled](Observed::settle) and nothing was done to it
/// since: then nodes, VIPs and the claims that differ are.
///
/// # Errors
/// Those of [`PlanError`]. A full map is none: what fits is served, the rest is in [`Plan::refused`].
pub fn plan(desired: &Desired, observed: &Observed, now: Duration) -> Result<Plan, PlanError> {
    let mut refused = Vec::new();
    let mut nodes = Nodes::plan(desired, observed, now, &mut refused);
    let vips = Vips::plan(desired, observed, &mut refused)?;
    let changes = observed.settled.changes(desired, &nodes.indices, observed.is_settled() && refused.is_empty());
    let mut placements = Placements::new(observed, &nodes.indices, desired, changes.as_deref(), now)?;
    let services =
        Services::plan(desired, observed, &vips.ids, changes.as_deref(), &mut placements, now, &mut refused)?;
    let first = placements.generation();
    let backends = placements.finish();
    if let Some(referred) = &backends.nodes {
        nodes.release(observed, referred);
    }
    let next = match (services.after_sources, backends.generation.or(services.generation)) {
        (Some(after), _) => after,
        (None, Some(generation)) => generation.checked_add(1).ok_or(PlanError::GenerationsExhausted)?,
        (None, None) => first,
    };
    let next = nodes.turn(observed, &backends.unsettled, next)?;

    let config = abi::Config {
        next_vip: vips.next_id,
        // Used up by this plan, even if it fails in the middle.
        next_generation: if next == first { observed.config.next_generation } else { next },
        ..observed.config
    };
    let mut steps = Vec::new();
    steps.extend((config != observed.config).then_some(Step::Config(config)));
    let stages = [
        nodes.arrivals,
        // What must stop comes first, and makes room in the hash maps: a VIP goes before its Services.
        vips.withdrawals,
        services.removals,
        // Before any change of a backend that is there: one that takes new flows again may also have become local.
        nodes.endings,
        backends.arrivals,
        backends.tables,
        services.new_slots,
        services.switches,
        // A VIP appears after its Services.
        vips.announcements,
        services.superseded,
        services.retired_slots,
        // No table in use leads to these any more.
        backends.drained,
        backends.departures,
        nodes.beginnings,
        nodes.departures,
    ];
    steps.extend(stages.into_iter().flatten());
    Ok(Plan { steps, refused, unreachable: services.unreachable })
}

impl Step {
    /// Whether what was settled holds no more after it. A VIP that stays keeps its id, and each plan looks at all VIPs.
    fn counts(&self) -> bool {
        !matches!(self, Self::Vip(_, Some(_)))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Vip(vip) => write!(f, "VIP {vip}"),
            Self::Claim(claim) => claim.fmt(f),
        }
    }
}

impl fmt::Display for CapacityMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Vips => "VIPS",
            Self::Services => "SERVICES",
            Self::Tables => "TABLES",
            Self::Backends => "BACKENDS",
            Self::Nodes => "NODES",
            Self::Peers => "PEERS",
            Self::SourceRanges => "SOURCE_RANGES",
        })
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
