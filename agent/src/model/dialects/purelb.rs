//! PureLB (<https://purelb.gitlab.io/docs/>).

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Pool, SharingKey, Unsupported, WithoutEffect},
};

const NOTED: &str = "PureLB notes there what it did";

pub(super) const DIALECT: Dialect = Dialect {
    name: "purelb",
    prefixes: &["purelb.io/"],
    annotations: &[
        (&["purelb.io/allow-shared-ip"], SharingKey),
        (&["purelb.io/addresses"], Addresses),
        (&["purelb.io/service-group"], Pool),
        (
            &["purelb.io/multi-pool"],
            Unsupported {
                harmless: &["false"],
                remedy: "an address of every range is not given by itself; name the addresses by vipmux.io/addresses, and \
                         remove the annotation",
            },
        ),
        (
            &["purelb.io/allow-local"],
            WithoutEffect(
                "any node can lead, whatever spec.externalTrafficPolicy says: packets go to nodes that have pods",
            ),
        ),
        (&["purelb.io/node-affinity"], WithoutEffect("who may lead, and who is preferred, is in a VipPolicy")),
        (&["purelb.io/re-evaluate"], WithoutEffect("a change is seen by itself")),
        (&["purelb.io/skip-ipv6-dad"], WithoutEffect("no address is put on an interface, so none is tentative")),
        (&["purelb.io/allocated-by"], WithoutEffect(NOTED)),
        (
            &["purelb.io/allocated-from"],
            WithoutEffect("PureLB notes there what it did; a pool is asked for by purelb.io/service-group"),
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
