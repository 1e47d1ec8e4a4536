//! Describes the annotations of Cilium's LB IPAM
//! (<https://docs.cilium.io/en/stable/network/lb-ipam/>), in both spellings.
//!
//! Its other annotations (`service.cilium.io/...`) are for its replacement of kube-proxy, which may
//! keep running.

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Namespaces, SharingKey, WithoutEffect},
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "cilium",
    prefixes: &["lbipam.cilium.io/", "io.cilium/lb-ipam-"],
    annotations: &[
        (&["lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"], SharingKey),
        (&["lbipam.cilium.io/sharing-cross-namespace", "io.cilium/lb-ipam-sharing-cross-namespace"], Namespaces),
        (&["lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"], Addresses),
        (
            &["lbipam.cilium.io/sharing-permit-different-pods"],
            WithoutEffect("Services share an address whatever pods they select"),
        ),
    ],
    scope: KeyScope::Namespace,
    never_spills: false,
    shares_by_address: false,
    marked_by_any: false,
    limits: Limits { per_family: 16, excludes_field: false, one_address_request: false },
};
