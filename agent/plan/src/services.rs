//! Plans port claims: their slots and the revisions that packets see.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{
    SERVICE_DIRECT, SERVICE_HASHES_VIP, SERVICE_KERNEL, SERVICE_SPARE, ServiceKey, ServiceState, ServiceValue,
    VIP_ALL_PORTS,
};

use crate::{
    arena::TableRanges,
    backends::BackendPlanner,
    capacity::{CapacityMap, CapacityRefusal, Shortage, Subject},
    error::PlanError,
    index_pool::Vacancies,
    mirror::{MapMirror, Slot, service_key},
    observed::Observed,
    reachability::{is_left_to_the_stack, is_out_of_reach},
    reached::ClaimChange,
    sources::{self, SetId},
    step::Step,
};
use vipmux_model::{
    PortClaim, ServiceName, Vip,
    desired::{Desired, DesiredService},
};

/// The steps for `SERVICES`, `SERVICE_NAMES`, `SERVICE_STATES` and `SOURCE_RANGES`.
pub(super) struct ServiceSteps {
    pub(super) removals: Vec<Step>,
    /// Also changes of the states of slots that stay.
    pub(super) new_slots: Vec<Step>,
    /// Switches from one revision to the next.
    pub(super) switches: Vec<Step>,
    /// Removals of port claims whose ports other claims have now: a single port and every port
    /// replace each other.
    pub(super) superseded: Vec<Step>,
    /// Clears slots. After that the flows of former owners are stale.
    pub(super) retired_slots: Vec<Step>,
    /// The generation of the new slots, if there are any.
    pub(super) generation: Option<u32>,
    /// The first generation that no new set of source ranges has, if there are any.
    pub(super) after_sources: Option<u32>,
    /// Port claims that have endpoints, none of which can be reached.
    pub(super) unreachable: Vec<PortClaim>,
}

impl ServiceSteps {
    pub(super) fn plan(
        desired: &Desired,
        observed: &Observed,
        vips: &BTreeMap<Vip, Result<u32, Shortage>>,
        differing: Option<&[ClaimChange<'_>]>,
        planner: &mut BackendPlanner<'_>,
        now: Duration,
        refused: &mut Vec<CapacityRefusal>,
    ) -> Result<Self, PlanError> {
        let maps = &observed.maps;
        let wanted: Vec<_> = match differing {
            None => desired.services.iter().collect(),
            Some(changes) => changes.iter().filter_map(|(claim, [_, new])| Some((*claim, (*new)?))).collect(),
        };
        let mut draft = Draft::new(maps, planner, differing.map(|changes| scope(changes, maps)), now);
        if let Some(changes) = differing {
            draft.unreachable.clone_from(observed.reached.unreachable());
            for (claim, _) in changes {
                draft.unreachable.remove(*claim);
            }
        }
        let (mut held, mut new) = (Vec::new(), Vec::new());
        for (claim, service) in wanted {
            match vips.get(&claim.vip).ok_or(PlanError::UnknownVip { claim: *claim })? {
                Ok(vip) => {
                    let key = service_key(*vip, claim);
                    let current = maps.services.get(&key);
                    if current.is_some() { &mut held } else { &mut new }.push((claim, service, key, current));
                }
                Err(shortage) => refused.push(refusal(claim, *shortage)),
            }
        }
        // Claims that are served come first, so that a new one never takes what they need.
        for (claim, service, key, current) in held.into_iter().chain(new) {
            draft.unreachable.extend(is_out_of_reach(desired, service).then_some(*claim));
            let kernel = is_left_to_the_stack(desired, service);
            if let Err(shortage) = draft.claim((key, claim.vip), current, service, kernel) {
                refused.push(refusal(claim, shortage));
            }
        }
        draft.finish()
    }
}

fn refusal(claim: &PortClaim, shortage: Shortage) -> CapacityRefusal {
    CapacityRefusal { subject: Subject::Claim(*claim), shortage }
}

/// Returns the entries of `SERVICES` of the differing claims, with their slots.
fn scope(changes: &[ClaimChange<'_>], maps: &MapMirror) -> BTreeMap<ServiceKey, u32> {
    let entry = |claim: &PortClaim| {
        let key = maps.service_key(claim)?;
        Some((key, maps.services.get(&key)?.slot))
    };
    changes.iter().filter_map(|(claim, _)| entry(claim)).collect()
}

/// The Services of a plan that is being made.
struct Draft<'a, 'p, 'b> {
    maps: &'a MapMirror,
    planner: &'p mut BackendPlanner<'b>,
    sources: sources::SourceRangePlanner<'a>,
    vacancies: Vacancies<'a, Slot>,
    /// The ids of the VIPs that have [`VIP_ALL_PORTS`] now.
    all_ports: BTreeSet<u32>,
    /// The entries of `SERVICES` that the plan looks at, with their slots; `None`: all. The others
    /// stay.
    scope: Option<BTreeMap<ServiceKey, u32>>,
    /// The desired entries of `SERVICES`, of those.
    keys: BTreeSet<ServiceKey>,
    /// Their slots.
    slots: BTreeSet<u32>,
    new_slots: Vec<Step>,
    /// Slots that stay and get another state.
    changes: Vec<Step>,
    switches: Vec<Step>,
    unreachable: BTreeSet<PortClaim>,
}

impl<'a, 'p, 'b> Draft<'a, 'p, 'b> {
    fn new(
        maps: &'a MapMirror,
        planner: &'p mut BackendPlanner<'b>,
        scope: Option<BTreeMap<ServiceKey, u32>>,
        now: Duration,
    ) -> Self {
        let capacity = maps.capacities.source_ranges;
        let all_ports = maps.vips.values().filter(|vip| vip.flags & VIP_ALL_PORTS != 0);
        Self {
            all_ports: all_ports.map(|vip| vip.id).collect(),
            maps,
            sources: sources::SourceRangePlanner::new(&maps.sources, capacity, planner.generation(), now),
            planner,
            vacancies: maps.slots.vacancies(now),
            scope,
            keys: BTreeSet::new(),
            slots: BTreeSet::new(),
            new_slots: Vec::new(),
            changes: Vec::new(),
            switches: Vec::new(),
            unreachable: BTreeSet::new(),
        }
    }

