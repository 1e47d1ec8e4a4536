//! One snapshot after the other: all stages for the first one, and for the others what changed, where it can be told.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use imbl::{OrdMap, ordmap::DiffItem};

use super::{Settled, Stamp};
use crate::{
    allocate::{
        Allocation, allocate,
        holders::{Holders, with_statuses},
    },
    assignments::{self, AssignmentsError},
    election::rendezvous,
    model::{
        Model, Options, PortClaim, ServiceName, Slices,
        endpoints::{desired_service, desired_services},
        reason::Refusal,
    },
    plan::DesiredService,
    source::Objects,
};

/// What outlives a failure.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Serves where the state file cannot be used: what is held never moves for that.
    pub(super) holders: Arc<Holders>,
    /// The last snapshot. Services that were in it and are gone hold nothing any more, though there may be others in what
    /// cannot be read.
    pub(super) objects: Arc<Objects>,
}

/// See the module.
pub(super) struct Stages {
    options: Options,
    path: PathBuf,
    memory: Memory,
    last: Option<Last>,
}

/// What the last snapshot came to, for the next one to start from.
struct Last {
    model: Model,
    slices: Slices,
    claims: BTreeMap<ServiceName, Vec<PortClaim>>,
    settled: Settled,
    /// The state file that it rests on.
    seen: Option<Stamp>,
    /// It could be read, and written where need was; otherwise that is tried again each time.
    agreed: bool,
}

impl Stages {
    /// `path`: the state file.
    pub(super) fn new(options: Options, path: PathBuf, memory: Memory) -> Self {
        Self { options, path, memory, last: None }
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// What should be served by these objects. `seen`: the state file as it is now.
    pub(super) fn settle(&mut self, objects: &Arc<Objects>, seen: Option<Stamp>) -> Settled {
        let settled = self.renew(objects, seen).unwrap_or_else(|| self.begin(objects, seen));
        self.memory.objects = Arc::clone(objects);
        settled
    }

    /// The short way, if nothing but endpoints changed: who holds what has nothing to do with them.
    fn renew(&mut self, objects: &Objects, seen: Option<Stamp>) -> Option<Settled> {
        let last = self.last.as_mut().filter(|last| last.agreed && last.seen == seen)?;
        let touched = last.model.renew(&mut last.slices, &self.memory.objects, objects)?;
        for owner in &touched {
            for claim in last.claims.get(owner).into_iter().flatten() {
                let desired = desired_service(&last.model, claim, owner);
                if let Some(desired) = desired.filter(|desired| last.settled.services.get(claim) != Some(desired)) {
                    last.settled.services.insert(*claim, desired);
                }
            }
        }
        Some(last.settled.clone())
    }

    /// All stages.
    fn begin(&mut self, objects: &Objects, seen: Option<Stamp>) -> Settled {
        let before = self.last.take().map(|last| last.settled.services).unwrap_or_default();
        let model = Model::ingest(objects, &self.options);
        let mut complaints: BTreeSet<String> = objects.problems.iter().map(ToString::to_string).collect();
        let agreed = self.agree(objects, &model);
        let (allocation, agreed) = agreed.map_or_else(
            |(allocation, error)| {
                complaints.insert(format!("{:#}; addresses are held in memory only", anyhow::Error::from(error)));
                (allocation, false)
            },
            |allocation| (allocation, true),
        );
        complaints.extend(refusals(&model, &allocation));
        let claims = allocation.claims();
        let settled = settled(&model, &allocation, &claims, &before, complaints);
        let mut by_owner: BTreeMap<ServiceName, Vec<PortClaim>> = BTreeMap::new();
        for (claim, owner) in claims {
            by_owner.entry(owner).or_default().push(claim);
        }
        self.memory.holders = Arc::new(allocation.holders());
        let slices = Slices::of(objects);
        self.last = Some(Last { model, slices, claims: by_owner, settled: settled.clone(), seen, agreed });
        settled
    }

    /// Who gets what, written to the state file. Where that fails, by what is held in memory.
    fn agree(&self, objects: &Objects, model: &Model) -> Result<Allocation, (Allocation, AssignmentsError)> {
        let difference = self.memory.objects.services.diff(&objects.services);
        let gone: BTreeSet<_> = difference
            .filter_map(|item| match item {
                DiffItem::Remove(name, _) => Some(name.clone()),
                _ => None,
            })
            .collect();
        let allocate = |holders: &Holders| {
            let left = holders.iter().filter(|(name, _)| !gone.contains(name));
            let left = left.map(|(name, held)| (name.clone(), held.clone())).collect();
            allocate(model, &with_statuses(left, model))
        };
        let agreed = assignments::update(&self.path, |holders| {
            let allocation = allocate(holders);
            (allocation.holders(), allocation)
        });
        agreed.map_err(|error| (allocate(&self.memory.holders), error))
    }
}

fn settled(
    model: &Model,
    allocation: &Allocation,
    claims: &BTreeMap<PortClaim, ServiceName>,
    before: &OrdMap<PortClaim, DesiredService>,
    complaints: BTreeSet<String>,
) -> Settled {
    let vips = allocation.vips();
    let candidates = vips.keys().map(|vip| (*vip, Arc::clone(model.candidates(*vip))));
    let nodes = model.nodes.values().map(|node| (node.name.clone(), node.reached_by().collect()));
    Settled {
        services: desired_services(model, claims, before),
        leaders: Arc::new(rendezvous::leaders(model, vips.keys().copied())),
        candidates: Arc::new(candidates.collect()),
        nodes: Arc::new(nodes.collect()),
        complaints: Arc::new(complaints),
        look: 0,
    }
}

fn refusals(model: &Model, allocation: &Allocation) -> Vec<String> {
    let one = |(name, refusal): (&ServiceName, &Refusal)| {
        format!("Service {name} is not served: {} ({:?})", refusal.message, refusal.reason)
    };
    let notes = model.notes.iter().map(|note| format!("{}: {}", note.object, note.message));
    let warnings = allocation.assignments.iter().flat_map(|(name, assignment)| {
        assignment.warnings.iter().map(move |warning| format!("Service {name}: {warning}"))
    });
    let notices = model
        .services
        .values()
        .flat_map(|service| service.notices.iter().map(move |notice| format!("Service {}: {notice}", service.name)));
    let withheld = allocation.withheld.iter().map(|(name, held)| {
        let addresses: Vec<_> = held.addresses.iter().map(ToString::to_string).collect();
        format!("Service {name} cannot be read: {} is kept for it, and nothing is served there", addresses.join(", "))
    });
    let refused = allocation.refusals.iter().map(one);
    refused.chain(notes).chain(warnings).chain(notices).chain(withheld).collect()
}

#[cfg(test)]
mod tests;
