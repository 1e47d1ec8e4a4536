//! Addresses for Services that name none: their group's, else free ones (rule 6), of one family or of both (rule 10).

use std::collections::BTreeSet;

use super::{Placement, conflict, pools::Spare};
use crate::{
    allocate::{
        exhaustion,
        occupancy::{Part, Tenancy},
    },
    model::{
        Family, Vip,
        pool::OnConflict,
        reason::Refusal,
        service::{Families, Service},
    },
};

/// Where in its group a Service clashes first, and with whom.
pub(super) type Clash = (Vip, Refusal);

/// Whether a group has an address to go with one of its own, or of a Service of it.
enum Partner {
    At(Vip),
    Clashes(Clash),
    /// The group has none of the other family.
    None,
}

/// Why a Service gets no pair of addresses.
enum Denial<'a> {
    /// It clashes within its group, and is to wait for that to end.
    Waits(Refusal),
    /// No pool serves it.
    NoPool(Refusal),
    /// None of these pools has one. It may have clashed within its group before.
    Full(Vec<Spare<'a>>, Option<Clash>),
}

impl<'a> Placement<'a> {
    /// Rule 6, for a Service that names no address.
    pub(super) fn automatic(&mut self, service: &'a Service) -> Result<BTreeSet<Vip>, Refusal> {
        match service.families {
            Families::Single(family) => self.one(family, service),
            Families::RequireDual => self.pair(service).map_err(|denial| match denial {
                Denial::Waits(refusal) | Denial::NoPool(refusal) => refusal,
                Denial::Full(spares, clash) => self.exhausted(service, &Family::ALL, &spares, clash),
            }),
            Families::PreferDual(first) => match self.pair(service) {
                Ok(pair) => Ok(pair),
                Err(Denial::Waits(refusal) | Denial::NoPool(refusal)) => Err(refusal),
                Err(Denial::Full(..)) => {
                    self.one(first, service).or_else(|refusal| self.one(first.other(), service).map_err(|_| refusal))
                }
            },
        }
    }

    /// The addresses, among its group's, of a Service whose key is another now; or the first clash there, where there is one.
    pub(super) fn join_group(&mut self, service: &'a Service) -> Result<BTreeSet<Vip>, Option<Clash>> {
        let single = |placement: &mut Self, family| placement.group_address(family, service).map(|vip| [vip].into());
        if let Families::Single(family) = service.families {
            return single(self, family);
        }
        let spares = self.spares(service).unwrap_or_default();
        let clash = match (self.group_pair(service, &spares), service.families) {
            (Err(clash), Families::PreferDual(_)) => clash,
            (outcome, _) => return outcome,
        };
        if clash.as_ref().is_some_and(|clash| self.must_wait(service, clash)) {
            return Err(clash);
        }
        let mut families = service.families.wanted();
        families.find_map(|family| single(self, family).ok()).ok_or(clash)
    }

    /// Both addresses of a Service that has one of them and may have the other.
    pub(super) fn completed(&mut self, service: &'a Service) -> Option<BTreeSet<Vip>> {
        if matches!(service.families, Families::Single(_)) || !service.request.addresses.is_empty() {
            return None;
        }
        let held = self.holding.get(&service.name).and_then(|held| held.first().filter(|_| held.len() == 1)).copied();
        let held = held.filter(|vip| self.fits(*vip, service).is_ok());
        let vip = held.or_else(|| self.books.placed.get(&service.name)?.own().next())?;
        let lone = self.lone(vip.family().other(), service);
        let partner = match self.partner(vip, lone, service) {
            Partner::At(partner) => partner,
            Partner::Clashes(clash) if self.must_wait(service, &clash) => return None,
            // It stays where it is, so the clash moves its other half alone.
            Partner::Clashes(_) | Partner::None => spare_beside(&self.spares(service).ok()?, vip)?,
        };
        Some([vip, partner].into())
    }

