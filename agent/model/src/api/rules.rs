//! Defines the rules that a schema cannot express. The API server evaluates them (CEL as of
//! Kubernetes 1.31). Each has the message for an object that breaks it. Manifests are checked
//! against the same rules, with the same messages.

use std::ops::RangeInclusive;

/// A rule in CEL, and the message for an object that breaks it.
pub type CelRule = (&'static str, &'static str);

/// For each entry of `spec.addresses` of a pool. It has no loop over the parts. The API server
/// expects as many parts as there may be characters, so a loop would cost more than it allows.
pub const RANGE: CelRule = (
    "isCIDR(self) || isIP(self) || (self.split('-').size() == 2 \
     && isIP(self.split('-')[0].trim()) && isIP(self.split('-')[1].trim()) \
     && ip(self.split('-')[0].trim()).family() == ip(self.split('-')[1].trim()).family())",
    "must be a CIDR (192.0.2.0/28, 2001:db8::/64), an address (192.0.2.7), or a range of one family \
     (192.0.2.1-192.0.2.9)",
);

/// For `spec.addressNames` of a pool.
pub const NAMED_ADDRESSES: CelRule = ("self.all(name, isIP(self[name]))", "must name IP addresses, such as 192.0.2.7");

/// For a whole pool.
pub const ALIAS_IS_ANOTHER_NAME: CelRule = (
    "!has(self.spec.aliases) || !(self.metadata.name in self.spec.aliases)",
    "spec.aliases must not contain metadata.name",
);

/// For one requirement of a label selector.
pub const VALUES_WITH_IN: CelRule = (
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "values are required with In and NotIn, and not allowed with other operators",
);

/// All rules.
pub const ALL: [CelRule; 4] = [RANGE, NAMED_ADDRESSES, ALIAS_IS_ANOTHER_NAME, VALUES_WITH_IN];

/// The maximum length of an object's name: an RFC 1123 subdomain.
pub const NAME_MAX: usize = 253;
/// The pattern of an RFC 1123 subdomain. Its length is limited separately.
pub const NAME_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The maximum number of ranges of a pool.
pub const RANGES_MAX: usize = 1024;
/// The maximum length of a range: two IPv6 addresses and the text between them.
pub const RANGE_MAX: usize = 96;
/// The maximum number of entries of any other list or map.
pub const LIST_MAX: usize = 256;
/// The pattern of an interface's name (`dev_valid_name` in the kernel's net/core/dev.c).
pub const INTERFACE_PATTERN: &str = r"^[^/:\s]{1,15}$";
/// The weights that preferred nodes may have.
pub const WEIGHTS: RangeInclusive<i32> = 1..=100;

/// Whether an interface may have this name: it matches [`INTERFACE_PATTERN`].
pub fn is_interface(name: &str) -> bool {
    let allowed = |c: char| c != '/' && c != ':' && !c.is_whitespace();
    (1..=15).contains(&name.len()) && name.chars().all(allowed)
}
