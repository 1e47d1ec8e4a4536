//! Reads Services of type LoadBalancer.

mod unexposed;

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use k8s_openapi::{api::core::v1 as api, jiff::Timestamp};

use crate::{
    Family, Protocol, ServiceName,
    address_names::AddressNames,
    dialects,
    name::is_label,
    policy::{IdleTimeouts, Policy},
    port::Port,
    probe::{Probe, Probes},
    published_status::PublishedStatus,
    reason::{Reason, Refusal, quoted},
    request::{Request, Sharer},
    selector::Labels,
    tag::ServiceTags,
};

/// The maximum number of ports of one Service. Kubernetes limits only the object's size.
const MAX_PORTS: usize = 1024;

/// The notice about a field that only kube-proxy reads.
const EXTERNAL_IPS: &str =
    "spec.externalIPs asks vipmux for no address: only kube-proxy serves it. Name the address in vipmux.io/addresses";

/// A Service of type LoadBalancer that is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// `metadata.creationTimestamp`. Bare manifests have none.
    pub created: Option<Timestamp>,
    /// `metadata.uid`. Bare manifests have none.
    pub uid: Option<String>,
    /// Its labels.
    pub labels: Labels,
    /// Its ports, each with its name (empty for a single unnamed one). With [`Policy::all_ports`],
    /// it is [`Port::every`].
    pub ports: BTreeMap<Port, String>,
    /// Ports that are not exposed and claim nothing.
    pub unexposed: BTreeSet<Port>,
    /// The health probes of its ports' backends; none if they cannot be understood.
    pub probes: BTreeMap<Port, Probe>,
    /// The address families it wants.
    pub families: Families,
    /// The treatment of its packets.
    pub policy: Policy,
    /// The idle timeouts of its flows; the default if they cannot be understood.
    pub idle: IdleTimeouts,
    /// Its request; the default if it cannot be understood.
    pub request: Request,
    /// The reason why its request cannot be understood. Such a Service gets nothing new, and keeps
    /// what it holds. So a typing error in an annotation does not give its address to another
    /// Service.
    pub fault: Option<Refusal>,
    /// Notices for its owner that stop nothing: annotations without effect here, misspelled ones, a
    /// key or an address for only one family.
    pub notices: Vec<String>,
    /// Its published status.
    pub status: PublishedStatus,
}

/// `ipFamilies` and `ipFamilyPolicy`, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// Only this family.
    Single(Family),
    /// Both families if possible (`PreferDualStack`), else preferably this one.
    PreferDual(Family),
    /// Both families or nothing (`RequireDualStack`).
    RequireDual,
}

impl Families {
    /// Returns the families that it may have, the preferred one first.
    pub fn wanted(self) -> impl Iterator<Item = Family> + Clone {
        let (first, second) = match self {
            Self::Single(family) => (family, None),
            Self::PreferDual(family) => (family, Some(family.other())),
            Self::RequireDual => (Family::V4, Some(Family::V6)),
        };
        iter::once(first).chain(second)
    }

    /// Checks that the addresses that the Service asks for, if any, are of these families.
    fn agree_with(self, request: &Request) -> Result<(), Refusal> {
        let asked = &request.addresses;
        let refuse = |message: String| Err(Refusal::new(Reason::UnsupportedFamily, message));
        let missing = |family: &Family| asked.iter().all(|vip| vip.family() != *family);
        match self {
            Self::Single(family) => match asked.iter().chain(&request.additional).find(|vip| vip.family() != family) {
                Some(vip) => refuse(format!(
                    "it asks for {vip}, and spec.ipFamilies and spec.ipFamilyPolicy allow only {family}"
                )),
                None => Ok(()),
            },
            Self::RequireDual if !asked.is_empty() => match Family::ALL.into_iter().find(missing) {
                Some(family) => refuse(format!(
                    "RequireDualStack cannot be met: no {family} address is among those that it asks for"
                )),
                None => Ok(()),
            },
            Self::PreferDual(_) | Self::RequireDual => Ok(()),
        }
    }

    /// Returns a notice if the Service lacks a family that it may have, since it names only
    /// addresses of the other one.
    fn left_out(self, request: &Request) -> Option<String> {
        let named = request.addresses.first().filter(|_| matches!(self, Self::PreferDual(_)))?.family();
        let missing = named.other();
        let alone = request.addresses.iter().all(|vip| vip.family() == named);
        alone.then(|| {
            format!(
                "spec.ipFamilyPolicy allows both families, but it asks only for {named} addresses, so it gets no \
                 {missing} address: name one of each family, or none"
            )
        })
    }
}

