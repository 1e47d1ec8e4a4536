//! Records which Services are on each address. The type owns all its data, so it outlives the model
//! that it was made from.

mod by_sharing;
mod group_addresses;
mod group_members;
mod occupants;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use self::{by_sharing::BySharing, group_addresses::GroupAddresses};
pub(super) use self::{
    group_members::GroupMembers,
    occupants::{Clash, Occupants},
};
use crate::request_snapshot::RequestSnapshot;
use vipmux_model::{
    Family, ServiceName, Vip,
    request::{Sharer, SharingKey},
    service::Service,
};

/// A Service, as the other Services on its addresses see it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Occupant {
    /// Its name, which no other Service has.
    pub(super) name: ServiceName,
    /// The request that it holds its addresses for.
    pub(super) snapshot: RequestSnapshot,
}

impl Occupant {
    /// Returns its namespace and sharing settings.
    fn sharer(&self) -> Sharer<'_> {
        Sharer { namespace: self.name.namespace(), sharing: &self.snapshot.sharing }
    }
}

/// The Services on each address.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    vips: BTreeMap<Vip, Occupants>,
    /// Sharing groups by dialect and key.
    groups: BTreeMap<String, BTreeMap<String, SharingGroup>>,
    /// For each address of one family, the addresses of the other family that Services hold
    /// together with it, and nothing else. The number is that of these Services.
    partners: BTreeMap<Vip, BTreeMap<Vip, u32>>,
    /// The addresses that carry each label.
    labels: BTreeMap<String, BTreeSet<Vip>>,
    touched: Touched,
}

/// Addresses and groups where a Service came or went.
#[derive(Debug, Default)]
struct Touched {
    vips: BTreeSet<Vip>,
    /// Dialects and keys of Services that left.
    groups: BTreeSet<(String, String)>,
}

/// The Services with one sharing key.
#[derive(Debug, Default)]
struct SharingGroup {
    parts: BTreeMap<GroupPart, GroupAddresses>,
    members: GroupMembers,
}

/// A part of a group's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupPart {
    /// The addresses of one family.
    Family(Family),
    /// The IPv4 addresses that have [partners](Occupancy::partners).
    Pairs,
}

impl Occupancy {
    /// Returns the Services on the address; `None` if there are none.
    pub(super) fn on(&self, vip: Vip) -> Option<&Occupants> {
        self.vips.get(&vip)
    }

    /// Returns the occupied addresses from the first to the last.
    pub(super) fn between(&self, first: Vip, last: Vip) -> impl Iterator<Item = (Vip, &Occupants)> {
        self.vips.range(first..=last).map(|(vip, occupants)| (*vip, occupants))
    }

    /// Returns the addresses of the other family that a Service holds together with this one.
    pub(super) fn partners(&self, vip: Vip) -> impl Iterator<Item = Vip> {
        self.partners.get(&vip).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// Whether the address has partners.
    pub(super) fn has_partners(&self, vip: Vip) -> bool {
        self.partners.contains_key(&vip)
    }

    /// Returns the Services with the Service's key that are on an address.
    pub(super) fn members(&self, service: &Service) -> Option<&GroupMembers> {
        Some(&self.sharing_group(service)?.members)
    }

    /// Returns the addresses, ascending, of the Service's group: those where it and a Service with
    /// its key may reach each other.
    pub(super) fn group<'s>(
        &'s self,
        part: GroupPart,
        service: &'s Service,
    ) -> impl Iterator<Item = (Vip, &'s Occupants)> {
        self.group_from(part, None, service)
    }

