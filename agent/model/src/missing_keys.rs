//! Finds Services whose sharing key was probably forgotten.
//!
//! An application with TCP and UDP, or with IPv4 and IPv6, is often written as two Services of one
//! namespace with one selector. If only one of the two has a sharing key, it was probably forgotten
//! on the other. If both have one port number, in TCP and in UDP (HTTP/3, DNS), clients look for both
//! on one address.

use std::collections::BTreeMap;

use crate::{
    Family, Protocol, ServiceName, objects::Objects, port::Port, request::SharingKey, selector::Labels,
    service::Service,
};

/// Returns notices for Services without a key. Another Service with the same selector has one, and
/// shares no protocol, or no family, with them. Or neither Service has a key, and one has the port
/// numbers of the other by another protocol.
pub(super) fn notices(services: &BTreeMap<ServiceName, Service>, objects: &Objects) -> Vec<(ServiceName, String)> {
    let mut siblings: BTreeMap<(&str, &Labels), Vec<&Service>> = BTreeMap::new();
    for service in services.values() {
        let spec = objects.services.get(&service.name).and_then(|object| object.spec.as_ref());
        if let Some(selector) = spec.and_then(|spec| spec.selector.as_ref()).filter(|selector| !selector.is_empty()) {
            siblings.entry((service.name.namespace(), selector)).or_default().push(service);
        }
    }
    siblings.values().flat_map(|siblings| about(siblings)).collect()
}

/// Returns the notices for the Services of one application.
fn about(siblings: &[&Service]) -> Vec<(ServiceName, String)> {
    let with_key =
        |service: &&Service| Some((service.name.clone(), service.request.sharing.key.clone()?, kind(service)));
    let holders: Vec<(ServiceName, SharingKey, TrafficKind)> = siblings.iter().filter_map(with_key).collect();
    let asks_for_company = |service: &&&Service| {
        service.request.sharing.key.is_none() && service.request.addresses.is_empty() && service.fault.is_none()
    };
    let notice = |service: &&Service| {
        let Some((holder, key, _)) = holders.iter().find(|(_, _, other)| other.complements(&kind(service))) else {
            let counterpart = siblings.iter().filter(asks_for_company).find(|other| has_counterpart(service, other))?;
            let message = format!(
                "{} selects the same pods, and clients may look for both on one address: to share one, both need the \
                 same sharing key (vipmux.io/sharing-key)",
                counterpart.name
            );
            return Some((service.name.clone(), message));
        };
        let message = format!(
            "{holder} selects the same pods and has a sharing key ({}), and this one has none, so they share no address: \
             give it the same one if they should",
            key.shown()
        );
        Some((service.name.clone(), message))
    };
    siblings.iter().filter(asks_for_company).filter_map(notice).collect()
}

/// Whether each port of one of the two Services is a TCP or UDP port that the other has by the other
/// protocol, and nothing shows that they are to be apart, or that they share already.
fn has_counterpart(service: &Service, other: &Service) -> bool {
    let swapped = |port: Port| match port.protocol {
        Protocol::Tcp => Some(Port { protocol: Protocol::Udp, ..port }),
        Protocol::Udp => Some(Port { protocol: Protocol::Tcp, ..port }),
        Protocol::Sctp => None,
    };
    let all_in = |one: &Service, two: &Service| {
        one.claims().all(|port| swapped(port).is_some_and(|port| two.ports.contains_key(&port)))
    };
    let apart = service.claims().all(|port| !other.ports.contains_key(&port));
    (all_in(service, other) || all_in(other, service))
        && apart
        && service.request.pool == other.request.pool
        && service.families == other.families
        && service.status.addresses.is_disjoint(&other.status.addresses)
}

/// The protocols and families of a Service.
#[derive(PartialEq, Eq)]
struct TrafficKind {
    protocols: Vec<Protocol>,
    families: Vec<Family>,
}

fn kind(service: &Service) -> TrafficKind {
    let mut protocols: Vec<Protocol> = service.claims().map(|port| port.protocol).collect();
    protocols.sort_unstable();
    protocols.dedup();
    let mut families: Vec<Family> = service.families.wanted().collect();
    families.sort_unstable();
    TrafficKind { protocols, families }
}

