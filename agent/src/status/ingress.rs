//! `status.loadBalancer.ingress`: the addresses.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service};

use crate::model::{Vip, shown::Shown};

/// Packets come with the address as their destination (KEP-1860), so kube-proxy leaves what the cluster itself sends there to
/// its own rules.
const IP_MODE: &str = "VIP";

/// What the Service's status shows.
pub fn ingress(service: &Service) -> &[LoadBalancerIngress] {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default()
}

/// Whether this says that these are the addresses, and nothing else.
pub fn shows(entries: &[LoadBalancerIngress], addresses: &BTreeSet<Vip>) -> bool {
    let plain = |entry: &LoadBalancerIngress| {
        entry.ip.is_some()
            && entry.ip_mode.as_deref() == Some(IP_MODE)
            && entry.hostname.is_none()
            && entry.ports.as_ref().is_none_or(Vec::is_empty)
    };
    entries.len() == addresses.len() && entries.iter().all(plain) && Shown::of_ingress(entries) == *addresses
}

/// The entries that say so: those that are there, where they do already, since whoever wrote them may own them too; else in
/// order.
pub(super) fn entries(service: &Service, addresses: &BTreeSet<Vip>) -> Vec<LoadBalancerIngress> {
    let there = ingress(service);
    if shows(there, addresses) {
        return there.to_vec();
    }
    let entry = |vip: &Vip| LoadBalancerIngress {
        ip: Some(vip.to_string()),
        ip_mode: Some(IP_MODE.to_owned()),
        ..LoadBalancerIngress::default()
    };
    addresses.iter().map(entry).collect()
}

/// The entries, for people.
pub(super) fn text(entries: &[LoadBalancerIngress]) -> String {
    let one = |entry: &LoadBalancerIngress| entry.ip.clone().or_else(|| entry.hostname.clone()).unwrap_or_default();
    entries.iter().map(one).collect::<Vec<_>>().join(", ")
}
