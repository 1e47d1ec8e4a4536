//! Services that stand for one application: of one namespace, with one selector.
//!
//! An application with TCP and UDP, or with IPv4 and IPv6, is often written as two Services; a key that is on one of them
//! alone was forgotten on the other more often than not.

use std::collections::BTreeMap;

use crate::{
    model::{Family, Protocol, ServiceName, request::SharingKey, selector::Labels, service::Service},
    source::Objects,
};

/// Notices for Services without a key whose sibling has one, and differs from them in protocol or family alone.
pub(super) fn notices(services: &BTreeMap<ServiceName, Service>, objects: &Objects) -> Vec<(ServiceName, String)> {
    let mut siblings: BTreeMap<(&str, &Labels), Vec<&Service>> = BTreeMap::new();
    for service in services.values() {
        let spec = objects.services.get(&service.name).and_then(|object| object.spec.as_ref());
        if let Some(selector) = spec.and_then(|spec| spec.selector.as_ref()).filter(|selector| !selector.is_empty()) {
            siblings.entry((&service.name.namespace, selector)).or_default().push(service);
        }
    }
    siblings.values().flat_map(|siblings| about(siblings)).collect()
}

/// Of one application.
fn about(siblings: &[&Service]) -> Vec<(ServiceName, String)> {
    let with_key =
        |service: &&Service| Some((service.name.clone(), service.request.sharing.key.clone()?, kind(service)));
    let holders: Vec<(ServiceName, SharingKey, Kind)> = siblings.iter().filter_map(with_key).collect();
    let asks_for_company = |service: &&&Service| {
        service.request.sharing.key.is_none() && service.request.addresses.is_empty() && service.fault.is_none()
    };
    let notice = |service: &&Service| {
        let (holder, key, _) = holders.iter().find(|(_, _, other)| other.complements(&kind(service)))?;
        let message = format!(
            "{holder} selects the same pods and has a sharing key ({}), and this one has none, so they share no address: \
             give it the same one if they should",
            key.shown()
        );
        Some((service.name.clone(), message))
    };
    siblings.iter().filter(asks_for_company).filter_map(notice).collect()
}

/// What a Service is of.
#[derive(PartialEq, Eq)]
struct Kind {
    protocols: Vec<Protocol>,
    families: Vec<Family>,
}

fn kind(service: &Service) -> Kind {
    let mut protocols: Vec<Protocol> = service.claims().map(|port| port.protocol).collect();
    protocols.sort_unstable();
    protocols.dedup();
    let mut families: Vec<Family> = service.families.wanted().collect();
    families.sort_unstable();
    Kind { protocols, families }
}

impl Kind {
    /// Whether one has the protocols, or the families, that the other has not.
    fn complements(&self, other: &Self) -> bool {
        let apart = |protocol| !other.protocols.contains(protocol);
        self.protocols.iter().all(apart) || self.families.iter().all(|family| !other.families.contains(family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, Options, ingest::object};

    type Spec<'a> = (&'a str, &'a str, serde_json::Value);

    /// Whether each of these Services of one application, with an annotation or none, is told of another.
    fn told(services: &[Spec<'_>]) -> Vec<String> {
        let mut objects = Objects::default();
        for (name, annotation, spec) in services {
            let mut spec = spec.clone();
            spec["type"] = "LoadBalancer".into();
            if spec["selector"].is_null() {
                spec["selector"] = serde_json::json!({"app": "dns"});
            }
            let annotations: BTreeMap<_, _> = annotation.split_once('=').into_iter().collect();
            let service = serde_json::json!({"metadata": {"annotations": annotations}, "spec": spec});
            let name = ServiceName { namespace: "shop".into(), name: (*name).into() };
            objects.services.insert(name, object(service));
        }
        let model = Model::ingest(&objects, &Options::default());
        model.services.values().flat_map(|service| service.notices.clone()).collect()
    }

    const KEY: &str = "metallb.io/allow-shared-ip=dns";

    fn of(protocol: &str, families: &[&str]) -> serde_json::Value {
        serde_json::json!({"ports": [{"port": 53, "protocol": protocol}], "ipFamilies": families})
    }

    #[test]
    fn a_key_on_one_protocol_or_family_alone_is_told_to_the_other() {
        let expected = "shop/a selects the same pods and has a sharing key (\"dns\" of metallb), and this one has none, so \
                        they share no address: give it the same one if they should";
        assert_eq!(told(&[("a", KEY, of("TCP", &["IPv4"])), ("b", "", of("UDP", &["IPv4"]))]), [expected]);
        assert_eq!(told(&[("a", KEY, of("TCP", &["IPv4"])), ("b", "", of("TCP", &["IPv6"]))]), [expected]);
    }

    #[test]
    fn siblings_that_are_meant_to_be_apart_are_left_alone() {
        let tcp = || of("TCP", &["IPv4"]);
        let udp = || of("UDP", &["IPv4"]);
        assert_eq!(told(&[("a", KEY, tcp()), ("b", KEY, udp())]), [""; 0], "both have it");
        assert_eq!(told(&[("a", "", tcp()), ("b", "", udp())]), [""; 0], "neither has one");
        assert_eq!(told(&[("a", KEY, tcp()), ("b", "", tcp())]), [""; 0], "of one protocol they would clash");
        let elsewhere = "metallb.io/loadBalancerIPs=192.0.2.1";
        assert_eq!(told(&[("a", KEY, tcp()), ("b", elsewhere, udp())]), [""; 0], "it asks for an address of its own");
        let mut other = udp();
        other["selector"] = serde_json::json!({"app": "web"});
        assert_eq!(told(&[("a", KEY, tcp()), ("b", "", other)]), [""; 0], "other pods");
    }
}
