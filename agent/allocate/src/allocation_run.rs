//! Gives each Service its addresses, one Service after the other.

mod automatic;
mod exhaustion;
pub(super) mod group_agreement;
mod limits;
mod pools;
mod retention;

use std::collections::{BTreeMap, BTreeSet};

use self::{group_agreement::WaitingGroups, pools::PoolRules};
use crate::{
    allocation_state::AllocationState,
    occupancy::{Clash, Occupant, Occupants},
    previous::{PreviousAssignment, PreviousAssignments, judged_request},
    request_snapshot::RequestSnapshot,
};
use vipmux_model::{
    Model, PortClaim, ServiceName, Vip,
    reason::{Reason, Refusal, quoted},
    request::Mismatch,
    service::{Families, Service},
};

/// One run of the allocation over the Services of a model.
pub(super) struct AllocationRun<'a> {
    pub(super) model: &'a Model,
    pub(super) pools: PoolRules<'a>,
    pub(super) state: &'a mut AllocationState,
    /// Addresses that Services hold and shall keep together with more: an address of the other
    /// family, or additional ones. A Service is served with all of them or not at all.
    holding: BTreeMap<&'a ServiceName, BTreeSet<Vip>>,
    /// The number of times that a Service got addresses.
    placements: usize,
}

/// The order of Services that are placed anew (rule 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PlacementOrder {
    /// It holds a part of the addresses that it names, or needs more beside what it holds.
    Extends,
    /// It names an address.
    Explicit,
    /// It names no address.
    Automatic,
}

impl<'a> AllocationRun<'a> {
    pub(super) fn new(model: &'a Model, state: &'a mut AllocationState) -> Self {
        Self { model, pools: PoolRules::new(model), state, holding: BTreeMap::new(), placements: 0 }
    }

    /// Places Services that have nothing yet, or could get more than they have. Call [`Self::keep`]
    /// first.
    pub(super) fn place_all(&mut self, by_seniority: &[&'a Service], previous: &PreviousAssignments) {
        let mut services = by_seniority.to_vec();
        services.retain(|service| self.state.is_waiting(service));
        services.retain(|service| match &service.fault {
            None => true,
            Some(fault) => {
                self.state.refused.insert(service.name.clone(), fault.clone());
                false
            }
        });
        services.sort_by_key(|service| self.placement_order(service, previous.get(&service.name)));
        // Repeat until nothing changes. A Service may fit on an address that its group got after
        // the Service was tried, and each refusal must hold in the end. So an allocation given its
        // own result returns it.
        loop {
            let before = self.placements;
            let waiting = WaitingGroups::new(services.iter().copied().filter(|service| !self.is_placed(service)));
            for service in &services {
                self.place(service, &waiting);
            }
            if self.placements == before {
                return;
            }
            services.retain(|service| self.state.is_waiting(service));
        }
    }

    /// Gives the Service those addresses of its status that nobody else has, whatever pools say
    /// about sharing. Returns the refusal of the first address that is taken.
    pub(super) fn accept_shown(&mut self, service: &Service, shown: BTreeSet<Vip>) -> Result<(), Refusal> {
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
            let spill = judged_request(&service.name, self.model).is_some_and(|judged| judged.spill);
            self.give(&service.name, RequestSnapshot { spill, ..RequestSnapshot::of(service) }, free);
        }
        lost
    }

    /// Returns the reason why the Service cannot be served on this address, whoever gave it.
    fn is_taken(&self, vip: Vip, service: &Service) -> Option<Refusal> {
        if let Some(what) = self.model.ban(vip) {
            return Some(reserved(vip, what));
        }
        match self.state.occupancy.on(vip)?.clash(service)? {
            clash @ Clash::Port(..) => Some(conflict(vip, service, clash)),
            Clash::Label(..) => None,
        }
    }

    fn is_placed(&self, service: &Service) -> bool {
        self.state.placed.contains_key(&service.name)
    }

    fn placement_order(&self, service: &Service, held: Option<&PreviousAssignment>) -> PlacementOrder {
        let wanted = &service.request.addresses;
        match held {
            _ if self.holding.contains_key(&service.name) => PlacementOrder::Extends,
            _ if wanted.is_empty() => PlacementOrder::Automatic,
            Some(held) if !wanted.is_disjoint(&held.addresses) => PlacementOrder::Extends,
            _ => PlacementOrder::Explicit,
        }
    }

    fn place(&mut self, service: &'a Service, waiting: &WaitingGroups<'_>) {
        let both = self.completed(service);
        if self.is_placed(service) {
            if let Some(both) = both.filter(|both| self.is_within_limits(both, service).is_ok()) {
                self.place_at(service, both, false);
            }
            return;
        }
        let agrees = waiting.check(service, &self.state.occupancy).and_then(|()| self.all_named(service));
        let own = agrees.and_then(|()| self.own(both, service));
        match own.and_then(|own| self.is_within_limits(&own, service).map(|()| own)) {
            Ok(own) => {
                let spill = self.spills(service, &own);
                self.place_at(service, own, spill);
            }
            Err(refusal) => drop(self.state.refused.insert(service.name.clone(), refusal)),
        }
    }

