//! Port claims: their slots and the revisions that packets see.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{ServiceKey, ServiceState, ServiceValue};

use crate::{
    model::{PortClaim, ServiceName, Vip},
    plan::{
        CapacityMap, Desired, DesiredService, Observed, PlanError, Refusal, Shortage, Step, Subject,
        backends::Placements, observed::Slot, pool::Vacancies,
    },
};

/// The steps for `SERVICES`, `SERVICE_NAMES` and `SERVICE_STATES`.
pub(super) struct Services {
    pub(super) removals: Vec<Step>,
    pub(super) new_slots: Vec<Step>,
    /// From one revision to the next.
    pub(super) switches: Vec<Step>,
    /// From here on the flows of former owners are stale.
    pub(super) retired_slots: Vec<Step>,
    /// The generation of the new slots, if there are any.
    pub(super) generation: Option<u32>,
}

impl Services {
    pub(super) fn plan(
        desired: &Desired,
        observed: &Observed,
        vips: &BTreeMap<Vip, Result<u32, Shortage>>,
        placements: &mut Placements<'_>,
        now: Duration,
        refused: &mut Vec<Refusal>,
    ) -> Result<Self, PlanError> {
        let mut draft = Draft::new(observed, placements, now);
        let (mut held, mut new) = (Vec::new(), Vec::new());
        for (claim, service) in &desired.services {
            match vips.get(&claim.vip).ok_or(PlanError::UnknownVip { claim: *claim })? {
                Ok(vip) => {
                    let key = key(*vip, claim);
                    let current = observed.services.get(&key);
                    if current.is_some() { &mut held } else { &mut new }.push((claim, service, key, current));
                }
                Err(shortage) => refused.push(refusal(claim, *shortage)),
            }
        }
        // Those that are served come first, so that a new one never takes what they need.
        for (claim, service, key, current) in held.into_iter().chain(new) {
            if let Err(shortage) = draft.claim(key, current, service) {
                refused.push(refusal(claim, shortage));
            }
        }
        Ok(draft.finish())
    }
}

fn key(vip: u32, claim: &PortClaim) -> ServiceKey {
    ServiceKey { vip, port: claim.port.to_be(), protocol: claim.protocol.number(), padding: 0 }
}

fn refusal(claim: &PortClaim, shortage: Shortage) -> Refusal {
    Refusal { subject: Subject::Claim(*claim), shortage }
}

/// The Services of a plan in the making.
struct Draft<'a, 'p, 'b> {
    observed: &'a Observed,
    placements: &'p mut Placements<'b>,
    vacancies: Vacancies<'a, Slot>,
    /// Entries of `SERVICES` that there are to be.
    keys: BTreeSet<ServiceKey>,
    /// Their slots.
    slots: BTreeSet<u32>,
    new_slots: Vec<Step>,
    switches: Vec<Step>,
}

impl<'a, 'p, 'b> Draft<'a, 'p, 'b> {
    fn new(observed: &'a Observed, placements: &'p mut Placements<'b>, now: Duration) -> Self {
        Self {
            observed,
            placements,
            vacancies: observed.slots.vacancies(now),
            keys: BTreeSet::new(),
            slots: BTreeSet::new(),
            new_slots: Vec::new(),
            switches: Vec::new(),
        }
    }

    /// Serves a claim as wanted; or as it was, if it was the same owner's; or not at all.
    fn claim(
        &mut self,
        key: ServiceKey,
        current: Option<&ServiceValue>,
        service: &DesiredService,
    ) -> Result<(), Shortage> {
        let own = current.filter(|value| self.is_slot_of(value, &service.owner));
        let (slot, result) = match self.revision(current, own, service) {
            Ok(value) => {
                if current != Some(&value) {
                    self.switches.push(Step::Service(key, Some(value)));
                }
                (value.slot, Ok(()))
            }
            Err(shortage) => {
                let Some(own) = own else { return Err(shortage) };
                self.placements.keep(own);
                (own.slot, Err(shortage))
            }
        };
        self.keys.insert(key);
        self.slots.insert(slot);
        result
    }

    /// Whether the slot of a revision is this owner's, in good order and no other's.
    fn is_slot_of(&self, value: &ServiceValue, owner: &ServiceName) -> bool {
        self.observed.slots.get(value.slot).is_some_and(|slot| {
            slot.users == 1
                && slot.name.as_ref() == Some(owner)
                && value.generation != 0
                && slot.state == ServiceState { generation: value.generation, ..Default::default() }
        })
    }

    fn revision(
        &mut self,
        current: Option<&ServiceValue>,
        own: Option<&ServiceValue>,
        service: &DesiredService,
    ) -> Result<ServiceValue, Shortage> {
        let capacity = self.observed.slots.capacity();
        let full = Shortage { map: CapacityMap::Services, capacity, free: 0, needed: 1 };
        if current.is_none() && self.keys.len() >= capacity as usize {
            return Err(full);
        }
        let (slot, generation) = match own {
            Some(value) => (value.slot, value.generation),
            None => (self.vacancies.peek().ok_or(full)?, self.placements.generation()),
        };
        let placement = self.placements.place(&service.backends)?;
        if own.is_none() {
            self.vacancies.take();
            self.new_slots.push(Step::ServiceName(slot, Some(service.owner.clone())));
            self.new_slots.push(Step::ServiceState(slot, ServiceState { generation, ..Default::default() }));
        }
        Ok(ServiceValue {
            slot,
            generation,
            table: placement.all.offset,
            table_length: placement.all.length,
            local_table: placement.local.offset,
            local_length: placement.local.length,
            flags: 0,
            affinity: 0,
        })
    }

    fn finish(self) -> Services {
        let gone = self.observed.services.keys().filter(|key| !self.keys.contains(key));
        let mut retired_slots = Vec::new();
        for (index, slot) in self.observed.slots.iter().filter(|(index, _)| !self.slots.contains(index)) {
            if slot.state != ServiceState::default() {
                retired_slots.push(Step::ServiceState(index, ServiceState::default()));
            }
            if slot.name.is_some() {
                retired_slots.push(Step::ServiceName(index, None));
            }
        }
        Services {
            removals: gone.map(|key| Step::Service(*key, None)).collect(),
            generation: (!self.new_slots.is_empty()).then(|| self.placements.generation()),
            new_slots: self.new_slots,
            switches: self.switches,
            retired_slots,
        }
    }
}
