//! Endpoints of Service ports, from all EndpointSlices of a Service (rule 13).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use imbl::OrdMap;
use k8s_openapi::api::discovery::v1 as api;

use crate::{
    model::{
        Family, Model, NodeName, PortClaim, Protocol, ServiceName,
        health::{self, Health},
        name::Port,
        node::Node,
        prefix::Prefix,
        range::AddressRange,
        reason::{Note, quoted},
        service::Service,
    },
    plan::{DesiredBackend, DesiredService, Treatment},
};

/// The label that names a slice's Service.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Endpoints by Service, then by Service port *name* and protocol; the Service's `targetPort` is never read, and slices
/// may differ in the number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints(BTreeMap<ServiceName, ServiceEndpoints>);

type ServiceEndpoints = BTreeMap<(String, Protocol), BTreeMap<(IpAddr, u16), Endpoint>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    node: NodeName,
    /// The node is one of the model's.
    known: bool,
    condition: Condition,
}

/// What the conditions `ready`, `serving` and `terminating` come to; ascending by preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    /// It keeps the flows that it has.
    Stopping,
    /// Terminating and still serving: takes new flows where no endpoint is ready.
    Draining,
    /// Takes new flows.
    Ready,
}

impl Condition {
    /// Unset `ready` is true, unset `serving` is `ready`, unset `terminating` is false (`discovery/v1`). An endpoint of a
    /// Service with `publishNotReadyAddresses` arrives as ready, terminating or not.
    fn of(conditions: Option<&api::EndpointConditions>) -> Self {
        let read = |field: fn(&api::EndpointConditions) -> Option<bool>| conditions.and_then(field);
        let ready = read(|conditions| conditions.ready).unwrap_or(true);
        let serving = read(|conditions| conditions.serving).unwrap_or(ready);
        let terminating = read(|conditions| conditions.terminating).unwrap_or(false);
        match (ready, serving && terminating) {
            (true, _) => Self::Ready,
            (false, true) => Self::Draining,
            (false, false) => Self::Stopping,
        }
    }
}

/// Where endpoints are.
#[derive(Debug)]
pub(super) struct Places<'a> {
    nodes: &'a BTreeMap<NodeName, Node>,
    by_address: BTreeMap<IpAddr, &'a NodeName>,
}

impl<'a> Places<'a> {
    pub(super) fn new(nodes: &'a BTreeMap<NodeName, Node>) -> Self {
        let addresses = |node: &'a Node| node.internal.iter().map(move |address| (*address, &node.name));
        // Where two Nodes claim one address, the first by name has it.
        Self { nodes, by_address: nodes.values().rev().flat_map(addresses).collect() }
    }

    /// The node that the endpoint says; else the one whose own address it has (host network). One that is not known, or
    /// no name at all, with why.
    fn of(&self, endpoint: &api::Endpoint, address: IpAddr) -> (NodeName, Option<String>) {
        let name = endpoint.node_name.as_ref().map(|name| NodeName(name.clone()));
        match name.or_else(|| self.by_address.get(&address).map(|name| (*name).clone())) {
            Some(name) if self.nodes.contains_key(&name) => (name, None),
            Some(name) => {
                let why = format!("{address} is on node {}, which is not known", quoted(&name.0));
                (name, Some(why))
            }
            None => (NodeName(String::new()), Some(format!("{address} names no node"))),
        }
    }
}

/// The Service that a slice names; `None`: it has no such label.
pub(super) fn service_of(namespace: &str, slice: &api::EndpointSlice) -> Option<ServiceName> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_LABEL)?.clone();
    Some(ServiceName { namespace: namespace.to_owned(), name })
}

impl Endpoints {
    /// Whether all of a slice can be used.
    pub(super) fn are_sound(service: &Service, slice: &api::EndpointSlice, places: &Places<'_>) -> bool {
        let mut notes = Vec::new();
        Self::default().add(service, slice, places, &mut notes);
        notes.is_empty()
    }

    /// Forgets the endpoints of a Service.
    pub(super) fn remove(&mut self, service: &ServiceName) {
        self.0.remove(service);
    }

