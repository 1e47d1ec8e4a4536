//! Our own annotations.

use super::{Dialect, KeyScope};

pub(super) const DIALECT: Dialect = Dialect {
    name: "vipmux",
    sharing_key: &["vipmux.io/sharing-key"],
    scope: KeyScope::Namespace(&["vipmux.io/sharing-namespaces"]),
    addresses: &["vipmux.io/addresses"],
    max_per_family: 16,
    shares_by_address: false,
    excludes_field: false,
    pool: &["vipmux.io/pool"],
    never_spills: false,
};