    /// Returns the same addresses from this one on.
    pub(super) fn group_from<'s>(
        &'s self,
        part: GroupPart,
        from: Option<Vip>,
        service: &'s Service,
    ) -> impl Iterator<Item = (Vip, &'s Occupants)> {
        let group = self.sharing_group(service).and_then(|sharing_group| sharing_group.parts.get(&part));
        let vips = group.into_iter().flat_map(move |group| group.reachable(from, service.sharer()));
        vips.filter_map(|vip| Some((vip, self.vips.get(&vip)?)))
    }

    /// Returns an address below which each address of the group has one of the Service's ports
    /// taken, or another label. Of a pair, one of the two addresses has.
    pub(super) fn taken_below(&mut self, part: GroupPart, service: &Service) -> Option<Vip> {
        let group = sharing_group_mut(&mut self.groups, service)?.parts.get_mut(&part)?;
        let (vips, partners) = (&self.vips, &self.partners);
        let on = |vip: &Vip, has: &dyn Fn(&Occupants) -> bool| vips.get(vip).is_some_and(has);
        let taken = |vip: &Vip, has: &dyn Fn(&Occupants) -> bool| {
            let mut partners = partners.get(vip).into_iter().flat_map(BTreeMap::keys);
            on(vip, has) || part == GroupPart::Pairs && partners.all(|partner| on(partner, has))
        };
        let ports = service.claims().map(|port| group.taken_below(port, |vip| taken(&vip, &|there| there.has(port))));
        let ports = ports.max();
        let Some(label) = &service.request.label else { return ports };
        // Do not pass the first address that has this label. For pairs it would be too expensive to
        // find that one.
        let first = self.labels.get(label).and_then(BTreeSet::first).copied();
        if part == GroupPart::Pairs && first.is_some() {
            return ports;
        }
        let labeled = group.labeled_below(|vip| taken(&vip, &Occupants::is_labeled));
        ports.max(Some(first.map_or(labeled, |first| first.min(labeled))))
    }

    /// Returns an address below which each address of the group has [partners](Self::partners).
    pub(super) fn paired_below(&mut self, family: Family, service: &Service) -> Option<Vip> {
        let group = sharing_group_mut(&mut self.groups, service)?.parts.get_mut(&GroupPart::Family(family))?;
        let partners = &self.partners;
        Some(group.paired_below(|vip| partners.contains_key(&vip)))
    }

    /// Puts the Service on the address. The caller has checked [`Occupants::clash`] and
    /// [`Occupants::mismatch`].
    pub(super) fn occupy(&mut self, vip: Vip, occupant: &Arc<Occupant>) {
        self.vips.entry(vip).or_default().add(occupant);
        if let Some(label) = &occupant.snapshot.label {
            self.labels.entry(label.clone()).or_default().insert(vip);
        }
        self.join(GroupPart::Family(vip.family()), vip, occupant);
        self.touched.vips.insert(vip);
    }

    /// Takes the Service off the address.
    pub(super) fn vacate(&mut self, vip: Vip, occupant: &Arc<Occupant>) {
        self.touched.vips.insert(vip);
        self.reopen(vip);
        if let Some(occupants) = self.vips.get_mut(&vip) {
            occupants.remove(occupant);
            if let Some(label) = occupant.snapshot.label.as_ref().filter(|_| !occupants.is_labeled()) {
                forget(&mut self.labels, label, vip);
            }
            if occupants.all().is_empty() {
                self.vips.remove(&vip);
            }
        }
        self.leave(GroupPart::Family(vip.family()), vip, occupant);
    }

    /// Records that the Service, which is on both addresses, holds these two and no more.
    pub(super) fn pair(&mut self, v4: Vip, v6: Vip, occupant: &Arc<Occupant>) {
        self.join(GroupPart::Pairs, v4, occupant);
        *self.partners.entry(v6).or_default().entry(v4).or_default() += 1;
        let pairs = self.partners.entry(v4).or_default().entry(v6).or_default();
        *pairs += 1;
        if *pairs == 1 {
            self.reopen(v4);
        }
    }

    /// Records that it holds them together no more. It is still on both.
    pub(super) fn part(&mut self, v4: Vip, v6: Vip, occupant: &Arc<Occupant>) {
        self.reopen(v4);
        self.reopen(v6);
        for (vip, partner) in [(v4, v6), (v6, v4)] {
            let Some(partners) = self.partners.get_mut(&vip) else { continue };
            if let Some(pairs) = partners.get_mut(&partner) {
                *pairs -= 1;
                if *pairs == 0 {
                    partners.remove(&partner);
                }
            }
            if partners.is_empty() {
                self.partners.remove(&vip);
            }
        }
        self.leave(GroupPart::Pairs, v4, occupant);
    }

    /// Adds the Service to its group.
    pub(super) fn admit(&mut self, occupant: &Arc<Occupant>) {
        if let Some(SharingKey { dialect, key, .. }) = &occupant.snapshot.sharing.key {
            self.groups.entry(dialect.clone()).or_default().entry(key.clone()).or_default().members.add(occupant);
        }
    }

    /// Removes the Service, which is on no address any more, from its group.
    pub(super) fn dismiss(&mut self, occupant: &Arc<Occupant>) {
        let Some(SharingKey { dialect, key, .. }) = &occupant.snapshot.sharing.key else { return };
        let Some(keys) = self.groups.get_mut(dialect) else { return };
        if let Some(sharing_group) = keys.get_mut(key) {
            sharing_group.members.remove(occupant);
            if sharing_group.members.is_empty() {
                keys.remove(key);
            }
        }
        self.touched.groups.insert((dialect.clone(), key.clone()));
    }

    /// Returns Services whose messages may change, since others came or went after the last call.
    /// These are the Services on such addresses or on their partners, and all Services with their
    /// keys.
    pub(super) fn take_affected(&mut self) -> BTreeSet<ServiceName> {
        let Touched { vips, groups } = mem::take(&mut self.touched);
        let around = vips.iter().flat_map(|vip| self.partners(*vip).chain([*vip])).collect::<BTreeSet<_>>();
        let around = around.iter().flat_map(|vip| keys(&self.vips, *vip));
        let left = groups.iter().map(|(dialect, key)| (dialect.as_str(), key.as_str()));
        let groups: BTreeSet<(&str, &str)> = around.chain(left).collect();
        let sharing_groups = groups.iter().filter_map(|(dialect, key)| self.groups.get(*dialect)?.get(*key));
        let occupants = vips.iter().filter_map(|vip| self.on(*vip)).flat_map(Occupants::all);
        sharing_groups
            .flat_map(|sharing_group| sharing_group.members.all())
            .chain(occupants)
            .map(|occupant| occupant.name.clone())
            .collect()
    }

    fn join(&mut self, part: GroupPart, vip: Vip, occupant: &Arc<Occupant>) {
        let Some(SharingKey { dialect, key, scope }) = &occupant.snapshot.sharing.key else { return };
        let sharing_group = self.groups.entry(dialect.clone()).or_default().entry(key.clone()).or_default();
        sharing_group.parts.entry(part).or_default().add(vip, occupant.name.namespace(), scope);
    }

    fn leave(&mut self, part: GroupPart, vip: Vip, occupant: &Arc<Occupant>) {
        let Some(SharingKey { dialect, key, scope }) = &occupant.snapshot.sharing.key else { return };
        let sharing_group = self.groups.get_mut(dialect).and_then(|keys| keys.get_mut(key));
        if let Some(group) = sharing_group.and_then(|sharing_group| sharing_group.parts.get_mut(&part)) {
            group.remove(vip, occupant.name.namespace(), scope);
        }
    }

    /// Records in all groups that a port may be free on the address, or that it may have no partner
    /// any more.
    fn reopen(&mut self, vip: Vip) {
        let partners: Vec<Vip> = self.partners(vip).collect();
        for (vip, part) in partners
            .into_iter()
            .filter(|partner| partner.family() == Family::V4)
            .map(|partner| (partner, GroupPart::Pairs))
            .chain([(vip, GroupPart::Pairs), (vip, GroupPart::Family(vip.family()))])
        {
            for (dialect, key) in keys(&self.vips, vip) {
                let sharing_group = self.groups.get_mut(dialect).and_then(|keys| keys.get_mut(key));
                if let Some(group) = sharing_group.and_then(|sharing_group| sharing_group.parts.get_mut(&part)) {
                    group.reopen(vip);
                }
            }
        }
    }

    fn sharing_group(&self, service: &Service) -> Option<&SharingGroup> {
        let key = service.request.sharing.key.as_ref()?;
        self.groups.get(&key.dialect)?.get(&key.key)
    }
}

fn sharing_group_mut<'s>(
    groups: &'s mut BTreeMap<String, BTreeMap<String, SharingGroup>>,
    service: &Service,
) -> Option<&'s mut SharingGroup> {
    let key = service.request.sharing.key.as_ref()?;
    groups.get_mut(&key.dialect)?.get_mut(&key.key)
}

fn forget(labels: &mut BTreeMap<String, BTreeSet<Vip>>, label: &str, vip: Vip) {
    if let Some(vips) = labels.get_mut(label) {
        vips.remove(&vip);
        if vips.is_empty() {
            labels.remove(label);
        }
    }
}

/// Returns the dialects and keys of the Services on the address, each once.
fn keys(vips: &BTreeMap<Vip, Occupants>, vip: Vip) -> BTreeSet<(&str, &str)> {
    let sharings = vips.get(&vip).into_iter().flat_map(Occupants::sharings);
    sharings.filter_map(|(sharing, _)| sharing.key.as_ref()).map(|key| (&*key.dialect, &*key.key)).collect()
}
