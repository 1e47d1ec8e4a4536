//! Giving each Service its addresses, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    allocate::{
        exhaustion,
        holders::{Held, Holders},
        occupancy::{Occupancy, Tenancy},
    },
    model::{
        Model, PortClaim, ServiceName, Vip,
        name::Port,
        pool::{OnConflict, Pool, PoolSharing},
        reason::{Reason, Refusal, quoted},
        request::Mismatch,
        selector::Labels,
        service::{Families, Service},
    },
};

/// An allocation in the making.
pub(super) struct Placement<'a> {
    pub(super) model: &'a Model,
    pub(super) occupancy: Occupancy<'a>,
    pub(super) placed: BTreeMap<&'a ServiceName, BTreeSet<Vip>>,
    pub(super) refused: BTreeMap<&'a ServiceName, Refusal>,
    /// For each pool, the address below which none is free; `None`: the pool is full. Addresses are only ever taken
    /// while an allocation is made, so this never goes back.
    free_from: Vec<Option<Vip>>,
}

/// Which Services go first among those that are placed anew (rule 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It asks for an address that it holds, and for others too.
    Extends,
    /// It asks for an address.
    Explicit,
    /// It takes what it gets.
    Automatic,
}

/// How a holder differs from what it was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// Not at all, as far as is known.
    None,
    /// What it asks for cannot be understood any more.
    Fault,
    /// It has other ports or another key.
    Deliberate,
}

