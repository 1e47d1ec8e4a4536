//! Reads the addresses in a Service's status. A cluster stores nowhere else which Service holds
//! which address.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::core::v1 as api;

use crate::{
    Vip,
    api::{ALLOCATED, FOREIGN_STATUS, REQUEST},
};

/// The addresses in a Service's status, and whether an allocator assigned them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedStatus {
    /// The addresses.
    pub addresses: BTreeSet<Vip>,
    /// Whether a vipmux allocator assigned them, by the condition [`ALLOCATED`]; `None`: no
    /// allocator has set the condition yet.
    pub given: Option<bool>,
    /// An allocator found that another controller wrote the addresses, and left them alone.
    pub foreign: bool,
    /// The request that the allocator judged, by the condition [`REQUEST`].
    pub request: Option<String>,
}

impl PublishedStatus {
    /// Reads this Service's status. Hostnames, addresses of proxies and those that do not parse belong
    /// to other controllers.
    pub fn of(service: &api::Service) -> Self {
        let Some(status) = &service.status else { return Self::default() };
        let ingress = status.load_balancer.as_ref().and_then(|balancer| balancer.ingress.as_deref());
        let condition = |kind| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
        let allocated = condition(ALLOCATED);
        Self {
            addresses: Self::of_ingress(ingress.unwrap_or_default()),
            given: allocated.map(|condition| condition.status == "True"),
            foreign: allocated.is_some_and(|condition| condition.reason == FOREIGN_STATUS),
            request: condition(REQUEST).map(|condition| condition.message.clone()),
        }
    }

    /// Returns the addresses of these entries. Packets to an address with the `ipMode` `Proxy` do not
    /// reach the nodes: a proxy sends others to a node port or a pod. Without `ipMode` it is `VIP`
    /// (<https://kubernetes.io/docs/reference/kubernetes-api/service-resources/service-v1/#ServiceStatus>).
    pub fn of_ingress(entries: &[api::LoadBalancerIngress]) -> BTreeSet<Vip> {
        let address = |text: &str| Some(Vip::new(text.parse::<IpAddr>().ok()?));
        let vips = entries.iter().filter(|entry| entry.ip_mode.as_deref() != Some("Proxy"));
        vips.filter_map(|entry| address(entry.ip.as_deref()?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_who_gave_them_are_read() {
        let of = |status: serde_json::Value| {
            let service: api::Service = serde_json::from_value(serde_json::json!({ "status": status })).unwrap();
            let shown = PublishedStatus::of(&service);
            (shown.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), shown.given)
        };
        let condition = |kind: &str, status: &str| {
            serde_json::json!({"type": kind, "status": status, "reason": "Allocated", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let ingress = serde_json::json!([
            {"ip": "::ffff:192.0.2.1"}, {"ip": "2001:db8::1", "ipMode": "VIP"}, {"hostname": "a.example.org"}, {"ip": "x"},
            {"ip": "192.0.2.2", "ipMode": "Proxy"},
        ]);
        let addresses = vec!["192.0.2.1".to_owned(), "2001:db8::1".to_owned()];
        for (conditions, given) in [
            (vec![], None),
            (vec![condition(ALLOCATED, "False")], Some(false)),
            (vec![condition("example.org/Allocated", "True")], None),
            (vec![condition("example.org/Other", "False"), condition(ALLOCATED, "True")], Some(true)),
        ] {
            let status = serde_json::json!({"loadBalancer": {"ingress": ingress}, "conditions": conditions});
            assert_eq!(of(status), (addresses.clone(), given));
        }
        assert_eq!(of(serde_json::json!({})), (vec![], None));
    }
}
