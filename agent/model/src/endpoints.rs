//! Collects the endpoints of Service ports from all EndpointSlices of a Service (rule 13 of
//! docs/allocation-rules.md).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
};

use k8s_openapi::api::discovery::v1 as api;

use crate::{
    Family, NodeName, Protocol, ServiceName,
    desired::{DesiredBackend, Readiness},
    node::Node,
    port::{Port, PortNumber},
    range::AddressRange,
    reason::{Note, quoted},
    service::Service,
};

/// The label that names a slice's Service.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Endpoints by Service, then by Service port *name* and protocol. The Service's `targetPort` is
/// never read: slices may differ in the number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints(BTreeMap<ServiceName, ServiceEndpoints>);

/// By the Service port's name and protocol, then by address and port. `None`: the port that the
/// client used.
type ServiceEndpoints = BTreeMap<(String, Protocol), BTreeMap<(IpAddr, Option<NonZeroU16>), SliceEndpoint>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceEndpoint {
    /// `None`: the endpoint names no node, and no node has its address.
    node: Option<NodeName>,
    /// Whether the model has the node.
    known: bool,
    condition: Condition,
}

/// The conditions `ready`, `serving` and `terminating` as one; ascending by preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    /// It is terminating and serves no more. It keeps its established flows.
    Stopping,
    /// It does not terminate. It was never ready, or is not any more.
    NotReady,
    /// It is terminating and still serves. It takes new flows if no endpoint is ready.
    Draining,
    /// Takes new flows.
    Ready,
}

impl Condition {
    /// Unset `ready` is true, unset `serving` is `ready`, unset `terminating` is false
    /// (`discovery/v1`). An endpoint of a Service with `publishNotReadyAddresses` arrives as ready,
    /// terminating or not.
    fn of(conditions: Option<&api::EndpointConditions>) -> Self {
        let read = |field: fn(&api::EndpointConditions) -> Option<bool>| conditions.and_then(field);
        let ready = read(|conditions| conditions.ready).unwrap_or(true);
        let serving = read(|conditions| conditions.serving).unwrap_or(ready);
        let terminating = read(|conditions| conditions.terminating).unwrap_or(false);
        match (ready, terminating, serving) {
            (true, _, _) => Self::Ready,
            (false, false, _) => Self::NotReady,
            (false, true, true) => Self::Draining,
            (false, true, false) => Self::Stopping,
        }
    }
}

/// Finds the node of an endpoint.
#[derive(Debug)]
pub(super) struct Places<'a> {
    nodes: &'a BTreeMap<NodeName, Node>,
    by_address: BTreeMap<IpAddr, &'a NodeName>,
}

impl<'a> Places<'a> {
    pub(super) fn new(nodes: &'a BTreeMap<NodeName, Node>) -> Self {
        let addresses = |node: &'a Node| node.internal.iter().map(move |address| (*address, &node.name));
        // If two Nodes have the same address, the first by name counts.
        Self { nodes, by_address: nodes.values().rev().flat_map(addresses).collect() }
    }

    /// Returns the node that the endpoint names, else the node that has its address (host network).
    /// If there is none, or the model does not have it, also returns the reason.
    fn of(&self, endpoint: &api::Endpoint, address: IpAddr) -> (Option<NodeName>, Option<String>) {
        let own = || self.by_address.get(&address).map(|name| name.as_str());
        let Some(name) = endpoint.node_name.as_deref().or_else(own) else {
            return (None, Some(format!("{address} names no node")));
        };
        match self.nodes.get_key_value(name) {
            Some((name, _)) => (Some(name.clone()), None),
            None => {
                (NodeName::new(name).ok(), Some(format!("{address} is on node {}, which is not known", quoted(name))))
            }
        }
    }
}

/// Returns the Service that a slice names; `None`: it has no such label.
pub(super) fn service_of(namespace: &str, slice: &api::EndpointSlice) -> Option<ServiceName> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_LABEL)?.clone();
    Some(ServiceName::new(namespace, name))
}

impl Endpoints {
    /// Whether all entries of a slice can be used.
    pub(super) fn are_sound(service: &Service, slice: &api::EndpointSlice, places: &Places<'_>) -> bool {
        let mut notes = Vec::new();
        Self::default().add(service, slice, places, &mut notes);
        notes.is_empty()
    }

