//! Reads pools: their addresses, and the Services that may use them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub use crate::api::{OnConflict, PoolSharing};
use crate::{
    Family, Vip,
    api::{IpAddressPool, VipPool, metallb::ServiceAllocation, rules::NAMED_ADDRESSES},
    range::{AddressRange, anycasts_up_to, is_anycast},
    reason::{Note, quoted},
    selector::{Labels, Selector},
};

/// The maximum number of entries in `spec.addresses`. People write pools, so more are refused.
const MAX_RANGES: usize = 4096;

/// The kind of object that a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolKind {
    /// vipmux's own.
    VipPool,
    /// MetalLB's.
    IpAddressPool,
}

impl PoolKind {
    /// Returns the fields that say which Services such a pool serves.
    const fn audience_fields(self) -> &'static str {
        match self {
            Self::VipPool => "spec.namespaces, spec.namespaceSelectors, spec.serviceSelectors",
            Self::IpAddressPool => "spec.serviceAllocation",
        }
    }
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::VipPool => "VipPool",
            Self::IpAddressPool => "IPAddressPool",
        })
    }
}

/// A pool of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its kind.
    pub kind: PoolKind,
    /// Its name.
    pub name: String,
    /// Further names by which Services may ask for it.
    pub aliases: BTreeSet<String>,
    /// Its labels, for selectors.
    pub labels: Labels,
    /// A pool with a lower number goes first, and pools without a number go last.
    pub priority: Option<u32>,
    /// Whether Services that name neither pool nor address may get one from here.
    pub auto_assign: bool,
    /// Leave out IPv4 addresses that end in .0 or .255. IPv6 addresses are not affected, since
    /// nothing mistakes those for a subnet's broadcast.
    pub avoid_buggy: bool,
    /// The Services that may share addresses of this pool.
    pub sharing: PoolSharing,
    /// The outcome of a clash within a group.
    pub on_conflict: OnConflict,
    /// Names by which Services ask for addresses of the pool.
    pub address_names: BTreeMap<String, Vip>,
    /// Ascending, without overlap.
    ranges: Vec<AddressRange>,
    audience: Audience,
}

/// The Services that a pool serves. Their namespace is listed or selected, unless the pool lists
/// and selects no namespaces. Their labels are selected, unless the pool has no selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Audience {
    namespaces: Option<BTreeSet<String>>,
    namespace_selectors: Vec<Selector>,
    service_selectors: Option<Vec<Selector>>,
}

impl Audience {
    /// `field`: the field that its lists are below.
    fn new(
        field: &str,
        namespaces: &[String],
        namespace_selectors: &[LabelSelector],
        service_selectors: &[LabelSelector],
        mut bad: impl FnMut(String),
    ) -> Self {
        // A selector that is not understood selects nothing. So a pool is never open to more
        // Services than its owner meant.
        let mut selectors = |list: &str, written| Selector::list(&format!("{field}.{list}"), written, &mut bad);
        let any_namespace = namespaces.is_empty() && namespace_selectors.is_empty();
        Self {
            namespaces: (!any_namespace).then(|| namespaces.iter().cloned().collect()),
            namespace_selectors: selectors("namespaceSelectors", namespace_selectors),
            service_selectors: (!service_selectors.is_empty())
                .then(|| selectors("serviceSelectors", service_selectors)),
        }
    }
}

impl Pool {
    /// Reads MetalLB's form. Malformed entries are left out and noted. The rest of the pool stays
    /// usable.
    pub fn of_metallb(name: &str, pool: &IpAddressPool, notes: &mut Vec<Note>) -> Self {
        let kind = PoolKind::IpAddressPool;
        let mut note =
            |message: String| notes.push(Note::new(format!("{kind} {name}"), format!("{message}; left out")));
        let (spec, everybody) = (&pool.spec, ServiceAllocation::default());
        let allocation = spec.service_allocation.as_ref().unwrap_or(&everybody);
        let priority = allocation.priority.unwrap_or(0);
        if priority < 0 {
            note(format!("spec.serviceAllocation.priority: {priority} is less than 0"));
        }
        Self {
            kind,
            name: name.to_owned(),
            aliases: BTreeSet::new(),
            labels: pool.metadata.labels.clone().unwrap_or_default(),
            priority: u32::try_from(priority).ok().filter(|priority| *priority > 0),
            auto_assign: spec.auto_assign.unwrap_or(true),
            avoid_buggy: spec.avoid_buggy_ips.unwrap_or(false),
            sharing: PoolSharing::default(),
            on_conflict: OnConflict::default(),
            address_names: BTreeMap::new(),
            ranges: ranges(&spec.addresses, &mut note),
            audience: Audience::new(
                "spec.serviceAllocation",
                &allocation.namespaces,
                &allocation.namespace_selectors,
                &allocation.service_selectors,
                note,
            ),
        }
    }