impl Service {
    /// Reads the API's form. The caller has made sure that its type is LoadBalancer. `named` has
    /// the addresses that it may ask for by name, `tags` the source ranges.
    pub fn ingest(
        name: &ServiceName,
        service: &api::Service,
        named: &AddressNames,
        tags: &ServiceTags,
    ) -> Result<Self, Refusal> {
        if !is_label(name.namespace()) || !is_label(name.name()) {
            return Err(invalid("metadata", "namespace and name must be RFC 1123 labels of at most 63 bytes"));
        }
        let (no_spec, no_annotations) = Default::default();
        let (metadata, spec) = (&service.metadata, service.spec.as_ref().unwrap_or(&no_spec));
        let annotations = metadata.annotations.as_ref().unwrap_or(&no_annotations);
        let asked = dialects::request(annotations, spec.load_balancer_ip.as_deref());
        let asked = asked.and_then(|request| named.resolve(request));
        let families = families(spec, asked.as_ref().ok())?;
        let asked = asked.and_then(|request| families.agree_with(&request).map(|()| request));
        let (request, fault) = asked.map_or_else(|fault| (Request::default(), Some(fault)), |request| (request, None));
        let (idle, slip) = IdleTimeouts::read(annotations)
            .map_or_else(|fault| (IdleTimeouts::default(), Some(fault)), |idle| (idle, None));
        let policy = Policy::read(annotations, spec, tags)?;
        let listed = spec.ports.as_deref().unwrap_or_default();
        let mut ports = ports(listed)?;
        let (probes, misread) = Probes::read(annotations, listed)
            .map_or_else(|fault| (Probes::default(), Some(fault)), |probes| (probes, None));
        let mut notices = dialects::notices(annotations, &ports);
        notices.extend(metadata.labels.iter().flat_map(|labels| dialects::of_labels(labels, annotations)));
        if spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty()) {
            notices.push(EXTERNAL_IPS.to_owned());
        }
        notices.extend(families.left_out(&request));
        notices.extend(probes.notice.clone());
        let unexposed = unexposed::read(annotations, &ports, &policy)?;
        ports.retain(|port, _| !unexposed.contains(port));
        if policy.all_ports {
            ports = Port::every().map(|port| (port, String::new())).collect();
        }
        Ok(Self {
            name: name.clone(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            uid: metadata.uid.clone().filter(|uid| !uid.is_empty()),
            labels: metadata.labels.clone().unwrap_or_default(),
            probes: probes.of_exposed(ports.keys(), listed).of_ports,
            ports,
            unexposed,
            families,
            policy,
            idle,
            request,
            fault: fault.or(slip).or(misread),
            notices,
            status: PublishedStatus::of(service),
        })
    }

    /// Returns its port claims, without the address.
    pub fn claims(&self) -> impl Iterator<Item = Port> {
        self.ports.keys().copied()
    }

    /// Returns a word for each setting that differs from the default.
    pub fn particulars(&self) -> Vec<String> {
        let unexposed = self.unexposed.iter().map(|port| format!("unexposed={port}"));
        let probes = (!self.probes.is_empty()).then(|| format!("probes={}", self.probes.len()));
        self.policy.particulars(self.idle).into_iter().chain(unexposed).chain(probes).collect()
    }

    /// Returns its namespace and sharing settings.
    pub fn sharer(&self) -> Sharer<'_> {
        Sharer { namespace: self.name.namespace(), sharing: &self.request.sharing }
    }

    /// Returns its order among Services with equal claims (rule 7): the older goes first. A Service
    /// without a time or UID was never created on a server. It goes after those that were.
    pub fn seniority(&self) -> impl Ord {
        (self.created.is_none(), self.created, self.uid.is_none(), self.uid.as_deref(), &self.name)
    }
}

fn invalid(field: &str, message: impl AsRef<str>) -> Refusal {
    Refusal::new(Reason::InvalidService, format!("{field}: {}", message.as_ref()))
}

fn ports(listed: &[api::ServicePort]) -> Result<BTreeMap<Port, String>, Refusal> {
    if listed.is_empty() || listed.len() > MAX_PORTS {
        return Err(invalid(
            "spec.ports",
            format!("1 to {MAX_PORTS} ports are needed, and there are {}", listed.len()),
        ));
    }
    let mut ports = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (i, entry) in listed.iter().enumerate() {
        let field = format!("spec.ports[{i}]");
        let protocol: Protocol = match &entry.protocol {
            None => Protocol::default(),
            Some(text) => text.parse().map_err(|error| invalid(&field, format!("{error}")))?,
        };
        let number = u16::try_from(entry.port).ok().filter(|number| *number != 0);
        let number = number.ok_or_else(|| invalid(&field, format!("port {} is not within 1 to 65535", entry.port)))?;
        let name = entry.name.clone().unwrap_or_default();
        if name.is_empty() && listed.len() > 1 {
            return Err(invalid(&field, "a name is needed where there are several ports"));
        }
        if !names.insert(name.clone()) {
            return Err(invalid(&field, format!("the name {} is used twice", quoted(&name))));
        }
        let port = Port { number: number.into(), protocol };
        if ports.insert(port, name).is_some() {
            return Err(invalid(&field, format!("{port} is listed twice")));
        }
    }
    Ok(ports)
}

