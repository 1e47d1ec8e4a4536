//! Who holds what: the memory of an allocation.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{
    Family, Model, ServiceName, Vip,
    name::Port,
    policy::{IdleTimeouts, Policy},
    reason::{Reason, Refusal},
    request::{ByAddress, Request, Sharing, SharingKey},
    selector::Labels,
    service::{Families, Service},
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its ports.
    pub ports: BTreeSet<Port>,
    /// Its sharing key.
    pub sharing_key: Option<SharingKey>,
    /// The pool that it asked for by name.
    pub pool: Option<String>,
}

impl Held {
    /// Whether the Service's key is another now, as far as is known.
    pub(super) fn key_changed(&self, service: &Service) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.sharing_key != service.request.sharing.key)
    }

    /// Whether the Service is in another group now, as far as is known: with the same key it can reach further, or less far,
    /// and is in the same.
    pub(super) fn regrouped(&self, service: &Service) -> bool {
        let name = |key: &Option<SharingKey>| key.as_ref().map(|key| (key.dialect.clone(), key.key.clone()));
        self.terms.as_ref().is_some_and(|terms| name(&terms.sharing_key) != name(&service.request.sharing.key))
    }

    /// Whether the Service asks for its pool anew, as far as is known: what became of the pool meanwhile is no reason to move.
    pub(super) fn asks_anew(&self, service: &Service) -> bool {
        self.terms.as_ref().is_none_or(|terms| terms.pool.as_deref() != service.request.pool.name())
    }

    /// Whether the Service claims ports that it did not claim before, as far as is known.
    pub(super) fn ports_added(&self, service: &Service) -> bool {
        self.terms.as_ref().is_some_and(|terms| !service.claims().all(|port| terms.ports.contains(&port)))
    }
}

/// Who stands in for holders that cannot be understood now: Services with a [`fault`](Service::fault), those that are
/// refused, and where the input is incomplete those that it does not have. Each with the sharing key that it got its
/// addresses with, so that they are not given to others.
pub(super) fn stand_ins(model: &Model, holders: &Holders) -> BTreeMap<ServiceName, Service> {
    let stand_in = |(name, held): (&ServiceName, &Held)| {
        let lost = || model.refused.contains_key(name) || model.incomplete && !model.ignored.contains_key(name);
        let service = match model.services.get(name) {
            Some(service) => service.fault.is_some().then(|| service.clone())?,
            None => lost().then(|| unread(name, held))?,
        };
        let key = held.terms.as_ref().and_then(|terms| terms.sharing_key.clone());
        let by_address = if key.is_some() { ByAddress::Never } else { ByAddress::Plain };
        let request = Request { sharing: Sharing { key, by_address }, ..Request::default() };
        Some((name.clone(), Service { request, ..service }))
    };
    holders.iter().filter_map(stand_in).collect()
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
        status: BTreeSet::new(),
    }
}

/// Adds what the Services' statuses show, where the holders say nothing. A status can come from anywhere, so only
/// addresses that are in a pool count.
pub fn with_statuses(mut holders: Holders, model: &Model) -> Holders {
    for (name, service) in &model.services {
        let in_a_pool = |vip: &&Vip| model.pools.iter().any(|pool| pool.contains(**vip));
        let addresses: BTreeSet<Vip> = service.status.iter().filter(in_a_pool).copied().collect();
        if !addresses.is_empty() && !holders.contains_key(name) {
            holders.insert(name.clone(), Held { addresses, terms: None });
        }
    }
    holders
}
