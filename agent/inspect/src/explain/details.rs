//! Computes the details of a target: the requests and the results.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    net::IpAddr,
    time::Duration,
};

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::ExplainTarget;
use vipmux_allocate::Allocation;
use vipmux_election::placement::{self, Candidate, candidates};
use vipmux_model::{
    Family, Model, NodeName, PortClaim, ServiceName, Vip,
    desired::{DesiredBackend, DesiredService},
    health::{self, Findings},
    objects::Objects,
    pool::PoolSharing,
    port::Port,
    reason::{Reason, Refusal},
    request::{ByAddress, PoolChoice, Request},
    service::{Families, Service},
};

/// The most problems and similar names that are shown.
const MOST_SHOWN: usize = 5;

/// The results of all pipeline stages.
#[derive(Clone, Copy, Debug)]
pub struct PipelineResults<'a> {
    /// The objects as they were read.
    pub objects: &'a Objects,
    /// The model of these objects.
    pub model: &'a Model,
    /// The allocated addresses.
    pub allocation: &'a Allocation,
    /// The desired Service ports.
    pub services: &'a OrdMap<PortClaim, DesiredService>,
    /// The desired leader of each VIP.
    pub leaders: &'a BTreeMap<Vip, Option<NodeName>>,
    /// The health of this node's own backends.
    pub findings: &'a Findings,
    /// The current time, `CLOCK_BOOTTIME`.
    pub now: Duration,
}

/// All results about one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetDetails {
    /// The agent's node; `None`: computed without an agent.
    pub node: Option<NodeName>,
    /// The Service, or all Services on the VIP.
    pub services: Vec<ServiceDetails>,
    /// The Service's addresses, or the VIP.
    pub vips: Vec<VipDetails>,
    /// Requests that the agent cannot fulfill, in its words.
    pub refused: Vec<String>,
    /// Why the agent leads nothing; `None`: it may lead.
    #[serde(default)]
    pub silence: Option<String>,
    /// The first documents that cannot be used.
    pub problems: Vec<String>,
}

/// The allocation state of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AssignmentState {
    /// It has addresses.
    Allocated,
    /// It waits for addresses.
    Pending,
    /// It is not vipmux's.
    Ignored,
}

impl AssignmentState {
    /// Returns its name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Pending => "pending",
            Self::Ignored => "ignored",
        }
    }
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceDetails {
    /// Its name.
    #[serde(flatten)]
    pub name: ServiceName,
    /// Its allocation state.
    pub state: AssignmentState,
    /// Its request as it was understood, in phrases; empty if it was not understood.
    pub request: Vec<String>,
    /// How the treatment of its packets differs from the default.
    pub particulars: Vec<String>,
    /// Other Services that its sharing key lets it share with. Empty if the target is a VIP.
    pub group: Vec<ServiceName>,
    /// Its addresses.
    pub addresses: Vec<Vip>,
    /// The reason of `state`.
    pub reason: Reason,
    /// The reason for people.
    pub message: String,
    /// Warnings for its owner, although it has an address.
    pub warnings: Vec<String>,
    /// Notices for its owner; they stop nothing.
    pub notices: Vec<String>,
    /// Its ports on each of its addresses.
    pub ports: Vec<PortDetails>,
}

/// A port of a Service on one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDetails {
    /// The address.
    pub vip: Vip,
    /// The port.
    pub port: Port,
    /// Its name in the Service.
    pub name: String,
    /// Its packets are left to the node's own stack.
    pub kernel: bool,
    /// Endpoints of the address' family.
    pub endpoints: Vec<EndpointDetails>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointDetails {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The node it is on; empty: it names none.
    pub node: String,
    /// That Node is known.
    pub known: bool,
    /// It takes new flows; otherwise it drains or fails.
    pub ready: bool,
    /// It fails its health probe. If it is ready all the same, all other endpoints fail too.
    #[serde(default)]
    pub failing: bool,
    /// The failure, if the endpoint is on the agent's own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ProbeFailure>,
}

/// Why an endpoint fails its health probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProbeFailure {
    /// How long it has failed, seconds.
    pub for_s: u64,
    /// The error of the last attempt.
    pub error: String,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipDetails {
    /// The address.
    pub address: Vip,
    /// Its pool.
    pub pool: Option<String>,
    /// The Services on it.
    pub services: Vec<ServiceName>,
    /// The desired leader.
    pub leader: Option<NodeName>,
    /// How the leader was chosen, or why there is none.
    pub why: String,
}

/// Neither an agent nor manifests could be asked for details.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DetailsError(Box<dyn Error + Send + Sync>);

