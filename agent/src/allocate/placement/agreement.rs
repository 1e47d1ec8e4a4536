//! What the members of a group have to say alike.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use super::Placement;
use crate::{
    allocate::{
        holders::{Alike, Terms},
        occupancy::{Members, Tenant},
    },
    model::{
        ServiceName,
        reason::{Reason, Refusal, quoted},
        request::SharingKey,
        service::Service,
    },
};

/// Two of a group say something in two ways.
struct Disagreement<'s> {
    what: &'s str,
    /// What the Service in question says.
    own: Option<&'s str>,
    other: Option<&'s str>,
    /// Who says the other.
    by: &'s ServiceName,
    key: &'s SharingKey,
}

impl<'s> Disagreement<'s> {
    fn new(key: &'s SharingKey, own: &'s Alike, by: &'s Tenant) -> Option<Self> {
        let other = &by.terms.alike;
        let said: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
        let what = said.into_iter().find(|what| own.get(*what) != other.get(*what))?;
        let of = |alike: &'s Alike| alike.get(what).map(String::as_str);
        Some(Self { what, own: of(own), other: of(other), by: &by.name, key })
    }
}

impl fmt::Display for Disagreement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: Option<&str>| value.map_or_else(|| "not set".to_owned(), quoted);
        let Self { what, own, other, by, key } = self;
        let (own, other, key) = (shown(*own), shown(*other), key.shown());
        write!(f, "{what} is {own} here and {other} on {by}, and must be the same with the sharing key {key}")
    }
}

/// Those who hold nothing, by their keys: only of dialects in which one of them says something that others have to say too.
pub(super) struct Waiting<'a>(BTreeMap<(&'a str, &'a str), Members>);

impl<'a> Waiting<'a> {
    pub(super) fn new(services: impl Iterator<Item = &'a Service> + Clone) -> Self {
        let dialect = |service: &&'a Service| service.request.sharing.key.as_ref().map(|key| key.dialect.as_str());
        let demanding = services.clone().filter(|service| !service.request.alike.is_empty());
        let demanding: BTreeSet<&str> = demanding.filter_map(|service| dialect(&service)).collect();
        let mut groups: BTreeMap<_, Members> = BTreeMap::new();
        for service in services.filter(|service| dialect(service).is_some_and(|dialect| demanding.contains(dialect))) {
            let Some(key) = &service.request.sharing.key else { continue };
            let tenant = Tenant { name: service.name.clone(), terms: Terms::of(service) };
            groups.entry((key.dialect.as_str(), key.key.as_str())).or_default().add(&Arc::new(tenant));
        }
        Self(groups)
    }
}

impl Placement<'_> {
    /// Whether a Service that holds nothing says what those of its group say who hold something; where nobody does, what all
    /// others say who wait: else none of those is served.
    pub(super) fn agrees(&self, service: &Service, waiting: &Waiting<'_>) -> Result<(), Refusal> {
        let Some(key) = &service.request.sharing.key else { return Ok(()) };
        let alike = Terms::alike_of(&service.request);
        let refuse = |other: &Tenant, told: &str| {
            let disagreement = Disagreement::new(key, &alike, other);
            let refusal = |it| Refusal::new(Reason::GroupMismatch, format!("{it}; {told}"));
            disagreement.map_or(Ok(()), |it| Err(refusal(it)))
        };
        let holders = self.books.occupancy.members(service);
        if let Some(holder) = holders.and_then(|members| members.differing(service.party(), &alike)) {
            return refuse(holder, "that one holds its address already");
        }
        if holders.is_some_and(|members| members.has_any(service.party())) {
            return Ok(());
        }
        let waiting = waiting.0.get(&(key.dialect.as_str(), key.key.as_str()));
        let other = waiting.and_then(|members| members.differing(service.party(), &alike));
        other.map_or(Ok(()), |other| refuse(other, "none of them is served until it is"))
    }

    /// Who of the Service's group says something else, though both hold addresses.
    pub(in crate::allocate) fn differing_holder(&self, service: &Service) -> Option<String> {
        let key = service.request.sharing.key.as_ref()?;
        let alike = Terms::alike_of(&service.request);
        let other = self.books.occupancy.members(service)?.differing(service.party(), &alike)?;
        Some(Disagreement::new(key, &alike, other)?.to_string())
    }
}
