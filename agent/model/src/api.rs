//! Defines the custom resources: vipmux's own, for the API server and for manifests, and those of
//! MetalLB that vipmux reads.

pub mod metallb;
#[allow(clippy::duplicated_attributes, reason = "columns have parts in common")]
mod policy;
#[allow(clippy::duplicated_attributes, reason = "columns have parts in common")]
mod pool;
pub mod rules;
mod schema;

pub use self::{
    metallb::{IpAddressPool, L2Advertisement},
    policy::{PreferredNodes, VipPolicy, VipPolicySpec, VipPolicyStatus},
    pool::{Leading, OnConflict, PoolSharing, Usage, VipPool, VipPoolSpec, VipPoolStatus},
};

/// The group and version of vipmux's own kinds.
pub const API_VERSION: &str = "vipmux.io/v1alpha1";

/// The condition of a Service that says whether it has addresses, and why.
pub const ALLOCATED: &str = "vipmux.io/Allocated";
/// The reason of [`ALLOCATED`] if another controller wrote the addresses in the status.
pub const FOREIGN_STATUS: &str = "ForeignStatus";
/// The condition of a Service that has the request which the allocator judged last, for the next allocator.
pub const REQUEST: &str = "vipmux.io/Request";
/// The condition of a Service that says which nodes answer for its addresses.
pub const ANNOUNCED: &str = "vipmux.io/Announced";

#[cfg(test)]
mod tests;
