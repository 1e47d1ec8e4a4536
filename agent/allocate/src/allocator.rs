//! Runs a sequence of allocations, each from the result of the one before.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    allocation::Allocation,
    allocation_run::AllocationRun,
    allocation_state::{AllocationState, PlacedService},
    outcome::assignment,
    previous::{PreviousAssignments, from_status, placeholder},
};
use vipmux_model::{
    Model, NodeName, ServiceName, advertisement::Advertisements, node::Node, pool::Pool, selector::Labels,
    service::Service,
};

/// An allocation, with the state that updates it at a cost that follows the number of changes.
#[derive(Debug)]
pub struct Allocator {
    inputs: SharedInputs,
    state: AllocationState,
    /// Services that have nothing, or could get more than they have.
    waiting: BTreeSet<ServiceName>,
    /// Services that hold addresses for a request that is not known.
    unknown: BTreeSet<ServiceName>,
    allocation: Allocation,
}

/// The inputs that all Services depend on. If one of them changes, all Services are looked at
/// again.
#[derive(Debug)]
struct SharedInputs {
    pools: Vec<Pool>,
    advertisements: Advertisements,
    nodes: BTreeMap<NodeName, Node>,
    reserved: BTreeMap<IpAddr, String>,
    claimed: BTreeMap<IpAddr, String>,
    namespaces: BTreeMap<String, Labels>,
    incomplete: bool,
}

impl SharedInputs {
    fn of(model: &Model) -> Self {
        Self {
            pools: model.pools.clone(),
            advertisements: model.advertisements.clone(),
            nodes: model.nodes.clone(),
            reserved: model.reserved.clone(),
            claimed: model.claimed.clone(),
            namespaces: model.namespaces.clone(),
            incomplete: model.incomplete,
        }
    }

    /// Whether the model has the same inputs. Namespaces that come or go do not count: their
    /// Services come or go with them.
    fn matches(&self, model: &Model) -> bool {
        let same = |(name, labels): (&String, &Labels)| model.namespaces.get(name).is_none_or(|now| now == labels);
        !self.incomplete
            && !model.incomplete
            && self.pools == model.pools
            && self.advertisements == model.advertisements
            && self.nodes == model.nodes
            && self.reserved == model.reserved
            && self.claimed == model.claimed
            && self.namespaces.iter().all(same)
    }
}

/// The result of a renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Services with another assignment or refusal than before.
    pub changed: BTreeSet<ServiceName>,
    /// Whether a Service holds other addresses, or holds them for another request: then the input
    /// of the next allocation ([`Allocation::as_previous`]) has changed.
    pub assignments_changed: bool,
}

/// Assigns addresses to all Services of the model.
///
/// `previous` has the assignments of the last allocation. If the model is complete, entries of
/// Services that it does not have are ignored.
pub fn allocate(model: &Model, previous: &PreviousAssignments) -> Allocation {
    Allocator::new(model, previous).into_allocation()
}

impl Allocator {
    /// Assigns addresses to all Services, as [`allocate`] does.
    pub fn new(model: &Model, previous: &PreviousAssignments) -> Self {
        let mut allocator = Self {
            inputs: SharedInputs::of(model),
            state: AllocationState::new(model),
            waiting: BTreeSet::new(),
            unknown: BTreeSet::new(),
            allocation: Allocation { refusals: model.refused.clone(), ..Allocation::default() },
        };
        let names = model.services.keys().chain(previous.keys()).collect();
        let placeholders = placeholders(model, previous);
        let services = in_order(model, &placeholders, &names);
        let mut run = AllocationRun::new(model, &mut allocator.state);
        run.keep(&services, previous);
        run.place_all(&services, previous);
        allocator.state.occupancy.take_affected();
        allocator.update_waiting(&services, &names, previous);
        allocator.record_outcomes(model, names.into_iter().cloned().collect(), previous);
        allocator
    }

    /// Returns the allocation.
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Returns the allocation and drops the rest.
    pub fn into_allocation(self) -> Allocation {
        self.allocation
    }

