//! Defines VipPolicy: which nodes announce which pools, and on which interfaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    pool::{Leading, Usage},
    schema,
};

/// Which nodes announce which pools, and on which interfaces.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, JsonSchema, Serialize, Deserialize)]
#[kube(
    group = "vipmux.io",
    version = "v1alpha1",
    kind = "VipPolicy",
    plural = "vippolicies",
    doc = "Which nodes announce the addresses of which pools, and on which interfaces",
    status = "VipPolicyStatus",
    derive = "PartialEq",
    shortname = "vpolicy",
    category = "vipmux",
    printcolumn(name = "Pools", type_ = "string", json_path = ".spec.pools"),
    printcolumn(name = "Interfaces", type_ = "string", json_path = ".spec.interfaces"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.usage.used"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct VipPolicySpec {
    /// Pools, by name or alias; with poolSelectors empty, too: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::names")]
    pub pools: Vec<String>,
    /// Selects further pools by their labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::selectors")]
    pub pool_selectors: Vec<LabelSelector>,
    /// Selects the nodes that may lead, by their labels; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::selectors")]
    pub node_selectors: Vec<LabelSelector>,
    /// The interfaces to announce on; empty: all that the agent announces on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::interfaces")]
    pub interfaces: Vec<String>,
    /// Nodes that lead more of the addresses than others do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub preferred_nodes: Vec<PreferredNodes>,
}

/// Nodes that lead more of the addresses than others do.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreferredNodes {
    /// The weight of these nodes, from 1 to 100. If several entries select a node, their weights
    /// are added up. A node that no entry selects has the weight 1. A node with twice the weight of
    /// another leads twice as many addresses.
    #[schemars(range(min = 1, max = 100))]
    pub weight: i32,
    /// Selects the nodes, by their labels.
    #[schemars(schema_with = "schema::selector")]
    pub node_selector: LabelSelector,
}

/// The observed state of a policy.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VipPolicyStatus {
    /// The `metadata.generation` that this status is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The pools that it covers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// The usage of all addresses of those pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The leader of each of those addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leading: Vec<Leading>,
}