impl DetailsError {
    /// Makes the error of its cause.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// The target is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", self.text())]
pub struct UnknownTarget {
    /// The target.
    pub target: ExplainTarget,
    /// Similar names.
    pub near: Vec<String>,
    /// Documents that cannot be used. The target may be in one of them.
    pub problems: Vec<String>,
}

impl UnknownTarget {
    pub(super) fn new(target: &ExplainTarget, names: BTreeSet<String>) -> Self {
        Self { target: target.clone(), near: near(&target.to_string(), names), problems: Vec::new() }
    }

    fn text(&self) -> String {
        let what = match self.target {
            ExplainTarget::Service(_) => format!("there is no Service {}", self.target),
            ExplainTarget::Vip(_) => format!("{} is not a VIP: no Service has it", self.target),
        };
        let near =
            if self.near.is_empty() { String::new() } else { format!("; did you mean {}?", self.near.join(", ")) };
        let unread = match self.problems.first() {
            Some(first) => format!("; it may be in a document that cannot be used: {first}"),
            None => String::new(),
        };
        format!("{what}{near}{unread}")
    }
}

/// Returns the names that are most similar to `text`.
fn near(text: &str, names: BTreeSet<String>) -> Vec<String> {
    let own = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
    let far = text.len() / 3;
    let distance = |name: &String| {
        let elsewhere = if text.contains('/') && own(text) == own(name) { 1 } else { usize::MAX };
        strsim::osa_distance(text, name).min(elsewhere)
    };
    let ranked: BTreeSet<_> = names.into_iter().map(|name| (distance(&name), name)).collect();
    ranked.into_iter().filter(|(distance, _)| *distance <= far).take(MOST_SHOWN).map(|(_, name)| name).collect()
}

impl TargetDetails {
    /// Returns the details of `target`.
    pub fn of(results: PipelineResults<'_>, target: &ExplainTarget) -> Result<Self, UnknownTarget> {
        let problems = results.objects.problems.iter().take(MOST_SHOWN).map(ToString::to_string).collect();
        let on = results.allocation.vips();
        let (services, vips): (Vec<_>, Vec<_>) = match target {
            ExplainTarget::Service(name) if results.objects.services.contains_key(name) => {
                let service = results.service(name, true);
                let vips = service.addresses.clone();
                (vec![service], vips)
            }
            ExplainTarget::Vip(vip) if on.contains_key(vip) => {
                let services = on.get(vip).into_iter().flatten().map(|name| results.service(name, false));
                let only = |service: ServiceDetails| ServiceDetails {
                    ports: service.ports.into_iter().filter(|port| port.vip == *vip).collect(),
                    ..service
                };
                (services.map(only).collect(), vec![*vip])
            }
            _ => {
                let services = results.objects.services.keys().map(ToString::to_string);
                let names = services.chain(on.keys().map(ToString::to_string)).collect();
                return Err(UnknownTarget { problems, ..UnknownTarget::new(target, names) });
            }
        };
        let vips = vips.into_iter().map(|vip| results.vip(vip, on.get(&vip)));
        Ok(Self { node: None, services, vips: vips.collect(), refused: Vec::new(), silence: None, problems })
    }
}

impl PipelineResults<'_> {
    fn service(&self, name: &ServiceName, with_group: bool) -> ServiceDetails {
        let service = self.model.services.get(name);
        let bare = |state, refusal: &Refusal| ServiceDetails {
            name: name.clone(),
            state,
            request: service.filter(|service| service.fault.is_none()).map(requested).unwrap_or_default(),
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
            return ServiceDetails {
                addresses: given.addresses.iter().copied().collect(),
                warnings: given.warnings.clone(),
                ports: service.map(|service| self.ports(service, &given.addresses, &given.ports)).unwrap_or_default(),
                ..bare(AssignmentState::Allocated, &Refusal::new(given.reason, &*given.message))
            };
        }
        let refused = self.allocation.refusals.get(name).map(|refusal| bare(AssignmentState::Pending, refusal));
        let ignored = || self.model.ignored.get(name).map(|refusal| bare(AssignmentState::Ignored, refusal));
        // All other Services are not vipmux's.
        refused.or_else(ignored).unwrap_or_else(|| {
            bare(AssignmentState::Ignored, &Refusal::new(Reason::NotLoadBalancer, "it was not examined"))
        })
    }

    fn ports(&self, service: &Service, addresses: &BTreeSet<Vip>, ports: &BTreeSet<Port>) -> Vec<PortDetails> {
        let claims = addresses.iter().flat_map(|vip| ports.iter().map(move |port| (*vip, *port)));
        let port = |(vip, port): (Vip, Port)| {
            let claim = PortClaim { vip, protocol: port.protocol, port: port.number };
            let desired = self.services.get(&claim);
            let endpoints = desired.into_iter().flat_map(|desired| &*desired.backends);
            let endpoint = |backend: &DesiredBackend| EndpointDetails {
                address: backend.address,
                port: backend.port_number(),
                node: backend.node.as_ref().map(ToString::to_string).unwrap_or_default(),
                known: backend.node.as_ref().is_some_and(|node| self.model.nodes.contains_key(node)),
                ready: backend.readiness.is_ready(),
                failing: backend.readiness.is_failing(),
                failure: desired
                    .filter(|_| backend.readiness.is_failing())
                    .and_then(|it| self.failure(&claim, &it.owner, backend)),
            };
            PortDetails {
                vip,
                port,
                name: service.ports.get(&port).cloned().unwrap_or_default(),
                kernel: desired.is_some_and(|desired| desired.treatment.kernel),
                endpoints: endpoints.map(endpoint).collect(),
            }
        };
        claims.map(port).collect()
    }

