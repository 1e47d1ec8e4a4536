//! Computes desired statuses and finds those that differ, one snapshot after the other. Without
//! clock or I/O.

#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use imbl::ordmap::DiffItem;
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::write_cache::{CustomResource, CustomResourceStatus, WriteCache};
use vipmux_allocate::{
    Allocator, PostponedEdits,
    previous::with_statuses,
    status::{DesiredStatus, Leaders, StatusDifference, StatusInputs, is_marked, policies, pools},
};
use vipmux_model::{IngestOptions, Model, ServiceName, objects::Objects};

/// Decides which statuses to write.
///
/// It remembers which Service got which address: until the watch shows the write, and where nothing
/// can be written.
#[derive(Debug)]
pub struct StatusDecider {
    options: IngestOptions,
    /// Overwrite what other controllers wrote.
    adopt: bool,
    postponed: PostponedEdits,
    last: Option<LastDecision>,
}

/// The input and the allocation of the last decision.
#[derive(Debug)]
struct LastDecision {
    objects: Objects,
    model: Model,
    allocator: Allocator,
}

impl LastDecision {
    fn serves(&self, name: &ServiceName) -> bool {
        self.model.services.contains_key(name) || self.model.refused.contains_key(name)
    }
}

/// The statuses to write.
#[derive(Debug, Default)]
pub struct StatusDecision {
    /// Services whose statuses differ from the desired ones.
    pub services: BTreeMap<ServiceName, (Arc<Service>, DesiredStatus, StatusDifference)>,
    /// Services that are not ours any more or are gone, with something of ours in their statuses.
    pub departed: BTreeSet<ServiceName>,
    /// Pools and policies with their new statuses.
    pub custom_resources: BTreeMap<CustomResource, (ObjectMeta, CustomResourceStatus)>,
    /// Problems that only the log can show: the object and its problem.
    pub problems: BTreeSet<String>,
    /// The time to decide again although nothing changes.
    pub again: Option<Duration>,
}

impl StatusDecider {
    /// Returns a decider that remembers nothing. It takes the assignments from the statuses.
    pub fn new(options: IngestOptions, adopt: bool) -> Self {
        Self { options, adopt, postponed: PostponedEdits::default(), last: None }
    }

    /// Decides at `now` what to write from these objects, the VIPs' leaders and the results of writes.
    pub fn decide(
        &mut self,
        objects: &Objects,
        leaders: &Leaders,
        write_cache: &mut WriteCache,
        now: Duration,
    ) -> StatusDecision {
        let mut objects = relevant(objects);
        write_cache.retain(&objects);
        let before = self.last.take();
        if let Some(LastDecision { objects: before, allocator, .. }) = &before {
            objects = self.postponed.apply(before, &objects, allocator.allocation(), &self.options, now);
        }
        let mut departed = before.as_ref().map(|last| departed(last, &objects)).unwrap_or_default();
        let last = self.allocate(before, objects);
        let last = self.last.insert(last);
        let LastDecision { objects, model, allocator } = &*last;
        let marked = |name: &&ServiceName| {
            let service = objects.services.get(*name);
            service.is_some_and(|service| is_marked(service) && !write_cache.has_withdrawn(name, service))
        };
        departed.extend(model.ignored.keys().filter(marked).cloned());
        let view = StatusInputs { objects, model, allocation: allocator.allocation(), leaders };
        let judged = objects.services.iter().filter(|(name, _)| !self.postponed.contains(name));
        let services = judged.filter_map(|(name, service)| {
            let wanted = desired_status(name, service, view, write_cache, self.adopt)?;
            let difference = wanted.differs(service)?;
            write_cache
                .verdict(name, service, &wanted)
                .is_due()
                .then(|| (name.clone(), (Arc::clone(service), wanted, difference)))
        });
        StatusDecision {
            services: services.collect(),
            departed,
            custom_resources: custom_resources(view, write_cache),
            problems: log_problems(objects, model),
            again: self.postponed.next(),
        }
    }

    /// Returns whether it overwrites what other controllers wrote.
    pub const fn adopts(&self) -> bool {
        self.adopt
    }

    /// Returns whether the last decision was about this Service as one of ours.
    pub fn serves(&self, name: &ServiceName) -> bool {
        self.last.as_ref().is_some_and(|last| last.serves(name))
    }

    /// Returns whether the pool or policy existed at the last decision.
    pub fn knows(&self, object: &CustomResource) -> bool {
        self.last.as_ref().is_some_and(|last| match object {
            CustomResource::Pool(name) => last.objects.vip_pools.contains_key(name),
            CustomResource::Policy(name) => last.objects.vip_policies.contains_key(name),
        })
    }

    /// Returns how many Services have addresses, and how many wait for some.
    pub fn counts(&self) -> (usize, usize) {
        let allocation = self.last.as_ref().map(|last| last.allocator.allocation());
        allocation.map_or((0, 0), |allocation| (allocation.assignments.len(), allocation.refusals.len()))
    }

