//! Explains why a Service or VIP is served or not: every step from its manifest to its packets, and
//! the first broken one.
//!
//! The steps have two halves. [`TargetDetails`] is what was asked for and decided, from an agent or
//! from manifests. [`KernelState`] is what this node's kernel holds, from the pinned maps.
//! [`Explanation::new`] combines them without I/O.

mod details;
mod print;
mod steps;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    str::FromStr,
};

use serde::{Deserialize, Serialize};

pub use self::details::{
    AssignmentState, DetailsError, EndpointDetails, PipelineResults, PortDetails, ProbeFailure, ServiceDetails,
    TargetDetails, UnknownTarget, VipDetails,
};
use crate::{
    backends::BackendView,
    neighbors::NeighborView,
    services::ServiceView,
    vips::{FenceView, VipView},
};
use vipmux_datapath::bpf::maps::MapsError;
use vipmux_model::{NodeName, ServiceName, Vip, name::is_label};

/// The Service or VIP to explain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ExplainTarget {
    /// A Service with its addresses.
    Service(ServiceName),
    /// An address with its Services.
    Vip(Vip),
}

/// The text names neither a Service nor an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is neither NAMESPACE/SERVICE nor an IP address", vipmux_model::reason::quoted(.0))]
pub struct InvalidTarget(String);

impl FromStr for ExplainTarget {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let service = || {
            let (namespace, name) = text.split_once('/')?;
            let name = ServiceName::new(namespace, name);
            (is_label(name.namespace()) && is_label(name.name())).then_some(Self::Service(name))
        };
        let vip = || text.parse::<IpAddr>().ok().map(|address| Self::Vip(Vip::new(address)));
        service().or_else(vip).ok_or_else(|| InvalidTarget(text.to_owned()))
    }
}

impl TryFrom<String> for ExplainTarget {
    type Error = InvalidTarget;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ExplainTarget> for String {
    fn from(target: ExplainTarget) -> Self {
        target.to_string()
    }
}

impl fmt::Display for ExplainTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => name.fmt(f),
            Self::Vip(vip) => vip.fmt(f),
        }
    }
}

/// The state of this node's kernel, as `vipmux inspect` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelState {
    /// The fence.
    pub fence: FenceView,
    /// The VIPs.
    pub vips: Vec<VipView>,
    /// The Service ports.
    pub services: Vec<ServiceView>,
    /// The backends.
    pub backends: Vec<BackendView>,
    /// The nodes of the backends.
    pub neighbors: Vec<NeighborView>,
    /// The interfaces that the XDP program is attached to, by name.
    pub attached: BTreeSet<String>,
}

impl KernelState {
    /// Keeps only what concerns the target.
    fn about(mut self, target: &ExplainTarget) -> Self {
        match target {
            ExplainTarget::Vip(vip) => self.services.retain(|service| service.claim.vip == Some(vip.address())),
            ExplainTarget::Service(name) => self.services.retain(|service| owns(name, service)),
        }
        let addresses: BTreeSet<_> = self.services.iter().filter_map(|service| service.claim.vip).collect();
        let asked = |vip: &VipView| matches!(target, ExplainTarget::Vip(asked) if asked.address() == vip.address);
        self.vips.retain(|vip| asked(vip) || addresses.contains(&vip.address));
        let is_used = |backend: &BackendView| {
            backend.used_by.iter().any(|claim| self.services.iter().any(|service| service.claim == *claim))
        };
        self.backends.retain(is_used);
        let nodes: BTreeSet<_> = self.backends.iter().filter_map(|backend| backend.node.as_ref()).collect();
        self.neighbors.retain(|neighbor| nodes.contains(&neighbor.node));
        self
    }

    /// Returns the names of all Services and VIPs, to suggest one for an unknown name.
    fn names(&self) -> BTreeSet<String> {
        let services = self.services.iter().map(|it| format!("{}/{}", it.claim.namespace, it.claim.name));
        services.chain(self.vips.iter().map(|vip| vip.address.to_string())).collect()
    }
}

