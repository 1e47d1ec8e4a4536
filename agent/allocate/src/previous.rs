//! Defines the addresses that Services hold before an allocation.

use std::collections::{BTreeMap, BTreeSet};

use crate::{request_record, request_snapshot::RequestSnapshot};
use vipmux_model::{
    Family, Model, ServiceName, Vip,
    policy::{IdleTimeouts, Policy},
    published_status::PublishedStatus,
    reason::{Reason, Refusal},
    request::{ByAddress, Request, Sharing},
    selector::Labels,
    service::{Families, Service},
};

/// The addresses that Services hold, from `assignments.yaml` or from the Services' statuses.
pub type PreviousAssignments = BTreeMap<ServiceName, PreviousAssignment>;

/// The addresses that a Service holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousAssignment {
    /// The addresses.
    pub addresses: BTreeSet<Vip>,
    /// The request that it holds them for; `None`: not known.
    pub snapshot: Option<RequestSnapshot>,
}

/// Returns a placeholder for a holder that cannot be understood now.
///
/// Such a holder is a Service with a [`fault`](Service::fault) or one that is refused. If the input
/// is incomplete, it is also a Service that the input does not have. The placeholder has the
/// request that the addresses were assigned for, so that nobody else gets them.
pub(super) fn placeholder(model: &Model, name: &ServiceName, held: &PreviousAssignment) -> Option<Service> {
    let lost = || model.refused.contains_key(name) || model.incomplete && !model.ignored.contains_key(name);
    let service = match model.services.get(name) {
        Some(service) => service.fault.is_some().then(|| service.clone())?,
        None => lost().then(|| unread(name, held))?,
    };
    let plain = Sharing { key: None, by_address: ByAddress::Plain };
    let request = held.snapshot.as_ref().map_or_else(
        || Request { sharing: plain, ..Request::default() },
        |snapshot| Request { sharing: snapshot.sharing.clone(), label: snapshot.label.clone(), ..Request::default() },
    );
    Some(Service { request, ..service })
}

/// Returns a Service with all that is known from the addresses it holds.
fn unread(name: &ServiceName, held: &PreviousAssignment) -> Service {
    let ports = held.snapshot.iter().flat_map(|snapshot| &snapshot.ports);
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
        status: PublishedStatus::default(),
    }
}

/// Adds the addresses that the Services' statuses show, where `previous` has none.
pub fn with_statuses(mut previous: PreviousAssignments, model: &Model) -> PreviousAssignments {
    let given = given_addresses(model);
    for name in model.services.keys().chain(model.refused.keys()) {
        if !previous.contains_key(name)
            && let Some(held) = from_status(name, model).or_else(|| from_foreign_status(name, model, &given))
        {
            previous.insert(name.clone(), held);
        }
    }
    previous
}

/// Returns the addresses that an allocator has given to Services, as their statuses show.
fn given_addresses(model: &Model) -> BTreeSet<Vip> {
    let statuses = model.services.values().map(|service| &service.status).chain(model.refused_statuses.values());
    statuses.filter(|status| status.given == Some(true)).flat_map(|status| status.addresses.iter().copied()).collect()
}

/// Returns the addresses that another controller gave to the Service, as a former load balancer.
/// They count where it could keep them without that controller: in a pool, and given to no other
/// Service. So an allocator that may overwrite such statuses moves no Service.
fn from_foreign_status(name: &ServiceName, model: &Model, given: &BTreeSet<Vip>) -> Option<PreviousAssignment> {
    let shown = model.status(name).filter(|status| status.foreign)?;
    let counts = |vip: &&Vip| !given.contains(*vip) && model.pool_of(**vip).is_some();
    let addresses: BTreeSet<Vip> = shown.addresses.iter().filter(counts).copied().collect();
    (!addresses.is_empty()).then(|| PreviousAssignment { addresses, snapshot: judged_request(name, model) })
}

/// Returns the request of the Service that the allocator judged last, as far as its status tells it.
pub(super) fn judged_request(name: &ServiceName, model: &Model) -> Option<RequestSnapshot> {
    let text = model.status(name)?.request.as_deref()?;
    let readable = model.services.get(name).filter(|service| service.fault.is_none());
    request_record::decode(text, readable.map(RequestSnapshot::of).as_ref())
}

/// Returns the addresses that the Service holds by its status.
///
/// Anybody can write a status, so only addresses in a pool count. If an allocator wrote the
/// condition `Allocated`, that decides: all addresses count, whatever happened to the pools since,
/// or none.
pub(super) fn from_status(name: &ServiceName, model: &Model) -> Option<PreviousAssignment> {
    let shown = model.status(name)?;
    let in_a_pool = |vip: Vip| model.pools.iter().any(|pool| pool.contains(vip));
    let counts = |vip: &&Vip| shown.given.unwrap_or_else(|| in_a_pool(**vip));
    let addresses: BTreeSet<Vip> = shown.addresses.iter().filter(counts).copied().collect();
    (!addresses.is_empty()).then(|| PreviousAssignment { addresses, snapshot: judged_request(name, model) })
}