    /// Assigns addresses. Continues from the last decision as far as that is possible.
    fn allocate(&self, last: Option<LastDecision>, objects: Objects) -> LastDecision {
        let Some(mut last) = last else {
            let model = Model::ingest(&objects, &self.options);
            let allocator = Allocator::new(&model, &with_statuses(BTreeMap::new(), &model));
            return LastDecision { objects, model, allocator };
        };
        if inputs_unchanged(&last.objects, &objects) {
            return LastDecision { objects, ..last };
        }
        let model = Model::ingest(&objects, &self.options);
        let (mut changed, mut gone) = (BTreeSet::new(), BTreeSet::new());
        for item in last.objects.services.diff(&objects.services) {
            match item {
                DiffItem::Remove(name, _) => drop(gone.insert(name.clone())),
                DiffItem::Add(name, _) | DiffItem::Update { new: (name, _), .. } => drop(changed.insert(name.clone())),
            }
        }
        changed.extend(gone.iter().cloned());
        if last.allocator.renew(&model, &changed).is_none() {
            let mut holders = last.allocator.allocation().as_previous();
            holders.retain(|name, _| !gone.contains(name));
            last.allocator = Allocator::new(&model, &with_statuses(holders, &model));
        }
        LastDecision { objects, model, allocator: last.allocator }
    }
}

/// Returns the desired status of a Service; `None`: it is not ours.
fn desired_status(
    name: &ServiceName,
    service: &Service,
    view: StatusInputs<'_>,
    write_cache: &WriteCache,
    adopt: bool,
) -> Option<DesiredStatus> {
    let wanted = DesiredStatus::of(name, view, None)?;
    if wanted.has_ingress(service) {
        return Some(wanted);
    }
    let given = wanted.ingress.as_ref().is_some_and(|addresses| !addresses.is_empty());
    match write_cache.foreign(name, service) {
        Some(foreign) if !(adopt && given) => DesiredStatus::of(name, view, Some(foreign)),
        _ => Some(wanted),
    }
}

/// Returns the objects without EndpointSlices, which decide nothing here. Those of the namespace
/// `default` stay: they hold the API server's addresses, which are never assigned.
fn relevant(objects: &Objects) -> Objects {
    let from = ("default".to_owned(), String::new());
    let of_default = objects.endpoint_slices.range(from..).take_while(|((namespace, _), _)| namespace == "default");
    Objects {
        endpoint_slices: of_default.map(|(key, slice)| (key.clone(), Arc::clone(slice))).collect(),
        ..objects.clone()
    }
}

fn inputs_unchanged(a: &Objects, b: &Objects) -> bool {
    a.services.ptr_eq(&b.services)
        && a.nodes.ptr_eq(&b.nodes)
        && a.namespaces.ptr_eq(&b.namespaces)
        && a.address_pools.ptr_eq(&b.address_pools)
        && a.l2_advertisements.ptr_eq(&b.l2_advertisements)
        && a.vip_pools.ptr_eq(&b.vip_pools)
        && a.vip_policies.ptr_eq(&b.vip_policies)
        && a.endpoint_slices == b.endpoint_slices
        && a.problems == b.problems
}

/// Returns the Services that are gone since the last decision and were ours, or had something of
/// ours in their statuses. The watch covers load balancers alone, so a Service that changed its
/// type looks like one that is gone.
///
/// A Service that was ours counts even if it showed nothing of ours: the write and the deletion may
/// both come before the watch shows the write. This costs nothing if thousands of Services are
/// deleted at once, because all of them have been written.
fn departed(before: &LastDecision, now: &Objects) -> BTreeSet<ServiceName> {
    let gone = before.objects.services.diff(&now.services).filter_map(|item| match item {
        DiffItem::Remove(name, service) => (is_marked(service) || before.serves(name)).then(|| name.clone()),
        DiffItem::Add(..) | DiffItem::Update { .. } => None,
    });
    gone.collect()
}

/// Returns the pools and policies whose statuses differ from the desired ones.
fn custom_resources(
    view: StatusInputs<'_>,
    write_cache: &WriteCache,
) -> BTreeMap<CustomResource, (ObjectMeta, CustomResourceStatus)> {
    let pools = pools(view).into_iter().filter_map(|(name, status)| {
        let pool = view.objects.vip_pools.get(&name)?;
        let differs = pool.status.as_ref() != Some(&status);
        differs.then(|| (CustomResource::Pool(name), (pool.metadata.clone(), CustomResourceStatus::Pool(status))))
    });
    let policies = policies(view).into_iter().filter_map(|(name, status)| {
        let policy = view.objects.vip_policies.get(&name)?;
        let differs = policy.status.as_ref() != Some(&status);
        differs.then(|| (CustomResource::Policy(name), (policy.metadata.clone(), CustomResourceStatus::Policy(status))))
    });
    let all = pools.chain(policies);
    all.filter(|(object, (metadata, status))| write_cache.custom_verdict(object, metadata, status).is_due()).collect()
}

/// Returns the problems that no Service's status shows.
fn log_problems(objects: &Objects, model: &Model) -> BTreeSet<String> {
    let problems = objects.problems.iter().map(ToString::to_string);
    problems.chain(model.notes.iter().map(|note| format!("{}: {}", note.object, note.message))).collect()
}

#[cfg(test)]
mod tests;
