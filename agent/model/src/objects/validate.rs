//! Finds flaws that the API server would refuse, and those that would do harm later. Nothing else
//! checks the objects of a directory.
//!
//! The rules are those of `k8s.io/kubernetes/pkg/apis/{core,discovery}/validation` for the fields
//! that vipmux reads.

mod custom;
mod field_names;

use std::{
    collections::BTreeSet,
    fmt::Display,
    net::{IpAddr, Ipv6Addr},
};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, Service, ServicePort},
        discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

pub(super) use self::custom::{address_pool, l2_advertisement, vip_policy, vip_pool};
pub(super) use self::field_names::distance;
pub use self::field_names::field_names;
use super::field::FieldPath;
use crate::{Protocol, policy::AFFINITY_SECONDS, prefix::Prefix};

/// The maximum length of an RFC 1123 label, and of a subdomain (DNS's 255 bytes, less the length
/// and root bytes).
const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;
/// `discovery.k8s.io/v1`: addresses per endpoint, endpoints and ports per slice.
const ADDRESSES_MAX: usize = 100;
const ENDPOINTS_MAX: usize = 1_000;
const SLICE_PORTS_MAX: usize = 20_000;

/// `k8s.io/kubernetes/pkg/cluster/ports`.
const KUBELET_PORT: i32 = 10_250;

/// One error in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The field, from the object's root.
    pub path: FieldPath,
    /// The fault, in words.
    pub message: String,
}

impl Flaw {
    /// Creates a flaw of the field at `path`.
    pub fn new(path: FieldPath, message: impl Into<String>) -> Self {
        Self { path, message: message.into() }
    }
}

/// The flaws found so far.
#[derive(Default)]
struct Flaws(Vec<Flaw>);

impl Flaws {
    fn add(&mut self, path: FieldPath, message: impl Into<String>) {
        self.0.push(Flaw::new(path, message));
    }

    fn label(&mut self, path: FieldPath, text: &str) {
        if text.is_empty() {
            self.add(path, "required");
        } else if text.len() > LABEL_MAX || !is_label(text) {
            self.add(path, format!("{text:?} is no RFC 1123 label: at most {LABEL_MAX} of a-z, 0-9 and inner '-'"));
        }
    }

    fn subdomain(&mut self, path: FieldPath, text: &str) {
        if text.is_empty() {
            self.add(path, "required");
        } else if text.len() > SUBDOMAIN_MAX || !text.split('.').all(is_label) {
            self.add(
                path,
                format!("{text:?} is no RFC 1123 subdomain: at most {SUBDOMAIN_MAX} of a-z, 0-9, '-' and '.'"),
            );
        }
    }

    fn port(&mut self, path: FieldPath, port: i32) {
        if u16::try_from(port).map_or(true, |port| port == 0) {
            self.add(path, format!("{port} is no port: 1 to 65535"));
        }
    }

    fn protocol(&mut self, path: FieldPath, protocol: Option<&str>) {
        if let Some(Err(error)) = protocol.map(str::parse::<Protocol>) {
            self.add(path, error.to_string());
        }
    }

    fn one_of(&mut self, path: FieldPath, value: Option<&str>, allowed: &[&str]) {
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            self.add(path, format!("unknown value {value:?}: {} are known", allowed.join(", ")));
        }
    }

    fn unique<T: Ord + Display>(&mut self, path: FieldPath, value: T, seen: &mut BTreeSet<T>) {
        let message = format!("{value} stands twice");
        if !seen.insert(value) {
            self.add(path, message);
        }
    }

    fn too_many(&mut self, path: FieldPath, count: usize, most: usize) {
        if count > most {
            self.add(path, format!("{count} of them: at most {most}"));
        }
    }

    fn namespace(&mut self, metadata: &ObjectMeta) {
        if let Some(namespace) = metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
            self.label(FieldPath::of(&["metadata", "namespace"]), namespace);
        }
    }
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
}

