//! The model's half: what was asked for, and what was decided.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::Target;
use crate::{
    allocate::Allocation,
    election::placement::{self, Contender, contenders},
    model::{
        Family, Model, NodeName, PortClaim, ServiceName, Vip,
        health::{self, Findings},
        name::Port,
        pool::PoolSharing,
        reason::{Reason, Refusal},
        request::{ByAddress, PoolChoice, Request},
        service::{Families, Service},
    },
    plan::{DesiredBackend, DesiredService},
    source::Objects,
};

/// Problems, and names that are near, that are told.
const MOST_TOLD: usize = 5;

/// What a settled state comes to.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// What was read.
    pub objects: &'a Objects,
    /// What it means.
    pub model: &'a Model,
    /// Who got what.
    pub allocation: &'a Allocation,
    /// What should be served.
    pub services: &'a OrdMap<PortClaim, DesiredService>,
    /// Who should answer.
    pub leaders: &'a BTreeMap<Vip, Option<NodeName>>,
    /// What this node found of its own backends.
    pub findings: &'a Findings,
    /// The time, `CLOCK_BOOTTIME`.
    pub now: Duration,
}

/// All of it that is about one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The agent's node; `None`: no agent told this.
    pub node: Option<NodeName>,
    /// The Service; or all that are on the VIP.
    pub services: Vec<ServiceAccount>,
    /// The Service's addresses; or the VIP.
    pub vips: Vec<VipAccount>,
    /// What the agent cannot have as it is wanted, as it tells.
    pub refused: Vec<String>,
    /// Documents that cannot be used; the first of them.
    pub problems: Vec<String>,
}

/// Where a Service stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It has addresses.
    Allocated,
    /// It waits.
    Pending,
    /// It is not ours.
    Ignored,
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccount {
    /// Its name.
    #[serde(flatten)]
    pub name: ServiceName,
    /// Where it stands.
    pub state: Standing,
    /// What it asks for, as it was understood, in a phrase each; empty if it was not.
    pub request: Vec<String>,
    /// How its packets are treated, where that is particular.
    pub particulars: Vec<String>,
    /// Others with whom its key lets it share. Left out for those on a VIP that is explained.
    pub group: Vec<ServiceName>,
    /// Its addresses.
    pub addresses: Vec<Vip>,
    /// Why it stands there.
    pub reason: Reason,
    /// The same for people.
    pub message: String,
    /// What its owner should know although it got an address.
    pub warnings: Vec<String>,
    /// What its owner should know, and that stops nothing.
    pub notices: Vec<String>,
    /// What is served on each address and port.
    pub ports: Vec<PortAccount>,
}