    /// Updates the allocation to a model that differs from the last one only in the Services of
    /// `changed`: they came, went or changed.
    ///
    /// The result is that of [`allocate`] with this model and with the previous assignments: those
    /// of the allocation so far ([`Allocation::as_previous`]). The statuses of Services count only
    /// if these have no entry.
    ///
    /// Returns `None` and does nothing if pools, nodes, reserved addresses or labels of namespaces
    /// changed, or if some of the input cannot be read. Then [`Allocator::new`] is needed.
    pub fn renew(&mut self, model: &Model, changed: &BTreeSet<ServiceName>) -> Option<Renewed> {
        if !self.inputs.matches(model) {
            return None;
        }
        // Services without a known request may not have been compatible. Look at them again.
        let anew: BTreeSet<ServiceName> = changed | &self.unknown;
        let waiting = self.waiting.clone();
        let names = anew.iter().chain(&waiting).collect();
        let previous = self.previous(model, &names);
        let placeholders = placeholders(model, &previous);
        let services = in_order(model, &placeholders, &names);
        let had: Vec<Option<PlacedService>> = anew.iter().map(|name| self.state.forget(name, model)).collect();
        let mut run = AllocationRun::new(model, &mut self.state);
        run.keep(&services, &previous);
        let stays = |(name, had): (&ServiceName, &Option<PlacedService>)| {
            run.state.placed.get(name) == had.as_ref() && !waiting.contains(name)
        };
        let waits = |service: &&Service| run.state.is_waiting(service) && !waiting.contains(&service.name);
        // If nothing changed for any waiting Service, they keep the refusals that they got.
        if !anew.iter().zip(&had).all(stays) || services.iter().any(waits) {
            run.place_all(&services, &previous);
        }
        self.update_waiting(&services, &names, &previous);
        let mut affected = self.state.occupancy.take_affected();
        affected.extend(names.into_iter().cloned());
        Some(self.record_outcomes(model, affected, &previous))
    }

    /// Returns the addresses that these Services hold.
    fn previous(&self, model: &Model, names: &BTreeSet<&ServiceName>) -> PreviousAssignments {
        let held = |name| self.allocation.previous(name).or_else(|| from_status(name, model));
        names.iter().filter_map(|name| Some(((*name).clone(), held(name)?))).collect()
    }

    /// Updates the Services to look at in each renewal. `names` has the Services that were looked
    /// at, and those that are gone.
    fn update_waiting(
        &mut self,
        services: &[&Service],
        names: &BTreeSet<&ServiceName>,
        previous: &PreviousAssignments,
    ) {
        for name in names {
            self.waiting.remove(*name);
            self.unknown.remove(*name);
        }
        for service in services {
            let name = &service.name;
            if self.state.is_waiting(service) {
                self.waiting.insert(name.clone());
            }
            if service.fault.is_some() && previous.get(name).is_some_and(|held| held.snapshot.is_none()) {
                self.unknown.insert(name.clone());
            }
        }
    }

    /// Records the assignments and refusals of these Services.
    fn record_outcomes(
        &mut self,
        model: &Model,
        names: BTreeSet<ServiceName>,
        previous: &PreviousAssignments,
    ) -> Renewed {
        let Self { state, allocation, .. } = self;
        let run = AllocationRun::new(model, state);
        let mut renewed = Renewed::default();
        for name in names {
            let (read, given) = (model.services.get(&name), run.state.placed.get(&name));
            // A Service that can be read says itself what it asks for.
            let is_read = read.is_some_and(|service| service.fault.is_none());
            let held =
                (!is_read).then(|| previous.get(&name).cloned().or_else(|| allocation.previous(&name))).flatten();
            let placeholder = held.as_ref().and_then(|held| placeholder(model, &name, held));
            let known = held.as_ref().is_none_or(|held| held.snapshot.is_some());
            let assigned = |(service, given)| assignment(&run, placeholder.as_ref().unwrap_or(service), given, known);
            let assignment = read.zip(given).map(assigned);
            let refusals = if read.is_some() { &run.state.refused } else { &model.refused };
            let refusal = refusals.get(&name).cloned();
            let withheld = held.filter(|_| read.is_none() && given.is_some());
            let before = allocation.previous(&name);
            let other = [
                replace(&mut allocation.refusals, &name, refusal),
                replace(&mut allocation.assignments, &name, assignment),
                replace(&mut allocation.withheld, &name, withheld),
            ];
            renewed.assignments_changed |=
                before.as_ref().map(|held| (&held.addresses, &held.snapshot)) != allocation.holding(&name);
            if other.contains(&true) {
                renewed.changed.insert(name);
            }
        }
        renewed
    }
}

/// Sets or removes the value of this name. Returns whether it changed.
fn replace<T: PartialEq>(map: &mut BTreeMap<ServiceName, T>, name: &ServiceName, value: Option<T>) -> bool {
    if map.get(name) == value.as_ref() {
        return false;
    }
    match value {
        Some(value) => drop(map.insert(name.clone(), value)),
        None => drop(map.remove(name)),
    }
    true
}

/// Returns placeholders for holders that cannot be understood.
fn placeholders(model: &Model, previous: &PreviousAssignments) -> BTreeMap<ServiceName, Service> {
    previous.iter().filter_map(|(name, held)| Some((name.clone(), placeholder(model, name, held)?))).collect()
}

/// Returns the Services of these names, or their placeholders, in the order of rule 7.
fn in_order<'a>(
    model: &'a Model,
    placeholders: &'a BTreeMap<ServiceName, Service>,
    names: &BTreeSet<&ServiceName>,
) -> Vec<&'a Service> {
    let service = |name: &&ServiceName| placeholders.get(*name).or_else(|| model.services.get(*name));
    let mut services: Vec<&Service> = names.iter().filter_map(service).collect();
    services.sort_by(|a, b| a.seniority().cmp(&b.seniority()));
    services
}
