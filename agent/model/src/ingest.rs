//! Turns the API's objects into the model that the other crates work with.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::core::v1 as api;

use crate::{
    NodeName, Protocol, ServiceName, Vip,
    address_names::AddressNames,
    advertisement::{Advertisements, EligibleNodes, not_covered},
    dialects,
    endpoints::{Endpoints, Places, SERVICE_LABEL, service_of},
    missing_keys,
    node::Node,
    objects::Objects,
    pod_ranges::PodRanges,
    pool::Pool,
    pools,
    prefix::Prefix,
    published_status::PublishedStatus,
    range::{SUBNET_ANYCAST, is_anycast},
    reason::{Note, Reason, Refusal, quoted},
    selector::Labels,
    service::Service,
    tag::ServiceTags,
};

/// The label that every Namespace has, even if there is no Namespace object.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

/// The maximum numbers of addresses (rule 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimits {
    /// Of one Service.
    pub of_service: usize,
    /// Of all Services of a namespace together. A shared address counts once.
    pub of_namespace: usize,
}

impl Default for AddressLimits {
    fn default() -> Self {
        Self { of_service: 32, of_namespace: 256 }
    }
}

/// The configuration: which Services are ours, and which addresses are reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestOptions {
    /// Services with this `loadBalancerClass` are ours.
    pub load_balancer_class: String,
    /// Services without a `loadBalancerClass` are ours too (rule 12).
    pub unset_class_is_ours: bool,
    /// Addresses that no Service ever has, with a description of each: gateways of the Nodes (rule
    /// 14). Nodes' own addresses and the API server's need not be listed.
    pub reserved: BTreeMap<IpAddr, String>,
    /// Source ranges that Services ask for by name. All agents of a cluster need the same ones.
    pub service_tags: ServiceTags,
    /// Ranges of pod addresses beside those of the Nodes (`spec.podCIDRs`).
    pub pod_ranges: Vec<Prefix>,
    /// How many addresses Services may get.
    pub limits: AddressLimits,
}

impl Default for IngestOptions {
    fn default() -> Self {
        Self {
            load_balancer_class: "vipmux.io/vipmux".to_owned(),
            unset_class_is_ours: true,
            reserved: BTreeMap::new(),
            service_tags: ServiceTags::default(),
            pod_ranges: Vec::new(),
            limits: AddressLimits::default(),
        }
    }
}

/// The relevant parts of a cluster, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Services that want an address from us.
    pub services: BTreeMap<ServiceName, Service>,
    /// Services that want an address but cannot be understood.
    pub refused: BTreeMap<ServiceName, Refusal>,
    /// The published statuses of the Services in `refused`.
    pub refused_statuses: BTreeMap<ServiceName, PublishedStatus>,
    /// Services that are not ours.
    pub ignored: BTreeMap<ServiceName, Refusal>,
    /// Nodes.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Pools, best first (rule 6).
    pub pools: Vec<Pool>,
    /// The nodes that may announce the pools.
    pub advertisements: Advertisements,
    /// The labels of namespaces.
    pub namespaces: BTreeMap<String, Labels>,
    /// Addresses that no Service ever has, with a description of each.
    pub reserved: BTreeMap<IpAddr, String>,
    /// Addresses that objects claim, with a description of each: those of Nodes and of the API
    /// server. They are assigned to nobody, and their holders keep them. A node writes its own
    /// addresses, so a compromised one can claim any.
    pub claimed: BTreeMap<IpAddr, String>,
    /// The ranges of pod addresses.
    pub pod_ranges: PodRanges,
    /// How many addresses Services may get.
    pub limits: AddressLimits,
    /// Endpoints of `services`.
    pub endpoints: Endpoints,
    /// Input that was left out, and why.
    pub notes: Vec<Note>,
    /// Whether some of the input could not be used. Then a Service that is missing here may exist.
    pub incomplete: bool,
}

impl Model {
    /// Reads the objects. Each one that cannot be used is refused or noted by itself; the others
    /// are used.
    pub fn ingest(objects: &Objects, options: &IngestOptions) -> Self {
        let incomplete = !objects.problems.is_empty();
        let (reserved, limits) = (options.reserved.clone(), options.limits);
        let of_kind = |(kind, remedy): (&&str, &&str)| Note::new(*kind, format!("vipmux does not read it: {remedy}"));
        let notes = objects.unread.kinds.iter().map(of_kind).collect();
        let mut model = Self { reserved, limits, notes, incomplete, ..Self::default() };
        model.add_nodes(objects);
        let of_nodes = model.nodes.values().flat_map(|node| &node.pod_ranges);
        model.pod_ranges = PodRanges::new(options.pod_ranges.iter().chain(of_nodes).copied());
        model.add_pools(objects);
        model.add_services(objects, options);
        model.add_endpoints(objects);
        model
    }

