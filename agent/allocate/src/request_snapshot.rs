//! The request of a Service at the time when it got its addresses.

use std::collections::{BTreeMap, BTreeSet};

use vipmux_model::{
    Vip,
    port::Port,
    request::{Request, Sharing},
    service::Service,
};

/// The request of a Service at the time when it got its addresses. If two holders clash, it shows
/// which of them changed (rules 7 and 9).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestSnapshot {
    /// The ports.
    pub ports: BTreeSet<Port>,
    /// The Services that it may share with.
    pub sharing: Sharing,
    /// The pool that it named.
    pub pool: Option<String>,
    /// The addresses that it asked for beside its own.
    pub additional: BTreeSet<Vip>,
    /// The settings that its sharing group must agree on.
    pub alike: GroupSettings,
    /// The label of its addresses.
    pub label: Option<String>,
    /// Whether it clashed within its group when it got its address (rule 8).
    pub spill: bool,
}

/// Settings that all members of a sharing group must agree on, by annotation or field.
pub type GroupSettings = BTreeMap<String, String>;

impl RequestSnapshot {
    /// Returns the request of a Service as it is now.
    pub(super) fn of(service: &Service) -> Self {
        let request = &service.request;
        Self {
            ports: service.claims().collect(),
            sharing: request.sharing.clone(),
            pool: request.pool.name().map(str::to_owned),
            additional: request.additional.clone(),
            alike: Self::group_settings(request),
            label: request.label.clone(),
            spill: false,
        }
    }

    pub(super) fn group_settings(request: &Request) -> GroupSettings {
        request.alike.iter().map(|(what, value)| ((*what).to_owned(), value.clone())).collect()
    }

    /// Whether the Service could now be in the way of others where it was not before: it has more
    /// ports, may share with others than it did, or wants another label.
    pub(super) fn is_exceeded_by(&self, service: &Service) -> bool {
        let request = &service.request;
        self.sharing != request.sharing
            || request.label.is_some() && self.label != request.label
            || !service.claims().all(|port| self.ports.contains(&port))
    }

    /// Whether the Service is in another sharing group now. A key that reaches further, or less
    /// far, is the same group.
    pub(super) fn is_of_another_group_than(&self, service: &Service) -> bool {
        let name = |sharing: &Sharing| sharing.key.as_ref().map(|key| (key.dialect.clone(), key.key.clone()));
        name(&self.sharing) != name(&service.request.sharing)
    }
}
