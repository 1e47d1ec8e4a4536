//! Holds the state of an allocation, from which the next one can start.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    occupancy::{Occupancy, Occupant},
    pool_usage::PoolUsage,
};
use vipmux_model::{
    Family, Model, ServiceName, Vip,
    reason::Refusal,
    service::{Families, Service},
};

/// The addresses of each Service, the refusals, and facts that stay valid as long as pools and
/// reservations do.
#[derive(Debug, Default)]
pub(crate) struct AllocationState {
    pub(crate) occupancy: Occupancy,
    pub(crate) placed: BTreeMap<ServiceName, PlacedService>,
    pub(crate) refused: BTreeMap<ServiceName, Refusal>,
    pub(crate) pool_usage: PoolUsage,
    /// The addresses of each namespace, with the number of its Services on each.
    by_namespace: BTreeMap<String, BTreeMap<Vip, u32>>,
}

/// The addresses of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedService {
    pub(crate) occupant: Arc<Occupant>,
    /// All addresses, the additional ones included.
    pub(crate) addresses: BTreeSet<Vip>,
}

impl PlacedService {
    /// Returns the addresses without those that it asked for beside its own.
    pub(crate) fn own(&self) -> impl Iterator<Item = Vip> {
        self.addresses.difference(&self.occupant.snapshot.additional).copied()
    }

    /// Returns its own addresses if they are one of each family.
    fn pair(&self) -> Option<(Vip, Vip)> {
        let mut own = self.own();
        let (first, second) = (own.next()?, own.next()?);
        (own.next().is_none() && first.family() != second.family()).then_some((first, second))
    }
}

impl AllocationState {
    /// Returns the state in which nobody has anything.
    pub(crate) fn new(model: &Model) -> Self {
        Self { pool_usage: PoolUsage::new(model), ..Self::default() }
    }

    /// Gives the occupant all of these addresses. It may have some of them already.
    pub(super) fn give(&mut self, occupant: Occupant, addresses: BTreeSet<Vip>, model: &Model) {
        let before = self.placed.remove(&occupant.name);
        let had = |vip: &Vip| before.as_ref().is_some_and(|given| given.addresses.contains(vip));
        let occupant = before.as_ref().map_or_else(|| Arc::new(occupant), |given| Arc::clone(&given.occupant));
        for vip in addresses.iter().filter(|vip| !had(vip)) {
            self.occupancy.occupy(*vip, &occupant);
            self.pool_usage.add_claims(*vip, occupant.snapshot.ports.len(), model);
            let of_namespace = self.by_namespace.entry(occupant.name.namespace().to_owned()).or_default();
            *of_namespace.entry(*vip).or_default() += 1;
        }
        let given = PlacedService { occupant, addresses };
        if before.is_none() {
            self.occupancy.admit(&given.occupant);
        }
        let pair = given.pair().filter(|pair| before.as_ref().and_then(PlacedService::pair) != Some(*pair));
        if let Some((v4, v6)) = pair {
            self.occupancy.pair(v4, v6, &given.occupant);
        }
        self.placed.insert(given.occupant.name.clone(), given);
    }

    /// Whether the Service could get more than it has.
    pub(crate) fn is_waiting(&self, service: &Service) -> bool {
        let Some(given) = self.placed.get(&service.name) else { return true };
        let wants_both = matches!(service.families, Families::PreferDual(_)) && service.request.addresses.is_empty();
        let has = |family| given.own().any(|vip| vip.family() == family);
        wants_both && service.fault.is_none() && !Family::ALL.into_iter().all(has)
    }

    /// Takes away the Service's addresses or refusal. Returns the addresses that it had.
    pub(crate) fn forget(&mut self, name: &ServiceName, model: &Model) -> Option<PlacedService> {
        self.refused.remove(name);
        let given = self.placed.remove(name)?;
        if let Some((v4, v6)) = given.pair() {
            self.occupancy.part(v4, v6, &given.occupant);
        }
        for vip in &given.addresses {
            self.leave_namespace(name.namespace(), *vip);
            self.occupancy.vacate(*vip, &given.occupant);
            self.pool_usage.remove_claims(*vip, given.occupant.snapshot.ports.len(), model);
            if self.occupancy.on(*vip).is_none() {
                self.pool_usage.release(*vip, model);
            }
        }
        self.occupancy.dismiss(&given.occupant);
        Some(given)
    }

    /// Returns the addresses of a namespace, with the number of its Services on each; `None`: it has
    /// none.
    pub(crate) fn of_namespace(&self, namespace: &str) -> Option<&BTreeMap<Vip, u32>> {
        self.by_namespace.get(namespace)
    }

    fn leave_namespace(&mut self, namespace: &str, vip: Vip) {
        let Some(vips) = self.by_namespace.get_mut(namespace) else { return };
        if let Some(services) = vips.get_mut(&vip) {
            *services -= 1;
            if *services == 0 {
                vips.remove(&vip);
            }
        }
        if vips.is_empty() {
            self.by_namespace.remove(namespace);
        }
    }
}