fn name_path() -> FieldPath {
    FieldPath::of(&["metadata", "name"])
}

fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

/// Returns the flaws of a Service.
pub fn service(service: &Service) -> Vec<Flaw> {
    let mut flaws = Flaws::default();
    flaws.label(name_path(), name(&service.metadata));
    flaws.namespace(&service.metadata);
    let Some(spec) = &service.spec else {
        flaws.add(FieldPath::of(&["spec"]), "required");
        return flaws.0;
    };
    let field = |name| FieldPath::of(&["spec", name]);
    let kinds = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
    flaws.one_of(field("type"), spec.type_.as_deref(), &kinds);
    flaws.one_of(field("externalTrafficPolicy"), spec.external_traffic_policy.as_deref(), &["Cluster", "Local"]);
    flaws.one_of(field("sessionAffinity"), spec.session_affinity.as_deref(), &["None", "ClientIP"]);
    let policies = ["SingleStack", "PreferDualStack", "RequireDualStack"];
    flaws.one_of(field("ipFamilyPolicy"), spec.ip_family_policy.as_deref(), &policies);
    for (i, family) in spec.ip_families.iter().flatten().enumerate() {
        flaws.one_of(field("ipFamilies").index(i), Some(family), &["IPv4", "IPv6"]);
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    if let Some(seconds) = client_ip.and_then(|config| config.timeout_seconds)
        && !u32::try_from(seconds).is_ok_and(|seconds| AFFINITY_SECONDS.contains(&seconds))
    {
        let path = FieldPath::of(&["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"]);
        flaws.add(path, format!("{seconds} is not within 1 to {}", AFFINITY_SECONDS.end()));
    }
    for (i, range) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
        if let Err(error) = range.parse::<Prefix>() {
            flaws.add(field("loadBalancerSourceRanges").index(i), error.to_string());
        }
    }
    if spec.ip_family_policy.as_deref() == Some("SingleStack")
        && spec.ip_families.as_ref().is_some_and(|it| it.len() > 1)
    {
        let message = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified";
        flaws.add(field("ipFamilyPolicy"), message);
    }
    let ports = spec.ports.as_deref().unwrap_or_default();
    service_ports(&mut flaws, ports);
    if spec.type_.as_deref() == Some("LoadBalancer") {
        if spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten()).any(|ip| ip == "None") {
            flaws.add(field("clusterIP"), "may not be set to 'None' for LoadBalancer services");
        }
        for (i, _) in ports.iter().enumerate().filter(|(_, port)| port.port == KUBELET_PORT) {
            let message = format!("may not expose port {KUBELET_PORT} externally since it is used by kubelet");
            flaws.add(field("ports").index(i).key("port"), message);
        }
    }
    flaws.0
}

fn service_ports(flaws: &mut Flaws, ports: &[ServicePort]) {
    let (mut names, mut claims, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (i, port) in ports.iter().enumerate() {
        let field = |name| FieldPath::of(&["spec", "ports"]).index(i).key(name);
        flaws.port(field("port"), port.port);
        flaws.protocol(field("protocol"), port.protocol.as_deref());
        match port.name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => {
                flaws.label(field("name"), name);
                flaws.unique(field("name"), name, &mut names);
            }
            None if ports.len() > 1 => flaws.add(field("name"), "required where there is more than one port"),
            None => {}
        }
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        flaws.unique(field("port"), format!("{}/{protocol}", port.port), &mut claims);
        // 0 stands for none.
        if let Some(number) = port.node_port.filter(|number| *number != 0) {
            flaws.port(field("nodePort"), number);
            flaws.unique(field("nodePort"), format!("{number}/{protocol}"), &mut node_ports);
        }
    }
}

