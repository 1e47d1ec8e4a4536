//! Who is on which address. It owns what it knows, so that it outlives the model that it was made from.

mod group;
mod members;
mod parties;
mod tenancy;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use self::{group::Group, parties::Parties};
pub(super) use self::{
    members::Members,
    tenancy::{Clash, Tenancy},
};
use crate::{
    allocate::holders::Terms,
    model::{
        Family, ServiceName, Vip,
        request::{Party, SharingKey},
        service::Service,
    },
};

/// A Service as those see it who are on its addresses.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tenant {
    /// Its name, which no other has.
    pub(super) name: ServiceName,
    /// On which terms it is there.
    pub(super) terms: Terms,
}

impl Tenant {
    /// Its side of the question who may share.
    fn party(&self) -> Party<'_> {
        Party { namespace: &self.name.namespace, sharing: &self.terms.sharing }
    }
}

/// Who is on which address.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    vips: BTreeMap<Vip, Tenancy>,
    /// By dialect and key.
    groups: BTreeMap<String, BTreeMap<String, Keyed>>,
    /// For each address of one family those of the other that Services hold together with it, and nothing else; with how
    /// many do.
    partners: BTreeMap<Vip, BTreeMap<Vip, u32>>,
    /// The addresses that carry each label.
    labels: BTreeMap<String, BTreeSet<Vip>>,
    touched: Touched,
}

/// Where somebody came or went.
#[derive(Debug, Default)]
struct Touched {
    vips: BTreeSet<Vip>,
    /// Dialects and keys of those who went.
    groups: BTreeSet<(String, String)>,
}

/// All with one key.
#[derive(Debug, Default)]
struct Keyed {
    parts: BTreeMap<Part, Group>,
    members: Members,
}

/// Some of a group's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Those of one family.
    Of(Family),
    /// The IPv4 addresses that have [partners](Occupancy::partners).
    Pairs,
}

impl Occupancy {
    /// Who is on the address; `None`: nobody.
    pub(super) fn on(&self, vip: Vip) -> Option<&Tenancy> {
        self.vips.get(&vip)
    }

    /// The occupied addresses from the first to the last.
    pub(super) fn between(&self, first: Vip, last: Vip) -> impl Iterator<Item = (Vip, &Tenancy)> {
        self.vips.range(first..=last).map(|(vip, tenancy)| (*vip, tenancy))
    }

    /// The addresses of the other family that a tenant holds together with this one.
    pub(super) fn partners(&self, vip: Vip) -> impl Iterator<Item = Vip> {
        self.partners.get(&vip).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// Whether there are any.
    pub(super) fn has_partners(&self, vip: Vip) -> bool {
        self.partners.contains_key(&vip)
    }

    /// The members of the Service's group that are on an address, and of others with its key.
    pub(super) fn members(&self, service: &Service) -> Option<&Members> {
        Some(&self.keyed(service)?.members)
    }

    /// The addresses, ascending, of the Service's group: where it and a tenant with its key may reach each other.
    pub(super) fn group<'s>(&'s self, part: Part, service: &'s Service) -> impl Iterator<Item = (Vip, &'s Tenancy)> {
        self.group_from(part, None, service)
    }

