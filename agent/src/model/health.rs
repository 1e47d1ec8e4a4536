//! Health of backends: what is to be asked of them, and what came of it.
//!
//! A backend is asked by the agent of its own node, and only that agent's word about it counts. All nodes hear the same
//! words, so they compute the same tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;
use sha2::{Digest as _, Sha256};

use crate::{
    model::{
        Model, NodeName, PortClaim, Protocol, ServiceName,
        name::Port,
        probe::{Check, Probe, Target},
        service::Service,
    },
    plan::{DesiredBackend, DesiredService},
};

/// What tells one checkup from another on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthKey {
    /// The backend's address.
    pub address: IpAddr,
    /// The port that is asked, which need not be the one that serves.
    pub port: u16,
    /// [`Probe::id`].
    pub check: u64,
}

/// What is asked of one backend, and how its answers are judged. Services with the same backend and the same probe have it
/// in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkup {
    /// Who is asked.
    pub to: SocketAddr,
    /// What counts as up.
    pub check: Check,
    /// From one attempt to the next.
    pub interval: Duration,
    /// So many attempts fail in a row before it counts as down.
    pub failures: u32,
}

/// The checkups of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkups {
    /// Each with the namespace that it is counted for: that of the first Service that wants it.
    pub all: BTreeMap<HealthKey, (Checkup, Arc<str>)>,
    /// How many more are wanted than a node takes, by namespace.
    pub left_out: BTreeMap<Arc<str>, usize>,
}

/// What came of a checkup so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The backend is up.
    pub up: bool,
    /// Since when, `CLOCK_BOOTTIME`.
    pub since: Duration,
    /// Why the last attempt failed, of one that is down.
    pub error: Option<String>,
}

/// What one node found; of what is not in it nothing is known yet, and it counts as up.
pub type Findings = OrdMap<HealthKey, Finding>;

/// Which backends are down, by the word of their own nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health(BTreeMap<NodeName, Arc<BTreeSet<HealthKey>>>);

impl Health {
    /// Takes a node's word about its backends, in place of its last one: all that are down.
    pub fn hear(&mut self, node: NodeName, down: BTreeSet<HealthKey>) {
        if down.is_empty() {
            self.0.remove(&node);
        } else {
            self.0.insert(node, Arc::new(down));
        }
    }

    /// Whether a backend on this node is down. What other nodes say of it does not count.
    pub fn is_down(&self, node: &NodeName, key: &HealthKey) -> bool {
        self.0.get(node).is_some_and(|down| down.contains(key))
    }

    /// What is down in one of the two alone.
    pub fn differences(&self, other: &Self) -> BTreeSet<(NodeName, HealthKey)> {
        let nodes: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let none = Arc::default();
        let of = |node: &NodeName| {
            let [a, b] = [self, other].map(|health| health.0.get(node).unwrap_or(&none));
            if Arc::ptr_eq(a, b) { Vec::new() } else { a.symmetric_difference(b).copied().collect() }
        };
        nodes.into_iter().flat_map(|node| of(node).into_iter().map(move |key| (node.clone(), key))).collect()
    }
}

/// What is down by these findings.
pub fn down(findings: &Findings) -> BTreeSet<HealthKey> {
    findings.iter().filter(|(_, finding)| !finding.up).map(|(key, _)| *key).collect()
}

impl Probe {
    /// A number for all but the port, the same on all nodes and in all versions: it travels between agents. Of a
    /// cryptographic hash, so that nobody can have a probe of his own taken for another's.
    pub fn id(&self) -> u64 {
        let (protocol, path) = match &self.check {
            Check::Tcp => (0_u8, ""),
            Check::Http { path } => (1, path.as_str()),
            Check::Https { path } => (2, path.as_str()),
        };
        let hash = Sha256::new()
            .chain_update([protocol])
            .chain_update(self.interval.to_be_bytes())
            .chain_update(self.failures.to_be_bytes())
            .chain_update(path);
        hash.finalize().iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte))
    }
}

impl Checkup {
    fn new(probe: &Probe, to: SocketAddr) -> Self {
        let (check, failures) = (probe.check.clone(), probe.failures);
        Self { to, check, interval: Duration::from_secs(probe.interval.into()), failures }
    }
}