/// Returns the flaws of an EndpointSlice.
pub fn endpoint_slice(slice: &EndpointSlice) -> Vec<Flaw> {
    let mut flaws = Flaws::default();
    flaws.subdomain(name_path(), name(&slice.metadata));
    flaws.namespace(&slice.metadata);
    flaws.one_of(FieldPath::of(&["addressType"]), Some(&slice.address_type), &["IPv4", "IPv6", "FQDN"]);
    let endpoints = slice.endpoints.as_deref().unwrap_or_default();
    flaws.too_many(FieldPath::of(&["endpoints"]), endpoints.len(), ENDPOINTS_MAX);
    for (i, endpoint) in endpoints.iter().enumerate() {
        one_endpoint(&mut flaws, &FieldPath::of(&["endpoints"]).index(i), &slice.address_type, endpoint);
    }
    slice_ports(&mut flaws, slice.ports.as_deref().unwrap_or_default());
    flaws.0
}

fn one_endpoint(flaws: &mut Flaws, path: &FieldPath, address_type: &str, endpoint: &Endpoint) {
    let addresses = path.clone().key("addresses");
    if endpoint.addresses.is_empty() {
        flaws.add(addresses.clone(), "required");
    }
    flaws.too_many(addresses.clone(), endpoint.addresses.len(), ADDRESSES_MAX);
    for (i, address) in endpoint.addresses.iter().enumerate() {
        let path = addresses.clone().index(i);
        match address_type {
            "FQDN" => flaws.subdomain(path, address),
            _ => address_of_endpoint(flaws, path, address_type, address),
        }
    }
    if let Some(node) = &endpoint.node_name {
        flaws.subdomain(path.clone().key("nodeName"), node);
    }
}

/// Checks an endpoint's address (`ValidateEndpointIP`): it must not mean a different host on every
/// host.
fn address_of_endpoint(flaws: &mut Flaws, path: FieldPath, address_type: &str, text: &str) {
    let Ok(address) = text.parse::<IpAddr>() else {
        return flaws.add(path, format!("{text:?} is no IP address"));
    };
    if address.is_ipv4() && address_type == "IPv6" || address.is_ipv6() && address_type == "IPv4" {
        return flaws.add(path, format!("{text} is not of the slice's addressType {address_type}"));
    }
    let why = match address.to_canonical() {
        it if it.is_unspecified() => "the unspecified address",
        it if it.is_loopback() => "a loopback address",
        it if it.is_multicast() => "a multicast address",
        IpAddr::V4(it) if it.is_link_local() => "a link-local address",
        IpAddr::V6(it) if is_link_local(it) => "a link-local address",
        _ => return,
    };
    flaws.add(path, format!("{text} is {why}, so no endpoint can have it"));
}

/// Whether the address is link-local: `fe80::/10` (RFC 4291, 2.5.6).
const fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

fn slice_ports(flaws: &mut Flaws, ports: &[EndpointPort]) {
    flaws.too_many(FieldPath::of(&["ports"]), ports.len(), SLICE_PORTS_MAX);
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let field = |name| FieldPath::of(&["ports"]).index(i).key(name);
        // Unset means any port, which is not for Services. Readers of the slice skip it.
        if let Some(number) = port.port {
            flaws.port(field("port"), number);
        }
        flaws.protocol(field("protocol"), port.protocol.as_deref());
        let name = port.name.as_deref().unwrap_or_default();
        if !name.is_empty() {
            flaws.label(field("name"), name);
        }
        flaws.unique(field("name"), format!("{name:?}"), &mut names);
    }
}

/// Returns the flaws of a Node.
pub fn node(node: &Node) -> Vec<Flaw> {
    let mut flaws = Flaws::default();
    flaws.subdomain(name_path(), name(&node.metadata));
    flaws.0
}

/// Returns the flaws of a Namespace.
pub fn namespace(namespace: &Namespace) -> Vec<Flaw> {
    let mut flaws = Flaws::default();
    flaws.label(name_path(), name(&namespace.metadata));
    flaws.0
}
