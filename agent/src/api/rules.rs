//! What a schema cannot say: the rules that the API server evaluates (CEL, as Kubernetes 1.31 has it), each with what it
//! says where one is broken. Manifests are held to the same rules, with the same words.

use std::ops::RangeInclusive;

/// A rule in CEL, and what it says where it is broken.
pub type Rule = (&'static str, &'static str);

/// Of `spec.addresses` of a pool, each. Without a loop over the parts, of which the API server expects as many as there may be
/// characters: the rule would cost more than it allows.
pub const RANGE: Rule = (
    "isCIDR(self) || isIP(self) || (self.split('-').size() == 2 \
     && isIP(self.split('-')[0].trim()) && isIP(self.split('-')[1].trim()) \
     && ip(self.split('-')[0].trim()).family() == ip(self.split('-')[1].trim()).family())",
    "must be a CIDR (192.0.2.0/28, 2001:db8::/64), an address (192.0.2.7), or a range of one family \
     (192.0.2.1-192.0.2.9)",
);

/// Of `spec.addressNames` of a pool.
pub const NAMED_ADDRESSES: Rule = ("self.all(name, isIP(self[name]))", "must name IP addresses, such as 192.0.2.7");

/// Of a whole pool.
pub const ALIAS_IS_ANOTHER_NAME: Rule = (
    "!has(self.spec.aliases) || !(self.metadata.name in self.spec.aliases)",
    "spec.aliases are other names than metadata.name",
);

/// Of one requirement of a label selector.
pub const VALUES_WITH_IN: Rule = (
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "values go with the operators In and NotIn, and with them alone",
);

/// All of them.
pub const ALL: [Rule; 4] = [RANGE, NAMED_ADDRESSES, ALIAS_IS_ANOTHER_NAME, VALUES_WITH_IN];

/// Longest name of an object: an RFC 1123 subdomain.
pub const NAME_MAX: usize = 253;
/// An RFC 1123 subdomain. The length is beside it.
pub const NAME_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// Most ranges of a pool.
pub const RANGES_MAX: usize = 1024;
/// Longest range: two IPv6 addresses and what is between them.
pub const RANGE_MAX: usize = 96;
/// Most entries of any other list or map.
pub const LIST_MAX: usize = 256;
/// What an interface may be called (`dev_valid_name` in the kernel's net/core/dev.c).
pub const INTERFACE_PATTERN: &str = r"^[^/:\s]{1,15}$";
/// What preferred nodes may weigh.
pub const WEIGHTS: RangeInclusive<i32> = 1..=100;

/// Whether an interface may be called so: [`INTERFACE_PATTERN`].
pub fn is_interface(name: &str) -> bool {
    let allowed = |c: char| c != '/' && c != ':' && !c.is_whitespace();
    (1..=15).contains(&name.len()) && name.chars().all(allowed)
}