    /// Reads vipmux's own form, in the same way.
    pub fn of_vipmux(name: &str, pool: &VipPool, notes: &mut Vec<Note>) -> Self {
        let kind = PoolKind::VipPool;
        let mut note =
            |message: String| notes.push(Note::new(format!("{kind} {name}"), format!("{message}; left out")));
        let spec = &pool.spec;
        let mut made = Self {
            kind,
            name: name.to_owned(),
            aliases: spec.aliases.iter().filter(|alias| *alias != name).cloned().collect(),
            labels: pool.metadata.labels.clone().unwrap_or_default(),
            priority: spec.priority.and_then(|priority| u32::try_from(priority).ok()),
            auto_assign: spec.auto_assign,
            avoid_buggy: spec.avoid_buggy_ips,
            sharing: spec.sharing,
            on_conflict: spec.on_conflict,
            address_names: BTreeMap::new(),
            ranges: ranges(&spec.addresses, &mut note),
            audience: Audience::new(
                "spec",
                &spec.namespaces,
                &spec.namespace_selectors,
                &spec.service_selectors,
                &mut note,
            ),
        };
        for (name, text) in &spec.address_names {
            match text.parse::<IpAddr>().map(Vip::new) {
                Ok(vip) if made.contains(vip) => drop(made.address_names.insert(name.clone(), vip)),
                Ok(vip) => note(format!("spec.addressNames.{name}: {vip} is not in the pool")),
                Err(_) => note(format!("spec.addressNames.{name}: {}: {}", quoted(text), NAMED_ADDRESSES.1)),
            }
        }
        made
    }

    /// Returns its kind and name, as in messages.
    pub fn object(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    /// Whether this is its name or an alias.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(name)
    }

    /// Returns the fields that say which Services it serves.
    pub const fn audience_fields(&self) -> &'static str {
        self.kind.audience_fields()
    }

    /// Returns the order of the pool among pools: by priority, those without one last, then by name
    /// (rule 6).
    pub fn rank(&self) -> (u32, &str) {
        (self.priority.unwrap_or(u32::MAX), &self.name)
    }

    /// Whether it serves Services of this namespace with these labels.
    pub fn serves(&self, namespace: &str, namespace_labels: &Labels, service_labels: &Labels) -> bool {
        let Audience { namespaces, namespace_selectors, service_selectors } = &self.audience;
        let namespace_fits = namespaces.as_ref().is_none_or(|listed| {
            listed.contains(namespace) || namespace_selectors.iter().any(|selector| selector.matches(namespace_labels))
        });
        let any_matches = |list: &Vec<Selector>| list.iter().any(|selector| selector.matches(service_labels));
        namespace_fits && service_selectors.as_ref().is_none_or(any_matches)
    }

    /// Whether the address is in the pool and not avoided.
    pub fn contains(&self, vip: Vip) -> bool {
        self.spans(vip) && !self.avoids(vip.number())
    }

    /// Whether the address is avoided by `avoidBuggyIPs` although a range has it.
    pub fn leaves_out(&self, vip: Vip) -> bool {
        self.avoid_buggy && self.spans(vip) && is_buggy(vip.number())
    }

    fn spans(&self, vip: Vip) -> bool {
        let after = self.ranges.partition_point(|range| range.first() <= vip.number());
        self.ranges[..after].last().is_some_and(|range| range.contains(vip.number()))
    }

    /// Whether the address is avoided although a range has it.
    const fn avoids(&self, number: u128) -> bool {
        is_anycast(number) || self.avoid_buggy && is_buggy(number)
    }

    /// Returns the pool's lowest address of a family.
    pub fn first(&self, family: Family) -> Option<Vip> {
        self.lowest(family, 0)
    }

    /// Returns the pool's next address of the same family.
    pub fn next(&self, after: Vip) -> Option<Vip> {
        self.lowest(after.family(), after.number().checked_add(1)?)
    }

    fn lowest(&self, family: Family, from: u128) -> Option<Vip> {
        let mut number = from;
        let after = self.ranges.partition_point(|range| range.last() < number);
        for range in self.ranges[after..].iter().filter(|range| range.family() == family) {
            number = number.max(range.first());
            while self.avoids(number) {
                number += 1;
            }
            if range.contains(number) {
                return Some(Vip::from_number(number));
            }
        }
        None
    }

    /// Returns how many addresses of a family it can assign, [`u64::MAX`] at most.
    pub fn capacity(&self, family: Family) -> u64 {
        let count = self.ranges.iter().filter(|range| range.family() == family).map(|range| {
            let avoided = |number| match family {
                Family::V4 if self.avoid_buggy => buggy_up_to(number),
                Family::V4 => 0,
                Family::V6 => anycasts_up_to(number),
            };
            // No range begins at number 0.
            range.last() - range.first() + 1 - (avoided(range.last()) - avoided(range.first() - 1))
        });
        u64::try_from(count.fold(0, u128::saturating_add)).unwrap_or(u64::MAX)
    }

    /// Returns its ranges, ascending, without overlap.
    pub fn ranges(&self) -> &[AddressRange] {
        &self.ranges
    }
}