    /// Adds a slice of a Service. Endpoints that cannot be used are left out and noted.
    pub(super) fn add(
        &mut self,
        service: &Service,
        slice: &api::EndpointSlice,
        places: &Places<'_>,
        notes: &mut Vec<Note>,
    ) {
        let mut left_out = Vec::new();
        if slice.address_type == "FQDN" {
            left_out.push("address type FQDN is not supported".to_owned());
        } else {
            let ports = ports(slice, service);
            for endpoint in slice.endpoints.iter().flatten() {
                let address = match address(endpoint) {
                    Ok(address) => address,
                    Err(why) => {
                        left_out.push(why);
                        continue;
                    }
                };
                let (node, lost) = places.of(endpoint, address);
                let condition = Condition::of(endpoint.conditions.as_ref());
                let known = lost.is_none();
                left_out.extend(lost);
                self.add_endpoint(&service.name, &ports, address, &Endpoint { node, known, condition });
            }
        }
        if let Some(first) = left_out.first() {
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            let object = format!("EndpointSlice {}/{name}", service.name.namespace);
            let others = if left_out.len() > 1 { format!(" (and {} more)", left_out.len() - 1) } else { String::new() };
            notes.push(Note::new(object, format!("endpoints of {} left out: {first}{others}", service.name)));
        }
    }

    fn add_endpoint(&mut self, service: &ServiceName, ports: &[(String, Port)], address: IpAddr, endpoint: &Endpoint) {
        if !self.0.contains_key(service) {
            self.0.insert(service.clone(), BTreeMap::new());
        }
        let Some(of_service) = self.0.get_mut(service) else { return };
        for (name, port) in ports {
            let of_port = of_service.entry((name.clone(), port.protocol)).or_default();
            let entry = of_port.entry((address, port.number)).or_insert_with(|| endpoint.clone());
            // One endpoint can be in two slices while it moves between them: the better report counts.
            if (endpoint.known, endpoint.condition) > (entry.known, entry.condition) {
                *entry = endpoint.clone();
            }
        }
    }

    /// Leaves out the endpoints of a port that are on another port, and says so: packets to it cannot be translated.
    pub(super) fn keep_untranslated(
        &mut self,
        service: &ServiceName,
        port_name: &str,
        port: Port,
        because: &str,
    ) -> Option<String> {
        let of_port = self.0.get_mut(service)?.get_mut(&(port_name.to_owned(), port.protocol))?;
        let all = of_port.len();
        let (address, other) = *of_port.keys().find(|(_, number)| *number != port.number)?;
        of_port.retain(|(_, number), _| *number == port.number);
        let left_out = all - of_port.len();
        let what = match of_port.len() {
            0 => format!("port {port} is not served: its endpoints are"),
            _ => format!("{left_out} of {all} endpoints of port {port} are not used: they are"),
        };
        let (other, own) = (SocketAddr::new(address, other), port.number);
        Some(format!("{what} on another port ({other} for instance), and {because}; let targetPort be {own} too"))
    }

    /// The endpoint's port behind a Service port, if it has one.
    pub(super) fn port(
        &self,
        service: &ServiceName,
        port_name: &str,
        protocol: Protocol,
        address: IpAddr,
    ) -> Option<u16> {
        let of_port = self.0.get(service)?.get(&(port_name.to_owned(), protocol))?;
        of_port.range((address, 0)..=(address, u16::MAX)).map(|((_, port), _)| *port).next()
    }

    /// The backends of a Service port in one address family. Those on nodes that are not known are among them only where
    /// no other takes new flows: whoever serves the port must know that it has endpoints after all.
    pub fn backends(
        &self,
        service: &ServiceName,
        port_name: &str,
        protocol: Protocol,
        family: Family,
    ) -> BTreeSet<DesiredBackend> {
        let of_service = self.0.get(service);
        let of_port = of_service.and_then(|ports| ports.get(&(port_name.to_owned(), protocol)));
        let endpoints = |known| {
            let of_family =
                of_port.into_iter().flatten().filter(move |((address, _), _)| Family::of(*address) == family);
            of_family.filter(move |(_, endpoint)| endpoint.known == known)
        };
        let backends = |known| {
            let any_ready = endpoints(known).any(|(_, endpoint)| endpoint.condition == Condition::Ready);
            let least = if any_ready { Condition::Ready } else { Condition::Draining };
            endpoints(known).map(move |(&(address, port), endpoint)| DesiredBackend {
                address,
                port,
                node: endpoint.node.clone(),
                ready: endpoint.condition >= least,
                serving: endpoint.condition >= Condition::Draining,
                failing: false,
            })
        };
        let mut found: BTreeSet<_> = backends(true).collect();
        if !found.iter().any(|backend| backend.ready) {
            found.extend(backends(false));
        }
        found
    }
}

