//! From objects to what statuses are to say, and which of them do not: one snapshot after the other. Without clock or I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::ordmap::DiffItem;
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::ledger::{Custom, CustomStatus, Ledger, Verdict};
use crate::{
    allocate::{Allocator, holders::with_statuses},
    model::{Model, Options, ServiceName},
    source::Objects,
    status::{Difference, Leaders, Statement, View, is_marked, policies, pools},
};

/// Decides. Remembers who got what: until the watch shows what was written, and where nothing can be written.
#[derive(Debug)]
pub struct Decider {
    options: Options,
    /// What others wrote is overwritten.
    adopt: bool,
    last: Option<Last>,
}

/// What the last decision rests on.
#[derive(Debug)]
struct Last {
    objects: Objects,
    model: Model,
    allocator: Allocator,
}

impl Last {
    fn serves(&self, name: &ServiceName) -> bool {
        self.model.services.contains_key(name) || self.model.refused.contains_key(name)
    }
}

/// What is to be written.
#[derive(Debug, Default)]
pub struct Decision {
    /// Services whose statuses are to say something else than they do.
    pub services: BTreeMap<ServiceName, (Arc<Service>, Statement, Difference)>,
    /// Services that have something of ours in their statuses, and are not ours any more, or gone.
    pub departed: BTreeSet<ServiceName>,
    /// Pools and policies whose statuses are to say this.
    pub customs: BTreeMap<Custom, (ObjectMeta, CustomStatus)>,
    /// What was refused, or can only be told in the log: whom it is about, and what is wrong.
    pub complaints: BTreeSet<String>,
}

impl Decider {
    /// One that remembers nothing: what statuses show is who holds what.
    pub fn new(options: Options, adopt: bool) -> Self {
        Self { options, adopt, last: None }
    }

    /// What is to be written, by these objects and leaders, and by what came of writing.
    pub fn decide(&mut self, objects: &Objects, leaders: &Leaders, ledger: &mut Ledger) -> Decision {
        let objects = relevant(objects);
        ledger.retain(&objects);
        let before = self.last.take();
        let mut departed = before.as_ref().map(|last| departed(last, &objects)).unwrap_or_default();
        let last = self.allocate(before, objects);
        let last = self.last.insert(last);
        let Last { objects, model, allocator } = &*last;
        let marked = |name: &&ServiceName| {
            let service = objects.services.get(*name);
            service.is_some_and(|service| is_marked(service) && !ledger.has_withdrawn(name, service))
        };
        departed.extend(model.ignored.keys().filter(marked).cloned());
        let view = View { objects, model, allocation: allocator.allocation(), leaders };
        let services = objects.services.iter().filter_map(|(name, service)| {
            let wanted = wanted(name, service, view, ledger, self.adopt)?;
            let difference = wanted.differs(service)?;
            let write = ledger.verdict(name, service, &wanted) == Verdict::Write;
            write.then(|| (name.clone(), (Arc::clone(service), wanted, difference)))
        });
        Decision {
            services: services.collect(),
            departed,
            customs: customs(view, ledger),
            complaints: complaints(objects, model),
        }
    }

    /// Whether what others wrote is overwritten.
    pub const fn adopts(&self) -> bool {
        self.adopt
    }

    /// Whether this Service is one that is ours, by the last decision.
    pub fn serves(&self, name: &ServiceName) -> bool {
        self.last.as_ref().is_some_and(|last| last.serves(name))
    }

    /// Whether there is such a pool or policy.
    pub fn knows(&self, object: &Custom) -> bool {
        self.last.as_ref().is_some_and(|last| match object {
            Custom::Pool(name) => last.objects.vip_pools.contains_key(name),
            Custom::Policy(name) => last.objects.vip_policies.contains_key(name),
        })
    }

    /// How many Services have addresses, and how many wait.
    pub fn counts(&self) -> (usize, usize) {
        let allocation = self.last.as_ref().map(|last| last.allocator.allocation());
        allocation.map_or((0, 0), |allocation| (allocation.assignments.len(), allocation.refusals.len()))
    }

