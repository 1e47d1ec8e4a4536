//! Decides which backends are probed, and how results change their readiness.
//!
//! The agent of a backend's own node probes it, and only that agent's result counts. All nodes get
//! the same results, so they compute the same tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;
use sha2::{Digest as _, Sha256};

use crate::{
    Model, NodeName, PortClaim, Protocol, ServiceName,
    desired::{DesiredBackend, DesiredService, Readiness},
    port::Port,
    probe::{Check, Probe, ProbePort},
    service::Service,
};

/// The identity of a checkup, the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthKey {
    /// The backend's address.
    pub address: IpAddr,
    /// The port that is probed. It may differ from the port that serves.
    pub port: u16,
    /// [`Probe::id`].
    pub check: u64,
}

/// The probe of one backend, and how its results are judged. Services with the same backend and the
/// same probe share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkup {
    /// The address and port to probe.
    pub to: SocketAddr,
    /// The answer that counts as up.
    pub check: Check,
    /// The time from one attempt to the next.
    pub interval: Duration,
    /// The number of attempts that fail in a row before it counts as down.
    pub failures: u32,
}

/// The checkups of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkups {
    /// Each checkup, with the namespace that it is counted for: that of the first Service that
    /// needs it.
    pub all: BTreeMap<HealthKey, (Checkup, Arc<str>)>,
    /// The number of checkups beyond a node's limit, by namespace.
    pub left_out: BTreeMap<Arc<str>, usize>,
}

/// The latest result of a checkup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckupResult {
    /// Whether the backend is up.
    pub up: bool,
    /// The time of the last change, `CLOCK_BOOTTIME`.
    pub since: Duration,
    /// Why the last attempt failed, if the backend is down.
    pub error: Option<String>,
}

/// The results of one node. A backend without a result counts as up.
pub type Findings = OrdMap<HealthKey, CheckupResult>;

/// The backends that are down, as their own nodes report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health(BTreeMap<NodeName, Arc<BTreeSet<HealthKey>>>);

impl Health {
    /// Replaces a node's report: all of its backends that are down.
    pub fn hear(&mut self, node: NodeName, down: BTreeSet<HealthKey>) {
        if down.is_empty() {
            self.0.remove(&node);
        } else {
            self.0.insert(node, Arc::new(down));
        }
    }

    /// Whether a backend on this node is down. Reports of other nodes about it do not count.
    pub fn is_down(&self, node: &NodeName, key: &HealthKey) -> bool {
        self.0.get(node).is_some_and(|down| down.contains(key))
    }

    /// Returns the checkups that are down in one of the two only.
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

/// Returns the checkups that are down according to these findings.
pub fn down(findings: &Findings) -> BTreeSet<HealthKey> {
    findings.iter().filter(|(_, finding)| !finding.up).map(|(key, _)| *key).collect()
}

impl Probe {
    /// Returns a number for all of the probe except its port. It is the same on all nodes and in
    /// all versions, since agents send it to each other. It comes from a cryptographic hash, so
    /// nobody can create a probe with the number of another.
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

/// The probe of a claim's backends, computed once for all of them.
struct Probing<'a> {
    model: &'a Model,
    service: &'a Service,
    /// The Service port's name.
    own: &'a str,
    probe: &'a Probe,
    id: u64,
}

impl<'a> Probing<'a> {
    /// Returns the probe; `None`: the backends are not probed. Packets that are left to the node's
    /// own stack belong to kube-proxy, which would ignore the result.
    fn of(model: &'a Model, claim: &PortClaim, owner: &ServiceName) -> Option<Self> {
        let service = model.services.get(owner).filter(|service| !service.policy.kernel)?;
        let port = Port { number: claim.port, protocol: claim.protocol };
        let probe = service.probes.get(&port)?;
        Some(Self { model, service, own: service.ports.get(&port)?, probe, id: probe.id() })
    }

    /// Returns the identity of a backend's checkup; `None`: the backend has no port of the name
    /// that is to be probed.
    fn key(&self, backend: &DesiredBackend) -> Option<HealthKey> {
        let port = match &self.probe.target {
            ProbePort::Number(port) => *port,
            ProbePort::OfService(name) if *name == self.own => backend.port?.get(),
            ProbePort::OfService(name) => {
                let endpoints = &self.model.endpoints;
                endpoints.port(&self.service.name, name, Protocol::Tcp, backend.address)?.get()
            }
        };
        Some(HealthKey { address: backend.address, port, check: self.id })
    }

