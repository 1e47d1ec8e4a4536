//! Endpoints of Service ports, from all EndpointSlices of a Service (rule 13).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::api::discovery::v1 as api;

use crate::{
    model::{
        Family, Model, NodeName, PortClaim, Protocol, ServiceName,
        name::Port,
        node::Node,
        range::AddressRange,
        reason::{Note, quoted},
    },
    plan::{DesiredBackend, DesiredService},
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

    /// The node that the endpoint says; else the one whose own address it has (host network).
    fn of(&self, endpoint: &api::Endpoint, address: IpAddr) -> Result<&'a NodeName, String> {
        match &endpoint.node_name {
            Some(name) => match self.nodes.get_key_value(&NodeName(name.clone())) {
                Some((known, _)) => Ok(known),
                None => Err(format!("{address} is on node {}, which is not known", quoted(name))),
            },
            None => self.by_address.get(&address).copied().ok_or_else(|| format!("{address} names no node")),
        }
    }
}

impl Endpoints {
    /// Adds a slice of a Service. Endpoints that cannot be used are left out and noted.
    pub(super) fn add(
        &mut self,
        service: &ServiceName,
        slice: &api::EndpointSlice,
        places: &Places<'_>,
        notes: &mut Vec<Note>,
    ) {
        let mut left_out = Vec::new();
        if slice.address_type == "FQDN" {
            left_out.push("address type FQDN is not supported".to_owned());
        } else {
            let ports = ports(slice);
            for endpoint in slice.endpoints.iter().flatten() {
                match place(endpoint, places) {
                    Ok((address, node)) => self.add_endpoint(service, &ports, address, endpoint, node),
                    Err(why) => left_out.push(why),
                }
            }
        }
        if let Some(first) = left_out.first() {
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            let object = format!("EndpointSlice {}/{name}", service.namespace);
            let others = if left_out.len() > 1 { format!(" (and {} more)", left_out.len() - 1) } else { String::new() };
            notes.push(Note::new(object, format!("endpoints of {service} left out: {first}{others}")));
        }
    }

    fn add_endpoint(
        &mut self,
        service: &ServiceName,
        ports: &[(String, Port)],
        address: IpAddr,
        endpoint: &api::Endpoint,
        node: &NodeName,
    ) {
        let condition = Condition::of(endpoint.conditions.as_ref());
        if !self.0.contains_key(service) {
            self.0.insert(service.clone(), BTreeMap::new());
        }
        let Some(of_service) = self.0.get_mut(service) else { return };
        for (name, port) in ports {
            let of_port = of_service.entry((name.clone(), port.protocol)).or_default();
            let new = || Endpoint { node: node.clone(), condition };
            let entry = of_port.entry((address, port.number)).or_insert_with(new);
            // One endpoint can be in two slices while it moves between them: the better report counts.
            if condition > entry.condition {
                *entry = new();
            }
        }
    }

    /// Leaves out the endpoints of an SCTP port that are on another port, and says so: the checksum covers the ports
    /// (CRC32c, RFC 9260, 6.8), and cannot be brought up to date where the packet is translated.
    pub(super) fn keep_untranslated(&mut self, service: &ServiceName, port_name: &str, port: Port) -> Option<String> {
        let of_port = self.0.get_mut(service)?.get_mut(&(port_name.to_owned(), port.protocol))?;
        let all = of_port.len();
        let (address, other) = *of_port.keys().find(|(_, number)| *number != port.number)?;
        of_port.retain(|(_, number), _| *number == port.number);
        let left_out = all - of_port.len();
        let what = match of_port.len() {
            0 => format!("port {port} is not served: its endpoints are"),
            _ => format!("{left_out} of {all} endpoints of port {port} are not used: they are"),
        };
        Some(format!(
            "{what} on another port ({} for instance), and SCTP's checksum covers the ports, so that they cannot be \
             translated; let targetPort be {} too",
            SocketAddr::new(address, other),
            port.number
        ))
    }

    /// The backends of a Service port in one address family.
    pub fn backends(
        &self,
        service: &ServiceName,
        port_name: &str,
        protocol: Protocol,
        family: Family,
    ) -> BTreeSet<DesiredBackend> {
        let of_service = self.0.get(service);
        let of_port = of_service.and_then(|ports| ports.get(&(port_name.to_owned(), protocol)));
        let endpoints = || of_port.into_iter().flatten().filter(|((address, _), _)| Family::of(*address) == family);
        let any_ready = endpoints().any(|(_, endpoint)| endpoint.condition == Condition::Ready);
        let least = if any_ready { Condition::Ready } else { Condition::Draining };
        endpoints()
            .map(|(&(address, port), endpoint)| DesiredBackend {
                address,
                port,
                node: endpoint.node.clone(),
                ready: endpoint.condition >= least,
            })
            .collect()
    }
}

/// A slice's ports. One without a number means "every port" and belongs to no Service port.
fn ports(slice: &api::EndpointSlice) -> Vec<(String, Port)> {
    let usable = |port: &api::EndpointPort| {
        let number = port.port.and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0)?;
        let protocol = port.protocol.as_deref().map_or(Some(Protocol::default()), |text| text.parse().ok())?;
        Some((port.name.clone().unwrap_or_default(), Port { number, protocol }))
    };
    slice.ports.iter().flatten().filter_map(usable).collect()
}

/// An endpoint's address and node. Its addresses are interchangeable by definition; as kube-proxy, we take the first.
fn place<'a>(endpoint: &api::Endpoint, places: &Places<'a>) -> Result<(IpAddr, &'a NodeName), String> {
    let text = endpoint.addresses.first().map(String::as_str).unwrap_or_default();
    let address = text.parse::<IpAddr>().map_err(|_| format!("{} is no IP address", quoted(text)))?.to_canonical();
    AddressRange::single(address).map_err(|block| format!("{address} is in {block}"))?;
    Ok((address, places.of(endpoint, address)?))
}

/// What the data plane should hold for each claim. Equal sets of backends are one allocation. Claims of Services that
/// the model does not have, or have no such port, are left out.
pub fn desired_services(
    model: &Model,
    claims: &BTreeMap<PortClaim, ServiceName>,
) -> BTreeMap<PortClaim, DesiredService> {
    let mut sets: BTreeSet<Arc<BTreeSet<DesiredBackend>>> = BTreeSet::new();
    let mut desired = BTreeMap::new();
    for (claim, owner) in claims {
        let port = Port { number: claim.port, protocol: claim.protocol };
        let Some(port_name) = model.services.get(owner).and_then(|service| service.ports.get(&port)) else { continue };
        let backends = model.endpoints.backends(owner, port_name, claim.protocol, claim.vip.family());
        let backends = if let Some(equal) = sets.get(&backends) {
            Arc::clone(equal)
        } else {
            let new = Arc::new(backends);
            sets.insert(Arc::clone(&new));
            new
        };
        desired.insert(*claim, DesiredService { owner: owner.clone(), backends });
    }
    desired
}

#[cfg(test)]
mod tests;
