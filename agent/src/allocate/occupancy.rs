//! Who is on which address while an allocation is made.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{ServiceName, Vip, name::Port, pool::PoolSharing, request::Party, service::Service};

/// Who is on which address.
#[derive(Debug, Default)]
pub(super) struct Occupancy<'a> {
    vips: BTreeMap<Vip, Tenancy<'a>>,
    /// The addresses on which each key (of a dialect) is found.
    groups: BTreeMap<(&'a str, &'a str), BTreeSet<Vip>>,
}

/// Who is on one address.
#[derive(Debug, Default)]
pub(super) struct Tenancy<'a> {
    claims: BTreeMap<Port, &'a Service>,
    tenants: BTreeSet<&'a ServiceName>,
    /// Tenants that say the same about sharing, with the first of them by name: large groups cost one question.
    parties: BTreeMap<Party<'a>, &'a ServiceName>,
}

impl<'a> Tenancy<'a> {
    /// Who is on it.
    pub(super) fn tenants(&self) -> &BTreeSet<&'a ServiceName> {
        &self.tenants
    }

    /// What its tenants say about sharing, each with one who says so.
    pub(super) fn parties(&self) -> &BTreeMap<Party<'a>, &'a ServiceName> {
        &self.parties
    }

    /// The first of the Service's ports that another Service has.
    pub(super) fn clash(&self, service: &Service) -> Option<(Port, &'a Service)> {
        service.claims().find_map(|port| Some((port, *self.claims.get(&port)?)))
    }

    /// The first tenant that may not share with the party, and why.
    pub(super) fn mismatch(&self, party: Party<'_>, pool: PoolSharing) -> Option<(&'a ServiceName, String)> {
        self.parties.iter().find_map(|(other, name)| Some((*name, party.may_share(*other, pool).err()?)))
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

    /// The addresses on which the Service's key is found, ascending.
    pub(super) fn group<'s>(&'s self, service: &'s Service) -> impl Iterator<Item = Vip> + 's {
        let key = service.request.sharing.key.as_ref();
        let vips: Option<&'s BTreeSet<Vip>> =
            key.and_then(|key| self.groups.get(&(key.dialect.as_str(), key.key.as_str())));
        vips.into_iter().flatten().copied()
    }

    /// Puts the Service on the address. The caller has asked [`Tenancy::clash`] and [`Tenancy::mismatch`].
    pub(super) fn occupy(&mut self, vip: Vip, service: &'a Service) {
        let tenancy = self.vips.entry(vip).or_default();
        tenancy.claims.extend(service.claims().map(|port| (port, service)));
        tenancy.tenants.insert(&service.name);
        let first = tenancy.parties.entry(service.party()).or_insert(&service.name);
        *first = (&service.name).min(first);
        if let Some(key) = &service.request.sharing.key {
            self.groups.entry((&key.dialect, &key.key)).or_default().insert(vip);
        }
    }
}