impl<'a> Placement<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Self {
            model,
            occupancy: Occupancy::default(),
            placed: BTreeMap::new(),
            refused: BTreeMap::new(),
            free_from: model.pools.iter().map(Pool::first_v4).collect(),
        }
    }

    /// Places all Services: holders keep what they hold, then the others get theirs.
    ///
    /// `stand_ins` are placed in place of the Services that have their names.
    pub(super) fn run(&mut self, stand_ins: &'a BTreeMap<ServiceName, Service>, holders: &Holders) {
        let understood = self.model.services.values().filter(|service| !stand_ins.contains_key(&service.name));
        let mut services: Vec<&'a Service> = understood.chain(stand_ins.values()).collect();
        services.sort_by(|a, b| a.seniority().cmp(&b.seniority()));
        services.retain(|service| match servable(service) {
            Ok(()) => true,
            Err(refusal) => {
                self.refused.insert(&service.name, refusal);
                false
            }
        });
        self.keep(&services, holders);
        services.retain(|service| !self.placed.contains_key(&service.name));
        services.retain(|service| match &service.fault {
            None => true,
            Some(fault) => {
                self.refused.insert(&service.name, fault.clone());
                false
            }
        });
        services.sort_by_key(|service| turn(service, holders.get(&service.name)));
        for service in &services {
            self.place(service);
        }
        self.retry(&services);
    }

    /// Rule 9. Those that changed come after those that did not, so that a change never costs another Service its address;
    /// among them those with a fault go first, since they are to stay.
    fn keep(&mut self, by_seniority: &[&'a Service], holders: &Holders) {
        let mut holding: Vec<(&'a Service, &Held)> =
            by_seniority.iter().filter_map(|service| Some((*service, holders.get(&service.name)?))).collect();
        holding.sort_by_key(|(service, held)| match &service.fault {
            Some(_) => Change::Fault,
            None if held.key_changed(service) || held.ports_added(service) => Change::Deliberate,
            None => Change::None,
        });
        for (service, held) in holding {
            let moved =
                held.regrouped(service) && service.request.addresses.is_empty() && self.join_group(service).is_ok();
            if !moved {
                self.keep_held(service, held);
            }
        }
    }

    fn keep_held(&mut self, service: &'a Service, held: &Held) {
        let wanted = &service.request.addresses;
        let named = service.request.pool.as_deref().and_then(|name| self.pool(name));
        let assignable = |vip: Vip| vip.0.is_ipv4() && !self.model.reserved.contains_key(&vip.0);
        let keeps = |vip: Vip| {
            let pool_has_it = named.is_none_or(|pool| pool.contains(vip)) || !wanted.is_empty();
            assignable(vip) && pool_has_it && self.fits(vip, service).is_ok()
        };
        // Where it is not known on which terms a Service with a fault got its address, it shares it with whoever is there.
        let stays = |vip: Vip| match (self.occupancy.on(vip), &held.terms) {
            (Some(tenancy), None) => assignable(vip) && tenancy.clash(service).is_none(),
            _ => keeps(vip),
        };
        let kept: BTreeSet<Vip> = if service.fault.is_some() {
            held.addresses.iter().copied().filter(|vip| stays(*vip)).collect()
        } else if wanted.is_empty() {
            held.addresses.iter().copied().find(|vip| keeps(*vip)).into_iter().collect()
        } else if *wanted == held.addresses && wanted.iter().all(|vip| keeps(*vip)) {
            wanted.clone()
        } else {
            BTreeSet::new()
        };
        if !kept.is_empty() {
            self.settle(service, kept);
        }
    }

    /// Asks again for those that wait, until nothing changes: a Service whose group got an address after its own turn may
    /// fit there now, and what a refusal names must hold in the end. So an allocation given its own result returns it.
    fn retry(&mut self, services: &[&'a Service]) {
        let mut waiting: Vec<&'a Service> = services.to_vec();
        loop {
            waiting.retain(|service| self.refused.contains_key(&service.name));
            let placed_before = self.placed.len();
            for service in &waiting {
                self.place(service);
            }
            if self.placed.len() == placed_before {
                return;
            }
        }
    }

    fn place(&mut self, service: &'a Service) {
        let outcome =
            if service.request.addresses.is_empty() { self.automatic(service) } else { self.explicit(service) };
        match outcome {
            Ok(addresses) => self.settle(service, addresses),
            Err(refusal) => drop(self.refused.insert(&service.name, refusal)),
        }
    }

    fn settle(&mut self, service: &'a Service, addresses: BTreeSet<Vip>) {
        for vip in &addresses {
            self.occupancy.occupy(*vip, service);
        }
        self.refused.remove(&service.name);
        self.placed.insert(&service.name, addresses);
    }

    /// Rule 6, for a Service that names its addresses: those or none.
    fn explicit(&self, service: &Service) -> Result<BTreeSet<Vip>, Refusal> {
        for vip in &service.request.addresses {
            if let Some(what) = self.model.reserved.get(&vip.0) {
                return Err(Refusal::new(Reason::AddressReserved, format!("{vip} is {what} and is never assigned")));
            }
            self.may_have(*vip, service)?;
            self.fits(*vip, service)?;
        }
        Ok(service.request.addresses.clone())
    }

    /// Whether a pool has the address for the Service.
    fn may_have(&self, vip: Vip, service: &Service) -> Result<(), Refusal> {
        if let Some(name) = &service.request.pool {
            let pool = self.named_pool(name, service)?;
            let outside = || Refusal::new(Reason::AddressNotInPool, format!("{vip} is not in pool {name}"));
            return pool.contains(vip).then_some(()).ok_or_else(outside);
        }
        let mut having = self.model.pools.iter().filter(|pool| pool.contains(vip)).peekable();
        let Some(first) = having.peek().map(|pool| &pool.name) else {
            let message = match self.pool_names(|_| true) {
                names if names.is_empty() => format!("{vip} is in no pool: there are no pools"),
                names => format!("{vip} is in no pool (pools: {names})"),
            };
            return Err(Refusal::new(Reason::AddressNotInPool, message));
        };
        if having.any(|pool| self.serves(pool, service)) {
            return Ok(());
        }
        let message = format!("pool {first}, which has {vip}, does not serve this Service (spec.serviceAllocation)");
        Err(Refusal::new(Reason::PoolNotAllowed, message))
    }

    /// Rule 6, for a Service that names no address: its group's, else a free one.
    fn automatic(&mut self, service: &'a Service) -> Result<BTreeSet<Vip>, Refusal> {
        let clash = match self.group_address(service) {
            Ok(vip) => return Ok([vip].into()),
            Err(clash) => clash,
        };
        if let Some((vip, refusal)) = &clash {
            let waits = self.pool_of(*vip).is_some_and(|pool| pool.on_conflict == OnConflict::Pending);
            if waits || service.request.never_spills {
                return Err(refusal.clone());
            }
        }
        let pools = self.usable_pools(service)?;
        for &index in &pools {
            if let Some(vip) = self.lowest_free(index) {
                return Ok([vip].into());
            }
        }
        let full: Vec<&Pool> = pools.iter().filter_map(|&index| self.model.pools.get(index)).collect();
        let mut refusal = exhaustion::refusal(self, service, &full);
        if let Some((_, clash)) = clash {
            refusal.message = format!("{}; {}", clash.message, refusal.message);
        }
        Err(refusal)
    }

    /// The lowest of its group's addresses where the Service fits; else the first clash, where there is one.
    fn group_address(&mut self, service: &'a Service) -> Result<Vip, Option<(Vip, Refusal)>> {
        // A group whose members all clash has as many addresses as members: only the first of those is worth a look.
        let taken_below = self.occupancy.taken_below(service);
        let is_taken = |vip: Vip| taken_below.is_some_and(|limit| vip < limit);
        let usable =
            |vip, tenancy| self.may_have(vip, service).is_ok() && self.mismatch(vip, tenancy, service).is_none();
        let clash =
            |vip, tenancy: &Tenancy<'a>| tenancy.clash(service).map(|(port, by)| (vip, conflict(vip, port, by)));
        let taken = self.occupancy.group(service).take_while(|(vip, _)| is_taken(*vip));
        let mut first_clash =
            taken.filter(|(vip, tenancy)| usable(*vip, tenancy)).find_map(|(vip, tenancy)| clash(vip, tenancy));
        for (vip, tenancy) in self.occupancy.group_from(taken_below, service) {
            if tenancy.clash(service).is_some() && first_clash.is_some() || !usable(vip, tenancy) {
                continue;
            }
            match clash(vip, tenancy) {
                None => return Ok(vip),
                found => first_clash = found,
            }
        }
        Err(first_clash)
    }

    fn join_group(&mut self, service: &'a Service) -> Result<(), ()> {
        let vip = self.group_address(service).map_err(drop)?;
        self.settle(service, [vip].into());
        Ok(())
    }

    /// Indices of the pools that may give the Service an address, best first.
    fn usable_pools(&self, service: &Service) -> Result<Vec<usize>, Refusal> {
        if let Some(name) = &service.request.pool {
            self.named_pool(name, service)?;
        }
        let usable = |pool: &Pool| match &service.request.pool {
            Some(name) => pool.name == *name,
            None => pool.auto_assign && self.serves(pool, service),
        };
        let pools: Vec<usize> =
            self.model.pools.iter().enumerate().filter(|(_, p)| usable(p)).map(|(i, _)| i).collect();
        if !pools.is_empty() {
            return Ok(pools);
        }
        let message = match (self.pool_names(|pool| !pool.auto_assign), self.pool_names(|pool| pool.auto_assign)) {
            (manual, auto) if manual.is_empty() && auto.is_empty() => "there are no pools".to_owned(),
            (manual, auto) if auto.is_empty() => format!("pools must be named (autoAssign is off): {manual}"),
            (_, auto) => format!("no pool serves this Service (spec.serviceAllocation): {auto}"),
        };
        Err(Refusal::new(Reason::NoPool, message))
    }

    fn lowest_free(&mut self, index: usize) -> Option<Vip> {
        let (pool, free_from) = (self.model.pools.get(index)?, self.free_from.get_mut(index)?);
        while let Some(vip) = *free_from {
            if self.occupancy.on(vip).is_none() && !self.model.reserved.contains_key(&vip.0) {
                return Some(vip);
            }
            *free_from = pool.next_v4(Vip::from_number(vip.number().saturating_add(1)));
        }
        None
    }

    /// Rules 1 and 4 for one address.
    fn fits(&self, vip: Vip, service: &Service) -> Result<(), Refusal> {
        let Some(tenancy) = self.occupancy.on(vip) else { return Ok(()) };
        if let Some((port, holder)) = tenancy.clash(service) {
            return Err(conflict(vip, port, holder));
        }
        match self.mismatch(vip, tenancy, service) {
            None => Ok(()),
            Some((holder, why)) => {
                let message = format!("{vip} is held by {holder}, and the two may not share it: {why}");
                Err(Refusal::new(Reason::SharingMismatch, message))
            }
        }
    }

    pub(super) fn mismatch<'m>(
        &self,
        vip: Vip,
        tenancy: &Tenancy<'a>,
        service: &'m Service,
    ) -> Option<(&'a ServiceName, Mismatch<'m>)>
    where
        'a: 'm,
    {
        tenancy.mismatch(service.party(), self.sharing_on(vip))
    }

    /// The sharing setting of the address' pool; an address that lost its pool is shared as by default.
    pub(super) fn sharing_on(&self, vip: Vip) -> PoolSharing {
        self.pool_of(vip).map(|pool| pool.sharing).unwrap_or_default()
    }

    /// The best pool that has the address.
    pub(super) fn pool_of(&self, vip: Vip) -> Option<&'a Pool> {
        self.model.pools.iter().find(|pool| pool.contains(vip))
    }

    fn pool(&self, name: &str) -> Option<&'a Pool> {
        self.model.pools.iter().find(|pool| pool.name == name)
    }

    fn named_pool(&self, name: &str, service: &Service) -> Result<&'a Pool, Refusal> {
        let Some(pool) = self.pool(name) else {
            return Err(Refusal::new(Reason::NoPool, format!("pool {} does not exist", quoted(name))));
        };
        let message = || format!("pool {name} does not serve this Service (spec.serviceAllocation)");
        if self.serves(pool, service) { Ok(pool) } else { Err(Refusal::new(Reason::PoolNotAllowed, message())) }
    }

    fn serves(&self, pool: &Pool, service: &Service) -> bool {
        let none = Labels::new();
        let namespace = &service.name.namespace;
        pool.serves(namespace, self.model.namespaces.get(namespace).unwrap_or(&none), &service.labels)
    }

    fn pool_names(&self, which: impl Fn(&Pool) -> bool) -> String {
        let pools = self.model.pools.iter().filter(|pool| which(pool));
        pools.map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// Rule 1 was about to be broken.
pub(super) fn conflict(vip: Vip, port: Port, holder: &Service) -> Refusal {
    let claim = PortClaim { vip, protocol: port.protocol, port: port.number };
    Refusal::new(Reason::PortConflict, format!("{claim} is held by {}", holder.name))
}

fn turn(service: &Service, held: Option<&Held>) -> Turn {
    let wanted = &service.request.addresses;
    match held {
        _ if wanted.is_empty() => Turn::Automatic,
        Some(held) if !wanted.is_disjoint(&held.addresses) => Turn::Extends,
        _ => Turn::Explicit,
    }
}

/// Rule 10, as far as it goes: IPv6 addresses are not served yet.
fn servable(service: &Service) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::new(Reason::UnsupportedFamily, message));
    match service.families {
        Families::V6 => return refuse("it wants IPv6 alone, and IPv6 is not served yet".to_owned()),
        Families::RequireDual => {
            return refuse("RequireDualStack cannot be met: IPv6 is not served yet".to_owned());
        }
        Families::V4 | Families::PreferDual => {}
    }
    match service.request.addresses.iter().find(|vip| !vip.0.is_ipv4()) {
        Some(vip) => refuse(format!("it asks for {vip}, and IPv6 is not served yet")),
        None => Ok(()),
    }
}