/// How the backends of a claim are to be probed: what is computed once for all of them.
struct Probing<'a> {
    model: &'a Model,
    service: &'a Service,
    /// The Service port's name.
    own: &'a str,
    probe: &'a Probe,
    id: u64,
}

impl<'a> Probing<'a> {
    /// `None`: they are not. What is left to the node's own stack is kube-proxy's, which would not heed it.
    fn of(model: &'a Model, claim: &PortClaim, owner: &ServiceName) -> Option<Self> {
        let service = model.services.get(owner).filter(|service| !service.policy.kernel)?;
        let port = Port { number: claim.port, protocol: claim.protocol };
        let probe = service.probes.get(&port)?;
        Some(Self { model, service, own: service.ports.get(&port)?, probe, id: probe.id() })
    }

    /// `None`: the backend has no port of the name that is to be asked.
    fn key(&self, backend: &DesiredBackend) -> Option<HealthKey> {
        let port = match &self.probe.target {
            Target::Number(port) => *port,
            Target::OfService(name) if *name == self.own => backend.port,
            Target::OfService(name) => {
                let endpoints = &self.model.endpoints;
                endpoints.port(&self.service.name, name, Protocol::Tcp, backend.address)?
            }
        };
        Some(HealthKey { address: backend.address, port, check: self.id })
    }
}

/// Marks the backends of a claim that fail, so that they take no new flows; but if all do that otherwise would, the probes
/// are ignored, as a wrong probe is likelier then.
pub(super) fn judge(
    model: &Model,
    claim: &PortClaim,
    owner: &ServiceName,
    health: &Health,
    backends: BTreeSet<DesiredBackend>,
) -> BTreeSet<DesiredBackend> {
    let Some(probing) = Probing::of(model, claim, owner).filter(|_| *health != Health::default()) else {
        return backends;
    };
    let fails = |backend: &DesiredBackend| {
        backend.serving && probing.key(backend).is_some_and(|key| health.is_down(&backend.node, &key))
    };
    let marked: Vec<_> =
        backends.into_iter().map(|backend| DesiredBackend { failing: fails(&backend), ..backend }).collect();
    let any_up = marked.iter().any(|backend| backend.ready && !backend.failing);
    let ready = |backend: &DesiredBackend| backend.ready && !(backend.failing && any_up);
    marked.into_iter().map(|backend| DesiredBackend { ready: ready(&backend), ..backend }).collect()
}

/// The checkups of a claim's backends that take new flows, or would if they were up, each with the backend's node.
pub(crate) fn checkups(
    model: &Model,
    claim: &PortClaim,
    desired: &DesiredService,
) -> Vec<(NodeName, HealthKey, Checkup)> {
    let Some(probing) = Probing::of(model, claim, &desired.owner) else { return Vec::new() };
    let asked = desired.backends.iter().filter(|backend| backend.ready || backend.failing);
    let checkup = |backend: &DesiredBackend| {
        let key = probing.key(backend)?;
        let to = SocketAddr::new(key.address, key.port);
        Some((backend.node.clone(), key, Checkup::new(probing.probe, to)))
    };
    asked.filter_map(checkup).collect()
}

/// What is probed of a claim's backend; `None`: it is not probed.
pub(crate) fn key_of(
    model: &Model,
    claim: &PortClaim,
    owner: &ServiceName,
    backend: &DesiredBackend,
) -> Option<HealthKey> {
    Probing::of(model, claim, owner)?.key(backend)
}

/// What is told of a claim whose probes are ignored, since all backends that would take new flows fail.
pub fn ignored(claim: &PortClaim, service: &DesiredService) -> Option<String> {
    let ready: Vec<_> = service.backends.iter().filter(|backend| backend.ready).collect();
    let all = !ready.is_empty() && ready.iter().all(|backend| backend.failing);
    let what = match ready.len() {
        1 => "the only backend fails its health probe: it is".to_owned(),
        count => format!("all {count} backends fail their health probes: they are"),
    };
    all.then(|| format!("Service {}, {claim}: {what} served nevertheless", service.owner))
}

#[cfg(test)]
mod tests;
