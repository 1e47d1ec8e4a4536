//! Giving each Service its addresses, one after the other.

mod automatic;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    allocate::{
        holders::{Held, Holders},
        occupancy::{Occupancy, Tenancy},
    },
    model::{
        Family, Model, PortClaim, ServiceName, Vip,
        name::Port,
        pool::{Pool, PoolSharing},
        reason::{Reason, Refusal},
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
    /// What Services hold that need an address of the other family beside it, and are served with both or not at all.
    halves: BTreeMap<&'a ServiceName, Vip>,
    /// For each pool and family the address below which none is free; not there: the pool is full. Addresses are only
    /// ever taken while an allocation is made, so this never goes back.
    free_from: BTreeMap<(usize, Family), Vip>,
    /// How often a Service got addresses.
    settled: usize,
}

/// Which Services go first among those that are placed anew (rule 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It asks for an address that it holds, and for others too; or needs one of the other family beside it.
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
        let pools = model.pools.iter().enumerate();
        let free_from = pools
            .flat_map(|(i, pool)| Family::ALL.map(|family| ((i, family), pool.first(family))))
            .filter_map(|(key, vip)| Some((key, vip?)));
        Self {
            model,
            occupancy: Occupancy::default(),
            placed: BTreeMap::new(),
            refused: BTreeMap::new(),
            halves: BTreeMap::new(),
            free_from: free_from.collect(),
            settled: 0,
        }
    }

    /// Places all Services: holders keep what they hold, then the others get theirs.
    ///
    /// `stand_ins` are placed in place of the Services that have their names.
    pub(super) fn run(&mut self, stand_ins: &'a BTreeMap<ServiceName, Service>, holders: &Holders) {
        let understood = self.model.services.values().filter(|service| !stand_ins.contains_key(&service.name));
        let mut services: Vec<&'a Service> = understood.chain(stand_ins.values()).collect();
        services.sort_by(|a, b| a.seniority().cmp(&b.seniority()));
        self.keep(&services, holders);
        services.retain(|service| self.is_waiting(service));
        services.retain(|service| match &service.fault {
            None => true,
            Some(fault) => {
                self.refused.insert(&service.name, fault.clone());
                false
            }
        });
        services.sort_by_key(|service| self.turn(service, holders.get(&service.name)));
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
        let named = service.request.pool.name().and_then(|name| self.model.pool(name));
        let named = named.filter(|_| held.asks_anew(service));
        let assignable = |vip: Vip| self.model.reservation(vip).is_none();
        let may_stay = |vip: &Vip| assignable(*vip) && named.is_none_or(|pool| pool.contains(*vip));
        let fits = |vip: Vip| self.fits(vip, service).is_ok();
        // Where it is not known on which terms a Service with a fault got its address, it shares it with whoever is there.
        let stays = |vip: Vip| match (self.occupancy.on(vip), &held.terms) {
            (Some(tenancy), None) => assignable(vip) && tenancy.clash(service).is_none(),
            _ => assignable(vip) && fits(vip),
        };
        let kept: BTreeSet<Vip> = if service.fault.is_some() {
            held.addresses.iter().copied().filter(|vip| stays(*vip)).collect()
        } else if wanted.is_empty() {
            let held = held.addresses.iter().filter(|vip| may_stay(vip)).copied();
            kept_by_family(service.families, &held.collect(), fits)
        } else if *wanted == held.addresses && wanted.iter().all(|vip| assignable(*vip) && fits(*vip)) {
            wanted.clone()
        } else {
            BTreeSet::new()
        };
        let needs_both = service.families == Families::RequireDual && wanted.is_empty() && service.fault.is_none();
        match kept.first() {
            None => {}
            Some(vip) if needs_both && kept.len() == 1 => drop(self.halves.insert(&service.name, *vip)),
            Some(_) => self.settle(service, kept),
        }
    }

    /// Whether the Service could get more than it has.
    fn is_waiting(&self, service: &Service) -> bool {
        let has_both =
            |given: &BTreeSet<Vip>| Family::ALL.iter().all(|family| given.iter().any(|vip| vip.family() == *family));
        let wants_both = matches!(service.families, Families::PreferDual(_)) && service.request.addresses.is_empty();
        self.placed.get(&service.name).is_none_or(|given| wants_both && service.fault.is_none() && !has_both(given))
    }

    /// Asks again for those that wait, until nothing changes: a Service whose group got an address after its own turn may
    /// fit there now, and what a refusal names must hold in the end. So an allocation given its own result returns it.
    fn retry(&mut self, services: &[&'a Service]) {
        let mut waiting: Vec<&'a Service> = services.to_vec();
        loop {
            waiting.retain(|service| self.is_waiting(service));
            let settled_before = self.settled;
            for service in &waiting {
                self.place(service);
            }
            if self.settled == settled_before {
                return;
            }
        }
    }

    fn turn(&self, service: &Service, held: Option<&Held>) -> Turn {
        let wanted = &service.request.addresses;
        match held {
            _ if self.halves.contains_key(&service.name) => Turn::Extends,
            _ if wanted.is_empty() => Turn::Automatic,
            Some(held) if !wanted.is_disjoint(&held.addresses) => Turn::Extends,
            _ => Turn::Explicit,
        }
    }

    fn place(&mut self, service: &'a Service) {
        let outcome = match self.completed(service) {
            Some(both) => Ok(both),
            None if self.placed.contains_key(&service.name) => return,
            None if service.request.addresses.is_empty() => self.automatic(service),
            None => self.explicit(service),
        };
        match outcome {
            Ok(addresses) => self.settle(service, addresses),
            Err(refusal) => drop(self.refused.insert(&service.name, refusal)),
        }
    }

    fn settle(&mut self, service: &'a Service, addresses: BTreeSet<Vip>) {
        for vip in &addresses {
            self.occupancy.occupy(*vip, service);
        }
        let two = addresses.first().zip(addresses.last()).filter(|_| addresses.len() == 2);
        if let Some((v4, v6)) = two.filter(|(first, last)| first.family() != last.family()) {
            self.occupancy.pair(*v4, *v6, service);
        }
        self.settled += 1;
        self.refused.remove(&service.name);
        self.placed.insert(&service.name, addresses);
    }

    /// Rule 6, for a Service that names its addresses: those or none.
    fn explicit(&self, service: &Service) -> Result<BTreeSet<Vip>, Refusal> {
        for vip in &service.request.addresses {
            if let Some(what) = self.model.reservation(*vip) {
                return Err(Refusal::new(Reason::AddressReserved, format!("{vip} is {what} and is never assigned")));
            }
            self.may_have(*vip, service)?;
            self.fits(*vip, service)?;
        }
        Ok(service.request.addresses.clone())
    }

    /// Whether a pool has the address for the Service.
    fn may_have(&self, vip: Vip, service: &Service) -> Result<(), Refusal> {
        if let Some(name) = service.request.pool.name() {
            let pool = self.named_pool(name, service)?;
            let outside = || Refusal::new(Reason::AddressNotInPool, format!("{vip} is not in pool {name}"));
            return pool.contains(vip).then_some(()).ok_or_else(outside);
        }
        let mut having = self.model.pools.iter().filter(|pool| pool.contains(vip)).peekable();
        let Some(first) = having.peek().copied() else {
            let message = match self.pool_names(|_| true) {
                names if names.is_empty() => format!("{vip} is in no pool: there are no pools"),
                names => format!("{vip} is in no pool (pools: {names})"),
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
        self.model.pools.get(self.model.pool_of(vip)?)
    }

    fn named_pool(&self, name: &str, service: &Service) -> Result<&'a Pool, Refusal> {
        let Some(pool) = self.model.pool(name) else {
            return Err(Refusal::new(Reason::NoPool, self.model.no_pool(name)));
        };
        let message = || format!("pool {name} does not serve this Service ({})", pool.audience_fields());
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

/// Of what a Service holds, one of each family that it wants; nothing where one of them does not fit any more, since a clash
/// in one family moves the Service in both.
fn kept_by_family(families: Families, held: &BTreeSet<Vip>, fits: impl Fn(Vip) -> bool) -> BTreeSet<Vip> {
    let mut kept = BTreeSet::new();
    for family in families.wanted() {
        let mut of_family = held.iter().copied().filter(|vip| vip.family() == family).peekable();
        if of_family.peek().is_none() {
            continue;
        }
        match of_family.find(|vip| fits(*vip)) {
            Some(vip) => kept.insert(vip),
            None => return BTreeSet::new(),
        };
    }
    kept
}