    /// Returns the pool with this name or alias.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.is_called(name))
    }

    /// Returns the message about a pool that does not exist.
    pub fn no_pool(&self, name: &str) -> String {
        let known: Vec<&str> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        let known =
            if known.is_empty() { "there are no pools".to_owned() } else { format!("pools: {}", known.join(", ")) };
        format!("pool {} does not exist ({known})", quoted(name))
    }

    /// Returns the published status of a Service that wants an address.
    pub fn status(&self, name: &ServiceName) -> Option<&PublishedStatus> {
        self.services.get(name).map(|service| &service.status).or_else(|| self.refused_statuses.get(name))
    }

    /// Returns the index of the best pool that has the address.
    pub fn pool_of(&self, vip: Vip) -> Option<usize> {
        self.pools.iter().position(|pool| pool.contains(vip))
    }

    /// Returns the nodes that may lead the address, and where each announces it.
    pub fn eligible_nodes(&self, vip: Vip) -> &Arc<EligibleNodes> {
        self.advertisements.of(self.pool_of(vip))
    }

    /// Returns why nobody may announce the address, whatever nodes there are, or although there are
    /// nodes that could.
    pub fn silence(&self, vip: Vip) -> Option<String> {
        let index = self.pool_of(vip);
        if let Some(index) = index.filter(|index| self.advertisements.leave_out(*index)) {
            return self.pools.get(index).map(not_covered);
        }
        let eligible_nodes = self.advertisements.of(index);
        let mut nodes = eligible_nodes.iter().filter_map(|(name, _)| self.nodes.get(name));
        // A network that is down on all nodes is reported separately, once.
        if self.nodes.values().all(|node| node.network_unavailable) || nodes.any(|node| !node.network_unavailable) {
            return None;
        }
        let by = eligible_nodes.selected_by()?;
        Some(if eligible_nodes.iter().next().is_none() {
            format!("{by} selects no Node")
        } else {
            format!("the network of all nodes that {by} selects is unavailable")
        })
    }

    /// Returns a description of the address if it is assigned to nobody (rule 14).
    pub fn reservation(&self, vip: Vip) -> Option<&str> {
        self.ban(vip).or_else(|| self.claim(vip))
    }

    /// Returns a description of the address if even its holder loses it (rule 14).
    pub fn ban(&self, vip: Vip) -> Option<&str> {
        let anycast = is_anycast(vip.number()).then_some(SUBNET_ANYCAST);
        self.reserved.get(&vip.address()).map(String::as_str).or(anycast)
    }

    /// Returns a description of the address if an object claims it. A holder keeps it (rule 14).
    pub fn claim(&self, vip: Vip) -> Option<&str> {
        self.claimed.get(&vip.address()).map(String::as_str)
    }

    fn add_nodes(&mut self, objects: &Objects) {
        for (name, node) in &objects.nodes {
            let node = Node::ingest(name, node);
            let what = |address| (address, format!("an address of node {name}"));
            self.claimed.extend(node.addresses.iter().copied().map(what));
            self.nodes.insert(name.clone(), node);
        }
        for (namespace, object) in &objects.namespaces {
            let mut labels = object.metadata.labels.clone().unwrap_or_default();
            labels.insert(NAMESPACE_LABEL.to_owned(), namespace.clone());
            self.namespaces.insert(namespace.clone(), labels);
        }
    }

    fn add_pools(&mut self, objects: &Objects) {
        self.pools = pools::ingest(objects, &mut self.notes);
        self.advertisements = Advertisements::ingest(objects, &self.pools, &self.nodes, &mut self.notes);
    }

    fn add_services(&mut self, objects: &Objects, options: &IngestOptions) {
        let address_names = AddressNames::of(&self.pools, &mut self.notes);
        for (name, service) in &objects.services {
            if let Some(refusal) = not_ours(service, options) {
                self.notes.extend(misplaced(name, service).filter(|_| refusal.reason == Reason::NotLoadBalancer));
                self.ignored.insert(name.clone(), refusal);
                continue;
            }
            match Service::ingest(name, service, &address_names, &options.service_tags) {
                Ok(service) => drop(self.services.insert(name.clone(), service)),
                Err(refusal) => {
                    self.refused.insert(name.clone(), refusal);
                    self.refused_statuses.insert(name.clone(), PublishedStatus::of(service));
                }
            }
        }
        for (name, notice) in missing_keys::notices(&self.services, objects) {
            self.services.entry(name).and_modify(|service| service.notices.push(notice));
        }
        let namespaces: BTreeSet<&str> = self.services.keys().map(ServiceName::namespace).collect();
        for namespace in namespaces {
            let implied = || [(NAMESPACE_LABEL.to_owned(), namespace.to_owned())].into();
            self.namespaces.entry(namespace.to_owned()).or_insert_with(implied);
        }
        for service in self.services.values_mut() {
            let labels = self.namespaces.get(service.name.namespace());
            service.notices.extend(labels.and_then(|labels| pools::split_families(&self.pools, service, labels)));
        }
    }

    fn add_endpoints(&mut self, objects: &Objects) {
        let places = Places::new(&self.nodes);
        let mut endpoints = Endpoints::default();
        let mut unread = objects.unread.endpoints.clone();
        unread.retain(|service| self.services.contains_key(service));
        for ((namespace, slice_name), slice) in &objects.endpoint_slices {
            let Some(service) = service_of(namespace, slice) else {
                let message = format!("it has no label {SERVICE_LABEL}, so its endpoints belong to no Service");
                self.notes.push(Note::new(format!("EndpointSlice {namespace}/{slice_name}"), message));
                continue;
            };
            unread.remove(&service);
            if is_api_server(&service) {
                let addresses = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
                let parsed = addresses.filter_map(|text| text.parse::<IpAddr>().ok());
                let what = |address: IpAddr| (address.to_canonical(), "the API server's address".to_owned());
                self.claimed.extend(parsed.map(what));
            }
            if let Some(service) = self.services.get(&service) {
                endpoints.add(service, slice, &places, &mut self.notes);
            }
        }
        let without_slice = |service| {
            let message = "vipmux reads EndpointSlices alone, and the Service has none: write one";
            Note::new(format!("Endpoints {service}"), message)
        };
        self.notes.extend(unread.into_iter().map(without_slice));
        for service in self.services.values() {
            for (port, port_name) in &service.ports {
                let because = match port.protocol {
                    _ if service.policy.direct => "direct server return translates nothing",
                    // CRC32c (RFC 9260, 6.8), which cannot be updated when a packet is translated.
                    Protocol::Sctp => "SCTP's checksum covers the ports, so that they cannot be translated",
                    Protocol::Tcp | Protocol::Udp => continue,
                };
                let left_out = endpoints.keep_untranslated(&service.name, port_name, *port, because);
                self.notes.extend(left_out.map(|message| Note::new(format!("Service {}", service.name), message)));
            }
        }
        self.endpoints = endpoints;
    }
}