impl TrafficKind {
    /// Whether one has the protocols, or the families, that the other has not.
    fn complements(&self, other: &Self) -> bool {
        let apart = |protocol| !other.protocols.contains(protocol);
        self.protocols.iter().all(apart) || self.families.iter().all(|family| !other.families.contains(family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IngestOptions, Model, fixture::service_name};
    use vipmux_testing::object;

    type Spec<'a> = (&'a str, &'a str, serde_json::Value);

    /// Returns the notices for these Services of one application, each with an annotation or none.
    fn notices_of(services: &[Spec<'_>]) -> Vec<String> {
        let mut objects = Objects::default();
        for (name, annotation, spec) in services {
            let mut spec = spec.clone();
            spec["type"] = "LoadBalancer".into();
            if spec["selector"].is_null() {
                spec["selector"] = serde_json::json!({"app": "dns"});
            }
            let annotations: BTreeMap<_, _> = annotation.split_once('=').into_iter().collect();
            let service = serde_json::json!({"metadata": {"annotations": annotations}, "spec": spec});
            let name = service_name(*name);
            objects.services.insert(name, object(service));
        }
        let model = Model::ingest(&objects, &IngestOptions::default());
        model.services.values().flat_map(|service| service.notices.clone()).collect()
    }

    const KEY: &str = "metallb.io/allow-shared-ip=dns";

    fn of(protocol: &str, families: &[&str]) -> serde_json::Value {
        serde_json::json!({"ports": [{"port": 53, "protocol": protocol}], "ipFamilies": families})
    }

    #[test]
    fn a_key_on_one_protocol_or_family_alone_is_noted_on_the_other() {
        let expected = "shop/a selects the same pods and has a sharing key (\"dns\" of metallb), and this one has none, so \
                        they share no address: give it the same one if they should";
        assert_eq!(notices_of(&[("a", KEY, of("TCP", &["IPv4"])), ("b", "", of("UDP", &["IPv4"]))]), [expected]);
        assert_eq!(notices_of(&[("a", KEY, of("TCP", &["IPv4"])), ("b", "", of("TCP", &["IPv6"]))]), [expected]);
    }

    #[test]
    fn one_port_number_in_tcp_and_udp_without_keys_is_noted_on_both() {
        let mut tcp = of("TCP", &["IPv4"]);
        tcp["ports"] = serde_json::json!([{"name": "a", "port": 53}, {"name": "b", "port": 80}]);
        let expected = |other| {
            format!(
                "shop/{other} selects the same pods, and clients may look for both on one address: to share one, both need \
                 the same sharing key (vipmux.io/sharing-key)"
            )
        };
        assert_eq!(notices_of(&[("a", "", tcp), ("b", "", of("UDP", &["IPv4"]))]), [expected("b"), expected("a")]);
    }

    #[test]
    fn siblings_that_are_meant_to_be_apart_are_left_alone() {
        let tcp = || of("TCP", &["IPv4"]);
        let udp = || of("UDP", &["IPv4"]);
        assert_eq!(notices_of(&[("a", KEY, tcp()), ("b", KEY, udp())]), [""; 0], "both have it");
        let mut other_port = udp();
        other_port["ports"][0]["port"] = 54.into();
        assert_eq!(notices_of(&[("a", "", tcp()), ("b", "", other_port)]), [""; 0], "neither has one");
        assert_eq!(notices_of(&[("a", "", of("TCP", &["IPv6"])), ("b", "", udp())]), [""; 0], "of two families");
        let pool = "vipmux.io/pool=dmz";
        assert_eq!(notices_of(&[("a", "", tcp()), ("b", pool, udp())]), [""; 0], "of two pools");
        assert_eq!(notices_of(&[("a", KEY, tcp()), ("b", "", tcp())]), [""; 0], "of one protocol they would clash");
        let elsewhere = "metallb.io/loadBalancerIPs=192.0.2.1";
        assert_eq!(
            notices_of(&[("a", KEY, tcp()), ("b", elsewhere, udp())]),
            [""; 0],
            "it asks for an address of its own"
        );
        let mut other = udp();
        other["selector"] = serde_json::json!({"app": "web"});
        assert_eq!(notices_of(&[("a", KEY, tcp()), ("b", "", other)]), [""; 0], "other pods");
    }
}
