//! Defines MetalLB's pools and advertisements, as its custom resources have them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

/// `metallb.io/v1beta1` IPAddressPool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IpAddressPool {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The addresses of the pool, and the Services that may use them.
    pub spec: IpAddressPoolSpec,
}

/// `spec` of an [`IpAddressPool`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpAddressPoolSpec {
    /// CIDRs (`192.0.2.0/28`) and ranges (`192.0.2.1-192.0.2.9`).
    pub addresses: Vec<String>,
    /// Whether Services that name neither pool nor address may get one from here; unset: true.
    #[serde(default)]
    pub auto_assign: Option<bool>,
    /// Leave out addresses that end in .0 or .255.
    #[serde(default, rename = "avoidBuggyIPs")]
    pub avoid_buggy_ips: Option<bool>,
    /// The Services that may use the pool.
    #[serde(default)]
    pub service_allocation: Option<ServiceAllocation>,
}

/// `spec.serviceAllocation` of an [`IpAddressPool`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAllocation {
    /// Lower goes first; 0 and unset go last.
    #[serde(default)]
    pub priority: Option<i32>,
    /// Namespaces that may use the pool.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Selects further namespaces by their labels.
    #[serde(default)]
    pub namespace_selectors: Vec<LabelSelector>,
    /// Selects Services by their labels.
    #[serde(default)]
    pub service_selectors: Vec<LabelSelector>,
}

/// `metallb.io/v1beta1` L2Advertisement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct L2Advertisement {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The pools to announce, and the nodes to announce from; left out: all pools, from all nodes.
    #[serde(default)]
    pub spec: L2AdvertisementSpec,
}

/// `spec` of an [`L2Advertisement`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct L2AdvertisementSpec {
    /// Pools, by name; with `ipAddressPoolSelectors` empty, too: all.
    #[serde(default)]
    pub ip_address_pools: Vec<String>,
    /// Selects further pools by their labels.
    #[serde(default)]
    pub ip_address_pool_selectors: Vec<LabelSelector>,
    /// Selects the nodes to announce from, by their labels; empty: all.
    #[serde(default)]
    pub node_selectors: Vec<LabelSelector>,
    /// The interfaces to announce on; empty: all.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Selects Services. Not supported: an address is announced for all that share it.
    #[serde(default)]
    pub service_selectors: Vec<LabelSelector>,
    /// Nodes that lead rather than others.
    #[serde(default)]
    pub preferred_node_selectors: Vec<PreferredNodeSelector>,
}

/// An entry of `spec.preferredNodeSelectors` of an [`L2Advertisement`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PreferredNodeSelector {
    /// What it adds to the score of these nodes, from 1 to 100.
    pub weight: i32,
    /// Selects the nodes, by their labels.
    pub preference: LabelSelector,
}