/// A port of a Service on one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAccount {
    /// The address.
    pub vip: Vip,
    /// The port.
    pub port: Port,
    /// Its name in the Service.
    pub name: String,
    /// Its packets are left to the node's own stack.
    pub kernel: bool,
    /// Endpoints of the address' family.
    pub endpoints: Vec<EndpointAccount>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointAccount {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The node it is on.
    pub node: NodeName,
    /// That is a Node that is known.
    pub known: bool,
    /// It takes new flows; otherwise it drains.
    pub ready: bool,
    /// It fails its health probe. Where it is ready all the same, so do all others.
    #[serde(default)]
    pub failing: bool,
    /// More of that, where it is on the agent's own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// Why an endpoint counts as down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Failure {
    /// For so long, seconds.
    pub for_s: u64,
    /// What came of the last attempt.
    pub error: String,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipAccount {
    /// The address.
    pub address: Vip,
    /// The pool that has it.
    pub pool: Option<String>,
    /// The Services on it.
    pub services: Vec<ServiceName>,
    /// Who should answer for it.
    pub leader: Option<NodeName>,
    /// Why: out of whom it was chosen, or why there is nobody.
    pub why: String,
}

/// Nobody knows the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", self.text())]
pub struct Unknown {
    /// What was asked for.
    pub target: Target,
    /// What could be meant.
    pub near: Vec<String>,
    /// Documents that cannot be used: it may be in one of them.
    pub problems: Vec<String>,
}

impl Unknown {
    pub(super) fn new(target: &Target, names: BTreeSet<String>) -> Self {
        Self { target: target.clone(), near: near(&target.to_string(), names), problems: Vec::new() }
    }

    fn text(&self) -> String {
        let what = match self.target {
            Target::Service(_) => format!("there is no Service {}", self.target),
            Target::Vip(_) => format!("{} is no VIP: no Service has it", self.target),
        };
        let near = if self.near.is_empty() { String::new() } else { format!("; near it: {}", self.near.join(", ")) };
        let unread = match self.problems.first() {
            Some(first) => format!("; it may be in what cannot be read: {first}"),
            None => String::new(),
        };
        format!("{what}{near}{unread}")
    }
}

/// The names that are most like the text.
fn near(text: &str, names: BTreeSet<String>) -> Vec<String> {
    let own = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
    let far = text.len() / 3;
    let distance = |name: &String| {
        let elsewhere = if text.contains('/') && own(text) == own(name) { 1 } else { usize::MAX };
        strsim::osa_distance(text, name).min(elsewhere)
    };
    let ranked: BTreeSet<_> = names.into_iter().map(|name| (distance(&name), name)).collect();
    ranked.into_iter().filter(|(distance, _)| *distance <= far).take(MOST_TOLD).map(|(_, name)| name).collect()
}

impl Account {
    /// What is known of the target.
    pub fn of(decided: Decided<'_>, target: &Target) -> Result<Self, Unknown> {
        let problems = decided.objects.problems.iter().take(MOST_TOLD).map(ToString::to_string).collect();
        let on = decided.allocation.vips();
        let (services, vips): (Vec<_>, Vec<_>) = match target {
            Target::Service(name) if decided.objects.services.contains_key(name) => {
                let service = decided.service(name, true);
                let vips = service.addresses.clone();
                (vec![service], vips)
            }
            Target::Vip(vip) if on.contains_key(vip) => {
                let services = on.get(vip).into_iter().flatten().map(|name| decided.service(name, false));
                let only = |service: ServiceAccount| ServiceAccount {
                    ports: service.ports.into_iter().filter(|port| port.vip == *vip).collect(),
                    ..service
                };
                (services.map(only).collect(), vec![*vip])
            }
            _ => {
                let services = decided.objects.services.keys().map(ToString::to_string);
                let names = services.chain(on.keys().map(ToString::to_string)).collect();
                return Err(Unknown { problems, ..Unknown::new(target, names) });
            }
        };
        let vips = vips.into_iter().map(|vip| decided.vip(vip, on.get(&vip)));
        Ok(Self { node: None, services, vips: vips.collect(), refused: Vec::new(), problems })
    }
}

impl Decided<'_> {
    fn service(&self, name: &ServiceName, with_group: bool) -> ServiceAccount {
        let service = self.model.services.get(name);
        let bare = |state, refusal: &Refusal| ServiceAccount {
            name: name.clone(),
            state,
            request: service.filter(|service| service.fault.is_none()).map(asked).unwrap_or_default(),
            particulars: service.map(Service::particulars).unwrap_or_default(),
            group: service.filter(|_| with_group).map(|service| self.group(service)).unwrap_or_default(),
            addresses: Vec::new(),
            reason: refusal.reason,
            message: refusal.message.clone(),
            warnings: Vec::new(),
            notices: service.map(|service| service.notices.clone()).unwrap_or_default(),
            ports: Vec::new(),
        };
        if let Some(given) = self.allocation.assignments.get(name) {
            return ServiceAccount {
                addresses: given.addresses.iter().copied().collect(),
                warnings: given.warnings.clone(),
                ports: service.map(|service| self.ports(service, &given.addresses, &given.ports)).unwrap_or_default(),
                ..bare(Standing::Allocated, &Refusal::new(given.reason, &*given.message))
            };
        }
        let refused = self.allocation.refusals.get(name).map(|refusal| bare(Standing::Pending, refusal));
        let ignored = || self.model.ignored.get(name).map(|refusal| bare(Standing::Ignored, refusal));
        // All others are not ours.
        refused
            .or_else(ignored)
            .unwrap_or_else(|| bare(Standing::Ignored, &Refusal::new(Reason::NotLoadBalancer, "it was not looked at")))
    }

    fn ports(&self, service: &Service, addresses: &BTreeSet<Vip>, ports: &BTreeSet<Port>) -> Vec<PortAccount> {
        let claims = addresses.iter().flat_map(|vip| ports.iter().map(move |port| (*vip, *port)));
        let port = |(vip, port): (Vip, Port)| {
            let claim = PortClaim { vip, protocol: port.protocol, port: port.number };
            let desired = self.services.get(&claim);
            let endpoints = desired.into_iter().flat_map(|desired| &*desired.backends);
            let endpoint = |backend: &DesiredBackend| EndpointAccount {
                address: backend.address,
                port: backend.port,
                node: backend.node.clone(),
                known: self.model.nodes.contains_key(&backend.node),
                ready: backend.ready,
                failing: backend.failing,
                failure: desired.filter(|_| backend.failing).and_then(|it| self.failure(&claim, &it.owner, backend)),
            };
            PortAccount {
                vip,
                port,
                name: service.ports.get(&port).cloned().unwrap_or_default(),
                kernel: desired.is_some_and(|desired| desired.treatment.kernel),
                endpoints: endpoints.map(endpoint).collect(),
            }
        };
        claims.map(port).collect()
    }

    /// `None`: another node probes the backend.
    fn failure(&self, claim: &PortClaim, owner: &ServiceName, backend: &DesiredBackend) -> Option<Failure> {
        let key = health::key_of(self.model, claim, owner, backend)?;
        let finding = self.findings.get(&key).filter(|finding| !finding.up)?;
        let error = finding.error.clone().unwrap_or_default();
        Some(Failure { for_s: self.now.saturating_sub(finding.since).as_secs(), error })
    }

    fn group(&self, service: &Service) -> Vec<ServiceName> {
        let Some(key) = &service.request.sharing.key else { return Vec::new() };
        let others = self.model.services.values().filter(|other| {
            let same =
                other.request.sharing.key.as_ref().is_some_and(|it| (&it.dialect, &it.key) == (&key.dialect, &key.key));
            same && other.name != service.name && service.party().may_share(other.party(), PoolSharing::Any).is_ok()
        });
        others.map(|other| other.name.clone()).collect()
    }

    fn vip(&self, vip: Vip, services: Option<&BTreeSet<&ServiceName>>) -> VipAccount {
        let model = self.model;
        let pool = model.pool_of(vip).and_then(|index| model.pools.get(index));
        let leader = self.leaders.get(&vip).cloned().flatten();
        let contenders = contenders(&model.nodes, model.candidates(vip));
        let eligible = placement::foremost(&contenders);
        let names = |Contender { node, weight, .. }: &&Contender| match weight {
            1 => node.to_string(),
            weight => format!("{node} (weight {weight})"),
        };
        let why = match (eligible.as_slice(), model.nodes.len()) {
            ([], 0) => "there are no Nodes".to_owned(),
            ([], _) => model.silence(vip).unwrap_or_else(|| "no Node's network is available".to_owned()),
            ([_], _) => "the only node that may lead it".to_owned(),
            (several, _) => format!("by hash, of {}", several.iter().map(names).collect::<Vec<_>>().join(", ")),
        };
        VipAccount {
            address: vip,
            pool: pool.map(|pool| pool.name.clone()),
            services: services.into_iter().flatten().map(|name| (*name).clone()).collect(),
            leader,
            why,
        }
    }
}

