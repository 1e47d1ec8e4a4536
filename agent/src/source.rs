//! Where the objects come from: a directory of manifests ([`manifests`]); the API server later.

pub mod manifests;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
    discovery::v1::EndpointSlice,
};

use crate::{
    model::{NodeName, ServiceName},
    source::manifests::{IpAddressPool, Problem},
};

/// Everything that a source knows, as the API has it. Keys are `metadata`'s names; `BTreeMap`s, so that the input's
/// order can never matter. Values are shared, so that a snapshot of 10,000 Services where one changed is cheap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    /// Services of every type.
    pub services: BTreeMap<ServiceName, Arc<Service>>,
    /// EndpointSlices, by (namespace, name).
    pub endpoint_slices: BTreeMap<(String, String), Arc<EndpointSlice>>,
    /// Nodes.
    pub nodes: BTreeMap<NodeName, Arc<Node>>,
    /// Namespaces, for the pools' namespace selectors.
    pub namespaces: BTreeMap<String, Arc<Namespace>>,
    /// MetalLB's IPAddressPools, by name.
    pub address_pools: BTreeMap<String, Arc<IpAddressPool>>,
    /// Documents that could not be used; where one replaced a good one, the last good state stays in force above.
    pub problems: Vec<Problem>,
}
