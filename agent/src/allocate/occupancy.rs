//! Who is on which address while an allocation is made.

mod group;

use std::collections::{BTreeMap, BTreeSet};

use self::group::Group;
use crate::model::{
    Family, ServiceName, Vip,
    name::Port,
    pool::PoolSharing,
    request::{Mismatch, Party, Sharing},
    service::Service,
};

/// Who is on which address.
#[derive(Debug, Default)]
pub(super) struct Occupancy<'a> {
    vips: BTreeMap<Vip, Tenancy<'a>>,
    /// By key, and its dialect.
    groups: BTreeMap<(&'a str, &'a str, Part), Group<'a>>,
    /// For each address of one family those of the other that a Service holds together with it, and nothing else.
    partners: BTreeMap<Vip, BTreeSet<Vip>>,
}

/// Some of a group's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Those of one family.
    Of(Family),
    /// The IPv4 addresses that have [partners](Occupancy::partners).
    Pairs,
}

/// Who is on one address.
#[derive(Debug, Default)]
pub(super) struct Tenancy<'a> {
    claims: BTreeMap<Port, &'a Service>,
    tenants: BTreeSet<&'a ServiceName>,
    /// Tenants of one namespace that say the same about sharing, with the first of them by name: large groups cost one
    /// question.
    parties: BTreeMap<&'a Sharing, BTreeMap<&'a str, &'a ServiceName>>,
}

impl<'a> Tenancy<'a> {
    /// Who is on it.
    pub(super) fn tenants(&self) -> &BTreeSet<&'a ServiceName> {
        &self.tenants
    }

    /// What its tenants say about sharing, each with the first who says so in the first namespace where that is said.
    pub(super) fn sharings(&self) -> impl Iterator<Item = (&'a Sharing, &'a ServiceName)> {
        self.parties.iter().filter_map(|(sharing, namespaces)| Some((*sharing, *namespaces.first_key_value()?.1)))
    }

    /// Whether the Service's port is another's.
    pub(super) fn has(&self, port: Port) -> bool {
        self.holder(port).is_some()
    }

    /// The first of the Service's ports that another Service has.
    pub(super) fn clash(&self, service: &Service) -> Option<(Port, &'a Service)> {
        service.claims().find_map(|port| self.holder(port))
    }

    /// Who has the port, and by which claim: one with every port (number 0, so the first) shares with nobody.
    fn holder(&self, port: Port) -> Option<(Port, &'a Service)> {
        let first = self.claims.first_key_value().filter(|(first, _)| port.number == 0 || first.number == 0);
        let (claim, service) = first.or_else(|| self.claims.get_key_value(&port))?;
        Some((*claim, *service))
    }

    /// The first tenant that may not share with the party, and why.
    pub(super) fn mismatch<'m>(&self, party: Party<'m>, pool: PoolSharing) -> Option<(&'a ServiceName, Mismatch<'m>)>
    where
        'a: 'm,
    {
        self.parties.iter().find_map(|(sharing, namespaces)| {
            // Where all namespaces get the same answer, one is asked.
            let asked = if party.sharing.is_alike_everywhere(sharing, pool) { 1 } else { usize::MAX };
            namespaces.iter().take(asked).find_map(|(namespace, name)| {
                let other = Party { namespace, sharing };
                Some((*name, party.may_share(other, pool).err()?))
            })
        })
    }
}

