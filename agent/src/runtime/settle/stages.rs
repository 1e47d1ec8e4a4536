//! One snapshot after the other: all stages for the first one, and for the others what changed, where it can be told.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;

use super::{
    Course, Settled,
    agreement::{Agreement, Authority},
    probed::Probed,
};
use crate::{
    allocate::{Allocation, holders::Holders},
    assignments::Stamp,
    election::placement::{self, contenders_of},
    explain::Decided,
    metrics::Tally,
    model::{
        Model, NodeName, Options, PortClaim, ServiceName, Slices,
        endpoints::{desired_service, desired_services},
        health::{self, Checkups, Findings, Health},
        reason::{Reason, Refusal},
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
    authority: Authority,
    memory: Memory,
    health: Arc<Health>,
    last: Option<Last>,
}

/// What the last snapshot came to, for the next one to start from.
struct Last {
    model: Model,
    slices: Slices,
    claims: BTreeMap<ServiceName, Vec<PortClaim>>,
    settled: Settled,
    agreement: Agreement,
    /// The backends' health that it rests on.
    health: Arc<Health>,
    probed: Probed,
    /// What is told of claims whose probes are ignored; among the complaints.
    ignored: BTreeMap<PortClaim, String>,
}

impl Last {
    /// Settles the claims of a Service anew.
    fn settle(&mut self, owner: &ServiceName) {
        for claim in self.claims.get(owner).into_iter().flatten() {
            let Some(desired) = desired_service(&self.model, claim, owner, &self.health) else { continue };
            if self.settled.services.get(claim) != Some(&desired) {
                self.settled.services.insert(*claim, desired);
            }
        }
        self.watch(owner);
    }

    /// Takes note of the backends of a Service that are probed, and of those whose probes are ignored.
    fn watch(&mut self, owner: &ServiceName) {
        let mut checkups = Vec::new();
        for claim in self.claims.get(owner).into_iter().flatten() {
            let Some(desired) = self.settled.services.get(claim) else { continue };
            checkups.extend(health::checkups(&self.model, claim, desired));
            let told = health::ignored(claim, desired);
            let before = match &told {
                Some(text) => self.ignored.insert(*claim, text.clone()),
                None => self.ignored.remove(claim),
            };
            if before != told {
                let complaints = Arc::make_mut(&mut self.settled.complaints);
                if let Some(text) = &before {
                    complaints.remove(text);
                }
                complaints.extend(told);
            }
        }
        self.probed.set(owner, checkups);
    }
}

impl Stages {
    /// `authority`: who gives addresses.
    pub(super) fn new(options: Options, authority: Authority, memory: Memory) -> Self {
        Self { options, authority, memory, health: Arc::default(), last: None }
    }

    /// Takes the health of backends that the next state is to rest on.
    pub(super) fn hear(&mut self, health: Arc<Health>) {
        self.health = health;
    }

    /// What a node is to check of its backends, by what was settled last.
    pub(super) fn checkups(&self, node: &NodeName) -> Checkups {
        self.last.as_ref().map(|last| last.probed.checkups(node)).unwrap_or_default()
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// Whether what was settled last is written where it is to be kept.
    pub(super) fn is_kept(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.agreement.failure().is_none())
    }

    /// Tries to write it again with the next state, if it is not.
    pub(super) fn write_again(&mut self) {
        if let Some(last) = &mut self.last {
            last.agreement.write_again();
        }
    }

    /// What was settled last.
    pub(super) fn decided<'a>(&'a self, findings: &'a Findings, now: Duration) -> Option<Decided<'a>> {
        let Last { model, agreement, settled, .. } = self.last.as_ref()?;
        let allocation = agreement.allocation();
        let (services, leaders) = (&settled.services, &*settled.leaders);
        Some(Decided { objects: &self.memory.objects, model, allocation, services, leaders, findings, now })
    }

    /// What should be served by these objects. `seen`: the state file as it is now.
    pub(super) fn settle(&mut self, objects: &Arc<Objects>, seen: Option<Stamp>) -> Settled {
        let settled = self.renew(objects, seen).unwrap_or_else(|| self.begin(objects, seen));
        self.memory.objects = Arc::clone(objects);
        settled
    }

    /// The short way, if nothing but endpoints and their health changed: who holds what has nothing to do with them.
    fn renew(&mut self, objects: &Objects, seen: Option<Stamp>) -> Option<Settled> {
        let last = self.last.as_mut().filter(|last| last.agreement.holds(seen))?;
        let mut touched = last.model.renew(&mut last.slices, &self.memory.objects, objects)?;
        touched.extend(last.probed.concerned(&last.health, &self.health));
        last.health = Arc::clone(&self.health);
        for owner in &touched {
            last.settle(owner);
        }
        Some(last.settled.clone())
    }

    /// All stages.
    fn begin(&mut self, objects: &Objects, seen: Option<Stamp>) -> Settled {
        let last = self.last.take();
        let (before, agreement) = last.map(|last| (last.settled.services, last.agreement)).unzip();
        let model = Model::ingest(objects, &self.options);
        let mut complaints: BTreeSet<String> = objects.problems.iter().map(ToString::to_string).collect();
        let agreement = self.authority.agree(agreement, &mut self.memory, objects, &model, seen);
        complaints.extend(agreement.failure().map(str::to_owned));
        let allocation = agreement.allocation();
        complaints.extend(refusals(&model, allocation));
        let claims = allocation.claims();
        let services = desired_services(&model, &claims, &self.health, &before.unwrap_or_default());
        let settled = settled(&model, allocation, services, complaints);
        let mut by_owner: BTreeMap<ServiceName, Vec<PortClaim>> = BTreeMap::new();
        for (claim, owner) in claims {
            by_owner.entry(owner).or_default().push(claim);
        }
        let probing = model.services.values().filter(|service| !service.probes.is_empty());
        let probing: Vec<_> = probing.map(|service| service.name.clone()).collect();
        let (slices, health) = (Slices::of(objects), Arc::clone(&self.health));
        let (probed, ignored) = Default::default();
        let mut last = Last { model, slices, claims: by_owner, settled, agreement, health, probed, ignored };
        for owner in &probing {
            last.watch(owner);
        }
        self.last.insert(last).settled.clone()
    }
}

fn settled(
    model: &Model,
    allocation: &Allocation,
    services: OrdMap<PortClaim, DesiredService>,
    complaints: BTreeSet<String>,
) -> Settled {
    let vips = allocation.vips();
    let candidates = vips.keys().map(|vip| (*vip, Arc::clone(model.candidates(*vip))));
    let contenders = contenders_of(model, vips.keys().copied());
    let nodes = model.nodes.values().map(|node| (node.name.clone(), node.reached_by().collect()));
    Settled {
        services,
        leaders: Arc::new(placement::leaders(&contenders)),
        contenders: Arc::new(contenders),
        candidates: Arc::new(candidates.collect()),
        nodes: Arc::new(nodes.collect()),
        complaints: Arc::new(complaints),
        look: 0,
        tally: Arc::new(tally(allocation)),
        course: Course::default(),
    }
}

fn tally(allocation: &Allocation) -> Tally {
    let mut refused: BTreeMap<Reason, usize> = BTreeMap::new();
    for refusal in allocation.refusals.values() {
        *refused.entry(refusal.reason).or_default() += 1;
    }
    Tally { allocated: allocation.assignments.len(), withheld: allocation.withheld.len(), refused }
}

/// Not of those who wait for their controller, as each new Service of a cluster does for a moment: they are told what they wait
/// for by who makes them wait.
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
    let waits = |name: &ServiceName| model.services.get(name).is_some_and(|it| it.status.addresses.is_empty());
    let told = |(name, refusal): &(&ServiceName, &Refusal)| refusal.reason != Reason::Unallocated || !waits(name);
    let refused = allocation.refusals.iter().filter(told).map(one);
    refused.chain(notes).chain(warnings).chain(notices).chain(withheld).collect()
}

#[cfg(test)]
pub(super) mod tests;
