//! Describes the annotations of MetalLB (<https://metallb.io/usage/>), in both spellings.

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Pool, SharingKey, WithoutEffect},
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "metallb",
    prefixes: &["metallb.io/", "metallb.universe.tf/"],
    annotations: &[
        (&["metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"], SharingKey),
        (&["metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"], Addresses),
        (&["metallb.io/address-pool", "metallb.universe.tf/address-pool"], Pool),
        (
            &["metallb.io/ip-allocated-from-pool", "metallb.universe.tf/ip-allocated-from-pool"],
            WithoutEffect("MetalLB records its own actions there; request a pool with metallb.io/address-pool"),
        ),
    ],
    scope: KeyScope::Cluster,
    never_spills: false,
    shares_by_address: false,
    marked_by_any: false,
    limits: Limits { per_family: 1, excludes_field: true, one_address_request: false },
};