    /// Returns why the backend fails its probe; `None`: another node probes it.
    fn failure(&self, claim: &PortClaim, owner: &ServiceName, backend: &DesiredBackend) -> Option<ProbeFailure> {
        let key = health::key_of(self.model, claim, owner, backend)?;
        let finding = self.findings.get(&key).filter(|finding| !finding.up)?;
        let error = finding.error.clone().unwrap_or_default();
        Some(ProbeFailure { for_s: self.now.saturating_sub(finding.since).as_secs(), error })
    }

    fn group(&self, service: &Service) -> Vec<ServiceName> {
        let Some(key) = &service.request.sharing.key else { return Vec::new() };
        let others = self.model.services.values().filter(|other| {
            let same =
                other.request.sharing.key.as_ref().is_some_and(|it| (&it.dialect, &it.key) == (&key.dialect, &key.key));
            same && other.name != service.name && service.sharer().may_share(other.sharer(), PoolSharing::Any).is_ok()
        });
        others.map(|other| other.name.clone()).collect()
    }

    fn vip(&self, vip: Vip, services: Option<&BTreeSet<&ServiceName>>) -> VipDetails {
        let model = self.model;
        let pool = model.pool_of(vip).and_then(|index| model.pools.get(index));
        let leader = self.leaders.get(&vip).cloned().flatten();
        let candidates = candidates(&model.nodes, model.eligible_nodes(vip));
        let eligible = placement::foremost(&candidates);
        let names = |Candidate { node, weight, .. }: &&Candidate| match weight {
            1 => node.to_string(),
            weight => format!("{node} (weight {weight})"),
        };
        let why = match (eligible.as_slice(), model.nodes.len()) {
            ([], nodes) => model.silence(vip).unwrap_or_else(|| {
                if nodes == 0 { "there are no Nodes" } else { "no Node's network is available" }.to_owned()
            }),
            ([_], _) => "the only node that may lead it".to_owned(),
            (several, _) => {
                format!("chosen by hash among {}", several.iter().map(names).collect::<Vec<_>>().join(", "))
            }
        };
        VipDetails {
            address: vip,
            pool: pool.map(|pool| pool.name.clone()),
            services: services.into_iter().flatten().map(|name| (*name).clone()).collect(),
            leader,
            why,
        }
    }
}

/// Returns what a Service asks for, in phrases.
fn requested(service: &Service) -> Vec<String> {
    let Request { dialects, addresses, additional, address_names, pool, sharing, never_spills, alike, label } =
        &service.request;
    let listed = |what: &str, items: Vec<String>| (!items.is_empty()).then(|| format!("{what} {}", items.join(", ")));
    let texts = |vips: &BTreeSet<Vip>| vips.iter().map(ToString::to_string).collect::<Vec<_>>();
    let other = Family::other;
    let families = match service.families {
        Families::Single(family) => format!("{family}"),
        Families::PreferDual(family) => format!("{family}, and {} if possible", other(family)),
        Families::RequireDual => "IPv4 and IPv6, both required".to_owned(),
    };
    let pool = match pool {
        PoolChoice::Best => None,
        PoolChoice::Named(name) => Some(format!("pool {name}")),
        PoolChoice::FewestClaims => Some("the pool with the fewest ports in use".to_owned()),
    };
    let key = sharing.key.as_ref().map(|key| format!("sharing key {}", key.shown()));
    let by_address = match sharing.by_address {
        ByAddress::Explicit => Some("shares with Services that name the same address".to_owned()),
        ByAddress::Never | ByAddress::Plain => None,
    };
    let alike = alike.iter().map(|(what, value)| format!("{what}={value} in the whole group")).collect();
    [
        Some(families),
        listed("dialect", dialects.iter().map(|&name| name.to_owned()).collect()),
        listed("addresses", texts(addresses)),
        listed("additional addresses", texts(additional)),
        listed("addresses named", address_names.iter().cloned().collect()),
        pool,
        key,
        by_address,
        never_spills.then(|| "no second address for its group".to_owned()),
        listed("", alike).map(|text| text.trim_start().to_owned()),
        label.as_ref().map(|label| format!("label {label}")),
    ]
    .into_iter()
    .flatten()
    .collect()
}
