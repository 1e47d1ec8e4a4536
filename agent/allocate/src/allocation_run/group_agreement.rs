//! Checks the settings that the members of a sharing group must agree on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use crate::{
    occupancy::{GroupMembers, Occupancy, Occupant},
    request_snapshot::{GroupSettings, RequestSnapshot},
};
use vipmux_model::{
    ServiceName,
    reason::{Reason, Refusal, quoted},
    request::SharingKey,
    service::Service,
};

/// Two members of a group with different settings.
struct Disagreement<'s> {
    setting: &'s str,
    /// The value of the Service in question.
    own: Option<&'s str>,
    other: Option<&'s str>,
    /// The member with the other value.
    by: &'s ServiceName,
    key: &'s SharingKey,
}

impl<'s> Disagreement<'s> {
    fn new(key: &'s SharingKey, own: &'s GroupSettings, by: &'s Occupant) -> Option<Self> {
        let other = &by.snapshot.alike;
        let names: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
        let setting = names.into_iter().find(|setting| own.get(*setting) != other.get(*setting))?;
        let of = |alike: &'s GroupSettings| alike.get(setting).map(String::as_str);
        Some(Self { setting, own: of(own), other: of(other), by: &by.name, key })
    }
}

impl fmt::Display for Disagreement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: Option<&str>| value.map_or_else(|| "not set".to_owned(), quoted);
        let Self { setting, own, other, by, key } = self;
        let (own, other, key) = (shown(*own), shown(*other), key.shown());
        write!(f, "{setting} is {own} here and {other} on {by}, and must be the same with the sharing key {key}")
    }
}

/// Services that hold nothing, by their keys. Only dialects count in which some Service has such a
/// setting.
pub(super) struct WaitingGroups<'a>(BTreeMap<(&'a str, &'a str), GroupMembers>);

impl<'a> WaitingGroups<'a> {
    pub(super) fn new(services: impl Iterator<Item = &'a Service> + Clone) -> Self {
        let dialect = |service: &&'a Service| service.request.sharing.key.as_ref().map(|key| key.dialect.as_str());
        let demanding = services.clone().filter(|service| !service.request.alike.is_empty());
        let demanding: BTreeSet<&str> = demanding.filter_map(|service| dialect(&service)).collect();
        let mut groups: BTreeMap<_, GroupMembers> = BTreeMap::new();
        for service in services.filter(|service| dialect(service).is_some_and(|dialect| demanding.contains(dialect))) {
            let Some(key) = &service.request.sharing.key else { continue };
            let occupant = Occupant { name: service.name.clone(), snapshot: RequestSnapshot::of(service) };
            groups.entry((key.dialect.as_str(), key.key.as_str())).or_default().add(&Arc::new(occupant));
        }
        Self(groups)
    }

    /// Checks that a Service that holds nothing has the same settings as the members of its group
    /// that hold addresses.
    ///
    /// If no member holds an address, the Service must agree with all members that wait. Else none
    /// of them is served.
    pub(super) fn check(&self, service: &Service, occupancy: &Occupancy) -> Result<(), Refusal> {
        let Some(key) = &service.request.sharing.key else { return Ok(()) };
        let alike = RequestSnapshot::group_settings(&service.request);
        let refuse = |other: &Occupant, consequence: &str| {
            let disagreement = Disagreement::new(key, &alike, other);
            let refusal = |it| Refusal::new(Reason::GroupMismatch, format!("{it}; {consequence}"));
            disagreement.map_or(Ok(()), |it| Err(refusal(it)))
        };
        let holders = occupancy.members(service);
        if let Some(holder) = holders.and_then(|members| members.differing(service.sharer(), &alike)) {
            return refuse(holder, "that one holds its address already");
        }
        if holders.is_some_and(|members| members.has_any(service.sharer())) {
            return Ok(());
        }
        let waiting = self.0.get(&(key.dialect.as_str(), key.key.as_str()));
        let other = waiting.and_then(|members| members.differing(service.sharer(), &alike));
        other.map_or(Ok(()), |other| refuse(other, "none of them is served until it is"))
    }
}

/// Returns the disagreement of the Service with another holder in its group, if there is one.
pub(crate) fn differing_holder(service: &Service, occupancy: &Occupancy) -> Option<String> {
    let key = service.request.sharing.key.as_ref()?;
    let alike = RequestSnapshot::group_settings(&service.request);
    let other = occupancy.members(service)?.differing(service.sharer(), &alike)?;
    Some(Disagreement::new(key, &alike, other)?.to_string())
}
