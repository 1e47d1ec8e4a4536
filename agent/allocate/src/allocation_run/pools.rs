//! Decides from which pools a Service may have addresses.

use std::collections::BTreeSet;

use crate::{allocation_state::AllocationState, occupancy::Occupancy, pool_usage::PoolUsage};
use vipmux_model::{
    Family, Model, Vip,
    pool::{Pool, PoolSharing},
    reason::{Reason, Refusal},
    request::PoolChoice,
    selector::Labels,
    service::Service,
};

/// The lowest free addresses of a pool, one for each family.
pub(super) struct FreeAddresses<'a> {
    pub(super) pool: &'a Pool,
    pub(super) v4: Option<Vip>,
    pub(super) v6: Option<Vip>,
}

impl FreeAddresses<'_> {
    pub(super) fn of(&self, family: Family) -> Option<Vip> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// The rules of a model's pools: which addresses a Service may have.
#[derive(Clone, Copy)]
pub(crate) struct PoolRules<'a> {
    model: &'a Model,
}

impl<'a> PoolRules<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Self { model }
    }

    /// Returns the sharing setting of the address's pool; the default if the address is in no pool
    /// any more.
    pub(crate) fn sharing_on(self, vip: Vip) -> PoolSharing {
        self.pool_of(vip).map(|pool| pool.sharing).unwrap_or_default()
    }

    /// Returns the best pool that has the address.
    pub(crate) fn pool_of(self, vip: Vip) -> Option<&'a Pool> {
        self.model.pools.get(self.model.pool_of(vip)?)
    }

    /// Checks that the pool of this name, or else any pool, has the address for the Service.
    pub(crate) fn may_have(self, vip: Vip, pool: Option<&str>, service: &Service) -> Result<(), Refusal> {
        if let Some(name) = pool {
            let pool = self.named_pool(name, service)?;
            let outside = || {
                let is_outside = format!("{vip} is not in pool {name}");
                let message = if pool.leaves_out(vip) { left_out(vip, name) } else { is_outside };
                Refusal::new(Reason::AddressNotInPool, message)
            };
            return pool.contains(vip).then_some(()).ok_or_else(outside);
        }
        let mut having = self.model.pools.iter().filter(|pool| pool.contains(vip)).peekable();
        let Some(first) = having.peek().copied() else {
            let message = match (self.model.pools.iter().find(|pool| pool.leaves_out(vip)), self.pool_names(|_| true)) {
                (Some(pool), _) => left_out(vip, &pool.name),
                (None, names) if names.is_empty() => format!("{vip} is in no pool: there are no pools"),
                (None, names) => format!("{vip} is in no pool (pools: {names})"),
            };
            return Err(Refusal::new(Reason::AddressNotInPool, message));
        };
        if having.any(|pool| self.serves(pool, service)) {
            return Ok(());
        }
        let (name, fields) = (&first.name, first.audience_fields());
        let message = format!("pool {name}, which has {vip}, does not serve this Service ({fields})");
        Err(Refusal::new(Reason::PoolNotAllowed, message))
    }

    fn named_pool(self, name: &str, service: &Service) -> Result<&'a Pool, Refusal> {
        let Some(pool) = self.model.pool(name) else {
            return Err(Refusal::new(Reason::NoPool, self.model.no_pool(name)));
        };
        let message = || format!("pool {name} does not serve this Service ({})", pool.audience_fields());
        if self.serves(pool, service) { Ok(pool) } else { Err(Refusal::new(Reason::PoolNotAllowed, message())) }
    }

    fn serves(self, pool: &Pool, service: &Service) -> bool {
        let none = Labels::new();
        let namespace = service.name.namespace();
        pool.serves(namespace, self.model.namespaces.get(namespace).unwrap_or(&none), &service.labels)
    }

    fn pool_names(self, which: impl Fn(&Pool) -> bool) -> String {
        let pools = self.model.pools.iter().filter(|pool| which(pool));
        pools.map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the free addresses of the pools that may give the Service an address, best pool
    /// first.
    pub(super) fn free_addresses(
        self,
        service: &Service,
        state: &mut AllocationState,
    ) -> Result<Vec<FreeAddresses<'a>>, Refusal> {
        let pools = self.usable_pools(service, &state.pool_usage)?;
        let AllocationState { occupancy, pool_usage, .. } = state;
        let free = |(index, pool)| {
            let mut lowest = |family| {
                let mut free = pool_usage.free_addresses((index, pool), family, |vip| self.is_free(vip, occupancy));
                free.find(|vip| !service.request.additional.contains(vip))
            };
            FreeAddresses { pool, v4: lowest(Family::V4), v6: lowest(Family::V6) }
        };
        Ok(pools.into_iter().filter_map(|index| Some((index, self.model.pools.get(index)?))).map(free).collect())
    }

    fn is_free(self, vip: Vip, occupancy: &Occupancy) -> bool {
        occupancy.on(vip).is_none() && self.model.reservation(vip).is_none()
    }

    /// Returns the indices of the pools that may give the Service an address, best first.
    fn usable_pools(self, service: &Service, usage: &PoolUsage) -> Result<Vec<usize>, Refusal> {
        if let Some(name) = service.request.pool.name() {
            self.named_pool(name, service)?;
            return Ok(self.model.pools.iter().position(|pool| pool.is_called(name)).into_iter().collect());
        }
        let usable = |(_, pool): &(usize, &Pool)| pool.auto_assign && self.serves(pool, service);
        let mut pools: Vec<usize> = self.model.pools.iter().enumerate().filter(usable).map(|(i, _)| i).collect();
        if service.request.pool == PoolChoice::FewestClaims {
            pools.sort_by_key(|index| usage.claims(*index));
        }
        if !pools.is_empty() {
            return Ok(pools);
        }
        let message = match (self.pool_names(|pool| !pool.auto_assign), self.pool_names(|pool| pool.auto_assign)) {
            (manual, auto) if manual.is_empty() && auto.is_empty() => "there are no pools".to_owned(),
            (manual, auto) if auto.is_empty() => format!("pools must be named (autoAssign is off): {manual}"),
            (_, auto) => {
                let assigning = self.model.pools.iter().filter(|pool| pool.auto_assign);
                let fields: BTreeSet<&str> = assigning.map(Pool::audience_fields).collect();
                let fields = fields.into_iter().collect::<Vec<_>>().join("; ");
                format!("no pool serves this Service ({fields}): {auto}")
            }
        };
        Err(Refusal::new(Reason::NoPool, message))
    }
}

fn left_out(vip: Vip, pool: &str) -> String {
    format!("pool {pool} leaves {vip} out (avoidBuggyIPs)")
}
