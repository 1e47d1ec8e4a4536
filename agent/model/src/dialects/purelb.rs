//! Describes the annotations of PureLB (<https://purelb.gitlab.io/docs/>).

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Pool, SharingKey, Unsupported, WithoutEffect},
};

const NOTED: &str = "PureLB records its own actions there";

pub(super) const DIALECT: Dialect = Dialect {
    name: "purelb",
    prefixes: &["purelb.io/"],
    annotations: &[
        (&["purelb.io/allow-shared-ip"], SharingKey),
        (&["purelb.io/addresses"], Addresses),
        // The second is its former name.
        (&["purelb.io/service-group", "purelb.io/address-pool"], Pool),
        (
            &["purelb.io/multi-pool"],
            Unsupported {
                harmless: &["false"],
                remedy: "a Service does not get an address of every range; name the addresses in vipmux.io/addresses, \
                         and remove the annotation",
            },
        ),
        (
            &["purelb.io/allow-local"],
            WithoutEffect(
                "any node can lead, whatever spec.externalTrafficPolicy says: packets go to nodes that have pods",
            ),
        ),
        (
            &["purelb.io/node-affinity"],
            WithoutEffect("a VipPolicy selects the nodes that may lead, and the preferred ones"),
        ),
        (&["purelb.io/re-evaluate"], WithoutEffect("changes are detected automatically")),
        (&["purelb.io/skip-ipv6-dad"], WithoutEffect("no address is added to an interface, so none is tentative")),
        (&["purelb.io/allocated-by"], WithoutEffect(NOTED)),
        (
            &["purelb.io/allocated-from"],
            WithoutEffect("PureLB records its own actions there; request a pool with purelb.io/service-group"),
        ),
        (&["purelb.io/pool-type"], WithoutEffect(NOTED)),
        (&["purelb.io/announcing"], WithoutEffect(NOTED)),
        (&["purelb.io/announcing-IPv4"], WithoutEffect(NOTED)),
        (&["purelb.io/announcing-IPv6"], WithoutEffect(NOTED)),
    ],
    scope: KeyScope::Cluster,
    never_spills: true,
    shares_by_address: false,
    marked_by_any: false,
    limits: Limits { per_family: 1, excludes_field: false, one_address_request: false },
};
