//! Giving each Service its addresses, one after the other.

mod agreement;
mod automatic;
mod books;
mod keeping;
mod pools;

use std::collections::{BTreeMap, BTreeSet};

use self::agreement::Waiting;
pub(super) use self::books::{Books, Given};
use crate::{
    allocate::{
        holders::{Held, Holders, Terms},
        occupancy::{Clash, Tenancy, Tenant},
    },
    model::{
        Model, PortClaim, ServiceName, Vip,
        reason::{Reason, Refusal, quoted},
        request::Mismatch,
        service::{Families, Service},
    },
};

/// An allocation in the making.
pub(super) struct Placement<'a> {
    pub(super) model: &'a Model,
    pub(super) books: &'a mut Books,
    /// What Services hold and are to keep together with more: an address of the other family, or additional ones. They are
    /// served with all of that or not at all.
    holding: BTreeMap<&'a ServiceName, BTreeSet<Vip>>,
    /// How often a Service got addresses.
    settled: usize,
}

/// Which Services go first among those that are placed anew (rule 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It asks for an address that it holds, and for others too; or needs more beside it.
    Extends,
    /// It asks for an address.
    Explicit,
    /// It takes what it gets.
    Automatic,
}

impl<'a> Placement<'a> {
    pub(super) fn new(model: &'a Model, books: &'a mut Books) -> Self {
        Self { model, books, holding: BTreeMap::new(), settled: 0 }
    }

