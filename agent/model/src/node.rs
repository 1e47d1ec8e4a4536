//! Reads the addresses of Nodes, and whether they may lead.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::core::v1 as api;

use crate::{Family, NodeName, prefix::Prefix, selector::Labels};

/// The label with the Node's name. The kubelet sets it, but a bare manifest may lack it.
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// The label that keeps a node from leading, but not from serving.
pub const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The maximum number of ranges that are read: Kubernetes allows one of each family.
const MAX_POD_RANGES: usize = 8;

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its labels, for selectors. `kubernetes.io/hostname` is always among them.
    pub labels: Labels,
    /// Its InternalIPs.
    pub internal: BTreeSet<IpAddr>,
    /// All its addresses: InternalIPs and ExternalIPs. None of them is ever a VIP.
    pub addresses: BTreeSet<IpAddr>,
    /// The ranges of its pods' addresses (`spec.podCIDRs`). Some CNIs do not use them.
    pub pod_ranges: Vec<Prefix>,
    /// Whether it has [`EXCLUDE_LABEL`], with any value.
    pub excluded: bool,
    /// Whether it is cordoned (`spec.unschedulable`).
    pub cordoned: bool,
    /// Whether its condition `NetworkUnavailable` is `True`.
    pub network_unavailable: bool,
}

impl Node {
    /// Reads the API's object. Entries that are not IP addresses, such as Hostname entries, are
    /// left out.
    pub fn ingest(name: &NodeName, node: &api::Node) -> Self {
        let status = node.status.as_ref();
        let listed = || status.iter().flat_map(|status| status.addresses.iter().flatten());
        let of = |kinds: &[&str]| -> BTreeSet<IpAddr> {
            listed()
                .filter(|entry| kinds.contains(&entry.type_.as_str()))
                .filter_map(|entry| entry.address.parse::<IpAddr>().ok())
                .map(|address| address.to_canonical())
                .collect()
        };
        let mut labels = node.metadata.labels.clone().unwrap_or_default();
        labels.entry(HOSTNAME_LABEL.to_owned()).or_insert_with(|| name.as_str().to_owned());
        let pod_ranges = node.spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr));
        let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            name: name.clone(),
            internal: of(&["InternalIP"]),
            addresses: of(&["InternalIP", "ExternalIP"]),
            pod_ranges: pod_ranges.take(MAX_POD_RANGES).filter_map(|text| text.parse().ok()).collect(),
            excluded: labels.contains_key(EXCLUDE_LABEL),
            labels,
            cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
            network_unavailable: conditions
                .any(|condition| condition.type_ == "NetworkUnavailable" && condition.status == "True"),
        }
    }
}

impl Node {
    /// Returns its first InternalIP of each family, IPv4 first. Each of them leads to its MAC.
    pub fn reached_by(&self) -> impl Iterator<Item = IpAddr> {
        let first = |family| self.internal.iter().copied().find(|address| Family::of(*address) == family);
        Family::ALL.into_iter().filter_map(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::node_name;

    #[test]
    fn the_needed_fields_of_a_node_are_read() {
        let node = serde_json::from_value(serde_json::json!({
            "metadata": {"labels": {(EXCLUDE_LABEL): ""}},
            "spec": {"unschedulable": true, "podCIDR": "10.0.1.0/24", "podCIDRs": ["nonsense", "2001:db8:1::/64"]},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": "192.0.2.1"},
                    {"type": "ExternalIP", "address": "198.51.100.1"},
                    {"type": "Hostname", "address": "192.0.2.77"},
                    {"type": "InternalIP", "address": "nonsense"},
                ],
                "conditions": [{"type": "NetworkUnavailable", "status": "True"}],
            },
        }))
        .unwrap();
        let node = Node::ingest(&node_name("n1"), &node);
        assert_eq!(node.internal, [IpAddr::from([192, 0, 2, 1])].into());
        assert_eq!(node.addresses, [IpAddr::from([192, 0, 2, 1]), IpAddr::from([198, 51, 100, 1])].into());
        assert_eq!(node.pod_ranges, ["2001:db8:1::/64", "10.0.1.0/24"].map(|range| range.parse().unwrap()));
        assert!(node.excluded && node.cordoned && node.network_unavailable);
    }

    #[test]
    fn a_node_is_reached_by_one_address_of_each_family() {
        let reached_by = |addresses: &[&str]| {
            let list: Vec<_> =
                addresses.iter().map(|it| serde_json::json!({"type": "InternalIP", "address": it})).collect();
            let node = serde_json::from_value(serde_json::json!({"status": {"addresses": list}})).unwrap();
            let node = Node::ingest(&node_name("n1"), &node);
            node.reached_by().map(|address| address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(reached_by(&["2001:db8::1", "192.0.2.2", "192.0.2.1"]), ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(reached_by(&["2001:db8::1"]), ["2001:db8::1"]);
        assert_eq!(reached_by(&[]), [""; 0]);
    }

    #[test]
    fn a_bare_node_may_lead() {
        let node = Node::ingest(&node_name("n1"), &api::Node::default());
        assert!(!node.excluded && !node.cordoned && !node.network_unavailable && node.addresses.is_empty());
    }
}
