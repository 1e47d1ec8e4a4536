//! Finds addresses for Services that name none: those of their group, else free ones (rule 6), of
//! one family or of both (rule 10).

use std::{collections::BTreeSet, iter};

use super::{AllocationRun, conflict, exhaustion, pools::FreeAddresses};
use crate::occupancy::{GroupPart, Occupants};
use vipmux_model::{
    Family, Vip,
    pool::OnConflict,
    reason::Refusal,
    service::{Families, Service},
};

/// The address in its group where a Service clashes first, and the refusal.
pub(super) type GroupClash = (Vip, Refusal);

/// The address that goes with an address of a group, one of each family.
enum Partner {
    At(Vip),
    Clashes(GroupClash),
    /// The group has none of the other family.
    None,
}

/// The reason why a Service gets no pair of addresses.
enum NoPair<'a> {
    /// It clashes within its group, and must wait for that to end.
    Waits(Refusal),
    /// No pool serves it.
    NoPool(Refusal),
    /// None of these pools has a pair. There may have been a clash within the group before.
    Full(Vec<FreeAddresses<'a>>, Option<GroupClash>),
}

impl<'a> AllocationRun<'a> {
    /// Applies rule 6 to a Service that names no address.
    pub(super) fn automatic(&mut self, service: &'a Service) -> Result<BTreeSet<Vip>, Refusal> {
        match service.families {
            Families::Single(family) => self.one(family, service),
            Families::RequireDual => self.pair(service).map_err(|refused| match refused {
                NoPair::Waits(refusal) | NoPair::NoPool(refusal) => refusal,
                NoPair::Full(free_addresses, clash) => self.exhausted(service, &Family::ALL, &free_addresses, clash),
            }),
            Families::PreferDual(first) => match self.pair(service) {
                Ok(pair) => Ok(pair),
                Err(NoPair::Waits(refusal) | NoPair::NoPool(refusal)) => Err(refusal),
                Err(NoPair::Full(..)) => {
                    self.one(first, service).or_else(|refusal| self.one(first.other(), service).map_err(|_| refusal))
                }
            },
        }
    }

    /// Returns the addresses of its new group for a Service with a new key; or the first clash
    /// there, if there is one.
    pub(super) fn join_group(&mut self, service: &'a Service) -> Result<BTreeSet<Vip>, Option<GroupClash>> {
        let single = |run: &mut Self, family| run.group_address(family, service).map(|vip| [vip].into());
        if let Families::Single(family) = service.families {
            return single(self, family);
        }
        let free_addresses = self.pools.free_addresses(service, self.state).unwrap_or_default();
        let clash = match (self.group_pair(service, &free_addresses), service.families) {
            (Err(clash), Families::PreferDual(_)) => clash,
            (outcome, _) => return outcome,
        };
        if clash.as_ref().is_some_and(|clash| self.must_wait(service, clash)) {
            return Err(clash);
        }
        let mut families = service.families.wanted();
        families.find_map(|family| single(self, family).ok()).ok_or(clash)
    }

    /// Returns both addresses for a Service that has one of them and may have the other.
    pub(super) fn completed(&mut self, service: &'a Service) -> Option<BTreeSet<Vip>> {
        if matches!(service.families, Families::Single(_)) || !service.request.addresses.is_empty() {
            return None;
        }
        let held = self.holding.get(&service.name).and_then(|held| held.first().filter(|_| held.len() == 1)).copied();
        let held = held.filter(|vip| self.fits(*vip, service).is_ok());
        let vip = held.or_else(|| self.state.placed.get(&service.name)?.own().next())?;
        let unpaired = self.unpaired(vip.family().other(), service);
        let partner = match self.partner(vip, unpaired, service) {
            Partner::At(partner) => partner,
            Partner::Clashes(clash) if self.must_wait(service, &clash) => return None,
            // The Service stays on the first address, so the clash affects only the second one.
            Partner::Clashes(_) | Partner::None => {
                free_beside(&self.pools.free_addresses(service, self.state).ok()?, vip)?
            }
        };
        Some([vip, partner].into())
    }

    /// Returns one address of this family.
    fn one(&mut self, family: Family, service: &'a Service) -> Result<BTreeSet<Vip>, Refusal> {
        let clash = match self.group_address(family, service) {
            Ok(vip) => return Ok([vip].into()),
            Err(clash) => clash,
        };
        if let Some(clash) = clash.as_ref().filter(|clash| self.must_wait(service, clash)) {
            return Err(clash.1.clone());
        }
        let free_addresses = self.pools.free_addresses(service, self.state)?;
        match free_addresses.iter().find_map(|free| free.of(family)) {
            Some(vip) => Ok([vip].into()),
            None => Err(self.exhausted(service, &[family], &free_addresses, clash)),
        }
    }