    /// Places those Services that are not placed, or could get more than they have. What the holders hold was
    /// [kept](Self::keep) for them.
    pub(super) fn place_all(&mut self, by_seniority: &[&'a Service], holders: &Holders) {
        let mut services = by_seniority.to_vec();
        services.retain(|service| self.books.is_waiting(service));
        services.retain(|service| match &service.fault {
            None => true,
            Some(fault) => {
                self.books.refused.insert(service.name.clone(), fault.clone());
                false
            }
        });
        services.sort_by_key(|service| self.turn(service, holders.get(&service.name)));
        // Until nothing changes: a Service whose group got an address after its own turn may fit there now, and what a
        // refusal names must hold in the end. So an allocation given its own result returns it.
        loop {
            let settled_before = self.settled;
            let waiting = Waiting::new(services.iter().copied().filter(|service| !self.is_placed(service)));
            for service in &services {
                self.place(service, &waiting);
            }
            if self.settled == settled_before {
                return;
            }
            services.retain(|service| self.books.is_waiting(service));
        }
    }

    /// Gives the Service those of the addresses of its status that are nobody else's, whatever pools say of sharing; an error
    /// about the first that is.
    pub(super) fn trust(&mut self, service: &Service, shown: BTreeSet<Vip>) -> Result<(), Refusal> {
        let mut lost = Ok(());
        let free = |vip: &Vip| {
            let why = self.is_taken(*vip, service);
            let is_free = why.is_none();
            if let (true, Some(why)) = (lost.is_ok(), why) {
                lost = Err(why);
            }
            is_free
        };
        let free: BTreeSet<Vip> = shown.into_iter().filter(free).collect();
        if !free.is_empty() {
            self.give(&service.name, Terms::of(service), free);
        }
        lost
    }

    /// Why the Service cannot be served there, whoever gave it that address.
    fn is_taken(&self, vip: Vip, service: &Service) -> Option<Refusal> {
        if let Some(what) = self.model.reservation(vip) {
            return Some(reserved(vip, what));
        }
        match self.books.occupancy.on(vip)?.clash(service)? {
            clash @ Clash::Port(..) => Some(conflict(vip, service, clash)),
            Clash::Label(..) => None,
        }
    }

    fn is_placed(&self, service: &Service) -> bool {
        self.books.placed.contains_key(&service.name)
    }

    fn turn(&self, service: &Service, held: Option<&Held>) -> Turn {
        let wanted = &service.request.addresses;
        match held {
            _ if self.holding.contains_key(&service.name) => Turn::Extends,
            _ if wanted.is_empty() => Turn::Automatic,
            Some(held) if !wanted.is_disjoint(&held.addresses) => Turn::Extends,
            _ => Turn::Explicit,
        }
    }

    fn place(&mut self, service: &'a Service, waiting: &Waiting<'_>) {
        let both = self.completed(service);
        if self.is_placed(service) {
            if let Some(both) = both {
                self.settle(service, both);
            }
            return;
        }
        let agrees = self.agrees(service, waiting).and_then(|()| self.all_named(service));
        match agrees.and_then(|()| self.own(both, service)) {
            Ok(own) => self.settle(service, own),
            Err(refusal) => drop(self.books.refused.insert(service.name.clone(), refusal)),
        }
    }

    fn own(&mut self, both: Option<BTreeSet<Vip>>, service: &'a Service) -> Result<BTreeSet<Vip>, Refusal> {
        if !service.request.addresses.is_empty() {
            return Ok(service.request.addresses.clone());
        }
        both.or_else(|| self.held_still(service)).map_or_else(|| self.automatic(service), Ok)
    }

    /// What the Service was to keep, if that is all of its own that it needs.
    fn held_still(&self, service: &Service) -> Option<BTreeSet<Vip>> {
        let held = self.holding.get(&service.name)?;
        let suffices = held.len() > 1 || service.families != Families::RequireDual;
        (suffices && held.iter().all(|vip| self.fits(*vip, service).is_ok())).then(|| held.clone())
    }

    /// Gives the Service these addresses of its own, and the additional ones that it asks for.
    fn settle(&mut self, service: &Service, own: BTreeSet<Vip>) {
        let addresses = own.into_iter().chain(service.request.additional.iter().copied()).collect();
        self.give(&service.name, Terms::of(service), addresses);
    }

    fn give(&mut self, name: &ServiceName, terms: Terms, addresses: BTreeSet<Vip>) {
        self.books.give(Tenant { name: name.clone(), terms }, addresses, self.model);
        self.books.refused.remove(name);
        self.settled += 1;
    }

    /// Whether the Service may have all the addresses that it names (rule 6: those or none).
    fn all_named(&self, service: &Service) -> Result<(), Refusal> {
        let request = &service.request;
        let main = request.addresses.iter().map(|vip| (*vip, request.pool.name()));
        // Additional ones need not come from the pool that is chosen for the Service's own.
        let additional = request.additional.iter().map(|vip| (*vip, None));
        for (vip, pool) in main.chain(additional) {
            if let Some(what) = self.model.reservation(vip) {
                return Err(reserved(vip, what));
            }
            self.may_have(vip, pool, service)?;
            self.fits(vip, service)?;
        }
        Ok(())
    }

    /// Rules 1 and 4 for one address.
    fn fits(&self, vip: Vip, service: &Service) -> Result<(), Refusal> {
        let Some(tenancy) = self.books.occupancy.on(vip) else { return Ok(()) };
        if let Some(clash) = tenancy.clash(service) {
            return Err(conflict(vip, service, clash));
        }
        match self.mismatch(vip, tenancy, service) {
            None => Ok(()),
            Some((holder, why)) => {
                let holder = &holder.name;
                let message = format!("{vip} is held by {holder}, and the two may not share it: {why}");
                Err(Refusal::new(Reason::SharingMismatch, message))
            }
        }
    }

    /// The first on the address that may not share it with the Service, and why.
    pub(super) fn mismatch<'s>(
        &self,
        vip: Vip,
        tenancy: &'s Tenancy,
        service: &'s Service,
    ) -> Option<(&'s Tenant, Mismatch<'s>)> {
        tenancy.mismatch(service.party(), &service.name, self.sharing_on(vip))
    }
}

/// Rule 14 was about to be broken.
fn reserved(vip: Vip, what: &str) -> Refusal {
    Refusal::new(Reason::AddressReserved, format!("{vip} is {what} and is never assigned"))
}

/// Rule 1 was about to be broken.
pub(super) fn conflict(vip: Vip, service: &Service, clash: Clash<'_>) -> Refusal {
    match clash {
        Clash::Port(port, holder) => {
            let claim = PortClaim { vip, protocol: port.protocol, port: port.number };
            Refusal::new(Reason::PortConflict, format!("{claim} is held by {}", holder.name))
        }
        Clash::Label(label, holder) => {
            let (label, wanted) = (quoted(label), quoted(service.request.label.as_deref().unwrap_or_default()));
            let message =
                format!("the label of {vip} is {label}, by {}, and {wanted} cannot be a second one", holder.name);
            Refusal::new(Reason::LabelConflict, message)
        }
    }
}
