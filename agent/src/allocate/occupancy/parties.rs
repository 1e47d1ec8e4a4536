//! Tenants by what they say about sharing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Tenant;
use crate::model::{
    ServiceName,
    pool::PoolSharing,
    request::{Mismatch, Party, Sharing},
};

/// Tenants by what they say about sharing, and by namespace: large groups cost one question.
#[derive(Debug, Default)]
pub(super) struct Parties(BTreeMap<Sharing, BTreeMap<String, BTreeSet<Arc<Tenant>>>>);

impl Parties {
    pub(super) fn add(&mut self, tenant: &Arc<Tenant>) {
        let (sharing, namespace) = (&tenant.terms.sharing, &tenant.name.namespace);
        // Most find their like there, and nothing is copied.
        let namespaces = match self.0.get_mut(sharing) {
            Some(namespaces) => namespaces,
            None => self.0.entry(sharing.clone()).or_default(),
        };
        match namespaces.get_mut(namespace) {
            Some(tenants) => drop(tenants.insert(Arc::clone(tenant))),
            None => drop(namespaces.insert(namespace.clone(), [Arc::clone(tenant)].into())),
        }
    }

    pub(super) fn remove(&mut self, tenant: &Arc<Tenant>) {
        let (sharing, namespace) = (&tenant.terms.sharing, &tenant.name.namespace);
        let Some(namespaces) = self.0.get_mut(sharing) else { return };
        if let Some(tenants) = namespaces.get_mut(namespace) {
            tenants.remove(tenant);
            if tenants.is_empty() {
                namespaces.remove(namespace);
            }
        }
        if namespaces.is_empty() {
            self.0.remove(sharing);
        }
    }

    /// Each with the first who says so in the first namespace where that is said.
    pub(super) fn first_of_each(&self) -> impl Iterator<Item = (&Sharing, &Tenant)> {
        self.0.iter().filter_map(|(sharing, namespaces)| {
            let (_, tenants) = namespaces.first_key_value()?;
            Some((sharing, tenants.first()?.as_ref()))
        })
    }

    /// The first, this one aside, that may not share with the party, and why.
    pub(super) fn mismatch<'s>(
        &'s self,
        party: Party<'s>,
        own: &ServiceName,
        pool: PoolSharing,
    ) -> Option<(&'s Tenant, Mismatch<'s>)> {
        self.0.iter().find_map(|(sharing, namespaces)| {
            let others = namespaces.iter().filter_map(|(namespace, tenants)| {
                Some((namespace, tenants.iter().find(|tenant| tenant.name != *own)?))
            });
            // Where all namespaces get the same answer, one is asked.
            let asked = if party.sharing.is_alike_everywhere(sharing, pool) { 1 } else { usize::MAX };
            others.take(asked).find_map(|(namespace, tenant)| {
                let other = Party { namespace, sharing };
                Some((tenant.as_ref(), party.may_share(other, pool).err()?))
            })
        })
    }
}