fn owns(name: &ServiceName, service: &ServiceView) -> bool {
    (service.claim.namespace.as_str(), service.claim.name.as_str()) == (name.namespace(), name.name())
}

/// The origin of the [`TargetDetails`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DetailsSource {
    /// The agent on this node.
    Agent(NodeName),
    /// Manifests.
    Manifests,
    /// There are none: the reason.
    Nowhere(String),
}

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// The object can be read.
    Manifest,
    /// The Service is for vipmux.
    Ours,
    /// Its request is understood.
    Request,
    /// The Services that it can share with.
    Group,
    /// It has an address.
    Allocation,
    /// A node should answer for the address.
    Leader,
    /// It has endpoints that can serve.
    Endpoints,
    /// The agent can serve it.
    Agent,
    /// The kernel has the VIP.
    Vip,
    /// The kernel has the Service port, and backends for it.
    Service,
    /// A node leads the VIP, as far as this node's agent knows.
    Led,
    /// The program is attached, and this node answers if it leads the VIP.
    Announced,
    /// The packets that came through this node.
    Traffic,
}

impl StepKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::Ours => "ours",
            Self::Request => "request",
            Self::Group => "group",
            Self::Allocation => "allocation",
            Self::Leader => "leader",
            Self::Endpoints => "endpoints",
            Self::Agent => "agent",
            Self::Vip => "vip",
            Self::Service => "service",
            Self::Led => "led",
            Self::Announced => "announced",
            Self::Traffic => "traffic",
        }
    }
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// It works.
    Holds,
    /// It does not work: packets do not arrive.
    Broken,
    /// Worth knowing, breaks nothing.
    Note,
    /// It cannot be decided from here.
    Unknown,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepReport {
    /// The step.
    pub step: StepKind,
    /// Its state.
    pub state: StepState,
    /// The finding.
    pub finding: String,
    /// The remedy, if there is something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// All steps for one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The target.
    pub target: ExplainTarget,
    /// The origin of `services` and `vips`.
    pub source: DetailsSource,
    /// The Services that the target is or has.
    pub services: Vec<ServiceDetails>,
    /// The addresses that the target is or has.
    pub vips: Vec<VipDetails>,
    /// The kernel's state of them; `None`: it could not be read.
    pub kernel: Option<KernelState>,
    /// The steps, in their order.
    #[serde(rename = "chain")]
    pub steps: Vec<StepReport>,
    /// The first broken step.
    pub broken: Option<StepReport>,
}

impl Explanation {
    /// Evaluates all steps.
    ///
    /// Fails if neither `details` nor `kernel` knows the target.
    pub fn new(
        target: ExplainTarget,
        details: Result<TargetDetails, DetailsError>,
        kernel: &Result<KernelState, MapsError>,
    ) -> Result<Self, UnknownTarget> {
        let held = kernel.as_ref().ok().map(|held| held.clone().about(&target));
        if let (Err(_), Ok(all), Some(held)) = (&details, kernel, &held)
            && held.vips.is_empty()
            && held.services.is_empty()
        {
            return Err(UnknownTarget::new(&target, all.names()));
        }
        let steps = steps::evaluate(&target, details.as_ref(), kernel.as_ref());
        let broken = steps.iter().find(|step| step.state == StepState::Broken).cloned();
        let (source, services, vips) = match details {
            Ok(TargetDetails { node, services, vips, .. }) => {
                (node.map_or(DetailsSource::Manifests, DetailsSource::Agent), services, vips)
            }
            Err(error) => (DetailsSource::Nowhere(error.to_string()), Vec::new(), Vec::new()),
        };
        Ok(Self { target, source, services, vips, kernel: held, steps, broken })
    }
}

/// Groups values by key, in the order of keys.
fn grouped<K: Ord, V>(items: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, Vec<V>> {
    let mut groups: BTreeMap<K, Vec<V>> = BTreeMap::new();
    for (key, value) in items {
        groups.entry(key).or_default().push(value);
    }
    groups
}