    /// Who gets what, from where the last decision ended as far as that is possible.
    fn allocate(&self, last: Option<Last>, objects: Objects) -> Last {
        let Some(mut last) = last else {
            let model = Model::ingest(&objects, &self.options);
            let allocator = Allocator::new(&model, &with_statuses(BTreeMap::new(), &model));
            return Last { objects, model, allocator };
        };
        if same(&last.objects, &objects) {
            return Last { objects, ..last };
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
            let mut holders = last.allocator.allocation().holders();
            holders.retain(|name, _| !gone.contains(name));
            last.allocator = Allocator::new(&model, &with_statuses(holders, &model));
        }
        Last { objects, model, allocator: last.allocator }
    }
}

/// What this Service's status is to say; `None`: it is not ours.
fn wanted(name: &ServiceName, service: &Service, view: View<'_>, ledger: &Ledger, adopt: bool) -> Option<Statement> {
    let wanted = Statement::of(name, view, None)?;
    if wanted.has_ingress(service) {
        return Some(wanted);
    }
    let given = wanted.ingress.as_ref().is_some_and(|addresses| !addresses.is_empty());
    match ledger.foreign(name, service) {
        Some(foreign) if !(adopt && given) => Statement::of(name, view, Some(foreign)),
        _ => Some(wanted),
    }
}

/// Without the endpoints, which decide nothing here; but for the API server's own, which are never assigned.
fn relevant(objects: &Objects) -> Objects {
    let from = ("default".to_owned(), String::new());
    let of_default = objects.endpoint_slices.range(from..).take_while(|((namespace, _), _)| namespace == "default");
    Objects {
        endpoint_slices: of_default.map(|(key, slice)| (key.clone(), Arc::clone(slice))).collect(),
        ..objects.clone()
    }
}

fn same(a: &Objects, b: &Objects) -> bool {
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

/// Services that were ours, or had something of ours, and are not there any more. The watch is of load balancers alone: one
/// that is of another type by now looks like one that is gone.
///
/// Of those that were ours even one that showed nothing of ours is asked for: it may have been written since, and have left before the
/// watch told either. Where thousands are deleted at once that costs nothing, for all of them had been written.
fn departed(before: &Last, now: &Objects) -> BTreeSet<ServiceName> {
    let gone = before.objects.services.diff(&now.services).filter_map(|item| match item {
        DiffItem::Remove(name, service) => (is_marked(service) || before.serves(name)).then(|| name.clone()),
        DiffItem::Add(..) | DiffItem::Update { .. } => None,
    });
    gone.collect()
}

/// Pools and policies whose statuses differ from what they are to say.
fn customs(view: View<'_>, ledger: &Ledger) -> BTreeMap<Custom, (ObjectMeta, CustomStatus)> {
    let pools = pools(view).into_iter().filter_map(|(name, status)| {
        let pool = view.objects.vip_pools.get(&name)?;
        let differs = pool.status.as_ref() != Some(&status);
        differs.then(|| (Custom::Pool(name), (pool.metadata.clone(), CustomStatus::Pool(status))))
    });
    let policies = policies(view).into_iter().filter_map(|(name, status)| {
        let policy = view.objects.vip_policies.get(&name)?;
        let differs = policy.status.as_ref() != Some(&status);
        differs.then(|| (Custom::Policy(name), (policy.metadata.clone(), CustomStatus::Policy(status))))
    });
    let all = pools.chain(policies);
    all.filter(|(object, (metadata, status))| ledger.verdict_of(object, metadata, status) == Verdict::Write).collect()
}

/// What no Service's status tells.
fn complaints(objects: &Objects, model: &Model) -> BTreeSet<String> {
    let problems = objects.problems.iter().map(ToString::to_string);
    problems.chain(model.notes.iter().map(|note| format!("{}: {}", note.object, note.message))).collect()
}

#[cfg(test)]
mod tests;