    /// Removes the endpoints of a Service.
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
            let mut endpoints = Vec::new();
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
                endpoints.push((address, SliceEndpoint { node, known: lost.is_none(), condition }));
                left_out.extend(lost);
            }
            self.add_usable(&service.name, ports(slice, service), &endpoints);
        }
        if let Some(first) = left_out.first() {
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            let object = format!("EndpointSlice {}/{name}", service.name.namespace());
            let others = if left_out.len() > 1 { format!(" (and {} more)", left_out.len() - 1) } else { String::new() };
            notes.push(Note::new(object, format!("endpoints of {} left out: {first}{others}", service.name)));
        }
    }

    fn add_usable(&mut self, service: &ServiceName, ports: Vec<(String, Port)>, endpoints: &[(IpAddr, SliceEndpoint)]) {
        let of_service = self.0.entry(service.clone()).or_default();
        for (name, port) in ports {
            let of_port = of_service.entry((name, port.protocol)).or_default();
            for (address, endpoint) in endpoints {
                let entry = of_port.entry((*address, port.number.one())).or_insert_with(|| endpoint.clone());
                // One endpoint can be in two slices while it moves between them. The better report
                // counts.
                if (endpoint.known, endpoint.condition) > (entry.known, entry.condition) {
                    *entry = endpoint.clone();
                }
            }
        }
    }

    /// Removes the endpoints whose port differs from the Service port, since packets to it cannot
    /// be translated. Returns a message if there were any.
    pub(super) fn keep_untranslated(
        &mut self,
        service: &ServiceName,
        port_name: &str,
        port: Port,
        because: &str,
    ) -> Option<String> {
        let of_port = self.0.get_mut(service)?.get_mut(&(port_name.to_owned(), port.protocol))?;
        let all = of_port.len();
        let (address, other) = *of_port.keys().find(|(_, number)| *number != port.number.one())?;
        of_port.retain(|(_, number), _| *number == port.number.one());
        let left_out = all - of_port.len();
        let what = match of_port.len() {
            0 => format!("port {port} is not served: its endpoints are"),
            _ => format!("{left_out} of {all} endpoints of port {port} are not used: they are"),
        };
        let (other, own) = (SocketAddr::new(address, other.map_or(0, NonZeroU16::get)), u16::from(port.number));
        Some(format!("{what} on another port ({other} for instance), and {because}; let targetPort be {own} too"))
    }

    /// Returns the endpoint's port for a Service port, if it has one.
    pub(super) fn port(
        &self,
        service: &ServiceName,
        port_name: &str,
        protocol: Protocol,
        address: IpAddr,
    ) -> Option<NonZeroU16> {
        let of_port = self.0.get(service)?.get(&(port_name.to_owned(), protocol))?;
        of_port.range((address, None)..=(address, Some(NonZeroU16::MAX))).find_map(|((_, port), _)| *port)
    }

    /// Returns the backends of a Service port in one address family. Backends on unknown nodes are
    /// included only if no other backend takes new flows. So the data plane knows that the port has
    /// endpoints.
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
                readiness: match endpoint.condition {
                    condition if condition >= least => Readiness::Ready,
                    Condition::Stopping => Readiness::Stopping,
                    Condition::NotReady => Readiness::NotReady,
                    Condition::Draining | Condition::Ready => Readiness::Draining,
                },
            })
        };
        let mut found: BTreeSet<_> = backends(true).collect();
        if !found.iter().any(|backend| backend.readiness.is_ready()) {
            found.extend(backends(false));
        }
        found
    }
}

/// Returns a slice's ports. A port without a number means "every port" and belongs to no Service
/// port. A Service that has every port of its address has every port of its endpoints.
fn ports(slice: &api::EndpointSlice, service: &Service) -> Vec<(String, Port)> {
    if service.policy.all_ports {
        return Port::every().map(|port| (String::new(), port)).collect();
    }
    let usable = |port: &api::EndpointPort| {
        let number = PortNumber::One(u16::try_from(port.port?).ok()?.try_into().ok()?);
        let protocol = port.protocol.as_deref().map_or(Some(Protocol::default()), |text| text.parse().ok())?;
        Some((port.name.clone().unwrap_or_default(), Port { number, protocol }))
    };
    slice.ports.iter().flatten().filter_map(usable).collect()
}

/// Returns an endpoint's address. Its addresses are interchangeable by definition. Like kube-proxy,
/// vipmux uses the first one.
fn address(endpoint: &api::Endpoint) -> Result<IpAddr, String> {
    let text = endpoint.addresses.first().map(String::as_str).unwrap_or_default();
    let address = text.parse::<IpAddr>().map_err(|_| format!("{} is no IP address", quoted(text)))?.to_canonical();
    AddressRange::single(address).map_err(|block| format!("{address} is in {block}"))?;
    Ok(address)
}

#[cfg(test)]
mod tests;