    /// Serves a port claim as desired. If that fails, it is served as before if the owner is the
    /// same, else not at all. `kernel`: its packets are left to the node's stack.
    fn claim(
        &mut self,
        (key, vip): (ServiceKey, Vip),
        current: Option<&ServiceValue>,
        service: &DesiredService,
        kernel: bool,
    ) -> Result<(), Shortage> {
        let own = current.filter(|value| self.is_slot_of(value, &service.owner));
        // Flows must not continue across a change of `kernel`. A new slot ends them.
        let flags = if kernel { SERVICE_KERNEL } else { 0 };
        let same = own.filter(|own| own.flags & SERVICE_KERNEL == flags);
        let (slot, result) = match self.revision((current.is_some(), vip), same, service, flags) {
            Ok(value) => {
                if current != Some(&value) {
                    self.switches.push(Step::Service(key, Some(value)));
                }
                (value.slot, Ok(()))
            }
            Err(shortage) => {
                let kept = own.filter(|own| self.is_met(key) && self.is_restricted(own, service));
                let Some(own) = kept else { return Err(shortage) };
                self.planner.keep(own);
                (own.slot, Err(shortage))
            }
        };
        self.keys.insert(key);
        self.slots.insert(slot);
        result
    }

    /// Whether the slot of a revision is consistent and belongs to this owner only.
    fn is_slot_of(&self, value: &ServiceValue, owner: &ServiceName) -> bool {
        self.maps.slots.get(value.slot).is_some_and(|slot| {
            slot.users == 1
                && slot.name.as_ref() == Some(owner)
                && value.generation != 0
                && slot.state.generation == value.generation
        })
    }

    /// Applies the source ranges to a revision that could not be replaced.
    ///
    /// Returns `false` if it shall be restricted, is open to everybody, and there is no room for
    /// the ranges: such a claim does not stay open.
    fn is_restricted(&mut self, own: &ServiceValue, service: &DesiredService) -> bool {
        let state = self.state(own.slot);
        let wanted = service.treatment.sources.as_ref();
        let current = SetId::new(state.ranges);
        let Ok(choice) = self.sources.find(current, wanted) else { return current.is_some() };
        let ranges = self.sources.take(choice, wanted);
        self.change(own.slot, ServiceState { ranges: ranges.map_or(0, SetId::get), ..state });
        true
    }

    fn state(&self, slot: u32) -> ServiceState {
        self.maps.slots.get(slot).map(|slot| slot.state).unwrap_or_default()
    }

    fn change(&mut self, slot: u32, state: ServiceState) {
        if self.state(slot) != state {
            self.changes.push(Step::ServiceState(slot, state));
        }
    }

    /// Returns the desired value of an entry. `there`: the claim has an entry. `own`: that entry,
    /// if its slot can stay in use.
    fn revision(
        &mut self,
        (there, vip): (bool, Vip),
        own: Option<&ServiceValue>,
        service: &DesiredService,
        flags: u32,
    ) -> Result<ServiceValue, Shortage> {
        let treatment = &service.treatment;
        let wanted = treatment.sources.as_ref();
        let (slot, generation) = self.slot(there, own)?;
        let choice = self.sources.find(own.and_then(|own| SetId::new(self.state(own.slot).ranges)), wanted)?;
        let tables = if flags == 0 { self.planner.place(&service.backends)? } else { TableRanges::default() };
        let state = ServiceState {
            generation,
            flags: if treatment.direct { SERVICE_DIRECT } else { 0 },
            idle: self.jiffies(treatment.idle),
            ranges: self.sources.take(choice, wanted).map_or(0, SetId::get),
            vip: vip.address().into(),
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
            table: tables.all.offset,
            table_length: tables.all.length,
            local_table: tables.local.offset,
            local_length: tables.local.length,
            flags: flags
                | if tables.spare { SERVICE_SPARE } else { 0 }
                | if self.planner.hashing().covers_vip() { SERVICE_HASHES_VIP } else { 0 },
            affinity: self.jiffies(treatment.affinity),
        })
    }

