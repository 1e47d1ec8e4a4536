//! Where the objects come from: the API server ([`kubernetes`]), or a directory of manifests ([`manifests`]).

mod field;
pub mod kubernetes;
pub mod manifests;
mod object;
mod problem;
mod validate;

use std::sync::Arc;

use imbl::OrdMap;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Service},
    discovery::v1::EndpointSlice,
};
use tokio::sync::watch;

pub use self::problem::Problem;
use crate::{
    api::{IpAddressPool, L2Advertisement, VipPolicy, VipPool},
    model::{NodeName, ServiceName},
};

/// Everything that a source knows, as the API has it. Keys are `metadata`'s names, in their order, so that the input's
/// can never matter. A clone costs nothing and shares all that does not change, and so does [`OrdMap::diff`].
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
    /// Documents that could not be used; where one replaced a good one, the last good state stays in force above.
    pub problems: Vec<Problem>,
}

/// Follows the objects until it is dropped.
#[derive(Debug)]
#[must_use = "the source is followed until this is dropped"]
pub enum Follower {
    /// A directory.
    Manifests(manifests::WatchGuard),
    /// An API server.
    Kubernetes(kubernetes::Guard),
}

impl Follower {
    /// Asks for a look at the source, without waiting for it; its number.
    pub fn look(&self) -> u64 {
        match self {
            Self::Manifests(guard) => guard.look(),
            Self::Kubernetes(guard) => guard.look(),
        }
    }

    /// The number of the last look that was [asked](Self::look) for and is done. 0 before the first.
    pub fn looked(&self) -> watch::Receiver<u64> {
        match self {
            Self::Manifests(guard) => guard.looked(),
            Self::Kubernetes(guard) => guard.looked(),
        }
    }
}
