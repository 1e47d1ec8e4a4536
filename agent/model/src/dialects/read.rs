//! Reads a Service's request from its annotations and fields.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use super::{ALL, Annotations, Dialect, KeyScope, Meaning};
use crate::{
    Family, Vip, name,
    range::AddressRange,
    reason::{Reason, Refusal, quoted},
    request::{ByAddress, PoolChoice, Request, Scope, Sharing, SharingKey},
};

/// `spec.loadBalancerIP`, in messages.
const FIELD: &str = "spec.loadBalancerIP";
/// The allowed values, in messages.
const ADDRESSES: &str = "IP addresses, separated by commas, such as 192.0.2.10,2001:db8::10";
const ONE_ADDRESS: &str = "one IP address, such as 192.0.2.10";
/// The maximum length of a sharing key, and of any name, bytes.
pub(super) const MAX_KEY: usize = 253;
/// The maximum number of elements of a list.
const MAX_LIST: usize = 64;
/// The value of [`Meaning::PoolMode`] that names no pool.
const AUTO: &str = "__auto__";
/// The allowed names of a pool that is a resource of a cloud, in messages.
const RESOURCE: &str = "the name of a pool: letters, digits, hyphens, underscores and dots";
/// The maximum length of such a resource's name, bytes.
const MAX_RESOURCE: usize = 80;

/// Returns the request of a Service with these annotations and this `spec.loadBalancerIP`. An
/// annotation with an empty value counts as absent.
pub fn request(annotations: &Annotations, field: Option<&str>) -> Result<Request, Refusal> {
    let mut found = FoundRequests::default();
    if let Some(text) = field.filter(|text| !text.is_empty()) {
        let allowed = format!("{ONE_ADDRESS}; vipmux.io/addresses names several");
        let address =
            address(FIELD, text, &allowed).map_err(|refusal| Refusal { reason: Reason::InvalidService, ..refusal })?;
        found.field = Some(address);
    }
    for dialect in ALL {
        if annotations.keys().any(|key| dialect.owns(key)) {
            found.dialects.extend(dialect.marks(annotations).then_some(*dialect));
            dialect.read(annotations, &mut found)?;
        }
    }
    found.request()
}