    /// The same from this address on.
    pub(super) fn group_from<'s>(
        &'s self,
        part: Part,
        from: Option<Vip>,
        service: &'s Service,
    ) -> impl Iterator<Item = (Vip, &'s Tenancy)> {
        let group = self.keyed(service).and_then(|keyed| keyed.parts.get(&part));
        let vips = group.into_iter().flat_map(move |group| group.reachable(from, service.party()));
        vips.filter_map(|vip| Some((vip, self.vips.get(&vip)?)))
    }

    /// An address below which each of the group's has one of the Service's ports taken, or another label; that of a pair on
    /// either of the two.
    pub(super) fn taken_below(&mut self, part: Part, service: &Service) -> Option<Vip> {
        let group = keyed_mut(&mut self.groups, service)?.parts.get_mut(&part)?;
        let (vips, partners) = (&self.vips, &self.partners);
        let on = |vip: &Vip, has: &dyn Fn(&Tenancy) -> bool| vips.get(vip).is_some_and(has);
        let taken = |vip: &Vip, has: &dyn Fn(&Tenancy) -> bool| {
            let mut partners = partners.get(vip).into_iter().flat_map(BTreeMap::keys);
            on(vip, has) || part == Part::Pairs && partners.all(|partner| on(partner, has))
        };
        let ports = service.claims().map(|port| group.taken_below(port, |vip| taken(&vip, &|there| there.has(port))));
        let ports = ports.max();
        let Some(label) = &service.request.label else { return ports };
        // Not above the first that has this label; of pairs it would be too much to say which that is.
        let first = self.labels.get(label).and_then(BTreeSet::first).copied();
        if part == Part::Pairs && first.is_some() {
            return ports;
        }
        let labelled = group.labelled_below(|vip| taken(&vip, &Tenancy::is_labelled));
        ports.max(Some(first.map_or(labelled, |first| first.min(labelled))))
    }

    /// An address below which each of the group's has [partners](Self::partners).
    pub(super) fn paired_below(&mut self, family: Family, service: &Service) -> Option<Vip> {
        let group = keyed_mut(&mut self.groups, service)?.parts.get_mut(&Part::Of(family))?;
        let partners = &self.partners;
        Some(group.paired_below(|vip| partners.contains_key(&vip)))
    }

    /// Puts the tenant on the address. The caller has asked [`Tenancy::clash`] and [`Tenancy::mismatch`].
    pub(super) fn occupy(&mut self, vip: Vip, tenant: &Arc<Tenant>) {
        self.vips.entry(vip).or_default().add(tenant);
        if let Some(label) = &tenant.terms.label {
            self.labels.entry(label.clone()).or_default().insert(vip);
        }
        self.join(Part::Of(vip.family()), vip, tenant);
        self.touched.vips.insert(vip);
    }

    /// Takes the tenant off the address, where it is.
    pub(super) fn vacate(&mut self, vip: Vip, tenant: &Arc<Tenant>) {
        self.touched.vips.insert(vip);
        self.reopen(vip);
        if let Some(tenancy) = self.vips.get_mut(&vip) {
            tenancy.remove(tenant);
            if let Some(label) = tenant.terms.label.as_ref().filter(|_| !tenancy.is_labelled()) {
                forget(&mut self.labels, label, vip);
            }
            if tenancy.tenants().is_empty() {
                self.vips.remove(&vip);
            }
        }
        self.leave(Part::Of(vip.family()), vip, tenant);
    }

    /// Notes that the tenant, which is on both addresses, holds these two and no more.
    pub(super) fn pair(&mut self, v4: Vip, v6: Vip, tenant: &Arc<Tenant>) {
        self.join(Part::Pairs, v4, tenant);
        *self.partners.entry(v6).or_default().entry(v4).or_default() += 1;
        let pairs = self.partners.entry(v4).or_default().entry(v6).or_default();
        *pairs += 1;
        if *pairs == 1 {
            self.reopen(v4);
        }
    }

    /// Notes that it does so no more. It is still on both.
    pub(super) fn part(&mut self, v4: Vip, v6: Vip, tenant: &Arc<Tenant>) {
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
        self.leave(Part::Pairs, v4, tenant);
    }

    /// Lets its group know the tenant.
    pub(super) fn admit(&mut self, tenant: &Arc<Tenant>) {
        if let Some(SharingKey { dialect, key, .. }) = &tenant.terms.sharing.key {
            self.groups.entry(dialect.clone()).or_default().entry(key.clone()).or_default().members.add(tenant);
        }
    }

    /// Lets its group forget the tenant, which is on no address any more.
    pub(super) fn dismiss(&mut self, tenant: &Arc<Tenant>) {
        let Some(SharingKey { dialect, key, .. }) = &tenant.terms.sharing.key else { return };
        let Some(keys) = self.groups.get_mut(dialect) else { return };
        if let Some(keyed) = keys.get_mut(key) {
            keyed.members.remove(tenant);
            if keyed.members.is_empty() {
                keys.remove(key);
            }
        }
        self.touched.groups.insert((dialect.clone(), key.clone()));
    }

    /// Those who are to be told something else, perhaps, since somebody came or went since the last time that this was
    /// asked: who is on such an address, or beside it, and all with their keys.
    pub(super) fn take_concerned(&mut self) -> BTreeSet<ServiceName> {
        let Touched { vips, groups } = mem::take(&mut self.touched);
        let around = vips.iter().flat_map(|vip| self.partners(*vip).chain([*vip])).collect::<BTreeSet<_>>();
        let around = around.iter().flat_map(|vip| keys(&self.vips, *vip));
        let left = groups.iter().map(|(dialect, key)| (dialect.as_str(), key.as_str()));
        let groups: BTreeSet<(&str, &str)> = around.chain(left).collect();
        let keyed = groups.iter().filter_map(|(dialect, key)| self.groups.get(*dialect)?.get(*key));
        let tenants = vips.iter().filter_map(|vip| self.on(*vip)).flat_map(Tenancy::tenants);
        keyed.flat_map(|keyed| keyed.members.all()).chain(tenants).map(|tenant| tenant.name.clone()).collect()
    }

    fn join(&mut self, part: Part, vip: Vip, tenant: &Arc<Tenant>) {
        let Some(SharingKey { dialect, key, scope }) = &tenant.terms.sharing.key else { return };
        let keyed = self.groups.entry(dialect.clone()).or_default().entry(key.clone()).or_default();
        keyed.parts.entry(part).or_default().add(vip, &tenant.name.namespace, scope);
    }

    fn leave(&mut self, part: Part, vip: Vip, tenant: &Arc<Tenant>) {
        let Some(SharingKey { dialect, key, scope }) = &tenant.terms.sharing.key else { return };
        let keyed = self.groups.get_mut(dialect).and_then(|keys| keys.get_mut(key));
        if let Some(group) = keyed.and_then(|keyed| keyed.parts.get_mut(&part)) {
            group.remove(vip, &tenant.name.namespace, scope);
        }
    }

    /// Lets all groups know that a port may be free on the address, or that it may have no partner any more.
    fn reopen(&mut self, vip: Vip) {
        let partners: Vec<Vip> = self.partners(vip).collect();
        for (vip, part) in partners
            .into_iter()
            .filter(|partner| partner.family() == Family::V4)
            .map(|partner| (partner, Part::Pairs))
            .chain([(vip, Part::Pairs), (vip, Part::Of(vip.family()))])
        {
            for (dialect, key) in keys(&self.vips, vip) {
                let keyed = self.groups.get_mut(dialect).and_then(|keys| keys.get_mut(key));
                if let Some(group) = keyed.and_then(|keyed| keyed.parts.get_mut(&part)) {
                    group.reopen(vip);
                }
            }
        }
    }

    fn keyed(&self, service: &Service) -> Option<&Keyed> {
        let key = service.request.sharing.key.as_ref()?;
        self.groups.get(&key.dialect)?.get(&key.key)
    }
}

fn keyed_mut<'s>(
    groups: &'s mut BTreeMap<String, BTreeMap<String, Keyed>>,
    service: &Service,
) -> Option<&'s mut Keyed> {
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

/// The dialects and keys of those on the address, each once.
fn keys(vips: &BTreeMap<Vip, Tenancy>, vip: Vip) -> BTreeSet<(&str, &str)> {
    let sharings = vips.get(&vip).into_iter().flat_map(Tenancy::sharings);
    sharings.filter_map(|(sharing, _)| sharing.key.as_ref()).map(|key| (&*key.dialect, &*key.key)).collect()
}
