//! Describes vipmux's own annotations.

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Namespaces, Pool, SharingKey, Treatment},
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "vipmux",
    prefixes: &["vipmux.io/"],
    annotations: &[
        (&["vipmux.io/sharing-key"], SharingKey),
        (&["vipmux.io/sharing-namespaces"], Namespaces),
        (&["vipmux.io/addresses"], Addresses),
        (&["vipmux.io/pool"], Pool),
        (&["vipmux.io/all-ports"], Treatment),
        (&["vipmux.io/direct-server-return"], Treatment),
        (&["vipmux.io/forwarding"], Treatment),
        (&["vipmux.io/tcp-idle-timeout"], Treatment),
        (&["vipmux.io/udp-idle-timeout"], Treatment),
        (&["vipmux.io/sctp-idle-timeout"], Treatment),
    ],
    scope: KeyScope::Namespace,
    never_spills: false,
    shares_by_address: false,
    marked_by_any: false,
    limits: Limits { per_family: 16, excludes_field: false, one_address_request: false },
};
