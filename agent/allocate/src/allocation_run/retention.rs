//! Lets holders keep their addresses, whatever others want (rule 9). A holder that changes into a
//! clash is placed anew.

use std::collections::BTreeSet;

use super::{AllocationRun, group_agreement::differing_holder};
use crate::{
    previous::{PreviousAssignment, PreviousAssignments},
    request_snapshot::RequestSnapshot,
};
use vipmux_model::{
    Vip,
    pool::Pool,
    service::{Families, Service},
};

/// How a holder differs from the time when it got its addresses.
///
/// The order is that of rule 7. Changed holders come after unchanged ones, so that a change never
/// costs another Service its address. Holders known by a status only come after those whose request
/// is remembered. A holder with a fault comes before those that changed on purpose, since it is to
/// stay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HolderChange {
    /// It is in nobody's way where it was not before.
    Unchanged,
    /// Its request cannot be understood any more.
    Faulty,
    /// It is not known for which request it got its addresses.
    Unknown,
    /// Both [`Self::Faulty`] and [`Self::Unknown`].
    UnknownFaulty,
    /// It has other ports, another key, or another label.
    Changed,
}

impl HolderChange {
    fn of(service: &Service, held: &PreviousAssignment) -> Self {
        match (&held.snapshot, &service.fault) {
            (Some(_), Some(_)) => Self::Faulty,
            (None, Some(_)) => Self::UnknownFaulty,
            (None, None) => Self::Unknown,
            (Some(snapshot), None) if snapshot.is_exceeded_by(service) => Self::Changed,
            (Some(_), None) => Self::Unchanged,
        }
    }
}

impl<'a> AllocationRun<'a> {
    /// Lets Services keep the addresses that they hold, as far as they may.
    pub(crate) fn keep(&mut self, by_seniority: &[&'a Service], previous: &PreviousAssignments) {
        let holding = by_seniority.iter().filter(|service| !self.is_placed(service));
        let mut holding: Vec<_> = holding
            .filter_map(|service| {
                let held = previous.get(&service.name)?;
                Some((*service, held, HolderChange::of(service, held)))
            })
            .collect();
        holding.sort_by_key(|(_, _, change)| *change);
        for (service, held, change) in holding {
            if self.changed_group(service, held) {
                continue;
            }
            if service.fault.is_some() {
                self.keep_blindly(service, held, change);
            } else if service.request.addresses.is_empty() {
                self.keep_own(service, held, change);
            } else {
                self.keep_named(service, held, change);
            }
        }
    }

    /// Moves a Service with a new key to addresses of its new group. Returns whether it moved or
    /// has to wait for its group.
    fn changed_group(&mut self, service: &'a Service, held: &PreviousAssignment) -> bool {
        let regrouped = held.snapshot.as_ref().is_some_and(|snapshot| snapshot.is_of_another_group_than(service));
        if !regrouped || !service.request.addresses.is_empty() || service.fault.is_some() {
            return false;
        }
        if differing_holder(service, &self.state.occupancy).is_some() {
            return true;
        }
        if self.all_named(service).is_err() {
            return false;
        }
        match self.join_group(service) {
            Ok(own) if self.is_within_limits(&own, service).is_err() => false,
            Ok(own) => {
                let spill = self.spills(service, &own);
                self.place_at(service, own, spill);
                true
            }
            Err(clash) => clash.is_some_and(|clash| self.must_wait(service, &clash)),
        }
    }

    /// Keeps all addresses of a Service with a fault that nobody else has a right to. It is not
    /// known what the Service wants.
    fn keep_blindly(&mut self, service: &Service, held: &PreviousAssignment, change: HolderChange) {
        let kept: BTreeSet<Vip> =
            held.addresses.iter().copied().filter(|vip| self.may_stay(*vip, service, change)).collect();
        let ports = service.claims().collect();
        let snapshot = held
            .snapshot
            .clone()
            .map_or_else(|| RequestSnapshot::of(service), |snapshot| RequestSnapshot { ports, ..snapshot });
        if !kept.is_empty() {
            self.give(&service.name, snapshot, kept);
        }
    }

    /// Keeps the addresses of a Service that names exactly the addresses that it holds.
    fn keep_named(&mut self, service: &Service, held: &PreviousAssignment, change: HolderChange) {
        let wanted = &service.request.addresses | &service.request.additional;
        let pool = self.new_pool(service, held.snapshot.as_ref());
        let in_pool = pool.is_none_or(|pool| service.request.addresses.iter().all(|vip| pool.contains(*vip)));
        if in_pool && wanted == held.addresses && wanted.iter().all(|vip| self.may_stay(*vip, service, change)) {
            self.place_at(service, service.request.addresses.clone(), false);
        }
    }

    /// Keeps the addresses of a Service that names none, or only additional ones.
    fn keep_own(&mut self, service: &'a Service, held: &PreviousAssignment, change: HolderChange) {
        let request = &service.request;
        let snapshot = held.snapshot.as_ref();
        let was_own = |vip: &Vip| snapshot.is_none_or(|snapshot| !snapshot.additional.contains(vip));
        let named = self.new_pool(service, snapshot);
        let own = held.addresses.iter().copied().filter(|vip| !request.additional.contains(vip) && was_own(vip));
        let own: BTreeSet<Vip> = own.filter(|vip| named.is_none_or(|pool| pool.contains(*vip))).collect();
        let kept = kept_by_family(service.families, &own, |vip| self.may_stay(vip, service, change));
        let has_additional =
            request.additional.iter().all(|vip| held.addresses.contains(vip) && self.may_stay(*vip, service, change));
        if kept.is_empty() {
            return;
        }
        if has_additional && (kept.len() > 1 || service.families != Families::RequireDual) {
            // It brings its address into a new group.
            let same_group = snapshot.filter(|snapshot| !snapshot.is_of_another_group_than(service));
            let spill = same_group.map_or_else(|| self.spills(service, &kept), |snapshot| snapshot.spill);
            self.place_at(service, kept, spill);
        } else {
            self.holding.insert(&service.name, kept);
        }
    }

    /// Returns the pool that the Service names, if it named no pool or another one when it got its
    /// addresses.
    fn new_pool(&self, service: &Service, snapshot: Option<&RequestSnapshot>) -> Option<&'a Pool> {
        let name = service.request.pool.name();
        let asked_before = snapshot.is_none_or(|snapshot| snapshot.pool.as_deref() == name);
        name.filter(|_| !asked_before).and_then(|name| self.model.pool(name))
    }

    /// Whether a Service may stay on an address that it holds. A pool that lets fewer Services
    /// share than before parts nobody.
    fn may_stay(&self, vip: Vip, service: &Service, change: HolderChange) -> bool {
        if self.model.ban(vip).is_some() {
            return false;
        }
        let Some(occupants) = self.state.occupancy.on(vip) else { return true };
        let sharing = match change {
            HolderChange::Changed => Some(self.pools.sharing_on(vip)),
            // It shares already with every Service that is there.
            _ => None,
        };
        occupants.clash(service).is_none()
            && sharing.is_none_or(|pool| occupants.mismatch(service.sharer(), &service.name, pool).is_none())
    }
}

/// Returns one of the held addresses for each family that the Service wants. Returns none if the
/// Service does not fit on one of them any more, since a clash in one family moves it in both.
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
