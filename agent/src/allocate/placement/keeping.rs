//! Rule 9: who holds an address keeps it, whatever others want; one that changes into a clash is placed anew.

use std::collections::BTreeSet;

use super::Placement;
use crate::{
    allocate::holders::{Held, Holders, Terms},
    model::{
        Vip,
        pool::PoolSharing,
        service::{Families, Service},
    },
};

/// What is known of how a holder differs from what it was. Those that changed come after those that did not, so that a
/// change never costs another Service its address; what a status tells comes after what is remembered, and one with a fault
/// before those that changed on purpose, since it is to stay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It is in nobody's way where it was not before.
    Unchanged,
    /// What it asks for cannot be understood any more.
    Faulty,
    /// It is not known on which terms it got its addresses.
    Unknown,
    /// Both of the above.
    UnknownFaulty,
    /// It is not known on which terms either, and its spec was changed since.
    Outdated,
    /// It has other ports, another key, or another label.
    Changed,
}

impl Standing {
    fn of(service: &Service, held: &Held) -> Self {
        match (&held.terms, &service.fault) {
            (Some(_), Some(_)) => Self::Faulty,
            (None, Some(_)) => Self::UnknownFaulty,
            (None, None) if service.status.outdated => Self::Outdated,
            (None, None) => Self::Unknown,
            (Some(terms), None) if terms.are_exceeded_by(service) => Self::Changed,
            (Some(_), None) => Self::Unchanged,
        }
    }
}

impl<'a> Placement<'a> {
    /// Lets those who hold something keep it, as far as they may.
    pub(in crate::allocate) fn keep(&mut self, by_seniority: &[&'a Service], holders: &Holders) {
        let holding = by_seniority.iter().filter(|service| !self.is_placed(service));
        let mut holding: Vec<_> = holding
            .filter_map(|service| {
                let held = holders.get(&service.name)?;
                Some((*service, held, Standing::of(service, held)))
            })
            .collect();
        holding.sort_by_key(|(_, _, standing)| *standing);
        for (service, held, standing) in holding {
            if self.changed_group(service, held) {
                continue;
            }
            if service.fault.is_some() {
                self.keep_blindly(service, held, standing);
            } else if service.request.addresses.is_empty() {
                self.keep_own(service, held, standing);
            } else {
                self.keep_named(service, held, standing);
            }
        }
    }

    /// Lets a Service whose key is another now move to that group's addresses. Whether it did so, or has to wait for its turn.
    fn changed_group(&mut self, service: &'a Service, held: &Held) -> bool {
        let regrouped = held.terms.as_ref().is_some_and(|terms| terms.are_of_another_group_than(service));
        if !regrouped || !service.request.addresses.is_empty() || service.fault.is_some() {
            return false;
        }
        if self.differing_holder(service).is_some() {
            return true;
        }
        if self.all_named(service).is_err() {
            return false;
        }
        match self.join_group(service) {
            Ok(own) => {
                self.settle(service, own);
                true
            }
            Err(clash) => clash.is_some_and(|clash| self.must_wait(service, &clash)),
        }
    }

    /// Of one with a fault it is not known what it wants; what nobody else wants it keeps.
    fn keep_blindly(&mut self, service: &Service, held: &Held, standing: Standing) {
        let kept: BTreeSet<Vip> =
            held.addresses.iter().copied().filter(|vip| self.may_stay(*vip, service, standing)).collect();
        let ports = service.claims().collect();
        let terms = held.terms.clone().map_or_else(|| Terms::of(service), |terms| Terms { ports, ..terms });
        if !kept.is_empty() {
            self.give(&service.name, terms, kept);
        }
    }

    /// It asks for these addresses, and for no others than it has.
    fn keep_named(&mut self, service: &Service, held: &Held, standing: Standing) {
        let wanted = &service.request.addresses | &service.request.additional;
        if wanted == held.addresses && wanted.iter().all(|vip| self.may_stay(*vip, service, standing)) {
            self.settle(service, service.request.addresses.clone());
        }
    }

    /// It got its addresses without asking for them by name, but for additional ones.
    fn keep_own(&mut self, service: &'a Service, held: &Held, standing: Standing) {
        let request = &service.request;
        let terms = held.terms.as_ref();
        let was_own = |vip: &Vip| terms.is_none_or(|terms| !terms.additional.contains(vip));
        let asked_before = terms.is_some_and(|terms| terms.pool.as_deref() == request.pool.name());
        let named = request.pool.name().filter(|_| !asked_before).and_then(|name| self.model.pool(name));
        let own = held.addresses.iter().copied().filter(|vip| !request.additional.contains(vip) && was_own(vip));
        let own: BTreeSet<Vip> = own.filter(|vip| named.is_none_or(|pool| pool.contains(*vip))).collect();
        let kept = kept_by_family(service.families, &own, |vip| self.may_stay(vip, service, standing));
        let has_additional =
            request.additional.iter().all(|vip| held.addresses.contains(vip) && self.may_stay(*vip, service, standing));
        if kept.is_empty() {
            return;
        }
        if has_additional && (kept.len() > 1 || service.families != Families::RequireDual) {
            self.settle(service, kept);
        } else {
            self.holding.insert(&service.name, kept);
        }
    }

    /// Whether a Service may stay on an address that it holds. Those who came to share it are not parted by a pool that
    /// lets fewer share by now.
    fn may_stay(&self, vip: Vip, service: &Service, standing: Standing) -> bool {
        if self.model.reservation(vip).is_some() {
            return false;
        }
        let Some(tenancy) = self.books.occupancy.on(vip) else { return true };
        let sharing = match standing {
            Standing::Unchanged | Standing::Faulty => Some(PoolSharing::ByAddress),
            Standing::Unknown | Standing::Outdated => Some(self.sharing_on(vip))
                .filter(|sharing| *sharing == PoolSharing::ByAddress)
                .or(Some(PoolSharing::Any)),
            Standing::Changed => Some(self.sharing_on(vip)),
            // It shares with whoever is there.
            Standing::UnknownFaulty => None,
        };
        tenancy.clash(service).is_none()
            && sharing.is_none_or(|pool| tenancy.mismatch(service.party(), &service.name, pool).is_none())
    }
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
