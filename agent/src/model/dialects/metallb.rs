//! MetalLB (<https://metallb.io/usage/>), in both spellings of its annotations.

use super::{Dialect, KeyScope};

pub(super) const DIALECT: Dialect = Dialect {
    name: "metallb",
    sharing_key: &["metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"],
    scope: KeyScope::Cluster,
    addresses: &["metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"],
    max_per_family: 1,
    shares_by_address: false,
    excludes_field: true,
    pool: &["metallb.io/address-pool", "metallb.universe.tf/address-pool"],
    never_spills: false,
};
