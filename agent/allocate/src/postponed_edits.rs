//! Postpones edits that would cost their Services an address.
//!
//! The changes of a commit come one by one. A port that goes from one Service to another clashes for a moment, and
//! so do the keys of a group that is renamed. The rest of the change mostly follows at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use imbl::ordmap::DiffItem;

use crate::{allocation::Allocation, allocator::allocate, previous::with_statuses};
use vipmux_model::{IngestOptions, Model, ServiceName, objects::Objects};

/// The longest time for which an edit waits.
pub const POSTPONED: Duration = Duration::from_secs(2);

/// The edits that wait, with the time at which each came.
#[derive(Clone, Debug, Default)]
pub struct PostponedEdits {
    since: BTreeMap<ServiceName, Duration>,
}

impl PostponedEdits {
    /// Returns the objects to allocate at `now`: `objects`, but edited Services as in `before` where an edit would
    /// cost a Service an address. `before`: the objects of the last allocation, as returned then.
    pub fn apply(
        &mut self,
        before: &Objects,
        objects: &Objects,
        allocation: &Allocation,
        options: &IngestOptions,
        now: Duration,
    ) -> Objects {
        let edited = edited(before, objects, allocation, options);
        self.since.retain(|name, _| edited.contains(name));
        for name in edited {
            self.since.entry(name).or_insert(now);
        }
        self.since.retain(|_, since| now < *since + POSTPONED);
        if self.since.is_empty() {
            return objects.clone();
        }
        let model = Model::ingest(objects, options);
        let mut holders = allocation.as_previous();
        holders.retain(|name, _| objects.services.contains_key(name));
        let after = allocate(&model, &with_statuses(holders, &model));
        let loses = |name: &ServiceName| {
            let had = allocation.holding(name).map(|(addresses, _)| addresses);
            let has = after.holding(name).map(|(addresses, _)| addresses);
            had.is_some_and(|had| !has.is_some_and(|has| had.is_subset(has)))
        };
        if !self.since.keys().any(loses) {
            self.since.clear();
            return objects.clone();
        }
        // All edits wait: what follows may complete the change of any.
        let mut services = objects.services.clone();
        for name in self.since.keys() {
            services.extend(before.services.get(name).map(|service| (name.clone(), Arc::clone(service))));
        }
        Objects { services, ..objects.clone() }
    }

    /// Returns when the next edit ceases to wait.
    pub fn next(&self) -> Option<Duration> {
        self.since.values().min().map(|since| *since + POSTPONED)
    }

    /// Returns whether an edit of the Service waits.
    pub fn contains(&self, name: &ServiceName) -> bool {
        self.since.contains_key(name)
    }
}

/// Returns the Services that were edited so that they could be in the way of others.
fn edited(
    before: &Objects,
    objects: &Objects,
    allocation: &Allocation,
    options: &IngestOptions,
) -> BTreeSet<ServiceName> {
    let updated = before.services.diff(&objects.services).filter_map(|item| match item {
        DiffItem::Update { old: (_, old), new: (name, new) } => {
            let differs = old.spec != new.spec || old.metadata.annotations != new.metadata.annotations;
            let differs = differs && old.metadata.uid == new.metadata.uid;
            (differs && allocation.assignments.contains_key(name)).then(|| (name.clone(), new.clone()))
        }
        DiffItem::Add(..) | DiffItem::Remove(..) => None,
    });
    let few = Objects { services: updated.collect(), ..objects.clone() };
    if few.services.is_empty() {
        return BTreeSet::new();
    }
    let model = Model::ingest(&few, options);
    let exceeds = |name: &&ServiceName| {
        let (service, held) = (&model.services[*name], &allocation.assignments[*name]);
        let Some(snapshot) = held.snapshot.as_ref().filter(|_| service.fault.is_none()) else { return false };
        // A Service that asks for another address or pool is meant to move.
        let stays = service.request.addresses.is_subset(&held.addresses);
        stays && service.request.pool.name() == snapshot.pool.as_deref() && snapshot.is_exceeded_by(service)
    };
    model.services.keys().filter(exceeds).cloned().collect()
}
