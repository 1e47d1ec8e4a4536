//! Dialects: the annotations of other load balancers, understood as their users meant them.
//!
//! A dialect is a [`Dialect`] value in a module of its own and a line in [`ALL`].

mod metallb;
mod vipmux;

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{
    Family, Vip, name,
    range::AddressRange,
    reason::{Reason, Refusal, quoted},
    request::{ByAddress, PoolChoice, Request, Scope, Sharing, SharingKey},
};

/// All dialects.
pub const ALL: &[&Dialect] = &[&vipmux::DIALECT, &metallb::DIALECT];

/// An object's annotations.
pub type Annotations = BTreeMap<String, String>;

/// Which annotations a load balancer reads, and what they mean there. Each list holds the spellings of one annotation,
/// the current one first.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// Its name, in messages and in the assignments.
    pub name: &'static str,
    /// The sharing key.
    pub sharing_key: &'static [&'static str],
    /// How far the key reaches.
    pub scope: KeyScope,
    /// A comma-separated list of addresses.
    pub addresses: &'static [&'static str],
    /// How many addresses of one family it may hold.
    pub max_per_family: usize,
    /// Naming an address is the request to share it (rule 3).
    pub shares_by_address: bool,
    /// An address in `addresses` and in `spec.loadBalancerIP` at once is an error, even where they are equal.
    pub excludes_field: bool,
    /// The pool's name.
    pub pool: &'static [&'static str],
    /// A clash within a group is a refusal, never a second address.
    pub never_spills: bool,
}

/// How far a dialect's keys reach.
#[derive(Clone, Copy, Debug)]
pub enum KeyScope {
    /// All namespaces.
    Cluster,
    /// The Service's namespace, and those that this annotation lists (`*`: all) and that list it in turn.
    Namespace(&'static [&'static str]),
}

/// `spec.loadBalancerIP`, in messages.
const FIELD: &str = "spec.loadBalancerIP";
/// Longest sharing key, bytes.
const MAX_KEY: usize = 253;
/// Most elements of a list.
const MAX_LIST: usize = 64;

/// What a Service with these annotations and this `spec.loadBalancerIP` asks for. An annotation with an empty value
/// counts as not there.
pub fn request(annotations: &Annotations, field: Option<&str>) -> Result<Request, Refusal> {
    let field = field.filter(|text| !text.is_empty());
    let mut found = Found::default();
    for dialect in ALL {
        dialect.read(annotations, field, &mut found)?;
    }
    if let Some(text) = field {
        let address = address(FIELD, text).map_err(|refusal| Refusal { reason: Reason::InvalidService, ..refusal })?;
        found.addresses.push((FIELD, [address].into()));
    }
    let by_address = match (found.any_annotation, found.shares_by_address) {
        (false, _) => ByAddress::Plain,
        (true, true) => ByAddress::Explicit,
        (true, false) => ByAddress::Never,
    };
    Ok(Request {
        addresses: agreed(found.addresses, addresses_shown)?.unwrap_or_default(),
        pool: agreed(found.pools, |pool| quoted(pool))?.map_or(PoolChoice::Best, PoolChoice::Named),
        sharing: Sharing { key: agreed(found.keys, SharingKey::shown)?, by_address },
        never_spills: found.never_spills,
        ..Request::default()
    })
}