    fn own(&mut self, both: Option<BTreeSet<Vip>>, service: &'a Service) -> Result<BTreeSet<Vip>, Refusal> {
        if !service.request.addresses.is_empty() {
            return Ok(service.request.addresses.clone());
        }
        both.or_else(|| self.held_still(service)).map_or_else(|| self.automatic(service), Ok)
    }

    /// Returns the addresses that the Service shall keep, if they are all of its own that it needs.
    fn held_still(&self, service: &Service) -> Option<BTreeSet<Vip>> {
        let held = self.holding.get(&service.name)?;
        let suffices = held.len() > 1 || service.families != Families::RequireDual;
        (suffices && held.iter().all(|vip| self.fits(*vip, service).is_ok())).then(|| held.clone())
    }

    /// Gives the Service these addresses of its own, and the additional ones that it asks for. If it
    /// has some of them already, `spill` remains as it is.
    fn place_at(&mut self, service: &Service, own: BTreeSet<Vip>, spill: bool) {
        let addresses = own.into_iter().chain(service.request.additional.iter().copied()).collect();
        self.give(&service.name, RequestSnapshot { spill, ..RequestSnapshot::of(service) }, addresses);
    }

    fn give(&mut self, name: &ServiceName, snapshot: RequestSnapshot, addresses: BTreeSet<Vip>) {
        self.state.give(Occupant { name: name.clone(), snapshot }, addresses, self.model);
        self.state.refused.remove(name);
        self.placements += 1;
    }

    /// Checks that the Service may have all the addresses that it names (rule 6: all or none).
    fn all_named(&self, service: &Service) -> Result<(), Refusal> {
        let request = &service.request;
        let main = request.addresses.iter().map(|vip| (*vip, request.pool.name()));
        // Additional addresses need not come from the pool that is chosen for the Service's own.
        let additional = request.additional.iter().map(|vip| (*vip, None));
        for (vip, pool) in main.chain(additional) {
            if let Some(what) = self.model.reservation(vip) {
                return Err(reserved(vip, what));
            }
            self.pools.may_have(vip, pool, service)?;
            self.fits(vip, service)?;
        }
        Ok(())
    }

    /// Checks rules 1 and 4 for one address.
    fn fits(&self, vip: Vip, service: &Service) -> Result<(), Refusal> {
        let Some(occupants) = self.state.occupancy.on(vip) else { return Ok(()) };
        if let Some(clash) = occupants.clash(service) {
            return Err(conflict(vip, service, clash));
        }
        match self.mismatch(vip, occupants, service) {
            None => Ok(()),
            Some((holder, why)) => {
                let holder = &holder.name;
                let why = match why {
                    Mismatch::NoKeys | Mismatch::OneKey(_) if self.is_faulty(holder) => {
                        format!("the request of {holder} cannot be understood")
                    }
                    why => why.to_string(),
                };
                let message = format!("{vip} is held by {holder}, and the two may not share it: {why}");
                Err(Refusal::new(Reason::SharingMismatch, message))
            }
        }
    }

    /// Whether the request of this Service cannot be understood.
    pub(super) fn is_faulty(&self, name: &ServiceName) -> bool {
        self.model.services.get(name).is_some_and(|service| service.fault.is_some())
    }

    /// Returns the first Service on the address that may not share it with this one, and the
    /// reason.
    pub(super) fn mismatch<'s>(
        &self,
        vip: Vip,
        occupants: &'s Occupants,
        service: &'s Service,
    ) -> Option<(&'s Occupant, Mismatch<'s>)> {
        occupants.mismatch(service.sharer(), &service.name, self.pools.sharing_on(vip))
    }
}

/// Returns the refusal by rule 14.
fn reserved(vip: Vip, what: &str) -> Refusal {
    Refusal::new(Reason::AddressReserved, format!("{vip} is {what} and is never assigned"))
}

/// Returns the refusal by rule 1.
fn conflict(vip: Vip, service: &Service, clash: Clash<'_>) -> Refusal {
    match clash {
        Clash::Port(port, holder) => {
            let claim = PortClaim { vip, protocol: port.protocol, port: port.number };
            Refusal::new(Reason::PortConflict, format!("{claim} is held by {}", holder.name))
        }
        Clash::Label(label, holder) => {
            let (label, wanted) = (quoted(label), quoted(service.request.label.as_deref().unwrap_or_default()));
            let message =
                format!("the label of {vip} is {label}, set by {}, so it cannot also be {wanted}", holder.name);
            Refusal::new(Reason::LabelConflict, message)
        }
    }
}