    /// Returns one address of each family: a pair of the group, else two addresses from one pool.
    fn pair(&mut self, service: &'a Service) -> Result<BTreeSet<Vip>, NoPair<'a>> {
        let free_addresses = self.pools.free_addresses(service, self.state);
        let clash = match self.group_pair(service, free_addresses.as_deref().unwrap_or_default()) {
            Ok(pair) => return Ok(pair),
            Err(clash) => clash,
        };
        if let Some(clash) = clash.as_ref().filter(|clash| self.must_wait(service, clash)) {
            return Err(NoPair::Waits(clash.1.clone()));
        }
        let free_addresses = free_addresses.map_err(NoPair::NoPool)?;
        let both = free_addresses.iter().find_map(|free| Some([free.v4?, free.v6?].into()));
        both.ok_or(NoPair::Full(free_addresses, clash))
    }

    fn exhausted(
        &self,
        service: &Service,
        families: &[Family],
        free_addresses: &[FreeAddresses<'a>],
        clash: Option<GroupClash>,
    ) -> Refusal {
        let full: Vec<_> = free_addresses
            .iter()
            .map(|free| {
                let lacking = families.iter().copied().filter(|family| free.of(*family).is_none());
                (free.pool, lacking.collect())
            })
            .collect();
        let mut refusal = exhaustion::refusal(self, service, families, &full);
        if let Some((_, clash)) = clash {
            refusal.message = format!("{}; {}", clash.message, refusal.message);
        }
        refusal
    }

    /// Whether the Service must wait after a clash within its group (rule 8).
    pub(super) fn must_wait(&self, service: &Service, (vip, _): &GroupClash) -> bool {
        service.request.never_spills
            || self.pools.pool_of(*vip).is_some_and(|pool| pool.on_conflict == OnConflict::Pending)
    }

    /// Whether a clash within its group keeps the Service, which is about to get these addresses, from
    /// lower ones of the group; or from all, if these are not the group's.
    pub(super) fn spills(&self, service: &Service, own: &BTreeSet<Vip>) -> bool {
        let joins = own.iter().all(|vip| self.state.occupancy.on(*vip).is_some());
        service.request.addresses.is_empty() && self.group_clash(service, own, joins).is_some()
    }

    /// Returns the first clash on an address of the group that is not among these; if `lower`, that
    /// is below them, too.
    pub(crate) fn group_clash(&self, service: &Service, own: &BTreeSet<Vip>, lower: bool) -> Option<Refusal> {
        let occupancy = &self.state.occupancy;
        // Most Services with two addresses that do not fit clash on other pairs.
        let pair = own.first().filter(|_| own.len() > 1).map(|v4| (GroupPart::Pairs, *v4));
        let each = own.iter().map(|vip| (GroupPart::Family(vip.family()), *vip));
        pair.into_iter().chain(each).find_map(|(part, one)| {
            let group = occupancy.group(part, service).map(|(vip, _)| vip).take_while(|vip| !lower || *vip < one);
            let partners = |vip| occupancy.partners(vip).filter(|_| part == GroupPart::Pairs);
            let both = group.filter(|vip| *vip != one).flat_map(|vip| iter::once(vip).chain(partners(vip)));
            both.filter(|vip| !own.contains(vip)).find_map(|vip| {
                let (_, refusal) = clash(vip, occupancy.on(vip)?, service)?;
                self.may_join(vip, occupancy.on(vip)?, service).then_some(refusal)
            })
        })
    }

    /// Returns the lowest address of the group on which the Service fits; else the first clash, if
    /// there is one.
    fn group_address(&mut self, family: Family, service: &'a Service) -> Result<Vip, Option<GroupClash>> {
        let part = GroupPart::Family(family);
        // A group whose members all clash has as many addresses as members. Look only at the first
        // of those.
        let taken_below = self.state.occupancy.taken_below(part, service);
        let mut first_clash = self.first_clash_below(part, taken_below, service);
        for (vip, occupants) in self.state.occupancy.group_from(part, taken_below, service) {
            if occupants.clash(service).is_some() && first_clash.is_some() || !self.may_join(vip, occupants, service) {
                continue;
            }
            match clash(vip, occupants, service) {
                None => return Ok(vip),
                found => first_clash = found,
            }
        }
        Err(first_clash)
    }

    /// Returns the lowest pair of the group on which the Service fits. Else returns an address of
    /// the group that has no partner and can get none from the group, and a free one beside it.
    /// Else returns the first clash, if there is one.
    fn group_pair(
        &mut self,
        service: &'a Service,
        free_addresses: &[FreeAddresses<'a>],
    ) -> Result<BTreeSet<Vip>, Option<GroupClash>> {
        let taken_below = self.state.occupancy.taken_below(GroupPart::Pairs, service);
        let mut first_clash = self.first_clash_below(GroupPart::Pairs, taken_below, service);
        for (vip, occupants) in self.state.occupancy.group_from(GroupPart::Pairs, taken_below, service) {
            match self.join_with_partner(vip, occupants, None, service) {
                Some(Partner::At(partner)) => return Ok([vip, partner].into()),
                Some(Partner::Clashes(clash)) => first_clash = first_clash.or(Some(clash)),
                Some(Partner::None) | None => {}
            }
        }
        let mut half = None;
        for family in Family::ALL {
            let (part, unpaired) = (GroupPart::Family(family), self.unpaired(family.other(), service));
            let taken_below = self.state.occupancy.taken_below(part, service);
            first_clash = first_clash.or_else(|| self.first_clash_below(part, taken_below, service));
            let from = taken_below.max(self.state.occupancy.paired_below(family, service));
            for (vip, occupants) in self.state.occupancy.group_from(part, from, service) {
                if self.state.occupancy.has_partners(vip) {
                    continue;
                }
                match self.join_with_partner(vip, occupants, unpaired, service) {
                    Some(Partner::At(partner)) => return Ok([vip, partner].into()),
                    Some(Partner::Clashes(clash)) => first_clash = first_clash.or(Some(clash)),
                    Some(Partner::None) => {
                        half = half.or_else(|| Some([vip, free_beside(free_addresses, vip)?].into()));
                    }
                    None => {}
                }
            }
        }
        half.ok_or(first_clash)
    }

    /// Returns the partner of an address of the group, or the clash there; `None` if the Service
    /// may not be on the address.
    fn join_with_partner(
        &self,
        vip: Vip,
        occupants: &Occupants,
        unpaired: Option<Vip>,
        service: &Service,
    ) -> Option<Partner> {
        let partner =
            || clash(vip, occupants, service).map_or_else(|| self.partner(vip, unpaired, service), Partner::Clashes);
        self.may_join(vip, occupants, service).then(partner)
    }

    /// Returns the lowest address of this family in the Service's group that is nobody's partner.
    fn unpaired(&mut self, family: Family, service: &'a Service) -> Option<Vip> {
        let from = self.state.occupancy.paired_below(family, service);
        let mut group = self.state.occupancy.group_from(GroupPart::Family(family), from, service).map(|(vip, _)| vip);
        group.find(|vip| !self.state.occupancy.has_partners(*vip))
    }

    /// Returns the partner of an address of the Service or of its group: the address that others
    /// hold together with it. If nobody does, it is the group's [unpaired](Self::unpaired) address
    /// of the other family.
    fn partner(&self, vip: Vip, unpaired: Option<Vip>, service: &Service) -> Partner {
        let unpaired = unpaired.filter(|_| !self.state.occupancy.has_partners(vip));
        let mut first_clash = None;
        for partner in self.state.occupancy.partners(vip).chain(unpaired) {
            let Some(occupants) = self.state.occupancy.on(partner) else { continue };
            if !self.may_join(partner, occupants, service) {
                continue;
            }
            match clash(partner, occupants, service) {
                None => return Partner::At(partner),
                found => first_clash = first_clash.or(found),
            }
        }
        first_clash.map_or(Partner::None, Partner::Clashes)
    }

    /// Whether the Service may be on an address of its group, clashes aside.
    fn may_join(&self, vip: Vip, occupants: &Occupants, service: &Service) -> bool {
        !service.request.additional.contains(&vip)
            && self.model.reservation(vip).is_none()
            && self.pools.may_have(vip, service.request.pool.name(), service).is_ok()
            && self.mismatch(vip, occupants, service).is_none()
    }

    /// Returns the first clash among the addresses of the group below `limit`
    /// ([`Occupancy::taken_below`](crate::occupancy::Occupancy::taken_below)).
    fn first_clash_below(&self, part: GroupPart, limit: Option<Vip>, service: &Service) -> Option<GroupClash> {
        let group = self.state.occupancy.group(part, service);
        let mut taken = group.take_while(|(vip, _)| limit.is_some_and(|limit| *vip < limit));
        taken.find_map(|(vip, occupants)| match self.join_with_partner(vip, occupants, None, service)? {
            Partner::Clashes(clash) => Some(clash),
            Partner::At(_) | Partner::None => None,
        })
    }
}

/// Returns a free address to go with this one: of the other family, from the same pool.
fn free_beside(free_addresses: &[FreeAddresses<'_>], vip: Vip) -> Option<Vip> {
    free_addresses.iter().find(|free| free.pool.contains(vip))?.of(vip.family().other())
}

fn clash(vip: Vip, occupants: &Occupants, service: &Service) -> Option<GroupClash> {
    occupants.clash(service).map(|clash| (vip, conflict(vip, service, clash)))
}