    /// Whether the backend's node may send probes to it. Anybody may write its address.
    fn may_probe(&self, backend: &DesiredBackend) -> bool {
        let node = backend.node.as_ref().and_then(|name| self.model.nodes.get(name));
        node.is_some_and(|node| self.model.pod_ranges.may_probe(backend.address, node))
    }
}

/// Marks the backends of a claim that fail, so that they take no new flows. If all fail that would
/// otherwise take them, the probes are ignored, since a wrong probe is more likely then.
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
    let is_down = |backend: &DesiredBackend| {
        backend.node.as_ref().zip(probing.key(backend)).is_some_and(|(node, key)| health.is_down(node, &key))
    };
    let judged: Vec<_> = backends.into_iter().map(|backend| (is_down(&backend), backend)).collect();
    let any_up = judged.iter().any(|(down, backend)| backend.readiness.is_ready() && !down);
    let readiness = |(down, backend): &(bool, DesiredBackend)| match (backend.readiness, down, any_up) {
        (Readiness::Draining, true, _) | (Readiness::Ready, true, true) => Readiness::Failing,
        (Readiness::Ready, true, false) => Readiness::ReadyThoughFailing,
        (readiness, ..) => readiness,
    };
    judged.into_iter().map(|judged| DesiredBackend { readiness: readiness(&judged), ..judged.1 }).collect()
}

/// Returns the checkups of a claim's backends that take new flows, or would if they were up, each
/// with the backend's node.
pub fn checkups(model: &Model, claim: &PortClaim, desired: &DesiredService) -> Vec<(NodeName, HealthKey, Checkup)> {
    let Some(probing) = Probing::of(model, claim, &desired.owner) else { return Vec::new() };
    let asked =
        desired.backends.iter().filter(|backend| backend.readiness.is_ready() || backend.readiness.is_failing());
    let checkup = |backend: &DesiredBackend| {
        let key = probing.key(backend).filter(|_| probing.may_probe(backend))?;
        let to = SocketAddr::new(key.address, key.port);
        Some((backend.node.clone()?, key, Checkup::new(probing.probe, to)))
    };
    asked.filter_map(checkup).collect()
}

/// Returns the identity of a backend's checkup; `None`: it is not probed.
pub fn key_of(model: &Model, claim: &PortClaim, owner: &ServiceName, backend: &DesiredBackend) -> Option<HealthKey> {
    Probing::of(model, claim, owner)?.key(backend)
}

/// Returns the warning about backends that are not probed, since their addresses are no pods'.
pub fn not_probed(model: &Model, claim: &PortClaim, desired: &DesiredService) -> Option<String> {
    let probing = Probing::of(model, claim, &desired.owner)?;
    let wanted = desired.backends.iter().filter(|backend| backend.node.is_some() && probing.key(backend).is_some());
    let mut left_out = wanted.filter(|backend| !probing.may_probe(backend));
    let (first, more) = (left_out.next()?.address, left_out.count());
    let are = if more == 0 { "is".to_owned() } else { format!("and {more} more are") };
    Some(format!(
        "Service {}, {claim}: {first} {are} not probed, since no podCIDR of a Node has it: name the range of the pods \
         with --pod-range",
        desired.owner
    ))
}

/// Returns the warning about a claim whose probes are ignored, since all backends that would take
/// new flows fail.
pub fn ignored(claim: &PortClaim, service: &DesiredService) -> Option<String> {
    let ready: Vec<_> = service.backends.iter().filter(|backend| backend.readiness.is_ready()).collect();
    let all = !ready.is_empty() && ready.iter().all(|backend| backend.readiness.is_failing());
    let what = match ready.len() {
        1 => "the only backend fails its health probe: it is".to_owned(),
        count => format!("all {count} backends fail their health probes: they are"),
    };
    all.then(|| format!("Service {}, {claim}: {what} served nevertheless", service.owner))
}

#[cfg(test)]
mod tests;