/// Whether this is the API server's Service.
pub(super) fn is_api_server(service: &ServiceName) -> bool {
    (service.namespace(), service.name()) == ("default", "kubernetes")
}

/// Returns a note about an annotation that asks for an address on a Service that gets none.
fn misplaced(name: &ServiceName, service: &api::Service) -> Option<Note> {
    let key = dialects::misplaced(service.metadata.annotations.as_ref()?)?;
    let message =
        format!("{key} has no effect, since spec.type is not LoadBalancer: make it one, or remove the annotation");
    Some(Note::new(format!("Service {name}"), message))
}

/// Whether the Service is ours to give addresses to (rule 12).
pub fn is_ours(service: &api::Service, options: &IngestOptions) -> bool {
    not_ours(service, options).is_none()
}

/// Returns why the Service is not ours (rule 12).
fn not_ours(service: &api::Service, options: &IngestOptions) -> Option<Refusal> {
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()) != Some("LoadBalancer") {
        return Some(Refusal::new(Reason::NotLoadBalancer, "spec.type is not LoadBalancer"));
    }
    match spec.and_then(|spec| spec.load_balancer_class.as_deref()) {
        Some(class) if class == options.load_balancer_class => None,
        Some(class) => {
            let ours = quoted(&options.load_balancer_class);
            let message = format!("spec.loadBalancerClass is {}, ours is {ours}", quoted(class));
            Some(Refusal::new(Reason::OtherClass, message))
        }
        None if options.unset_class_is_ours => None,
        None => Some(Refusal::new(Reason::OtherClass, "spec.loadBalancerClass is not set")),
    }
}

#[cfg(test)]
mod tests {
    use vipmux_testing::object;

    use super::*;
    use crate::fixture::{node_name, service_name};

    fn model(services: &[(&str, serde_json::Value)], options: &IngestOptions) -> Model {
        let mut objects = Objects::default();
        for (name, spec) in services {
            let name = service_name(*name);
            let service = object(serde_json::json!({ "spec": spec }));
            objects.services.insert(name, service);
        }
        Model::ingest(&objects, options)
    }

    fn reasons(model: &Model) -> Vec<(&str, Reason)> {
        model.ignored.iter().map(|(name, refusal)| (name.name(), refusal.reason)).collect()
    }