/// A slice's ports. One without a number means "every port" and belongs to no Service port. A Service that has every
/// port of its address has every port of its endpoints.
fn ports(slice: &api::EndpointSlice, service: &Service) -> Vec<(String, Port)> {
    if service.policy.all_ports {
        return Port::every().map(|port| (String::new(), port)).collect();
    }
    let usable = |port: &api::EndpointPort| {
        let number = port.port.and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0)?;
        let protocol = port.protocol.as_deref().map_or(Some(Protocol::default()), |text| text.parse().ok())?;
        Some((port.name.clone().unwrap_or_default(), Port { number, protocol }))
    };
    slice.ports.iter().flatten().filter_map(usable).collect()
}

/// An endpoint's address. Its addresses are interchangeable by definition; as kube-proxy, we take the first.
fn address(endpoint: &api::Endpoint) -> Result<IpAddr, String> {
    let text = endpoint.addresses.first().map(String::as_str).unwrap_or_default();
    let address = text.parse::<IpAddr>().map_err(|_| format!("{} is no IP address", quoted(text)))?.to_canonical();
    AddressRange::single(address).map_err(|block| format!("{address} is in {block}"))?;
    Ok(address)
}

/// What the data plane should hold for each claim, with this health of its backends. Claims of Services that the model does not have, or have no such port,
/// are left out. `before`: an earlier result, of which everything that stays is kept, so that the difference is cheap to
/// see. Otherwise equal sets of backends, and of source ranges, are one allocation.
pub fn desired_services(
    model: &Model,
    claims: &BTreeMap<PortClaim, ServiceName>,
    health: &Health,
    before: &OrdMap<PortClaim, DesiredService>,
) -> OrdMap<PortClaim, DesiredService> {
    let mut sets: BTreeSet<Arc<BTreeSet<DesiredBackend>>> = BTreeSet::new();
    let mut sources: BTreeSet<Arc<BTreeSet<Prefix>>> = BTreeSet::new();
    let mut desired = before.clone();
    for (claim, owner) in claims {
        let Some(mut service) = desired_service(model, claim, owner, health) else {
            desired.remove(claim);
            continue;
        };
        if before.get(claim) == Some(&service) {
            continue;
        }
        service.backends = shared(&mut sets, service.backends);
        service.treatment.sources = service.treatment.sources.map(|list| shared(&mut sources, list));
        desired.insert(*claim, service);
    }
    for claim in before.keys().filter(|claim| !claims.contains_key(claim)) {
        desired.remove(claim);
    }
    desired
}

/// The one allocation of this set.
fn shared<T: Ord>(known: &mut BTreeSet<Arc<BTreeSet<T>>>, set: Arc<BTreeSet<T>>) -> Arc<BTreeSet<T>> {
    if let Some(equal) = known.get(&set) {
        return Arc::clone(equal);
    }
    known.insert(Arc::clone(&set));
    set
}

/// What the data plane should hold for a claim; `None` if the model does not have the Service, or it has no such port.
pub(crate) fn desired_service(
    model: &Model,
    claim: &PortClaim,
    owner: &ServiceName,
    health: &Health,
) -> Option<DesiredService> {
    let port = Port { number: claim.port, protocol: claim.protocol };
    let service = model.services.get(owner)?;
    let port_name = service.ports.get(&port)?;
    let backends = model.endpoints.backends(owner, port_name, claim.protocol, claim.vip.family());
    let backends = health::judge(model, claim, owner, health, backends);
    let treatment = Treatment {
        sources: service.policy.sources_of(claim.vip.family()).map(Arc::new),
        affinity: service.policy.affinity,
        idle: service.idle.of(claim.protocol),
        direct: service.policy.direct,
        kernel: service.policy.kernel,
    };
    Some(DesiredService { owner: owner.clone(), backends: Arc::new(backends), treatment })
}

#[cfg(test)]
mod tests;
