//! One allocation after the other: what one came to is where the next one starts from.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{
    Allocation,
    holders::{Holders, by_status, stand_in},
    outcome::assignment,
    placement::{Books, Given, Placement},
};
use crate::model::{
    Model, NodeName, ServiceName, advertisement::Advertisements, node::Node, pool::Pool, selector::Labels,
    service::Service,
};

/// An allocation, and what it takes to bring it up to date at a cost that follows what changed.
#[derive(Debug)]
pub struct Allocator {
    ground: Ground,
    books: Books,
    /// Those that have nothing, or could get more than they have.
    waiting: BTreeSet<ServiceName>,
    /// Those of whom it is not known on which terms they hold what they hold.
    unknown: BTreeSet<ServiceName>,
    allocation: Allocation,
}

/// What all depends on: where it changes, everybody is looked at.
#[derive(Debug)]
struct Ground {
    pools: Vec<Pool>,
    advertisements: Advertisements,
    nodes: BTreeMap<NodeName, Node>,
    reserved: BTreeMap<IpAddr, String>,
    namespaces: BTreeMap<String, Labels>,
    incomplete: bool,
}

impl Ground {
    fn of(model: &Model) -> Self {
        Self {
            pools: model.pools.clone(),
            advertisements: model.advertisements.clone(),
            nodes: model.nodes.clone(),
            reserved: model.reserved.clone(),
            namespaces: model.namespaces.clone(),
            incomplete: model.incomplete,
        }
    }

    /// Namespaces that come or go have no Services but those that come or go with them.
    fn is_that_of(&self, model: &Model) -> bool {
        let same = |(name, labels): (&String, &Labels)| model.namespaces.get(name).is_none_or(|now| now == labels);
        !self.incomplete
            && !model.incomplete
            && self.pools == model.pools
            && self.advertisements == model.advertisements
            && self.nodes == model.nodes
            && self.reserved == model.reserved
            && self.namespaces.iter().all(same)
    }
}

/// What a renewal came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Whose assignments or refusals are others now.
    pub told: BTreeSet<ServiceName>,
    /// Somebody holds something else now, or on other terms: the [holders](Allocation::holders) are others.
    pub held: bool,
}

impl Allocator {
    /// Decides who gets what, as [`allocate`](super::allocate) does.
    pub fn new(model: &Model, holders: &Holders) -> Self {
        let mut allocator = Self {
            ground: Ground::of(model),
            books: Books::new(model),
            waiting: BTreeSet::new(),
            unknown: BTreeSet::new(),
            allocation: Allocation { refusals: model.refused.clone(), ..Allocation::default() },
        };
        let names = model.services.keys().chain(holders.keys()).collect();
        let stand_ins = stand_ins(model, holders);
        let services = by_seniority(model, &stand_ins, &names);
        let mut placement = Placement::new(model, &mut allocator.books);
        placement.keep(&services, holders);
        placement.place_all(&services, holders);
        allocator.books.occupancy.take_concerned();
        allocator.note(&services, &names, holders);
        allocator.tell(model, names.into_iter().cloned().collect(), holders);
        allocator
    }

    /// Who gets what.
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// The same, for good.
    pub fn into_allocation(self) -> Allocation {
        self.allocation
    }

    /// Brings the allocation to a model in which no Services but these came, went or are others. It is then what
    /// [`allocate`](super::allocate) gives for that model and for what is held: the [holders](Allocation::holders) so far,
    /// and the Services' statuses where those say nothing.
    ///
    /// `None`: nothing was done, since pools, nodes, reserved addresses or namespaces' labels changed, or some of the input
    /// cannot be read; that takes [`Allocator::new`].
    pub fn renew(&mut self, model: &Model, changed: &BTreeSet<ServiceName>) -> Option<Renewed> {
        if !self.ground.is_that_of(model) {
            return None;
        }
        // What is not known to have been compatible is looked at again.
        let anew: BTreeSet<ServiceName> = changed | &self.unknown;
        let waiting = self.waiting.clone();
        let names = anew.iter().chain(&waiting).collect();
        let holders = self.holders(model, &names);
        let stand_ins = stand_ins(model, &holders);
        let services = by_seniority(model, &stand_ins, &names);
        let had: Vec<Option<Given>> = anew.iter().map(|name| self.books.forget(name, model)).collect();
        let mut placement = Placement::new(model, &mut self.books);
        placement.keep(&services, &holders);
        let stays = |(name, had): (&ServiceName, &Option<Given>)| {
            placement.books.placed.get(name) == had.as_ref() && !waiting.contains(name)
        };
        let waits = |service: &&Service| placement.books.is_waiting(service) && !waiting.contains(&service.name);
        // Where nothing changed for anybody who waits, those get the answers that they got.
        if !anew.iter().zip(&had).all(stays) || services.iter().any(waits) {
            placement.place_all(&services, &holders);
        }
        self.note(&services, &names, &holders);
        let mut concerned = self.books.occupancy.take_concerned();
        concerned.extend(names.into_iter().cloned());
        Some(self.tell(model, concerned, &holders))
    }

