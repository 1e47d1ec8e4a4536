//! Where the objects come from: a directory of manifests ([`manifests`]); the API server later.

pub mod manifests;

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
    discovery::v1::EndpointSlice,
};

use crate::{
    model::{NodeName, ServiceName},
    source::manifests::{IpAddressPool, Problem},
};

/// Everything that a source knows, as the API has it. Keys are `metadata`'s names; `BTreeMap`s, so that the input's
/// order can never matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    /// Services of every type.
    pub services: BTreeMap<ServiceName, Service>,
    /// EndpointSlices, by (namespace, name).
    pub endpoint_slices: BTreeMap<(String, String), EndpointSlice>,
    /// Nodes.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Namespaces, for the pools' namespace selectors.
    pub namespaces: BTreeMap<String, Namespace>,
    /// MetalLB's IPAddressPools, by name.
    pub address_pools: BTreeMap<String, IpAddressPool>,
    /// Documents that could not be used; where one replaced a good one, the last good state stays in force above.
    pub problems: Vec<Problem>,
}