    /// Returns the slot of a revision and its generation. A new slot is not taken yet.
    fn slot(&mut self, there: bool, own: Option<&ServiceValue>) -> Result<(u32, u32), Shortage> {
        let capacity = self.maps.slots.capacity();
        let full = Shortage { map: CapacityMap::Services, capacity, free: 0, needed: 1 };
        let others = self.scope.as_ref().map_or(0, |scope| self.maps.services.len() - scope.len());
        if !there && others + self.keys.len() >= capacity as usize {
            return Err(full);
        }
        match own {
            Some(own) => Ok((own.slot, own.generation)),
            None => Ok((self.vacancies.peek().ok_or(full)?, self.planner.generation())),
        }
    }

    fn jiffies(&self, seconds: Option<u32>) -> u32 {
        seconds.unwrap_or(0).saturating_mul(self.maps.config.hz)
    }

    fn finish(self) -> Result<ServiceSteps, PlanError> {
        let (keys, slots): (Vec<_>, BTreeSet<_>) = match &self.scope {
            None => (self.maps.services.keys().collect(), self.maps.slots.iter().map(|(slot, _)| slot).collect()),
            Some(scope) => (scope.keys().collect(), scope.values().copied().collect()),
        };
        let gone = keys.into_iter().filter(|key| !self.keys.contains(key));
        let (mut superseded, gone): (Vec<&ServiceKey>, Vec<_>) = gone.partition(|key| self.is_superseded(**key));
        // An agent that died may have left a claim beside that of every port. It would get packets
        // of the other one for a moment.
        let every: BTreeSet<ServiceKey> = superseded.iter().filter(|key| key.port == 0).copied().copied().collect();
        let is_beside = |key: &&ServiceKey| every.contains(&ServiceKey { port: 0, ..**key });
        let (beside, mut gone): (Vec<_>, Vec<_>) = gone.into_iter().partition(is_beside);
        superseded.extend(beside);
        // They stay until others have their ports, if there is room for both.
        let arrivals = self.keys.iter().filter(|key| !self.maps.services.contains_key(key)).count();
        let at_once = (self.maps.services.len() + arrivals).saturating_sub(gone.len());
        if at_once > self.maps.capacities.services as usize {
            gone.append(&mut superseded);
        }
        let removal = |key: &ServiceKey| Step::Service(*key, None);
        let mut retired_slots = Vec::new();
        for index in slots.difference(&self.slots).copied() {
            let Some(slot) = self.maps.slots.get(index) else { continue };
            if slot.state != ServiceState::default() {
                retired_slots.push(Step::ServiceState(index, ServiceState::default()));
            }
            if slot.name.is_some() {
                retired_slots.push(Step::ServiceName(index, None));
            }
        }
        let after_sources = self.sources.after()?;
        Ok(ServiceSteps {
            removals: gone.into_iter().map(removal).chain(self.sources.removals).collect(),
            generation: (!self.new_slots.is_empty()).then(|| self.planner.generation()),
            after_sources,
            new_slots: [self.sources.writes, self.changes, self.new_slots].concat(),
            switches: self.switches,
            superseded: superseded.into_iter().map(removal).collect(),
            retired_slots,
            unreachable: self.unreachable.into_iter().collect(),
        })
    }

    /// Whether packets reach the claim's entry. If an agent died, the entry of every port may be
    /// there without its VIP's flag. The rest of such an entry must not become reachable.
    fn is_met(&self, key: ServiceKey) -> bool {
        key.port != 0 || self.all_ports.contains(&key.vip)
    }

    /// Whether the entry stays because nothing changes about it.
    fn stays(&self, key: ServiceKey) -> bool {
        self.scope.as_ref().is_some_and(|scope| !scope.contains_key(&key)) && self.maps.services.contains_key(&key)
    }

    /// Whether another claim takes over the ports of this one, which goes.
    fn is_superseded(&self, key: ServiceKey) -> bool {
        if !self.is_met(key) {
            return false;
        }
        if key.port != 0 {
            let every = ServiceKey { port: 0, ..key };
            return self.keys.contains(&every) || self.stays(every);
        }
        let of_vip = key..=ServiceKey { port: u16::MAX, protocol: u8::MAX, ..key };
        let stay = self.maps.services.range(of_vip.clone()).map(|(key, _)| key).filter(|key| self.stays(**key));
        self.keys.range(of_vip).chain(stay).any(|other| other.protocol == key.protocol)
    }
}