/// An annotation, and its value.
type Annotated<T> = (&'static str, T);

/// The requests for a pool that the dialects found.
#[derive(Default)]
struct PoolRequests {
    named: Vec<Annotated<String>>,
    /// From [`Meaning::PoolIfTrue`] and [`Meaning::PoolInstead`].
    if_true: Option<Annotated<String>>,
    instead: Option<Annotated<String>>,
    /// [`PoolChoice::FewestClaims`] is asked for, if no pool is named.
    fewest_claims: bool,
}

impl PoolRequests {
    fn choice(mut self) -> Result<PoolChoice, Refusal> {
        self.named.extend(self.if_true.map(|pool| self.instead.unwrap_or(pool)));
        let by_default = if self.fewest_claims { PoolChoice::FewestClaims } else { PoolChoice::Best };
        Ok(agreed(self.named, |name| quoted(name))?.map_or(by_default, PoolChoice::Named))
    }
}

/// The requests that the dialects found.
#[derive(Default)]
struct FoundRequests {
    field: Option<Vip>,
    addresses: Vec<Annotated<BTreeSet<Vip>>>,
    /// Addresses from annotations for one family each.
    halves: Vec<Annotated<Vip>>,
    additional: BTreeSet<Vip>,
    address_names: BTreeSet<String>,
    pool: PoolRequests,
    keys: Vec<Annotated<SharingKey>>,
    alike: BTreeMap<&'static str, String>,
    labels: Vec<Annotated<String>>,
    /// The dialects with a request, and the one with a key.
    dialects: Vec<&'static Dialect>,
    keyed: Option<&'static Dialect>,
}

impl FoundRequests {
    fn request(mut self) -> Result<Request, Refusal> {
        let addresses = self.addresses()?;
        let sharing_key = agreed(self.keys, SharingKey::shown)?;
        let named = !addresses.is_empty() || !self.additional.is_empty() || !self.address_names.is_empty();
        let by_address = if named && self.dialects.iter().any(|dialect| dialect.shares_by_address) {
            ByAddress::Explicit
        } else if self.dialects.iter().all(|dialect| dialect.shares_by_address) {
            ByAddress::Plain
        } else {
            ByAddress::Never
        };
        if self.keyed.is_some_and(|dialect| dialect.limits.one_address_request) && !addresses.is_empty() {
            self.alike.insert("the static address", shown(&addresses));
        }
        let pool = self.pool.choice()?;
        Ok(Request {
            dialects: self.dialects.iter().map(|dialect| dialect.name).collect(),
            addresses,
            additional: self.additional,
            address_names: self.address_names,
            pool,
            sharing: Sharing { key: sharing_key, by_address },
            never_spills: self.keyed.is_some_and(|dialect| dialect.never_spills),
            alike: self.alike,
            label: agreed(self.labels, |label| quoted(label))?,
        })
    }

    /// Returns the addresses that all sources agree on. The field has room for one address. It
    /// agrees with a list that contains it.
    fn addresses(&mut self) -> Result<BTreeSet<Vip>, Refusal> {
        let mut sources = mem::take(&mut self.addresses);
        if let Some((annotation, _)) = self.halves.first() {
            let beside = |field: &Vip| self.halves.iter().all(|(_, half)| half.family() != field.family());
            let halves = self.halves.iter().map(|(_, half)| *half).chain(self.field.filter(beside));
            sources.push((annotation, halves.collect()));
        }
        if let Some(field) = self.field
            && sources.iter().all(|(_, addresses)| !addresses.contains(&field))
        {
            sources.push((FIELD, [field].into()));
        }
        Ok(agreed(sources, shown)?.unwrap_or_default())
    }
}

impl Dialect {
    fn read(&'static self, annotations: &Annotations, found: &mut FoundRequests) -> Result<(), Refusal> {
        let read = self
            .annotations
            .iter()
            .filter(|(_, meaning)| !matches!(meaning, Meaning::Treatment | Meaning::Probe | Meaning::WithoutEffect(_)));
        for (spellings, meaning) in read {
            let Some((annotation, text)) = spelling(annotations, spellings)? else { continue };
            if meaning.is_request() {
                found.dialects.push(self);
            }
            match meaning {
                Meaning::SharingKey => self.key(annotations, found, annotation, text)?,
                Meaning::Addresses => {
                    found.addresses.push((annotation, self.addresses(found.field, annotation, text)?));
                }
                Meaning::Address(family) => found.halves.push((annotation, address_of(*family, annotation, text)?)),
                Meaning::Additional => found.additional.extend(list(annotation, text)?),
                Meaning::AddressName => drop(found.address_names.insert(named(annotation, text, "an address")?)),
                Meaning::Pool => found.pool.named.push((annotation, pool(annotation, text)?)),
                Meaning::PoolMode if text.trim().eq_ignore_ascii_case(AUTO) => found.pool.fewest_claims = true,
                Meaning::PoolMode => {
                    let allowed = format!("{AUTO}, or {RESOURCE}");
                    found.pool.named.push((annotation, resource(annotation, text, text, &allowed)?));
                }
                Meaning::PoolPath => {
                    let name = text.rsplit('/').next().unwrap_or_default();
                    let allowed = format!("a path that ends in {RESOURCE}");
                    found.pool.named.push((annotation, resource(annotation, text, name, &allowed)?));
                }
                Meaning::PoolIfTrue(name) => {
                    found.pool.if_true = boolean(annotation, text)?.then(|| (annotation, (*name).to_owned()));
                }
                Meaning::PoolInstead => {
                    found.pool.instead = Some((annotation, resource(annotation, text, text, RESOURCE)?));
                }
                Meaning::Label => found.labels.push((annotation, label(annotation, text)?)),
                Meaning::EitherWithoutEffect(_) => drop(boolean(annotation, text)?),
                Meaning::Unsupported { harmless, remedy } if !any(harmless, text) => {
                    let message = format!("{annotation}: {} is not supported: {remedy}", quoted(text));
                    return Err(Refusal::new(Reason::InvalidAnnotation, message));
                }
                Meaning::Namespaces => drop(self.scope(annotations)?),
                // Settings that a group must agree on are read together with the key.
                Meaning::Alike
                | Meaning::Marker
                | Meaning::Treatment
                | Meaning::Probe
                | Meaning::WithoutEffect(_)
                | Meaning::Unsupported { .. } => {}
            }
        }
        Ok(())
    }

    fn key(
        &'static self,
        annotations: &Annotations,
        found: &mut FoundRequests,
        annotation: &'static str,
        text: &str,
    ) -> Result<(), Refusal> {
        let key = SharingKey {
            dialect: self.name.to_owned(),
            key: bounded(annotation, text, "a key")?,
            scope: self.scope(annotations)?,
        };
        found.keys.push((annotation, key));
        found.keyed = Some(self);
        for (spellings, _) in self.annotations.iter().filter(|(_, meaning)| *meaning == Meaning::Alike) {
            if let Some((annotation, text)) = spelling(annotations, spellings)? {
                let value = bounded(annotation, text, "a name")?;
                found.alike.extend(spellings.first().map(|name| (*name, value)));
            }
        }
        Ok(())
    }

    fn scope(&self, annotations: &Annotations) -> Result<Scope, Refusal> {
        if self.scope == KeyScope::Cluster {
            return Ok(Scope::Cluster);
        }
        let row = self.annotations.iter().find(|(_, meaning)| *meaning == Meaning::Namespaces);
        let found = row.map_or(Ok(None), |(spellings, _)| spelling(annotations, spellings))?;
        let Some((annotation, text)) = found else { return Ok(Scope::default()) };
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

    fn addresses(&self, field: Option<Vip>, annotation: &'static str, text: &str) -> Result<BTreeSet<Vip>, Refusal> {
        if let Some(field) = field.filter(|_| self.limits.excludes_field) {
            let message =
                format!("{annotation} ({}) and {FIELD} ({field}) are both set: use one of them", quoted(text));
            return Err(Refusal::new(Reason::AmbiguousRequest, message));
        }
        let list = list(annotation, text)?;
        let count = |family| list.iter().filter(|vip| vip.family() == family).count();
        if Family::ALL.map(count).iter().any(|count| *count > self.limits.per_family) {
            let allowed = format!("at most {} of each address family", self.limits.per_family);
            return Err(invalid(annotation, text, &allowed));
        }
        Ok(list)
    }
}

fn list(annotation: &'static str, text: &str) -> Result<BTreeSet<Vip>, Refusal> {
    let items: Vec<&str> = text.split(',').take(MAX_LIST + 1).collect();
    if items.len() > MAX_LIST {
        return Err(invalid(annotation, text, &format!("at most {MAX_LIST} IP addresses, separated by commas")));
    }
    let address = |item| address(annotation, listed(item, text), ADDRESSES);
    items.into_iter().map(address).collect()
}

/// Returns the part of a list to show in a message. An empty item says nothing to a reader.
pub(crate) fn listed<'a>(item: &'a str, list: &'a str) -> &'a str {
    if item.trim().is_empty() { list } else { item }
}

fn address_of(family: Family, annotation: &'static str, text: &str) -> Result<Vip, Refusal> {
    let allowed = format!("one {family} address");
    let vip = address(annotation, text, &allowed)?;
    let other = || invalid(annotation, text, &allowed);
    (vip.family() == family).then_some(vip).ok_or_else(other)
}

fn address(source: &'static str, text: &str, allowed: &str) -> Result<Vip, Refusal> {
    let parsed = text.trim().parse::<std::net::IpAddr>().map_err(|_| invalid(source, text, allowed))?.to_canonical();
    if parsed.is_unspecified() {
        let allowed = "addresses of hosts, and none comes from DHCP: leave it out to get one from a pool";
        return Err(invalid(source, text, allowed));
    }
    match AddressRange::single(parsed) {
        Ok(_) => Ok(Vip::new(parsed)),
        Err(block) => Err(invalid(source, text, &format!("addresses of hosts, and this one is in {block}"))),
    }
}

fn pool(annotation: &'static str, text: &str) -> Result<String, Refusal> {
    name::is_subdomain(text).then(|| text.to_owned()).ok_or_else(|| invalid(annotation, text, "the name of a pool"))
}

/// Checks and returns the name of a pool that is named like a cloud resource. Such names ignore
/// case and may have underscores. Names of pools are in lower case and have none.
fn resource(annotation: &'static str, text: &str, name: &str, allowed: &str) -> Result<String, Refusal> {
    let name = name.trim();
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let sound = (1..=MAX_RESOURCE).contains(&name.len()) && name.bytes().all(known);
    sound.then(|| name.to_ascii_lowercase().replace('_', "-")).ok_or_else(|| invalid(annotation, text, allowed))
}

/// Parses a label by Azure's rules for labels of public addresses.
fn label(annotation: &'static str, text: &str) -> Result<String, Refusal> {
    let sound = name::is_label(text) && text.len() >= 3 && text.starts_with(|first: char| first.is_ascii_lowercase());
    let allowed = "3 to 63 lower-case letters, digits and hyphens, the first a letter, the last no hyphen, and no dots";
    sound.then(|| text.to_owned()).ok_or_else(|| invalid(annotation, text, allowed))
}

fn named(annotation: &'static str, text: &str, what: &str) -> Result<String, Refusal> {
    bounded(annotation, text, &format!("the name of {what}"))
}

fn bounded(annotation: &'static str, text: &str, what: &str) -> Result<String, Refusal> {
    if text.len() > MAX_KEY {
        return Err(invalid(annotation, text, &format!("{what} of at most {MAX_KEY} bytes")));
    }
    Ok(text.to_owned())
}

/// Parses a number of digits only, without a sign.
pub(crate) fn whole(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Parses `true` or `false`, in any case.
pub(crate) fn boolean(annotation: &str, text: &str) -> Result<bool, Refusal> {
    text.to_ascii_lowercase().parse().map_err(|_| invalid(annotation, text, "true or false"))
}

/// Whether the value is one of these.
fn any(values: &[&str], text: &str) -> bool {
    values.iter().any(|value| value.eq_ignore_ascii_case(text.trim()))
}

/// Returns the annotation's value under the spelling that is there. Two spellings with different
/// values contradict each other.
pub(crate) fn spelling<'a>(
    annotations: &'a Annotations,
    spellings: &[&'static str],
) -> Result<Option<Annotated<&'a str>>, Refusal> {
    let there = |name| Some((name, annotations.get(name)?.as_str())).filter(|(_, text)| !text.is_empty());
    let present: Vec<Annotated<&str>> = spellings.iter().copied().filter_map(there).collect();
    let annotation = present.first().map(|(name, _)| *name);
    let text = agreed(present, |text| quoted(text))?;
    Ok(annotation.zip(text))
}

/// Returns the one value that all sources agree on. Keys of two dialects never agree, not even if
/// they are equal.
pub(crate) fn agreed<T: PartialEq>(
    sources: Vec<Annotated<T>>,
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

fn shown(addresses: &BTreeSet<Vip>) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

pub(crate) fn invalid(source: &str, value: &str, allowed: &str) -> Refusal {
    Refusal::new(Reason::InvalidAnnotation, format!("{source}: {} is malformed; allowed: {allowed}", quoted(value)))
}