    /// What these hold.
    fn holders(&self, model: &Model, names: &BTreeSet<&ServiceName>) -> Holders {
        let held = |name| self.allocation.held(name).or_else(|| by_status(name, model));
        names.iter().filter_map(|name| Some(((*name).clone(), held(name)?))).collect()
    }

    /// Notes which of the Services are to be looked at whatever changes. `names`: theirs, and of those who are gone.
    fn note(&mut self, services: &[&Service], names: &BTreeSet<&ServiceName>, holders: &Holders) {
        for name in names {
            self.waiting.remove(*name);
            self.unknown.remove(*name);
        }
        for service in services {
            let name = &service.name;
            if self.books.is_waiting(service) {
                self.waiting.insert(name.clone());
            }
            if service.fault.is_some() && holders.get(name).is_some_and(|held| held.terms.is_none()) {
                self.unknown.insert(name.clone());
            }
        }
    }

    /// Writes down what became of these Services.
    fn tell(&mut self, model: &Model, names: BTreeSet<ServiceName>, holders: &Holders) -> Renewed {
        let Self { books, allocation, .. } = self;
        let placement = Placement::new(model, books);
        let mut renewed = Renewed::default();
        for name in names {
            let (read, given) = (model.services.get(&name), placement.books.placed.get(&name));
            // Of all others it is the Service itself that tells.
            let is_read = read.is_some_and(|service| service.fault.is_none());
            let held = (!is_read).then(|| holders.get(&name).cloned().or_else(|| allocation.held(&name))).flatten();
            let stand_in = held.as_ref().and_then(|held| stand_in(model, &name, held));
            let known = held.as_ref().is_none_or(|held| held.terms.is_some());
            let assigned =
                |(service, given)| assignment(&placement, stand_in.as_ref().unwrap_or(service), given, known);
            let assignment = read.zip(given).map(assigned);
            let refusals = if read.is_some() { &placement.books.refused } else { &model.refused };
            let refusal = refusals.get(&name).cloned();
            let withheld = held.filter(|_| read.is_none() && given.is_some());
            let before = allocation.held(&name);
            let other = [
                replace(&mut allocation.refusals, &name, refusal),
                replace(&mut allocation.assignments, &name, assignment),
                replace(&mut allocation.withheld, &name, withheld),
            ];
            renewed.held |= before.as_ref().map(|held| (&held.addresses, &held.terms)) != allocation.holding(&name);
            if other.contains(&true) {
                renewed.told.insert(name);
            }
        }
        renewed
    }
}

/// Lets the name have this value, or none. Whether it was another.
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

/// Services that stand in for holders that cannot be understood.
fn stand_ins(model: &Model, holders: &Holders) -> BTreeMap<ServiceName, Service> {
    holders.iter().filter_map(|(name, held)| Some((name.clone(), stand_in(model, name, held)?))).collect()
}

/// The Services of these names, or who stands in for them, in the order of rule 7.
fn by_seniority<'a>(
    model: &'a Model,
    stand_ins: &'a BTreeMap<ServiceName, Service>,
    names: &BTreeSet<&ServiceName>,
) -> Vec<&'a Service> {
    let service = |name: &&ServiceName| stand_ins.get(*name).or_else(|| model.services.get(*name));
    let mut services: Vec<&Service> = names.iter().filter_map(service).collect();
    services.sort_by(|a, b| a.seniority().cmp(&b.seniority()));
    services
}
