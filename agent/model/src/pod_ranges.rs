//! Collects the ranges of pod addresses, where health probes may go.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{node::Node, prefix::Prefix};

/// The ranges of pod addresses: `spec.podCIDRs` of all Nodes, and those of the configuration.
///
/// Tenants write EndpointSlices, so their addresses say nothing about where a probe may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRanges {
    ranges: BTreeSet<Prefix>,
    /// The lengths of `ranges`. There are few, however many ranges there are.
    lengths: BTreeSet<u8>,
}

impl PodRanges {
    /// Returns these ranges.
    pub(super) fn new(ranges: impl Iterator<Item = Prefix>) -> Self {
        let ranges: BTreeSet<Prefix> = ranges.collect();
        let lengths = ranges.iter().map(|range| range.length()).collect();
        Self { ranges, lengths }
    }

    /// Whether this node may probe a backend of its own at the address: a pod's, or one of the
    /// node's InternalIPs. The host itself and the link are never probed.
    pub(super) fn may_probe(&self, address: IpAddr, node: &Node) -> bool {
        !is_local(address) && (node.internal.contains(&address) || self.contains(address))
    }

    fn contains(&self, address: IpAddr) -> bool {
        let mut around = self.lengths.iter().filter_map(|length| Prefix::new(address, *length));
        around.any(|range| self.ranges.contains(&range))
    }
}

/// Whether packets to the address stay on the host or on a link, or reach several hosts.
const fn is_local(address: IpAddr) -> bool {
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || match address {
            IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::node_name;
    use vipmux_testing::object;

    #[test]
    fn a_node_probes_pods_and_its_own_addresses_only() {
        let ranges = ["10.0.0.0/16", "2001:db8:1::/48", "0.0.0.0/0", "::/0"];
        let addresses = serde_json::json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
        let node = serde_json::json!({"status": {"addresses": addresses}});
        let node = Node::ingest(&node_name("n1"), &object(node));
        let may = |ranges: &[&str], address: &str| {
            let ranges = PodRanges::new(ranges.iter().map(|range| range.parse().unwrap()));
            ranges.may_probe(address.parse().unwrap(), &node)
        };
        for (address, of_pods) in [
            ("10.0.7.1", true),
            ("2001:db8:1::1", true),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("10.1.0.1", false),
            ("2001:db8:2::1", false),
        ] {
            assert_eq!(may(&ranges[..2], address), of_pods, "{address}");
            assert_eq!(may(&[], address), address == "192.0.2.1", "{address} without ranges");
        }
        for address in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "fe80::1"] {
            assert!(!may(&ranges, address), "{address} is no pod's, whatever the ranges are");
        }
    }
}
