//! Who has one key, and what they say that their group has to say alike.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use super::Tenant;
use crate::{
    allocate::holders::Alike,
    model::request::{Party, Scope},
};

/// All with one key. Most who ask reach few namespaces, or find that all say the same: so there are two ways to them.
#[derive(Debug, Default)]
pub(in crate::allocate) struct Members {
    all: Said,
    by_namespace: BTreeMap<String, Said>,
}

/// Members by what they say that their group has to say alike.
#[derive(Debug, Default)]
struct Said(BTreeMap<Alike, BTreeSet<Arc<Tenant>>>);

impl Said {
    fn add(&mut self, tenant: &Arc<Tenant>) {
        self.0.entry(tenant.terms.alike.clone()).or_default().insert(Arc::clone(tenant));
    }

    fn remove(&mut self, tenant: &Arc<Tenant>) {
        if let Some(tenants) = self.0.get_mut(&tenant.terms.alike) {
            tenants.remove(tenant);
            if tenants.is_empty() {
                self.0.remove(&tenant.terms.alike);
            }
        }
    }
}

impl Members {
    pub(in crate::allocate) fn add(&mut self, tenant: &Arc<Tenant>) {
        self.all.add(tenant);
        self.by_namespace.entry(tenant.name.namespace.clone()).or_default().add(tenant);
    }

    pub(super) fn remove(&mut self, tenant: &Arc<Tenant>) {
        self.all.remove(tenant);
        if let Some(said) = self.by_namespace.get_mut(&tenant.name.namespace) {
            said.remove(tenant);
            if said.0.is_empty() {
                self.by_namespace.remove(&tenant.name.namespace);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.all.0.values().flatten()
    }

    /// Whether the party's group has anybody. The party has the key, as all here do.
    pub(in crate::allocate) fn has_any(&self, party: Party<'_>) -> bool {
        self.of_group(party, |_| true).next().is_some()
    }

    /// The first member of the party's group that says something else. The party has the key, as all here do.
    pub(in crate::allocate) fn differing<'s>(&'s self, party: Party<'s>, alike: &'s Alike) -> Option<&'s Tenant> {
        self.of_group(party, move |said| said != alike).next()
    }

    fn of_group<'s>(
        &'s self,
        party: Party<'s>,
        which: impl Fn(&Alike) -> bool + 's,
    ) -> impl Iterator<Item = &'s Tenant> {
        let (near, far) = match party.sharing.key.as_ref().map(|key| &key.scope) {
            Some(Scope::Namespaces(names)) => (Some(names), None),
            Some(Scope::Cluster) | None => (None, Some(&self.all)),
        };
        let near =
            near.into_iter().flat_map(move |names| iter::once(party.namespace).chain(names.iter().map(|name| &**name)));
        let said = near.filter_map(|namespace| self.by_namespace.get(namespace)).chain(far);
        let tenants =
            said.flat_map(|said| &said.0).filter(move |(alike, _)| which(alike)).flat_map(|(_, tenants)| tenants);
        tenants.map(AsRef::as_ref).filter(move |tenant: &&Tenant| party.is_of_group_with(tenant.party()))
    }
}
