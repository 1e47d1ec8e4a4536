//! Describes the annotations of OpenELB (<https://openelb.io/docs/>).

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Marker, Pool, Unsupported, WithoutEffect},
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "openelb",
    prefixes: &[
        "lb.kubesphere.io/",
        "eip.openelb.kubesphere.io/",
        "protocol.openelb.kubesphere.io/",
        "layer2.openelb.kubesphere.io/",
        "node-proxy.openelb.kubesphere.io/",
        // OpenELB's former name is Porter.
        "eip.porter.kubesphere.io/",
        "protocol.porter.kubesphere.io/",
        "layer2.porter.kubesphere.io/",
    ],
    annotations: &[
        (&["lb.kubesphere.io/v1alpha1"], Marker),
        (&["eip.openelb.kubesphere.io/v1alpha1", "eip.porter.kubesphere.io/v1alpha1"], Addresses),
        // An Eip is a pool.
        (&["eip.openelb.kubesphere.io/v1alpha2", "eip.porter.kubesphere.io/v1alpha2"], Pool),
        (
            &["protocol.openelb.kubesphere.io/v1alpha1", "protocol.porter.kubesphere.io/v1alpha1"],
            Unsupported {
                harmless: &["layer2", "vip"],
                remedy: "addresses are announced by ARP and Neighbor Discovery; remove the annotation if that is \
                         enough",
            },
        ),
        (
            &["node-proxy.openelb.kubesphere.io/type"],
            Unsupported {
                harmless: &[],
                remedy: "no Service gets a node's address; remove the annotation to get one from a pool",
            },
        ),
        (
            &["layer2.openelb.kubesphere.io/v1alpha1", "layer2.porter.kubesphere.io/v1alpha1"],
            WithoutEffect("OpenELB records its own actions there"),
        ),
    ],
    scope: KeyScope::Namespace,
    never_spills: false,
    shares_by_address: true,
    marked_by_any: false,
    limits: Limits { per_family: 1, excludes_field: false, one_address_request: false },
};
