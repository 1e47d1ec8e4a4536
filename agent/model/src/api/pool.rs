//! Defines VipPool: a set of addresses, and the Services that may use them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{rules, schema};

/// Addresses for Services, and the Services that may use them.
#[derive(Clone, Debug, PartialEq, CustomResource, JsonSchema, Serialize, Deserialize)]
#[kube(
    group = "vipmux.io",
    version = "v1alpha1",
    kind = "VipPool",
    doc = "Addresses for Services of type LoadBalancer, and the Services that may use them",
    status = "VipPoolStatus",
    derive = "PartialEq",
    shortname = "vpool",
    category = "vipmux",
    validation = rules::ALIAS_IS_ANOTHER_NAME,
    printcolumn(name = "Addresses", type_ = "string", json_path = ".spec.addresses"),
    printcolumn(name = "Auto-assign", type_ = "boolean", json_path = ".spec.autoAssign"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "IPv4 used", type_ = "integer", json_path = ".status.ipv4.used"),
    printcolumn(name = "IPv4", type_ = "integer", json_path = ".status.ipv4.capacity"),
    printcolumn(name = "IPv6 used", type_ = "integer", json_path = ".status.ipv6.used"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct VipPoolSpec {
    /// CIDRs (192.0.2.0/28, 2001:db8::/64), ranges (192.0.2.1-192.0.2.9) and single addresses, of
    /// both families.
    #[schemars(schema_with = "schema::ranges")]
    pub addresses: Vec<String>,
    /// Whether Services that name neither pool nor address may get one from here.
    #[serde(default = "yes")]
    pub auto_assign: bool,
    /// Leave out IPv4 addresses that end in .0 or .255.
    #[serde(default, rename = "avoidBuggyIPs")]
    pub avoid_buggy_ips: bool,
    /// A pool with a lower number goes first, and pools without a number go last. Pools with equal
    /// numbers are ordered by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub priority: Option<i32>,
    /// Which Services may share an address of the pool.
    #[serde(default)]
    pub sharing: PoolSharing,
    /// The treatment of a Service whose ports clash with those of its group.
    #[serde(default)]
    pub on_conflict: OnConflict,
    /// Namespaces that may use the pool; with namespaceSelectors empty, too: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::names")]
    pub namespaces: Vec<String>,
    /// Selects further namespaces by their labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::selectors")]
    pub namespace_selectors: Vec<LabelSelector>,
    /// Selects Services by their labels; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::selectors")]
    pub service_selectors: Vec<LabelSelector>,
    /// Further names by which Services may ask for the pool, such as its former names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::names")]
    pub aliases: Vec<String>,
    /// Names by which Services may ask for addresses of the pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::named_addresses")]
    pub address_names: BTreeMap<String, String>,
}

const fn yes() -> bool {
    true
}

/// How a pool restricts or extends sharing (rule 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolSharing {
    /// By key, and by address in the dialects that allow it.
    #[default]
    Any,
    /// As `any`, but only within one namespace.
    SameNamespace,
    /// By key only.
    KeyOnly,
    /// As `any`, and plain Services share by address too.
    ByAddress,
    /// No Services share.
    None,
}

/// The treatment of a Service whose claim clashes within its group (rule 8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnConflict {
    /// It gets another address, which joins the group.
    #[default]
    Spill,
    /// It waits.
    Pending,
}

/// The observed state of a pool.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VipPoolStatus {
    /// The `metadata.generation` that this status is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The usage of its IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Usage>,
    /// The usage of its IPv6 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Usage>,
    /// The leader of each of its addresses in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leading: Vec<Leading>,
}

/// How many addresses of one family there are, and how many of them are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Usage {
    /// The number of assignable addresses. 2^63 - 1 also stands for larger numbers.
    #[schemars(range(min = 0))]
    pub capacity: i64,
    /// The number of addresses that Services hold.
    #[schemars(range(min = 0))]
    pub used: i64,
}

/// The addresses that a node leads.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Leading {
    /// The node; empty: nobody announces these addresses.
    pub node: String,
    /// The addresses.
    pub addresses: Vec<String>,
}
