//! Runs the stages on one snapshot after the other: all of them, or only those that a change of
//! endpoints needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;

use super::{
    ServingState, Timing,
    allocation_source::{AllocationSource, CurrentAllocation, Memory},
    probe_targets::ProbedBackends,
};
use crate::metrics::ServiceCounts;
use vipmux_allocate::{Allocation, PostponedEdits};
use vipmux_cluster::assignments::FileVersion;
use vipmux_election::placement::{self, candidates_of};
use vipmux_inspect::explain::PipelineResults;
use vipmux_model::{
    IngestOptions, Model, NodeName, PortClaim, ServiceName, Slices,
    desired::DesiredService,
    health::{self, Checkups, Findings, Health},
    objects::Objects,
    reason::{Reason, Refusal},
    serving::{desired_service, desired_services},
};

/// The pipeline, with the state of the last snapshot.
pub(super) struct Stages {
    options: IngestOptions,
    source: AllocationSource,
    memory: Memory,
    health: Arc<Health>,
    postponed: PostponedEdits,
    last: Option<Last>,
}

/// The results of the last snapshot, from which the next one starts.
struct Last {
    model: Model,
    slices: Slices,
    claims: BTreeMap<ServiceName, Vec<PortClaim>>,
    state: ServingState,
    current: CurrentAllocation,
    /// The backends' health that was used.
    health: Arc<Health>,
    probed: ProbedBackends,
    /// The warnings about probes of claims that are ignored or not sent. They are also among the
    /// state's warnings.
    about_probes: BTreeMap<PortClaim, BTreeSet<String>>,
}

impl Last {
    /// Computes the claims of a Service again.
    fn update_service(&mut self, owner: &ServiceName) {
        for claim in self.claims.get(owner).into_iter().flatten() {
            let Some(desired) = desired_service(&self.model, claim, owner, &self.health) else { continue };
            if self.state.services.get(claim) != Some(&desired) {
                self.state.services.insert(*claim, desired);
            }
        }
        self.watch(owner);
    }

    /// Updates the probed backends of a Service, and the warnings about its probes.
    fn watch(&mut self, owner: &ServiceName) {
        let mut checkups = Vec::new();
        for claim in self.claims.get(owner).into_iter().flatten() {
            let Some(desired) = self.state.services.get(claim) else { continue };
            checkups.extend(health::checkups(&self.model, claim, desired));
            let told = [health::ignored(claim, desired), health::not_probed(&self.model, claim, desired)];
            let told: BTreeSet<String> = told.into_iter().flatten().collect();
            let before = self.about_probes.remove(claim).unwrap_or_default();
            if before != told {
                let warnings = Arc::make_mut(&mut self.state.warnings);
                for text in &before {
                    warnings.remove(text);
                }
                warnings.extend(told.iter().cloned());
            }
            if !told.is_empty() {
                self.about_probes.insert(*claim, told);
            }
        }
        self.probed.set(owner, checkups);
    }
}

impl Stages {
    pub(super) fn new(options: IngestOptions, source: AllocationSource, memory: Memory) -> Self {
        Self { options, source, memory, health: Arc::default(), postponed: PostponedEdits::default(), last: None }
    }

    /// Sets the health of backends for the next run.
    pub(super) fn set_health(&mut self, health: Arc<Health>) {
        self.health = health;
    }

    /// Returns the checkups of a node, by the last state.
    pub(super) fn checkups(&self, node: &NodeName) -> Checkups {
        self.last.as_ref().map(|last| last.probed.checkups(node)).unwrap_or_default()
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// Returns whether the last allocation is written to its state file.
    pub(super) fn is_kept(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.current.failure().is_none())
    }

    /// Lets the next run write the allocation again, if it is not written.
    pub(super) fn write_again(&mut self) {
        if let Some(last) = &mut self.last {
            last.current.write_again();
        }
    }

    /// Returns the last results, to explain them.
    pub(super) fn decided<'a>(&'a self, findings: &'a Findings, now: Duration) -> Option<PipelineResults<'a>> {
        let Last { model, current, state, .. } = self.last.as_ref()?;
        let allocation = current.allocation();
        let (services, leaders) = (&state.services, &*state.leaders);
        Some(PipelineResults { objects: &self.memory.objects, model, allocation, services, leaders, findings, now })
    }

    /// Returns the serving state of these objects at `now`. `seen`: the state file as it is now.
    pub(super) fn run(&mut self, objects: &Arc<Objects>, seen: Option<FileVersion>, now: Duration) -> ServingState {
        let objects = self.without_postponed(objects, now);
        let state = self.renew(&objects, seen).unwrap_or_else(|| self.begin(&objects, seen));
        self.memory.objects = objects;
        state
    }