    #[test]
    fn only_our_class_is_ours() {
        let ports = serde_json::json!([{"port": 80}]);
        let services = [
            ("cluster", serde_json::json!({"type": "ClusterIP", "ports": ports})),
            (
                "other",
                serde_json::json!({"type": "LoadBalancer", "loadBalancerClass": "example.org/lb", "ports": ports}),
            ),
            (
                "ours",
                serde_json::json!({"type": "LoadBalancer", "loadBalancerClass": "vipmux.io/vipmux", "ports": ports}),
            ),
            ("unset", serde_json::json!({"type": "LoadBalancer", "ports": ports})),
        ];
        let by_default = model(&services, &IngestOptions::default());
        assert_eq!(reasons(&by_default), [("cluster", Reason::NotLoadBalancer), ("other", Reason::OtherClass)]);
        let strict = model(&services, &IngestOptions { unset_class_is_ours: false, ..IngestOptions::default() });
        assert_eq!(strict.services.keys().map(ServiceName::name).collect::<Vec<_>>(), ["ours"]);
    }

    #[test]
    fn an_annotation_that_asks_for_an_address_is_noted_on_a_service_that_gets_none() {
        let mut objects = Objects::default();
        for (name, annotation, spec) in [
            ("key", "metallb.io/allow-shared-ip", serde_json::json!({})),
            ("address", "kube-vip.io/loadbalancerIPs", serde_json::json!({"type": "NodePort"})),
            ("noted", "metallb.io/ip-allocated-from-pool", serde_json::json!({})),
            ("treated", "vipmux.io/tcp-idle-timeout", serde_json::json!({})),
            (
                "other",
                "metallb.io/allow-shared-ip",
                serde_json::json!({"type": "LoadBalancer", "loadBalancerClass": "x"}),
            ),
        ] {
            let name = service_name(name);
            let metadata = serde_json::json!({"annotations": {(annotation): "x"}});
            objects.services.insert(name, object(serde_json::json!({"metadata": metadata, "spec": spec})));
        }
        let notes = Model::ingest(&objects, &IngestOptions::default()).notes;
        let message = |key| {
            format!("{key} has no effect, since spec.type is not LoadBalancer: make it one, or remove the annotation")
        };
        let expected = [
            Note::new("Service shop/address", message("kube-vip.io/loadbalancerIPs")),
            Note::new("Service shop/key", message("metallb.io/allow-shared-ip")),
        ];
        assert_eq!(notes, expected);
    }

    #[test]
    fn a_service_that_cannot_be_understood_stops_no_other() {
        let services = [
            ("bad", serde_json::json!({"type": "LoadBalancer", "ports": []})),
            ("good", serde_json::json!({"type": "LoadBalancer", "ports": [{"port": 80}]})),
        ];
        let model = model(&services, &IngestOptions::default());
        assert_eq!((model.services.len(), model.refused.len()), (1, 1));
    }

    #[test]
    fn addresses_of_nodes_and_of_the_api_server_are_claimed() {
        let mut objects = Objects::default();
        let node = serde_json::json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
        objects.nodes.insert(node_name("n1"), object(node));
        let slice = serde_json::json!({
            "metadata": {"labels": {(SERVICE_LABEL): "kubernetes"}}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.7"]}],
        });
        let key = ("default".to_owned(), "kubernetes".to_owned());
        objects.endpoint_slices.insert(key, object(slice));
        let model = Model::ingest(&objects, &IngestOptions::default());
        let claimed: Vec<_> = model.claimed.iter().map(|(address, what)| format!("{address} {what}")).collect();
        assert_eq!(claimed, ["192.0.2.1 an address of node n1", "192.0.2.7 the API server's address"]);
    }

    #[test]
    fn core_endpoints_are_noted_unless_their_service_has_a_slice() {
        let mut objects = Objects::default();
        for name in ["mirrored", "alone"] {
            let spec = serde_json::json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
            objects.services.insert(service_name(name), object(serde_json::json!({ "spec": spec })));
        }
        objects.unread.endpoints = ["mirrored", "alone", "no-service"].map(service_name).into();
        let slice = serde_json::json!({"metadata": {"labels": {(SERVICE_LABEL): "mirrored"}}, "addressType": "IPv4", "endpoints": []});
        objects.endpoint_slices.insert(("shop".to_owned(), "mirrored-1".to_owned()), object(slice));
        let notes = Model::ingest(&objects, &IngestOptions::default()).notes;
        let message = "vipmux reads EndpointSlices alone, and the Service has none: write one";
        assert_eq!(notes, [Note::new("Endpoints shop/alone", message)]);
    }

    #[test]
    fn a_slice_of_no_service_is_noted() {
        let mut objects = Objects::default();
        let slice = object(serde_json::json!({"addressType": "IPv4", "endpoints": []}));
        objects.endpoint_slices.insert(("shop".to_owned(), "web-1".to_owned()), slice);
        let notes = Model::ingest(&objects, &IngestOptions::default()).notes;
        let message = "it has no label kubernetes.io/service-name, so its endpoints belong to no Service";
        assert_eq!(notes, [Note::new("EndpointSlice shop/web-1", message)]);
    }
}