/// Returns the families, completed as by the API server: one family, unless two are listed, which
/// are then required. If no family is listed, the addresses that the Service asks for decide; else
/// it is IPv4.
fn families(spec: &api::ServiceSpec, request: Option<&Request>) -> Result<Families, Refusal> {
    let listed = spec.ip_families.as_deref().unwrap_or_default();
    let family = |(i, text): (usize, &String)| match text.as_str() {
        "IPv4" => Ok(Family::V4),
        "IPv6" => Ok(Family::V6),
        other => Err(invalid(&format!("spec.ipFamilies[{i}]"), format!("{} is neither IPv4 nor IPv6", quoted(other)))),
    };
    let listed: Vec<Family> = listed.iter().enumerate().map(family).collect::<Result<_, _>>()?;
    let asked: BTreeSet<Family> =
        request.iter().flat_map(|request| &request.addresses).map(|vip| vip.family()).collect();
    let dual = match listed.as_slice() {
        [] => asked.len() > 1,
        [_] => false,
        [first, second] if first != second => true,
        _ => return Err(invalid("spec.ipFamilies", "each family can be listed once")),
    };
    let first = listed.first().or(asked.first()).copied().unwrap_or(Family::V4);
    match spec.ip_family_policy.as_deref() {
        None if dual => Ok(Families::RequireDual),
        None | Some("SingleStack") => Ok(Families::Single(first)),
        // If the cluster has no second family, the API server assigns one cluster IP, and its
        // endpoints have no second family.
        Some("PreferDualStack") if spec.cluster_ips.as_ref().is_some_and(|ips| ips.len() == 1) => {
            Ok(Families::Single(first))
        }
        Some("PreferDualStack") => Ok(Families::PreferDual(first)),
        Some("RequireDualStack") => Ok(Families::RequireDual),
        Some(other) => {
            let allowed = "SingleStack, PreferDualStack or RequireDualStack";
            Err(invalid("spec.ipFamilyPolicy", format!("{} is not {allowed}", quoted(other))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{service_name, web};

    fn ingest(spec: &serde_json::Value) -> Result<Service, Refusal> {
        let name = web();
        let object = serde_json::from_value(serde_json::json!({ "spec": spec })).unwrap();
        Service::ingest(&name, &object, &AddressNames::default(), &ServiceTags::default())
    }

    #[test]
    fn a_missing_protocol_is_tcp_and_protocols_mix() {
        let service = ingest(&serde_json::json!({"ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53},
        ]}))
        .unwrap();
        assert_eq!(service.claims().map(|port| port.to_string()).collect::<Vec<_>>(), ["53/TCP", "53/UDP"]);
        assert_eq!(service.ports.values().collect::<Vec<_>>(), ["dns-tcp", "dns"]);
    }

    #[test]
    fn malformed_ports_are_refused_with_their_field() {
        for (ports, message) in [
            (serde_json::json!([]), "spec.ports: 1 to 1024 ports are needed, and there are 0"),
            (serde_json::json!([{"port": 0}]), "spec.ports[0]: port 0 is not within 1 to 65535"),
            (serde_json::json!([{"port": 70000}]), "spec.ports[0]: port 70000 is not within 1 to 65535"),
            (
                serde_json::json!([{"port": 1, "protocol": "QUIC"}]),
                "spec.ports[0]: unknown protocol \"QUIC\": TCP, UDP and SCTP are known",
            ),
            (
                serde_json::json!([{"port": 1, "name": "a"}, {"port": 2}]),
                "spec.ports[1]: a name is needed where there are several ports",
            ),
            (
                serde_json::json!([{"port": 1, "name": "a"}, {"port": 2, "name": "a"}]),
                "spec.ports[1]: the name \"a\" is used twice",
            ),
            (
                serde_json::json!([{"port": 1, "name": "a"}, {"port": 1, "name": "b"}]),
                "spec.ports[1]: 1/TCP is listed twice",
            ),
        ] {
            let refusal = ingest(&serde_json::json!({ "ports": ports })).unwrap_err();
            assert_eq!(refusal, Refusal::new(Reason::InvalidService, message));
        }
    }

    #[test]
    fn families_follow_the_policy() {
        use Families::{PreferDual, RequireDual, Single};
        use Family::{V4, V6};
        for (families, policy, expected) in [
            (serde_json::json!(null), None, Single(V4)),
            (serde_json::json!(["IPv6"]), None, Single(V6)),
            (serde_json::json!(["IPv6", "IPv4"]), None, RequireDual),
            (serde_json::json!(["IPv6", "IPv4"]), Some("SingleStack"), Single(V6)),
            (serde_json::json!(["IPv4"]), Some("PreferDualStack"), PreferDual(V4)),
            (serde_json::json!(["IPv6", "IPv4"]), Some("PreferDualStack"), PreferDual(V6)),
            (serde_json::json!(null), Some("RequireDualStack"), RequireDual),
        ] {
            let spec = serde_json::json!({"ports": [{"port": 1}], "ipFamilies": families, "ipFamilyPolicy": policy});
            assert_eq!(ingest(&spec).unwrap().families, expected);
        }
        for (families, policy, field) in [
            (serde_json::json!(["IPv4", "IPv5"]), None, "spec.ipFamilies[1]: \"IPv5\""),
            (serde_json::json!(["IPv4", "IPv4"]), None, "spec.ipFamilies: each family"),
            (serde_json::json!(null), Some("x"), "spec.ipFamilyPolicy: \"x\""),
        ] {
            let spec = serde_json::json!({"ports": [{"port": 1}], "ipFamilies": families, "ipFamilyPolicy": policy});
            let refusal = ingest(&spec).unwrap_err();
            assert!(refusal.message.starts_with(field), "{}", refusal.message);
        }
    }

    #[test]
    fn the_cluster_ips_tell_whether_there_is_a_second_family() {
        let families = |ips: &[&str]| {
            let spec = serde_json::json!({
                "ports": [{"port": 1}], "ipFamilies": ["IPv6"], "ipFamilyPolicy": "PreferDualStack", "clusterIPs": ips,
            });
            ingest(&spec).unwrap().families
        };
        assert_eq!(families(&["fd00::7"]), Families::Single(Family::V6));
        assert_eq!(families(&["fd00::7", "10.0.0.7"]), Families::PreferDual(Family::V6));
    }

    #[test]
    fn without_listed_families_the_requested_addresses_decide() {
        for (address, policy, expected) in [
            ("2001:db8::1", None, Families::Single(Family::V6)),
            ("192.0.2.1", None, Families::Single(Family::V4)),
            ("2001:db8::1", Some("PreferDualStack"), Families::PreferDual(Family::V6)),
        ] {
            let spec = serde_json::json!({"ports": [{"port": 1}], "loadBalancerIP": address, "ipFamilyPolicy": policy});
            assert_eq!(ingest(&spec).unwrap().families, expected);
        }
    }

    #[test]
    fn an_address_of_one_family_alone_is_noted_where_both_could_be_had() {
        let notices = |policy: &str| {
            let spec = serde_json::json!({
                "ports": [{"port": 1}], "ipFamilies": ["IPv4"], "ipFamilyPolicy": policy, "loadBalancerIP": "192.0.2.1",
            });
            ingest(&spec).unwrap().notices
        };
        let expected = "spec.ipFamilyPolicy allows both families, but it asks only for IPv4 addresses, so it gets no \
                        IPv6 address: name one of each family, or none";
        assert_eq!(notices("PreferDualStack"), [expected]);
        assert_eq!(notices("SingleStack"), [""; 0]);
    }

    #[test]
    fn external_ips_are_noted() {
        let notices =
            |ips: &[&str]| ingest(&serde_json::json!({"ports": [{"port": 1}], "externalIPs": ips})).unwrap().notices;
        assert_eq!(notices(&["192.0.2.1", "192.0.2.2"]), [EXTERNAL_IPS]);
        assert_eq!(notices(&[]), [""; 0]);
    }

    #[test]
    fn the_older_goes_first_and_those_without_a_time_last() {
        let service = |created: Option<&str>, uid: Option<&str>, name: &str| {
            let name = service_name(name);
            let json = serde_json::json!({
                "metadata": {"creationTimestamp": created, "uid": uid},
                "spec": {"ports": [{"port": 1}]},
            });
            let object = serde_json::from_value(json).unwrap();
            Service::ingest(&name, &object, &AddressNames::default(), &ServiceTags::default()).unwrap()
        };
        let order = [
            service(Some("2024-01-01T00:00:00Z"), Some("z"), "z"),
            service(Some("2025-01-01T00:00:00Z"), Some("a"), "z"),
            service(Some("2025-01-01T00:00:00Z"), Some("b"), "a"),
            service(None, None, "a"),
            service(None, None, "b"),
        ];
        assert!(order.windows(2).all(|pair| pair[0].seniority() < pair[1].seniority()));
    }
}
