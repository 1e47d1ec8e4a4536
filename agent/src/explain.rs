//! Why a Service or VIP is served, or is not: the whole chain from its manifest to its packets, and the first link that
//! is broken.
//!
//! The chain has two halves. What was asked for and decided is an [`Account`], from an agent or from manifests; what the
//! kernel of this node holds is [`Held`], from the pinned maps. [`Explanation::new`] puts them together, without any I/O.

mod account;
mod chain;
mod print;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    str::FromStr,
};

use serde::{Deserialize, Serialize};

pub use self::account::{
    Account, Decided, EndpointAccount, Failure, PortAccount, ServiceAccount, Standing, Unknown, VipAccount,
};
use crate::{
    inspect::{
        backends::BackendView,
        services::ServiceView,
        vips::{FenceView, VipView},
    },
    model::{NodeName, ServiceName, Vip, name::is_label},
};

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// A Service, and the addresses that it has.
    Service(ServiceName),
    /// An address, and the Services that it has.
    Vip(Vip),
}

/// Neither a Service nor an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is neither NAMESPACE/SERVICE nor an IP address", crate::model::reason::quoted(.0))]
pub struct NoTarget(String);

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let service = || {
            let (namespace, name) = text.split_once('/')?;
            let name = ServiceName { namespace: namespace.to_owned(), name: name.to_owned() };
            (is_label(&name.namespace) && is_label(&name.name)).then_some(Self::Service(name))
        };
        let vip = || text.parse::<IpAddr>().ok().map(|address| Self::Vip(Vip(address.to_canonical())));
        service().or_else(vip).ok_or_else(|| NoTarget(text.to_owned()))
    }
}

impl TryFrom<String> for Target {
    type Error = NoTarget;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.to_string()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => name.fmt(f),
            Self::Vip(vip) => vip.fmt(f),
        }
    }
}

/// What the kernel of this node holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The fence.
    pub fence: FenceView,
    /// VIPs.
    pub vips: Vec<VipView>,
    /// Service ports.
    pub services: Vec<ServiceView>,
    /// Backends.
    pub backends: Vec<BackendView>,
    /// The interfaces that the XDP program is attached to, by name.
    pub attached: BTreeSet<String>,
}

impl Held {
    /// What of it is about the target.
    fn about(mut self, target: &Target) -> Self {
        match target {
            Target::Vip(vip) => self.services.retain(|service| service.claim.vip == Some(vip.0)),
            Target::Service(name) => self.services.retain(|service| owns(name, service)),
        }
        let addresses: BTreeSet<_> = self.services.iter().filter_map(|service| service.claim.vip).collect();
        let asked = |vip: &VipView| matches!(target, Target::Vip(asked) if asked.0 == vip.address);
        self.vips.retain(|vip| asked(vip) || addresses.contains(&vip.address));
        let is_used = |backend: &BackendView| {
            backend.used_by.iter().any(|claim| self.services.iter().any(|service| service.claim == *claim))
        };
        self.backends.retain(is_used);
        self
    }

    /// What could be meant by a name that is not known.
    fn names(&self) -> BTreeSet<String> {
        let services = self.services.iter().map(|it| format!("{}/{}", it.claim.namespace, it.claim.name));
        services.chain(self.vips.iter().map(|vip| vip.address.to_string())).collect()
    }
}

fn owns(name: &ServiceName, service: &ServiceView) -> bool {
    (&service.claim.namespace, &service.claim.name) == (&name.namespace, &name.name)
}

/// Where the model's half comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The agent on this node.
    Agent(NodeName),
    /// Manifests.
    Manifests,
    /// Nowhere, and why not.
    Nowhere(String),
}

/// Where the kernel's half comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The pinned maps.
    Held(Box<Held>),
    /// There is none, and why.
    Absent(String),
}

/// A step of the chain; in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// There is an object that can be read.
    Manifest,
    /// It is for vipmux.
    Ours,
    /// What it asks for is understood.
    Request,
    /// With whom it shares.
    Group,
    /// It has an address.
    Allocation,
    /// A node should answer for the address.
    Leader,
    /// There is who serves.
    Endpoints,
    /// The agent wants it so.
    Agent,
    /// The kernel has the VIP.
    Vip,
    /// The kernel has the Service port, and backends for it.
    Service,
    /// A node leads the VIP, as the agent here knows.
    Led,
    /// The program is attached, and this node answers if it is to.
    Announced,
    /// What came through this node.
    Traffic,
}

impl Step {
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

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Holds,
    /// Packets do not arrive because of it.
    Broken,
    /// Something that is worth knowing, and breaks nothing.
    Note,
    /// It cannot be told from here.
    Unknown,
}

/// A link of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Which one.
    pub step: Step,
    /// How it is.
    pub state: State,
    /// What was found.
    pub finding: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The whole chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What is explained.
    pub target: Target,
    /// Who tells what was asked for and decided.
    pub source: Source,
    /// The Services that it is about, as they were understood.
    pub services: Vec<ServiceAccount>,
    /// The addresses that it is about.
    pub vips: Vec<VipAccount>,
    /// What the kernel of this node holds of it.
    pub kernel: Option<Held>,
    /// The links, in their order.
    pub chain: Vec<Link>,
    /// The first one that is broken.
    pub broken: Option<Link>,
}

impl Explanation {
    /// Follows the chain. `account`: the model's half; `Err`: why there is none. An error tells that nobody knows the
    /// target.
    pub fn new(target: Target, account: Result<Account, String>, kernel: &Kernel) -> Result<Self, Unknown> {
        let held = match kernel {
            Kernel::Held(held) => Some((**held).clone().about(&target)),
            Kernel::Absent(_) => None,
        };
        if let (Err(_), Kernel::Held(all), Some(held)) = (&account, kernel, &held)
            && held.vips.is_empty()
            && held.services.is_empty()
        {
            return Err(Unknown::new(&target, all.names()));
        }
        let chain = chain::follow(&target, account.as_ref(), kernel);
        let broken = chain.iter().find(|link| link.state == State::Broken).cloned();
        let (source, services, vips) = match account {
            Ok(Account { node, services, vips, .. }) => (node.map_or(Source::Manifests, Source::Agent), services, vips),
            Err(why) => (Source::Nowhere(why), Vec::new(), Vec::new()),
        };
        Ok(Self { target, source, services, vips, kernel: held, chain, broken })
    }
}

/// Groups what is alike, keeping the order of first appearance by key.
fn grouped<K: Ord, V>(items: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, Vec<V>> {
    let mut groups: BTreeMap<K, Vec<V>> = BTreeMap::new();
    for (key, value) in items {
        groups.entry(key).or_default().push(value);
    }
    groups
}
