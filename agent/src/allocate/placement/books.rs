//! What an allocation comes to, and what the next one can start from.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    allocate::occupancy::{Occupancy, Tenant},
    model::{
        Family, Model, ServiceName, Vip,
        reason::Refusal,
        service::{Families, Service},
    },
};

/// Who has what, who has nothing, and what need not be found out again while pools and reservations stay as they are.
#[derive(Debug, Default)]
pub(in crate::allocate) struct Books {
    pub(in crate::allocate) occupancy: Occupancy,
    pub(in crate::allocate) placed: BTreeMap<ServiceName, Given>,
    pub(in crate::allocate) refused: BTreeMap<ServiceName, Refusal>,
    /// For each pool and family the address below which none is free; not there: the pool is full.
    pub(super) free_from: BTreeMap<(usize, Family), Vip>,
    /// How many port claims are on addresses of each pool.
    pub(super) claims: Vec<usize>,
}

/// What a Service has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::allocate) struct Given {
    pub(in crate::allocate) tenant: Arc<Tenant>,
    /// All of them.
    pub(in crate::allocate) addresses: BTreeSet<Vip>,
}

impl Given {
    /// Those that it did not ask for beside its own.
    pub(in crate::allocate) fn own(&self) -> impl Iterator<Item = Vip> {
        self.addresses.difference(&self.tenant.terms.additional).copied()
    }

    /// Its own, if they are one of each family.
    fn pair(&self) -> Option<(Vip, Vip)> {
        let mut own = self.own();
        let (first, second) = (own.next()?, own.next()?);
        (own.next().is_none() && first.family() != second.family()).then_some((first, second))
    }
}

impl Books {
    /// Nobody has anything.
    pub(in crate::allocate) fn new(model: &Model) -> Self {
        let pools = model.pools.iter().enumerate();
        let free_from = pools
            .flat_map(|(i, pool)| Family::ALL.map(|family| ((i, family), pool.first(family))))
            .filter_map(|(key, vip)| Some((key, vip?)));
        Self { free_from: free_from.collect(), claims: vec![0; model.pools.len()], ..Self::default() }
    }

    /// Gives the tenant all of these addresses, some of which it may have.
    pub(super) fn give(&mut self, tenant: Tenant, addresses: BTreeSet<Vip>, model: &Model) {
        let before = self.placed.remove(&tenant.name);
        let had = |vip: &Vip| before.as_ref().is_some_and(|given| given.addresses.contains(vip));
        let tenant = before.as_ref().map_or_else(|| Arc::new(tenant), |given| Arc::clone(&given.tenant));
        for vip in addresses.iter().filter(|vip| !had(vip)) {
            self.occupancy.occupy(*vip, &tenant);
            if let Some(claims) = model.pool_of(*vip).and_then(|pool| self.claims.get_mut(pool)) {
                *claims += tenant.terms.ports.len();
            }
        }
        let given = Given { tenant, addresses };
        if before.is_none() {
            self.occupancy.admit(&given.tenant);
        }
        let pair = given.pair().filter(|pair| before.as_ref().and_then(Given::pair) != Some(*pair));
        if let Some((v4, v6)) = pair {
            self.occupancy.pair(v4, v6, &given.tenant);
        }
        self.placed.insert(given.tenant.name.clone(), given);
    }

    /// Whether the Service could get more than it has.
    pub(in crate::allocate) fn is_waiting(&self, service: &Service) -> bool {
        let Some(given) = self.placed.get(&service.name) else { return true };
        let wants_both = matches!(service.families, Families::PreferDual(_)) && service.request.addresses.is_empty();
        let has = |family| given.own().any(|vip| vip.family() == family);
        wants_both && service.fault.is_none() && !Family::ALL.into_iter().all(has)
    }

    /// Takes away what the Service has, or the answer that it got. Says what it had.
    pub(in crate::allocate) fn forget(&mut self, name: &ServiceName, model: &Model) -> Option<Given> {
        self.refused.remove(name);
        let given = self.placed.remove(name)?;
        if let Some((v4, v6)) = given.pair() {
            self.occupancy.part(v4, v6, &given.tenant);
        }
        for vip in &given.addresses {
            self.occupancy.vacate(*vip, &given.tenant);
            if let Some(claims) = model.pool_of(*vip).and_then(|pool| self.claims.get_mut(pool)) {
                *claims -= given.tenant.terms.ports.len();
            }
            let pools = model.pools.iter().enumerate().filter(|(_, pool)| pool.contains(*vip));
            for (pool, _) in pools.filter(|_| self.occupancy.on(*vip).is_none()) {
                let from = self.free_from.entry((pool, vip.family())).or_insert(*vip);
                *from = (*vip).min(*from);
            }
        }
        self.occupancy.dismiss(&given.tenant);
        Some(given)
    }
}