/// What the dialects found, each with the annotation that says it.
#[derive(Default)]
struct Found {
    addresses: Vec<(&'static str, BTreeSet<Vip>)>,
    pools: Vec<(&'static str, String)>,
    keys: Vec<(&'static str, SharingKey)>,
    any_annotation: bool,
    shares_by_address: bool,
    never_spills: bool,
}

impl Dialect {
    fn read(&self, annotations: &Annotations, field: Option<&str>, found: &mut Found) -> Result<(), Refusal> {
        let scope = self.scope(annotations)?;
        if let Some((annotation, text)) = spelling(annotations, self.sharing_key)? {
            if text.len() > MAX_KEY {
                return Err(invalid(annotation, text, &format!("a key of at most {MAX_KEY} bytes")));
            }
            found.keys.push((annotation, SharingKey { dialect: self.name.to_owned(), key: text.to_owned(), scope }));
            found.never_spills |= self.never_spills;
            found.any_annotation = true;
        }
        if let Some((annotation, text)) = spelling(annotations, self.addresses)? {
            if let Some(field) = field.filter(|_| self.excludes_field) {
                let message = format!(
                    "annotation {annotation} ({}) and {FIELD} ({}) are both set: use one of them",
                    quoted(text),
                    quoted(field)
                );
                return Err(Refusal::new(Reason::AmbiguousRequest, message));
            }
            found.addresses.push((annotation, self.addresses(annotation, text)?));
            found.shares_by_address |= self.shares_by_address;
            found.any_annotation = true;
        }
        if let Some((annotation, text)) = spelling(annotations, self.pool)? {
            if !name::is_subdomain(text) {
                return Err(invalid(annotation, text, "the name of a pool"));
            }
            found.pools.push((annotation, text.to_owned()));
            found.any_annotation = true;
        }
        Ok(())
    }

    fn scope(&self, annotations: &Annotations) -> Result<Scope, Refusal> {
        let KeyScope::Namespace(spellings) = self.scope else { return Ok(Scope::Cluster) };
        let Some((annotation, text)) = spelling(annotations, spellings)? else { return Ok(Scope::default()) };
        if text.trim() == "*" {
            return Ok(Scope::Cluster);
        }
        let allowed = format!("\"*\", or at most {MAX_LIST} namespaces, separated by commas");
        let names: BTreeSet<String> = text.split(',').map(|name| name.trim().to_owned()).take(MAX_LIST + 1).collect();
        if names.len() > MAX_LIST || !names.iter().all(|name| name::is_label(name)) {
            return Err(invalid(annotation, text, &allowed));
        }
        Ok(Scope::Namespaces(names))
    }

    fn addresses(&self, annotation: &'static str, text: &str) -> Result<BTreeSet<Vip>, Refusal> {
        let list: Result<BTreeSet<Vip>, _> = text.split(',').map(|item| address(annotation, item)).collect();
        let list = list?;
        let count = |family| list.iter().filter(|vip| vip.family() == family).count();
        if Family::ALL.map(count).iter().any(|count| *count > self.max_per_family) {
            let allowed = format!("at most {} of each address family", self.max_per_family);
            return Err(invalid(annotation, text, &allowed));
        }
        Ok(list)
    }
}

fn address(source: &'static str, text: &str) -> Result<Vip, Refusal> {
    let allowed = "IP addresses, separated by commas, such as 192.0.2.10,2001:db8::10";
    let parsed = text.trim().parse::<std::net::IpAddr>().map_err(|_| invalid(source, text, allowed))?.to_canonical();
    match AddressRange::single(parsed) {
        Ok(_) => Ok(Vip(parsed)),
        Err(block) => Err(invalid(source, text, &format!("addresses of hosts, and this one is in {block}"))),
    }
}

/// The annotation's value under whichever of its spellings is there; two that differ contradict each other.
pub(super) fn spelling<'a>(
    annotations: &'a Annotations,
    spellings: &[&'static str],
) -> Result<Option<(&'static str, &'a str)>, Refusal> {
    let there = |name| Some((name, annotations.get(name)?.as_str())).filter(|(_, text)| !text.is_empty());
    let present: Vec<(&'static str, &str)> = spellings.iter().copied().filter_map(there).collect();
    let annotation = present.first().map(|(name, _)| *name);
    let text = agreed(present, |text| quoted(text))?;
    Ok(annotation.zip(text))
}

/// The one value that all sources agree on. Keys of two dialects never agree, not even on the same word.
pub(super) fn agreed<T: PartialEq>(
    sources: Vec<(&'static str, T)>,
    shown: impl Fn(&T) -> String,
) -> Result<Option<T>, Refusal> {
    let mut sources = sources.into_iter();
    let Some((first_source, first)) = sources.next() else { return Ok(None) };
    let Some((source, other)) = sources.find(|(_, other)| *other != first) else { return Ok(Some(first)) };
    let message = format!(
        "{first_source} ({}) and {source} ({}) contradict each other: use one of them",
        shown(&first),
        shown(&other)
    );
    Err(Refusal::new(Reason::AmbiguousRequest, message))
}

fn addresses_shown(addresses: &BTreeSet<Vip>) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

pub(super) fn invalid(source: &str, value: &str, allowed: &str) -> Refusal {
    Refusal::new(Reason::InvalidAnnotation, format!("{source}: {} is malformed; allowed: {allowed}", quoted(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(annotations: &[(&str, &str)], field: Option<&str>) -> Result<Request, Refusal> {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        request(&annotations, field)
    }

    fn refusal(annotations: &[(&str, &str)], field: Option<&str>) -> (Reason, String) {
        let refusal = ask(annotations, field).unwrap_err();
        (refusal.reason, refusal.message)
    }

    fn key(annotations: &[(&str, &str)]) -> SharingKey {
        ask(annotations, None).unwrap().sharing.key.unwrap()
    }

    fn vips(addresses: &[&str]) -> BTreeSet<Vip> {
        addresses.iter().map(|text| Vip(text.parse().unwrap())).collect()
    }

    #[test]
    fn without_annotations_a_service_is_plain() {
        let request = ask(&[("example.org/other", "x")], None).unwrap();
        assert_eq!(request.sharing, Sharing { key: None, by_address: ByAddress::Plain });
        assert_eq!((request.addresses, request.pool), (vips(&[]), PoolChoice::Best));
        let request = ask(&[], Some("192.0.2.10")).unwrap();
        assert_eq!(request.sharing.by_address, ByAddress::Plain);
        assert_eq!(request.addresses, vips(&["192.0.2.10"]));
    }

    #[test]
    fn every_annotation_of_the_table_is_read() {
        let scope = |names: &[&str]| Scope::Namespaces(names.iter().map(|&name| name.to_owned()).collect());
        for (annotations, dialect, scope) in [
            (vec![("vipmux.io/sharing-key", "web")], "vipmux", scope(&[])),
            (
                vec![("vipmux.io/sharing-key", "web"), ("vipmux.io/sharing-namespaces", "a, b")],
                "vipmux",
                scope(&["a", "b"]),
            ),
            (vec![("vipmux.io/sharing-key", "web"), ("vipmux.io/sharing-namespaces", "*")], "vipmux", Scope::Cluster),
            (vec![("metallb.io/allow-shared-ip", "web")], "metallb", Scope::Cluster),
            (vec![("metallb.universe.tf/allow-shared-ip", "web")], "metallb", Scope::Cluster),
        ] {
            let expected = SharingKey { dialect: dialect.to_owned(), key: "web".to_owned(), scope };
            assert_eq!(key(&annotations), expected, "{annotations:?}");
        }
        for annotation in ["vipmux.io/addresses", "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"] {
            let request = ask(&[(annotation, "192.0.2.10, 2001:db8::1")], None).unwrap();
            assert_eq!(request.addresses, vips(&["192.0.2.10", "2001:db8::1"]), "{annotation}");
            assert_eq!(request.sharing, Sharing::default(), "an explicit address alone shares with nobody");
        }
        for annotation in ["vipmux.io/pool", "metallb.io/address-pool", "metallb.universe.tf/address-pool"] {
            assert_eq!(ask(&[(annotation, "lan")], None).unwrap().pool.name(), Some("lan"), "{annotation}");
        }
    }

    #[test]
    fn a_malformed_value_is_refused_with_annotation_value_and_what_is_allowed() {
        for (annotation, value, allowed) in [
            ("vipmux.io/addresses", "192.0.2.300", "IP addresses"),
            ("vipmux.io/addresses", "192.0.2.1,", "IP addresses"),
            ("vipmux.io/addresses", "224.0.0.1", "multicast"),
            ("metallb.io/loadBalancerIPs", "lan", "IP addresses"),
            ("metallb.io/loadBalancerIPs", "192.0.2.1,192.0.2.2", "at most 1 of each address family"),
            ("vipmux.io/pool", "Not A Pool", "the name of a pool"),
            ("vipmux.io/sharing-namespaces", "a,,b", "separated by commas"),
            ("vipmux.io/sharing-namespaces", "a,*", "separated by commas"),
            ("vipmux.io/sharing-key", &"k".repeat(MAX_KEY + 1), "at most 253 bytes"),
        ] {
            let (reason, message) = refusal(&[(annotation, value)], None);
            assert_eq!(reason, Reason::InvalidAnnotation, "{annotation}={value}");
            assert!(message.starts_with(&format!("{annotation}: \"")) && message.contains(allowed), "{message}");
        }
        let (reason, message) = refusal(&[], Some("example.org"));
        assert_eq!(reason, Reason::InvalidService);
        assert!(message.starts_with("spec.loadBalancerIP: \"example.org\""), "{message}");
    }

    #[test]
    fn keys_of_two_dialects_are_ambiguous_even_when_equal() {
        let (reason, message) =
            refusal(&[("vipmux.io/sharing-key", "web"), ("metallb.io/allow-shared-ip", "web")], None);
        assert_eq!(reason, Reason::AmbiguousRequest);
        assert!(
            message.contains("vipmux.io/sharing-key") && message.contains("metallb.io/allow-shared-ip"),
            "{message}"
        );
    }

    #[test]
    fn different_addresses_or_pools_in_two_dialects_are_ambiguous() {
        let addresses = |theirs| [("vipmux.io/addresses", "192.0.2.1"), ("metallb.io/loadBalancerIPs", theirs)];
        assert_eq!(refusal(&addresses("192.0.2.2"), None).0, Reason::AmbiguousRequest);
        assert_eq!(ask(&addresses("192.0.2.1"), None).unwrap().addresses, vips(&["192.0.2.1"]));
        let pools = [("vipmux.io/pool", "a"), ("metallb.io/address-pool", "b")];
        assert_eq!(refusal(&pools, None).0, Reason::AmbiguousRequest);
        assert_eq!(refusal(&[("vipmux.io/addresses", "192.0.2.1")], Some("192.0.2.2")).0, Reason::AmbiguousRequest);
    }

    #[test]
    fn the_two_spellings_of_one_dialect_are_one() {
        let both = |other| [("metallb.io/allow-shared-ip", "web"), ("metallb.universe.tf/allow-shared-ip", other)];
        assert_eq!(key(&both("web")).key, "web");
        assert_eq!(refusal(&both("api"), None).0, Reason::AmbiguousRequest);
    }

    #[test]
    fn metallb_annotation_and_field_exclude_each_other_even_when_equal() {
        let (reason, message) = refusal(&[("metallb.universe.tf/loadBalancerIPs", "192.0.2.1")], Some("192.0.2.1"));
        assert_eq!(reason, Reason::AmbiguousRequest);
        assert!(message.contains("metallb.universe.tf/loadBalancerIPs") && message.contains(FIELD), "{message}");
        assert!(ask(&[("vipmux.io/addresses", "192.0.2.1")], Some("192.0.2.1")).is_ok());
    }

    #[test]
    fn an_empty_value_asks_for_nothing() {
        let request = ask(&[("vipmux.io/sharing-key", ""), ("metallb.io/loadBalancerIPs", "")], Some("")).unwrap();
        assert_eq!(
            request,
            Request { sharing: Sharing { key: None, by_address: ByAddress::Plain }, ..Request::default() }
        );
    }

    #[test]
    fn no_two_dialects_read_the_same_annotation() {
        let mut seen = BTreeSet::new();
        for dialect in ALL {
            let scope: &[&str] = match dialect.scope {
                KeyScope::Cluster => &[],
                KeyScope::Namespace(spellings) => spellings,
            };
            for name in [dialect.sharing_key, scope, dialect.addresses, dialect.pool].concat() {
                assert!(seen.insert(name), "{name}");
            }
        }
    }
}
