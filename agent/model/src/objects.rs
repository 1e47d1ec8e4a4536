//! Holds Kubernetes objects as the API has them, and the problems of those that cannot be used.

mod decode_error;
pub mod field;
pub mod object;
mod problem;
mod unread;
pub mod validate;

use std::sync::Arc;

use imbl::OrdMap;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
    discovery::v1::EndpointSlice,
};

pub use self::{problem::Problem, unread::UnreadObjects};
use crate::{
    NodeName, ServiceName,
    api::{IpAddressPool, L2Advertisement, VipPolicy, VipPool},
};

/// All objects of a source, as the API has them. Keys are the names in `metadata`, in their order,
/// so the order of the input never matters. A clone is cheap and shares all that does not change,
/// and so does [`OrdMap::diff`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    /// Services of every type.
    pub services: OrdMap<ServiceName, Arc<Service>>,
    /// EndpointSlices, by (namespace, name).
    pub endpoint_slices: OrdMap<(String, String), Arc<EndpointSlice>>,
    /// Nodes.
    pub nodes: OrdMap<NodeName, Arc<Node>>,
    /// Namespaces, for the pools' namespace selectors.
    pub namespaces: OrdMap<String, Arc<Namespace>>,
    /// MetalLB's IPAddressPools, by name.
    pub address_pools: OrdMap<String, Arc<IpAddressPool>>,
    /// MetalLB's L2Advertisements, by name.
    pub l2_advertisements: OrdMap<String, Arc<L2Advertisement>>,
    /// VipPools.
    pub vip_pools: OrdMap<String, Arc<VipPool>>,
    /// VipPolicies.
    pub vip_policies: OrdMap<String, Arc<VipPolicy>>,
    /// Documents that could not be used. If one replaced a valid object, the maps above keep the
    /// last valid state.
    pub problems: Vec<Problem>,
    /// Objects of manifests that are not read, although they ask for what vipmux does.
    pub unread: UnreadObjects,
}
