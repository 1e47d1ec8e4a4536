//! Reads and writes the addresses in `status.loadBalancer.ingress`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service};

use vipmux_model::{Vip, published_status::PublishedStatus};

/// Packets come with the address as their destination (KEP-1860). So kube-proxy applies its own
/// rules to packets from within the cluster.
const IP_MODE: &str = "VIP";

/// Returns the entries of the Service's status.
pub fn ingress(service: &Service) -> &[LoadBalancerIngress] {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default()
}

/// Whether the entries have exactly these addresses and nothing else.
pub fn shows(entries: &[LoadBalancerIngress], addresses: &BTreeSet<Vip>) -> bool {
    let plain = |entry: &LoadBalancerIngress| {
        entry.ip.is_some()
            && entry.ip_mode.as_deref() == Some(IP_MODE)
            && entry.hostname.is_none()
            && entry.ports.as_ref().is_none_or(Vec::is_empty)
    };
    entries.len() == addresses.len() && entries.iter().all(plain) && PublishedStatus::of_ingress(entries) == *addresses
}

/// Returns entries with these addresses. If the status already shows the addresses, returns its own
/// entries, since another writer may own them too. Else they are in order.
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

/// Returns the entries as text for people.
pub(super) fn text(entries: &[LoadBalancerIngress]) -> String {
    let one = |entry: &LoadBalancerIngress| entry.ip.clone().or_else(|| entry.hostname.clone()).unwrap_or_default();
    entries.iter().map(one).collect::<Vec<_>>().join(", ")
}