/// Whether this is an IPv4 address that ends in .0 or .255.
const fn is_buggy(number: u128) -> bool {
    number >> 32 == 0xffff && matches!(number & 0xff, 0 | 255)
}

/// Returns how many of the IPv4 addresses up to and including this one end in .0 or .255.
const fn buggy_up_to(number: u128) -> u128 {
    let (whole, rest) = ((number & 0xffff_ffff) / 256, number & 0xff);
    whole * 2 + if rest == 255 { 2 } else { 1 }
}

/// Returns the ranges that can be parsed.
fn ranges(written: &[String], mut note: impl FnMut(String)) -> Vec<AddressRange> {
    if written.len() > MAX_RANGES {
        note(format!("spec.addresses: more than {MAX_RANGES} entries, the others are"));
    }
    let parsed = written.iter().take(MAX_RANGES).map(|text| text.parse::<AddressRange>()).enumerate();
    merge(
        parsed
            .filter_map(|(i, range)| range.map_err(|error| note(format!("spec.addresses[{i}]: {error}"))).ok())
            .collect(),
    )
}

fn merge(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
    ranges.sort_unstable();
    let mut merged: Vec<AddressRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut().and_then(|last| Some((last.merged(range)?, last))) {
            Some((both, last)) => *last = both,
            None => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::vip;

    fn pool(spec: serde_json::Value) -> (Pool, Vec<Note>) {
        let spec = serde_json::from_value(spec).unwrap();
        let mut notes = Vec::new();
        (Pool::of_metallb("lan", &IpAddressPool { spec, ..Default::default() }, &mut notes), notes)
    }

    #[test]
    fn a_pool_gives_its_addresses_in_order_across_its_ranges() {
        let (pool, notes) = pool(
            serde_json::json!({"addresses": ["192.0.2.8/31", "192.0.2.1-192.0.2.2", "192.0.2.2/32", "2001:db8:0:1::1/128", "2001:db8::/126"]}),
        );
        assert_eq!(notes, []);
        assert_eq!(all(&pool, Family::V4), ["192.0.2.1", "192.0.2.2", "192.0.2.8", "192.0.2.9"]);
        assert_eq!(all(&pool, Family::V6), ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"]);
        assert_eq!((pool.capacity(Family::V4), pool.capacity(Family::V6)), (4, 4));
        assert!(
            pool.contains(vip("192.0.2.8")) && !pool.contains(vip("192.0.2.3")) && pool.contains(vip("2001:db8::1"))
        );
    }

    fn all(pool: &Pool, family: Family) -> Vec<String> {
        let all = std::iter::successors(pool.first(family), |vip| pool.next(*vip));
        all.map(|vip| vip.to_string()).collect()
    }

    #[test]
    fn a_subnet_routers_anycast_address_is_neither_given_nor_counted() {
        let (lan, _) = pool(serde_json::json!({"addresses": ["2001:db8::/126", "2001:db8:0:1::/128"]}));
        assert_eq!(all(&lan, Family::V6), ["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
        assert_eq!(lan.capacity(Family::V6), 3);
        assert!(!lan.contains(vip("2001:db8::")) && !lan.contains(vip("2001:db8:0:1::")));
        let (wide, _) = pool(serde_json::json!({"addresses": ["2001:db8::/64", "2001:db8:1::/48"]}));
        assert_eq!(wide.capacity(Family::V6), u64::MAX);
        let (across, _) = pool(serde_json::json!({"addresses": ["2001:db8::ffff:ffff:ffff:ffff-2001:db8:0:1::1"]}));
        assert_eq!(all(&across, Family::V6), ["2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::1"]);
        assert_eq!(across.capacity(Family::V6), 2);
    }

    #[test]
    fn avoided_addresses_are_neither_given_nor_counted() {
        let (pool, _) = pool(serde_json::json!({"addresses": ["192.0.2.254-192.0.4.1"], "avoidBuggyIPs": true}));
        assert_eq!(pool.capacity(Family::V4), 1 + 254 + 1);
        assert_eq!(pool.next(vip("192.0.2.254")), Some(vip("192.0.3.1")));
        assert_eq!(pool.next(vip("192.0.3.254")), Some(vip("192.0.4.1")));
        assert!(!pool.contains(vip("192.0.3.0")));
    }

    #[test]
    fn addresses_avoided_in_ipv4_are_used_in_ipv6() {
        let spec = serde_json::json!({"addresses": ["2001:db8::fe-2001:db8::100"], "avoidBuggyIPs": true});
        let (pool, _) = pool(spec);
        assert_eq!(all(&pool, Family::V6), ["2001:db8::fe", "2001:db8::ff", "2001:db8::100"]);
        assert_eq!(pool.capacity(Family::V6), 3);
    }

    #[test]
    fn a_range_of_avoided_addresses_alone_gives_none() {
        let (pool, _) = pool(serde_json::json!({"addresses": ["192.0.2.255-192.0.3.0"], "avoidBuggyIPs": true}));
        assert_eq!((pool.first(Family::V4), pool.capacity(Family::V4)), (None, 0));
    }

    #[test]
    fn a_malformed_entry_is_noted_and_the_rest_is_used() {
        let (pool, notes) = pool(serde_json::json!({"addresses": ["192.0.2.0/40", "192.0.2.1/32"]}));
        assert_eq!(pool.capacity(Family::V4), 1);
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].message.starts_with("spec.addresses[0]: \"192.0.2.0/40\": must be a CIDR"),
            "{}",
            notes[0].message
        );
    }

    #[test]
    fn priority_zero_goes_last() {
        let priority = |value: i32| {
            pool(serde_json::json!({"addresses": [], "serviceAllocation": {"priority": value}})).0.priority
        };
        assert_eq!((priority(0), priority(7), priority(-1)), (None, Some(7), None));
    }

    #[test]
    fn a_pool_serves_whom_it_lists_or_selects() {
        let labels = |key: &str, value: &str| -> Labels { [(key.to_owned(), value.to_owned())].into() };
        let (pool, _) = pool(serde_json::json!({"addresses": [], "serviceAllocation": {
            "namespaces": ["shop"],
            "namespaceSelectors": [{"matchLabels": {"team": "a"}}],
            "serviceSelectors": [{"matchLabels": {"tier": "front"}}],
        }}));
        let (none, front) = (Labels::new(), labels("tier", "front"));
        assert!(pool.serves("shop", &none, &front));
        assert!(pool.serves("other", &labels("team", "a"), &front));
        assert!(!pool.serves("other", &none, &front));
        assert!(!pool.serves("shop", &none, &none));
    }

    #[test]
    fn a_selector_that_is_not_understood_opens_the_pool_to_nobody() {
        let bad = serde_json::json!([{"matchExpressions": [{"key": "a", "operator": "Gt"}]}]);
        let (pool, notes) = pool(serde_json::json!({"addresses": [], "serviceAllocation": {"serviceSelectors": bad}}));
        assert!(!pool.serves("shop", &Labels::new(), &Labels::new()));
        assert_eq!(notes.len(), 1);
    }
}
