//! Port claims: their slots and the revisions that packets see.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{
    SERVICE_DIRECT, SERVICE_KERNEL, SERVICE_SPARE, ServiceKey, ServiceState, ServiceValue, VIP_ALL_PORTS,
};

use crate::{
    model::{PortClaim, ServiceName, Vip},
    plan::{
        CapacityMap, Desired, DesiredService, Observed, PlanError, Refusal, Shortage, Step, Subject, Unreachable,
        backends::{Placement, Placements},
        observed::Slot,
        pool::Vacancies,
        settled::Change,
        sources,
    },
};

/// The steps for `SERVICES`, `SERVICE_NAMES`, `SERVICE_STATES` and `SOURCE_RANGES`.
pub(super) struct Services {
    pub(super) removals: Vec<Step>,
    /// With changes of the states of slots that stay.
    pub(super) new_slots: Vec<Step>,
    /// From one revision to the next.
    pub(super) switches: Vec<Step>,
    /// Claims whose ports other claims have now: of one port those of every port, or the other way round.
    pub(super) superseded: Vec<Step>,
    /// From here on the flows of former owners are stale.
    pub(super) retired_slots: Vec<Step>,
    /// The generation of the new slots, if there are any.
    pub(super) generation: Option<u32>,
    /// The first generation that no new set of source ranges has, if there are any.
    pub(super) after_sources: Option<u32>,
    /// Claims that have endpoints, none of which can be reached.
    pub(super) unreachable: Vec<PortClaim>,
}

impl Services {
    pub(super) fn plan(
        desired: &Desired,
        observed: &Observed,
        vips: &BTreeMap<Vip, Result<u32, Shortage>>,
        differing: Option<&[Change<'_>]>,
        placements: &mut Placements<'_>,
        now: Duration,
        refused: &mut Vec<Refusal>,
    ) -> Result<Self, PlanError> {
        let wanted: Vec<_> = match differing {
            None => desired.services.iter().collect(),
            Some(changes) => changes.iter().filter_map(|(claim, [_, new])| Some((*claim, (*new)?))).collect(),
        };
        let mut draft = Draft::new(observed, placements, differing.map(|changes| scope(changes, observed)), now);
        if let Some(changes) = differing {
            draft.unreachable.clone_from(observed.settled.unreachable());
            for (claim, _) in changes {
                draft.unreachable.remove(*claim);
            }
        }
        let (mut held, mut new) = (Vec::new(), Vec::new());
        for (claim, service) in wanted {
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
            draft.unreachable.extend(is_out_of_reach(desired, service).then_some(*claim));
            if let Err(shortage) = draft.claim(key, current, service, is_left_to_the_stack(desired, service)) {
                refused.push(refusal(claim, shortage));
            }
        }
        draft.finish()
    }
}

fn key(vip: u32, claim: &PortClaim) -> ServiceKey {
    ServiceKey { vip, port: claim.port.to_be(), protocol: claim.protocol.number(), padding: 0 }
}

fn refusal(claim: &PortClaim, shortage: Shortage) -> Refusal {
    Refusal { subject: Subject::Claim(*claim), shortage }
}

/// Whether packets are left to the node's own stack, so that no backend of the Service has a place in the maps.
pub(super) fn is_left_to_the_stack(desired: &Desired, service: &DesiredService) -> bool {
    service.treatment.kernel || desired.unreachable == Unreachable::Kernel && is_out_of_reach(desired, service)
}

/// The entries of `SERVICES` that there are for claims that differ, and their slots.
fn scope(changes: &[Change<'_>], observed: &Observed) -> BTreeMap<ServiceKey, u32> {
    let entry = |claim: &PortClaim| {
        let key = key(observed.vips.get(&claim.vip.0.into())?.id, claim);
        Some((key, observed.services.get(&key)?.slot))
    };
    changes.iter().filter_map(|(claim, _)| entry(claim)).collect()
}

/// Whether there are endpoints for new flows, and all of them on nodes that are not there.
fn is_out_of_reach(desired: &Desired, service: &DesiredService) -> bool {
    let mut ready = service.backends.iter().filter(|backend| backend.ready).peekable();
    ready.peek().is_some() && !ready.any(|backend| desired.nodes.contains_key(&backend.node))
}

/// The Services of a plan in the making.
struct Draft<'a, 'p, 'b> {
    observed: &'a Observed,
    placements: &'p mut Placements<'b>,
    sources: sources::Placement<'a>,
    vacancies: Vacancies<'a, Slot>,
    /// The ids of the VIPs that have [`VIP_ALL_PORTS`] now.
    all_ports: BTreeSet<u32>,
    /// Entries of `SERVICES` that it is about, and their slots; `None`: all. The others stay as they are.
    scope: Option<BTreeMap<ServiceKey, u32>>,
    /// Entries of `SERVICES` that there are to be, of those.
    keys: BTreeSet<ServiceKey>,
    /// Their slots.
    slots: BTreeSet<u32>,
    new_slots: Vec<Step>,
    /// Slots that stay and are treated otherwise.
    changes: Vec<Step>,
    switches: Vec<Step>,
    unreachable: BTreeSet<PortClaim>,
}

impl<'a, 'p, 'b> Draft<'a, 'p, 'b> {
    fn new(
        observed: &'a Observed,
        placements: &'p mut Placements<'b>,
        scope: Option<BTreeMap<ServiceKey, u32>>,
        now: Duration,
    ) -> Self {
        let capacity = observed.capacities.source_ranges;
        let all_ports = observed.vips.values().filter(|vip| vip.flags & VIP_ALL_PORTS != 0);
        Self {
            all_ports: all_ports.map(|vip| vip.id).collect(),
            observed,
            sources: sources::Placement::new(&observed.sources, capacity, placements.generation(), now),
            placements,
            vacancies: observed.slots.vacancies(now),
            scope,
            keys: BTreeSet::new(),
            slots: BTreeSet::new(),
            new_slots: Vec::new(),
            changes: Vec::new(),
            switches: Vec::new(),
            unreachable: BTreeSet::new(),
        }
    }