    /// Returns the objects without the edits that wait. Statuses show what another controller decided already.
    fn without_postponed(&mut self, objects: &Arc<Objects>, now: Duration) -> Arc<Objects> {
        let Some(last) = self.last.as_ref().filter(|_| matches!(self.source, AllocationSource::File(_))) else {
            return Arc::clone(objects);
        };
        let allocation = last.current.allocation();
        Arc::new(self.postponed.apply(&self.memory.objects, objects, allocation, &self.options, now))
    }

    /// Returns the time of the next run if nothing changes before: an edit waits until then.
    pub(super) fn next(&self) -> Option<Duration> {
        self.postponed.next()
    }

    /// Updates the last state, if nothing but endpoints and their health changed: the allocation
    /// does not depend on them.
    fn renew(&mut self, objects: &Objects, seen: Option<FileVersion>) -> Option<ServingState> {
        let last = self.last.as_mut().filter(|last| last.current.holds(seen))?;
        let mut touched = last.model.update_endpoints(&mut last.slices, &self.memory.objects, objects)?;
        touched.extend(last.probed.concerned(&last.health, &self.health));
        last.health = Arc::clone(&self.health);
        for owner in &touched {
            last.update_service(owner);
        }
        Some(last.state.clone())
    }

    /// Runs all stages.
    fn begin(&mut self, objects: &Objects, seen: Option<FileVersion>) -> ServingState {
        let last = self.last.take();
        let (before, current) = last.map(|last| (last.state.services, last.current)).unzip();
        let model = Model::ingest(objects, &self.options);
        let mut warnings: BTreeSet<String> = objects.problems.iter().map(ToString::to_string).collect();
        let current = self.source.allocate(current, &mut self.memory, objects, &model, seen);
        warnings.extend(current.failure().map(str::to_owned));
        let allocation = current.allocation();
        warnings.extend(service_warnings(&model, allocation));
        let claims = allocation.claims();
        let services = desired_services(&model, &claims, &self.health, &before.unwrap_or_default());
        let state = serving_state(&model, allocation, services, warnings);
        let mut by_owner: BTreeMap<ServiceName, Vec<PortClaim>> = BTreeMap::new();
        for (claim, owner) in claims {
            by_owner.entry(owner).or_default().push(claim);
        }
        let probing = model.services.values().filter(|service| !service.probes.is_empty());
        let probing: Vec<_> = probing.map(|service| service.name.clone()).collect();
        let (slices, health) = (Slices::of(objects), Arc::clone(&self.health));
        let (probed, about_probes) = Default::default();
        let mut last = Last { model, slices, claims: by_owner, state, current, health, probed, about_probes };
        for owner in &probing {
            last.watch(owner);
        }
        self.last.insert(last).state.clone()
    }
}

fn serving_state(
    model: &Model,
    allocation: &Allocation,
    services: OrdMap<PortClaim, DesiredService>,
    warnings: BTreeSet<String>,
) -> ServingState {
    let vips = allocation.vips();
    let eligible_nodes = vips.keys().map(|vip| (*vip, Arc::clone(model.eligible_nodes(*vip))));
    let candidates = candidates_of(model, vips.keys().copied());
    let nodes = model.nodes.values().map(|node| (node.name.clone(), node.reached_by().collect()));
    ServingState {
        services,
        leaders: Arc::new(placement::leaders(&candidates)),
        candidates: Arc::new(candidates),
        eligible_nodes: Arc::new(eligible_nodes.collect()),
        nodes: Arc::new(nodes.collect()),
        warnings: Arc::new(warnings),
        refresh: 0,
        service_counts: Arc::new(service_counts(allocation)),
        timing: Timing::default(),
    }
}

fn service_counts(allocation: &Allocation) -> ServiceCounts {
    let mut refused: BTreeMap<Reason, usize> = BTreeMap::new();
    for refusal in allocation.refusals.values() {
        *refused.entry(refusal.reason).or_default() += 1;
    }
    ServiceCounts { allocated: allocation.assignments.len(), withheld: allocation.withheld.len(), refused }
}

/// Returns the warnings about Services. Leaves out Services that wait for their controller, as each
/// new Service of a cluster does for a moment: the allocator reports those.
fn service_warnings(model: &Model, allocation: &Allocation) -> Vec<String> {
    let describe = |(name, refusal): (&ServiceName, &Refusal)| {
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
    let is_reported =
        |(name, refusal): &(&ServiceName, &Refusal)| refusal.reason != Reason::Unallocated || !waits(name);
    let refused = allocation.refusals.iter().filter(is_reported).map(describe);
    refused.chain(notes).chain(warnings).chain(notices).chain(withheld).collect()
}

#[cfg(test)]
pub(super) mod tests;