    /// One address of this family.
    fn one(&mut self, family: Family, service: &'a Service) -> Result<BTreeSet<Vip>, Refusal> {
        let clash = match self.group_address(family, service) {
            Ok(vip) => return Ok([vip].into()),
            Err(clash) => clash,
        };
        if let Some(clash) = clash.as_ref().filter(|clash| self.must_wait(service, clash)) {
            return Err(clash.1.clone());
        }
        let spares = self.spares(service)?;
        match spares.iter().find_map(|spare| spare.of(family)) {
            Some(vip) => Ok([vip].into()),
            None => Err(self.exhausted(service, &[family], &spares, clash)),
        }
    }

    /// One address of each family: a pair of its group's, else two from one pool.
    fn pair(&mut self, service: &'a Service) -> Result<BTreeSet<Vip>, Denial<'a>> {
        let spares = self.spares(service);
        let clash = match self.group_pair(service, spares.as_deref().unwrap_or_default()) {
            Ok(pair) => return Ok(pair),
            Err(clash) => clash,
        };
        if let Some(clash) = clash.as_ref().filter(|clash| self.must_wait(service, clash)) {
            return Err(Denial::Waits(clash.1.clone()));
        }
        let spares = spares.map_err(Denial::NoPool)?;
        let both = spares.iter().find_map(|spare| Some([spare.v4?, spare.v6?].into()));
        both.ok_or(Denial::Full(spares, clash))
    }

    fn exhausted(&self, service: &Service, families: &[Family], spares: &[Spare<'a>], clash: Option<Clash>) -> Refusal {
        let full: Vec<_> = spares
            .iter()
            .map(|spare| {
                let lacking = families.iter().copied().filter(|family| spare.of(*family).is_none());
                (spare.pool, lacking.collect())
            })
            .collect();
        let mut refusal = exhaustion::refusal(self, service, families, &full);
        if let Some((_, clash)) = clash {
            refusal.message = format!("{}; {}", clash.message, refusal.message);
        }
        refusal
    }

    /// Whether a clash within its group lets the Service wait (rule 8).
    pub(super) fn must_wait(&self, service: &Service, (vip, _): &Clash) -> bool {
        service.request.never_spills || self.pool_of(*vip).is_some_and(|pool| pool.on_conflict == OnConflict::Pending)
    }

    /// The lowest of its group's addresses where the Service fits; else the first clash, where there is one.
    fn group_address(&mut self, family: Family, service: &'a Service) -> Result<Vip, Option<Clash>> {
        let part = Part::Of(family);
        // A group whose members all clash has as many addresses as members: only the first of those is worth a look.
        let taken_below = self.books.occupancy.taken_below(part, service);
        let mut first_clash = self.first_clash_below(part, taken_below, service);
        for (vip, tenancy) in self.books.occupancy.group_from(part, taken_below, service) {
            if tenancy.clash(service).is_some() && first_clash.is_some() || !self.may_join(vip, tenancy, service) {
                continue;
            }
            match clash(vip, tenancy, service) {
                None => return Ok(vip),
                found => first_clash = found,
            }
        }
        Err(first_clash)
    }

    /// The lowest pair of its group's addresses where the Service fits; else one of the group that has no partner and none
    /// to be had, and a free one; else the first clash, where there is one.
    fn group_pair(&mut self, service: &'a Service, spares: &[Spare<'a>]) -> Result<BTreeSet<Vip>, Option<Clash>> {
        let taken_below = self.books.occupancy.taken_below(Part::Pairs, service);
        let mut first_clash = self.first_clash_below(Part::Pairs, taken_below, service);
        for (vip, tenancy) in self.books.occupancy.group_from(Part::Pairs, taken_below, service) {
            match self.join_with_partner(vip, tenancy, None, service) {
                Some(Partner::At(partner)) => return Ok([vip, partner].into()),
                Some(Partner::Clashes(clash)) => first_clash = first_clash.or(Some(clash)),
                Some(Partner::None) | None => {}
            }
        }
        let mut half = None;
        for family in Family::ALL {
            let (part, lone) = (Part::Of(family), self.lone(family.other(), service));
            let taken_below = self.books.occupancy.taken_below(part, service);
            first_clash = first_clash.or_else(|| self.first_clash_below(part, taken_below, service));
            let from = taken_below.max(self.books.occupancy.paired_below(family, service));
            for (vip, tenancy) in self.books.occupancy.group_from(part, from, service) {
                if self.books.occupancy.has_partners(vip) {
                    continue;
                }
                match self.join_with_partner(vip, tenancy, lone, service) {
                    Some(Partner::At(partner)) => return Ok([vip, partner].into()),
                    Some(Partner::Clashes(clash)) => first_clash = first_clash.or(Some(clash)),
                    Some(Partner::None) => half = half.or_else(|| Some([vip, spare_beside(spares, vip)?].into())),
                    None => {}
                }
            }
        }
        half.ok_or(first_clash)
    }

    /// What goes with an address of its group, if the Service may be on that; otherwise the clash there.
    fn join_with_partner(&self, vip: Vip, tenancy: &Tenancy, lone: Option<Vip>, service: &Service) -> Option<Partner> {
        let partner =
            || clash(vip, tenancy, service).map_or_else(|| self.partner(vip, lone, service), Partner::Clashes);
        self.may_join(vip, tenancy, service).then(partner)
    }

    /// The lowest address of this family in the Service's group that is nobody's partner.
    fn lone(&mut self, family: Family, service: &'a Service) -> Option<Vip> {
        let from = self.books.occupancy.paired_below(family, service);
        let mut group = self.books.occupancy.group_from(Part::Of(family), from, service).map(|(vip, _)| vip);
        group.find(|vip| !self.books.occupancy.has_partners(*vip))
    }

    /// What goes with an address of the Service's own or of its group's: what others hold together with it; where nobody
    /// does, the group's [lone](Self::lone) one of the other family.
    fn partner(&self, vip: Vip, lone: Option<Vip>, service: &Service) -> Partner {
        let lone = lone.filter(|_| !self.books.occupancy.has_partners(vip));
        let mut first_clash = None;
        for partner in self.books.occupancy.partners(vip).chain(lone) {
            let Some(tenancy) = self.books.occupancy.on(partner) else { continue };
            if !self.may_join(partner, tenancy, service) {
                continue;
            }
            match clash(partner, tenancy, service) {
                None => return Partner::At(partner),
                found => first_clash = first_clash.or(found),
            }
        }
        first_clash.map_or(Partner::None, Partner::Clashes)
    }

    /// Whether the Service may be on an address of its group, clashes aside.
    fn may_join(&self, vip: Vip, tenancy: &Tenancy, service: &Service) -> bool {
        !service.request.additional.contains(&vip)
            && self.may_have(vip, service.request.pool.name(), service).is_ok()
            && self.mismatch(vip, tenancy, service).is_none()
    }

    /// The first clash among the group's addresses that are all [taken](super::Occupancy::taken_below).
    fn first_clash_below(&self, part: Part, limit: Option<Vip>, service: &Service) -> Option<Clash> {
        let group = self.books.occupancy.group(part, service);
        let mut taken = group.take_while(|(vip, _)| limit.is_some_and(|limit| *vip < limit));
        taken.find_map(|(vip, tenancy)| match self.join_with_partner(vip, tenancy, None, service)? {
            Partner::Clashes(clash) => Some(clash),
            Partner::At(_) | Partner::None => None,
        })
    }
}

/// A free address to go with this one: of the other family, from the same pool.
fn spare_beside(spares: &[Spare<'_>], vip: Vip) -> Option<Vip> {
    spares.iter().find(|spare| spare.pool.contains(vip))?.of(vip.family().other())
}

fn clash(vip: Vip, tenancy: &Tenancy, service: &Service) -> Option<Clash> {
    tenancy.clash(service).map(|clash| (vip, conflict(vip, service, clash)))
}