    /// Serves a claim as wanted; or as it was, if it was the same owner's; or not at all. `kernel`: its packets are left
    /// to the stack.
    fn claim(
        &mut self,
        key: ServiceKey,
        current: Option<&ServiceValue>,
        service: &DesiredService,
        kernel: bool,
    ) -> Result<(), Shortage> {
        let own = current.filter(|value| self.is_slot_of(value, &service.owner));
        // Flows must not go on as they did before packets were left to the stack, or after: another slot ends them.
        let flags = if kernel { SERVICE_KERNEL } else { 0 };
        let same = own.filter(|own| own.flags & SERVICE_KERNEL == flags);
        let (slot, result) = match self.revision(current.is_some(), same, service, flags) {
            Ok(value) => {
                if current != Some(&value) {
                    self.switches.push(Step::Service(key, Some(value)));
                }
                (value.slot, Ok(()))
            }
            Err(shortage) => {
                let kept = own.filter(|own| self.is_met(key) && self.is_restricted(own, service));
                let Some(own) = kept else { return Err(shortage) };
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
                && slot.state.generation == value.generation
        })
    }

    /// Holds a revision that could not be replaced to its source ranges all the same. Whether it is held to any, if there
    /// are to be any: a claim that was open to everybody does not stay so for want of room.
    fn is_restricted(&mut self, own: &ServiceValue, service: &DesiredService) -> bool {
        let state = self.state(own.slot);
        let wanted = service.treatment.sources.as_ref();
        let Ok(choice) = self.sources.find(state.ranges, wanted) else { return state.ranges != 0 };
        let ranges = self.sources.take(choice, wanted);
        self.change(own.slot, ServiceState { ranges, ..state });
        true
    }

    fn state(&self, slot: u32) -> ServiceState {
        self.observed.slots.get(slot).map(|slot| slot.state).unwrap_or_default()
    }

    fn change(&mut self, slot: u32, state: ServiceState) {
        if self.state(slot) != state {
            self.changes.push(Step::ServiceState(slot, state));
        }
    }

    /// `there`: the claim has an entry. `own`: it, if its slot can go on being used.
    fn revision(
        &mut self,
        there: bool,
        own: Option<&ServiceValue>,
        service: &DesiredService,
        flags: u32,
    ) -> Result<ServiceValue, Shortage> {
        let treatment = &service.treatment;
        let wanted = treatment.sources.as_ref();
        let (slot, generation) = self.slot(there, own)?;
        let choice = self.sources.find(own.map_or(0, |own| self.state(own.slot).ranges), wanted)?;
        let placement = if flags == 0 { self.placements.place(&service.backends)? } else { Placement::default() };
        let state = ServiceState {
            generation,
            flags: if treatment.direct { SERVICE_DIRECT } else { 0 },
            idle: self.jiffies(treatment.idle),
            ranges: self.sources.take(choice, wanted),
        };
        if own.is_some() {
            self.change(slot, state);
        } else {
            self.vacancies.take();
            self.new_slots.push(Step::ServiceName(slot, Some(service.owner.clone())));
            self.new_slots.push(Step::ServiceState(slot, state));
        }
        Ok(ServiceValue {
            slot,
            generation,
            table: placement.all.offset,
            table_length: placement.all.length,
            local_table: placement.local.offset,
            local_length: placement.local.length,
            flags: flags | if placement.spare { SERVICE_SPARE } else { 0 },
            affinity: self.jiffies(treatment.affinity),
        })
    }