impl<'a> Occupancy<'a> {
    /// Who is on the address; `None`: nobody.
    pub(super) fn on(&self, vip: Vip) -> Option<&Tenancy<'a>> {
        self.vips.get(&vip)
    }

    /// The occupied addresses from the first to the last.
    pub(super) fn between(&self, first: Vip, last: Vip) -> impl Iterator<Item = (Vip, &Tenancy<'a>)> {
        self.vips.range(first..=last).map(|(vip, tenancy)| (*vip, tenancy))
    }

    /// The addresses of the other family that a tenant holds together with this one.
    pub(super) fn partners(&self, vip: Vip) -> impl Iterator<Item = Vip> {
        self.partners.get(&vip).into_iter().flatten().copied()
    }

    /// Whether there are any.
    pub(super) fn has_partners(&self, vip: Vip) -> bool {
        self.partners.contains_key(&vip)
    }

    /// The addresses, ascending, of the Service's group: where it and a tenant with its key may reach each other.
    pub(super) fn group<'s>(
        &'s self,
        part: Part,
        service: &'s Service,
    ) -> impl Iterator<Item = (Vip, &'s Tenancy<'a>)> {
        self.group_from(part, None, service)
    }

    /// The same from this address on.
    pub(super) fn group_from<'s>(
        &'s self,
        part: Part,
        from: Option<Vip>,
        service: &'s Service,
    ) -> impl Iterator<Item = (Vip, &'s Tenancy<'a>)> {
        let group = key(service).and_then(|(dialect, key)| self.groups.get(&(dialect, key, part)));
        let vips = group.into_iter().flat_map(move |group| group.reachable(from, service.party()));
        vips.filter_map(|vip| Some((vip, self.vips.get(&vip)?)))
    }

    /// An address below which each of the group's has one of the Service's ports taken; that of a pair on either of the
    /// two.
    pub(super) fn taken_below(&mut self, part: Part, service: &'a Service) -> Option<Vip> {
        let (dialect, key) = key(service)?;
        let group = self.groups.get_mut(&(dialect, key, part))?;
        let (vips, partners) = (&self.vips, &self.partners);
        let has = |port, vip: &Vip| vips.get(vip).is_some_and(|tenancy| tenancy.has(port));
        let beside = |port, vip: &Vip| partners.get(vip).into_iter().flatten().all(|partner| has(port, partner));
        let taken = |port, vip: &Vip| has(port, vip) || part == Part::Pairs && beside(port, vip);
        service.claims().map(|port| group.taken_below(port, |vip| taken(port, &vip))).max()
    }

    /// An address below which each of the group's has [partners](Self::partners).
    pub(super) fn paired_below(&mut self, family: Family, service: &'a Service) -> Option<Vip> {
        let (dialect, key) = key(service)?;
        let group = self.groups.get_mut(&(dialect, key, Part::Of(family)))?;
        let partners = &self.partners;
        Some(group.paired_below(|vip| partners.contains_key(&vip)))
    }

    /// Puts the Service on the address. The caller has asked [`Tenancy::clash`] and [`Tenancy::mismatch`].
    pub(super) fn occupy(&mut self, vip: Vip, service: &'a Service) {
        let tenancy = self.vips.entry(vip).or_default();
        tenancy.claims.extend(service.claims().map(|port| (port, service)));
        tenancy.tenants.insert(&service.name);
        let Party { namespace, sharing } = service.party();
        let first = tenancy.parties.entry(sharing).or_default().entry(namespace).or_insert(&service.name);
        *first = (&service.name).min(first);
        self.join(Part::Of(vip.family()), vip, service);
    }

    /// Notes that the Service, which is on both addresses, holds these two and no more.
    pub(super) fn pair(&mut self, v4: Vip, v6: Vip, service: &'a Service) {
        self.join(Part::Pairs, v4, service);
        self.partners.entry(v6).or_default().insert(v4);
        if self.partners.entry(v4).or_default().insert(v6)
            && let Some((dialect, key)) = key(service)
            && let Some(group) = self.groups.get_mut(&(dialect, key, Part::Pairs))
        {
            group.reopen(v4);
        }
    }

    fn join(&mut self, part: Part, vip: Vip, service: &'a Service) {
        if let (Some((dialect, key)), Some(sharing_key)) = (key(service), &service.request.sharing.key) {
            let group = self.groups.entry((dialect, key, part)).or_default();
            group.add(vip, &service.name.namespace, &sharing_key.scope);
        }
    }
}

fn key(service: &Service) -> Option<(&str, &str)> {
    service.request.sharing.key.as_ref().map(|key| (key.dialect.as_str(), key.key.as_str()))
}