/// What a Service asks for.
fn asked(service: &Service) -> Vec<String> {
    let Request { dialects, addresses, additional, address_names, pool, sharing, never_spills, alike, label } =
        &service.request;
    let listed = |what: &str, items: Vec<String>| (!items.is_empty()).then(|| format!("{what} {}", items.join(", ")));
    let texts = |vips: &BTreeSet<Vip>| vips.iter().map(ToString::to_string).collect::<Vec<_>>();
    let other = Family::other;
    let families = match service.families {
        Families::Single(family) => format!("{family}"),
        Families::PreferDual(family) => format!("{family}, and {} if it can be had", other(family)),
        Families::RequireDual => "IPv4 and IPv6, or nothing".to_owned(),
    };
    let pool = match pool {
        PoolChoice::Best => None,
        PoolChoice::Named(name) => Some(format!("pool {name}")),
        PoolChoice::FewestClaims => Some("the pool with the fewest ports in use".to_owned()),
    };
    let key = sharing.key.as_ref().map(|key| format!("to share by key {}", key.shown()));
    let by_address = match sharing.by_address {
        ByAddress::Explicit => Some("to share with those who name the same address".to_owned()),
        ByAddress::Never | ByAddress::Plain => None,
    };
    let alike = alike.iter().map(|(what, value)| format!("{what}={value} of all who share")).collect();
    [
        Some(families),
        listed("in the dialect of", dialects.iter().map(|&name| name.to_owned()).collect()),
        listed("the addresses", texts(addresses)),
        listed("beside them", texts(additional)),
        listed("the addresses called", address_names.iter().cloned().collect()),
        pool,
        key,
        by_address,
        never_spills.then(|| "no second address for its group".to_owned()),
        listed("", alike).map(|text| text.trim_start().to_owned()),
        label.as_ref().map(|label| format!("the label {label}")),
    ]
    .into_iter()
    .flatten()
    .collect()
}