    /// The slot of a revision, which is not taken yet if it is new, and its generation.
    fn slot(&mut self, there: bool, own: Option<&ServiceValue>) -> Result<(u32, u32), Shortage> {
        let capacity = self.observed.slots.capacity();
        let full = Shortage { map: CapacityMap::Services, capacity, free: 0, needed: 1 };
        let others = self.scope.as_ref().map_or(0, |scope| self.observed.services.len() - scope.len());
        if !there && others + self.keys.len() >= capacity as usize {
            return Err(full);
        }
        match own {
            Some(own) => Ok((own.slot, own.generation)),
            None => Ok((self.vacancies.peek().ok_or(full)?, self.placements.generation())),
        }
    }

    fn jiffies(&self, seconds: Option<u32>) -> u32 {
        seconds.unwrap_or(0).saturating_mul(self.observed.config.hz)
    }

    fn finish(self) -> Result<Services, PlanError> {
        let (keys, slots): (Vec<_>, BTreeSet<_>) = match &self.scope {
            None => {
                (self.observed.services.keys().collect(), self.observed.slots.iter().map(|(slot, _)| slot).collect())
            }
            Some(scope) => (scope.keys().collect(), scope.values().copied().collect()),
        };
        let gone = keys.into_iter().filter(|key| !self.keys.contains(key));
        let (mut superseded, gone): (Vec<&ServiceKey>, Vec<_>) = gone.partition(|key| self.is_superseded(**key));
        // An agent that died may have left a claim beside that of every port, which would get its packets for a moment.
        let every: BTreeSet<ServiceKey> = superseded.iter().filter(|key| key.port == 0).copied().copied().collect();
        let is_beside = |key: &&ServiceKey| every.contains(&ServiceKey { port: 0, ..**key });
        let (beside, mut gone): (Vec<_>, Vec<_>) = gone.into_iter().partition(is_beside);
        superseded.extend(beside);
        // They stay until others have their ports, if there is room for both.
        let arrivals = self.keys.iter().filter(|key| !self.observed.services.contains_key(key)).count();
        let at_once = (self.observed.services.len() + arrivals).saturating_sub(gone.len());
        if at_once > self.observed.capacities.services as usize {
            gone.append(&mut superseded);
        }
        let removal = |key: &ServiceKey| Step::Service(*key, None);
        let mut retired_slots = Vec::new();
        for index in slots.difference(&self.slots).copied() {
            let Some(slot) = self.observed.slots.get(index) else { continue };
            if slot.state != ServiceState::default() {
                retired_slots.push(Step::ServiceState(index, ServiceState::default()));
            }
            if slot.name.is_some() {
                retired_slots.push(Step::ServiceName(index, None));
            }
        }
        let after_sources = self.sources.after()?;
        Ok(Services {
            removals: gone.into_iter().map(removal).chain(self.sources.removals).collect(),
            generation: (!self.new_slots.is_empty()).then(|| self.placements.generation()),
            after_sources,
            new_slots: [self.sources.writes, self.changes, self.new_slots].concat(),
            switches: self.switches,
            superseded: superseded.into_iter().map(removal).collect(),
            retired_slots,
            unreachable: self.unreachable.into_iter().collect(),
        })
    }

    /// Whether packets meet the claim's entry. That of every port may be there without its VIP's flag, if an agent died:
    /// what is left of it must not come to be met.
    fn is_met(&self, key: ServiceKey) -> bool {
        key.port != 0 || self.all_ports.contains(&key.vip)
    }

    /// Whether there is to be this entry because nothing changes about it.
    fn stays(&self, key: ServiceKey) -> bool {
        self.scope.as_ref().is_some_and(|scope| !scope.contains_key(&key)) && self.observed.services.contains_key(&key)
    }

    /// Whether another claim has the ports of this one, which goes.
    fn is_superseded(&self, key: ServiceKey) -> bool {
        if !self.is_met(key) {
            return false;
        }
        if key.port != 0 {
            let every = ServiceKey { port: 0, ..key };
            return self.keys.contains(&every) || self.stays(every);
        }
        let of_vip = key..=ServiceKey { port: u16::MAX, protocol: u8::MAX, ..key };
        let stay = self.observed.services.range(of_vip.clone()).map(|(key, _)| key).filter(|key| self.stays(**key));
        self.keys.range(of_vip).chain(stay).any(|other| other.protocol == key.protocol)
    }
}
