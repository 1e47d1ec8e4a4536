//! Who holds what: the memory of an allocation.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{
    Family, Model, ServiceName, Vip,
    name::Port,
    policy::{IdleTimeouts, Policy},
    reason::{Reason, Refusal},
    request::{ByAddress, Request, Sharing},
    selector::Labels,
    service::{Families, Service},
    shown::Shown,
};

/// Who holds which addresses, from `assignments.yaml` or from the Services' statuses.
pub type Holders = BTreeMap<ServiceName, Held>;

/// What a Service holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The addresses.
    pub addresses: BTreeSet<Vip>,
    /// On which terms; a status does not tell.
    pub terms: Option<Terms>,
}

/// What a Service looked like when it got its addresses: tells who changed, where two holders clash (rule 9).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Terms {
    /// Its ports.
    pub ports: BTreeSet<Port>,
    /// With whom it may share.
    pub sharing: Sharing,
    /// The pool that it named.
    pub pool: Option<String>,
    /// Those of its addresses that it asked for beside its own.
    pub additional: BTreeSet<Vip>,
    /// What its group has to say alike.
    pub alike: Alike,
    /// The label that its addresses carry.
    pub label: Option<String>,
}

/// What all members of a group have to say alike, by the annotation or field that says it.
pub type Alike = BTreeMap<String, String>;

impl Terms {
    /// Those of a Service as it is now.
    pub(super) fn of(service: &Service) -> Self {
        let request = &service.request;
        Self {
            ports: service.claims().collect(),
            sharing: request.sharing.clone(),
            pool: request.pool.name().map(str::to_owned),
            additional: request.additional.clone(),
            alike: Self::alike_of(request),
            label: request.label.clone(),
        }
    }

    pub(super) fn alike_of(request: &Request) -> Alike {
        request.alike.iter().map(|(what, value)| ((*what).to_owned(), value.clone())).collect()
    }

    /// Whether the Service could be in the way of others where it was not before: it has more ports, may share with others
    /// than it did, or wants another label.
    pub(super) fn are_exceeded_by(&self, service: &Service) -> bool {
        let request = &service.request;
        self.sharing != request.sharing
            || request.label.is_some() && self.label != request.label
            || !service.claims().all(|port| self.ports.contains(&port))
    }

    /// Whether the Service is in another group now: with the same key it can reach further, or less far, and is in the same.
    pub(super) fn are_of_another_group_than(&self, service: &Service) -> bool {
        let name = |sharing: &Sharing| sharing.key.as_ref().map(|key| (key.dialect.clone(), key.key.clone()));
        name(&self.sharing) != name(&service.request.sharing)
    }
}

/// Who stands in for a holder that cannot be understood now: a Service with a [`fault`](Service::fault), one that is
/// refused, or where the input is incomplete one that it does not have. It is on the terms that it got its addresses with,
/// so that they are not given to others.
pub(super) fn stand_in(model: &Model, name: &ServiceName, held: &Held) -> Option<Service> {
    let lost = || model.refused.contains_key(name) || model.incomplete && !model.ignored.contains_key(name);
    let service = match model.services.get(name) {
        Some(service) => service.fault.is_some().then(|| service.clone())?,
        None => lost().then(|| unread(name, held))?,
    };
    let plain = Sharing { key: None, by_address: ByAddress::Plain };
    let request = held.terms.as_ref().map_or_else(
        || Request { sharing: plain, ..Request::default() },
        |terms| Request { sharing: terms.sharing.clone(), label: terms.label.clone(), ..Request::default() },
    );
    Some(Service { request, ..service })
}

/// All that is known of a Service by what it holds.
fn unread(name: &ServiceName, held: &Held) -> Service {
    let ports = held.terms.iter().flat_map(|terms| &terms.ports);
    Service {
        name: name.clone(),
        created: None,
        uid: None,
        labels: Labels::new(),
        ports: ports.map(|port| (*port, String::new())).collect(),
        unexposed: BTreeSet::new(),
        probes: BTreeMap::new(),
        families: Families::Single(Family::V4),
        policy: Policy::default(),
        idle: IdleTimeouts::default(),
        request: Request::default(),
        fault: Some(Refusal::new(Reason::InvalidService, "it cannot be read")),
        notices: Vec::new(),
        status: Shown::default(),
    }
}

/// Adds what the Services' statuses show, where the holders say nothing.
pub fn with_statuses(mut holders: Holders, model: &Model) -> Holders {
    for name in model.services.keys().chain(model.refused.keys()) {
        if !holders.contains_key(name)
            && let Some(held) = by_status(name, model)
        {
            holders.insert(name.clone(), held);
        }
    }
    holders
}

/// What the Service holds by its status. That can come from anywhere, so only addresses that are in a pool count. Where an
/// allocator said something of them its word does: all of them, whatever became of the pools since, or none.
pub(super) fn by_status(name: &ServiceName, model: &Model) -> Option<Held> {
    let shown = model.status(name)?;
    let in_a_pool = |vip: Vip| model.pools.iter().any(|pool| pool.contains(vip));
    let counts = |vip: &&Vip| shown.given.unwrap_or_else(|| in_a_pool(**vip));
    let addresses: BTreeSet<Vip> = shown.addresses.iter().filter(counts).copied().collect();
    (!addresses.is_empty()).then_some(Held { addresses, terms: None })
}
