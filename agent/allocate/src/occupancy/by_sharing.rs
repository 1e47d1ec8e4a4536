//! Groups Services by their sharing settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Occupant;
use vipmux_model::{
    ServiceName,
    pool::PoolSharing,
    request::{Mismatch, Sharer, Sharing},
};

/// Services by their sharing settings, and by namespace. So one check is enough for a large group.
#[derive(Debug, Default)]
pub(super) struct BySharing(BTreeMap<Sharing, BTreeMap<String, BTreeSet<Arc<Occupant>>>>);

impl BySharing {
    pub(super) fn add(&mut self, occupant: &Arc<Occupant>) {
        let (sharing, namespace) = (&occupant.snapshot.sharing, occupant.name.namespace());
        // Most Services find an equal sharing setting there. Then nothing is copied.
        let namespaces = match self.0.get_mut(sharing) {
            Some(namespaces) => namespaces,
            None => self.0.entry(sharing.clone()).or_default(),
        };
        match namespaces.get_mut(namespace) {
            Some(occupants) => drop(occupants.insert(Arc::clone(occupant))),
            None => drop(namespaces.insert(namespace.to_owned(), [Arc::clone(occupant)].into())),
        }
    }

    pub(super) fn remove(&mut self, occupant: &Arc<Occupant>) {
        let (sharing, namespace) = (&occupant.snapshot.sharing, occupant.name.namespace());
        let Some(namespaces) = self.0.get_mut(sharing) else { return };
        if let Some(occupants) = namespaces.get_mut(namespace) {
            occupants.remove(occupant);
            if occupants.is_empty() {
                namespaces.remove(namespace);
            }
        }
        if namespaces.is_empty() {
            self.0.remove(sharing);
        }
    }

    /// Returns each sharing setting, with its first Service in the first namespace.
    pub(super) fn first_of_each(&self) -> impl Iterator<Item = (&Sharing, &Occupant)> {
        self.0.iter().filter_map(|(sharing, namespaces)| {
            let (_, occupants) = namespaces.first_key_value()?;
            Some((sharing, occupants.first()?.as_ref()))
        })
    }

    /// Returns the first Service, `own` aside, that may not share with this one, and the reason.
    pub(super) fn mismatch<'s>(
        &'s self,
        sharer: Sharer<'s>,
        own: &ServiceName,
        pool: PoolSharing,
    ) -> Option<(&'s Occupant, Mismatch<'s>)> {
        self.0.iter().find_map(|(sharing, namespaces)| {
            let others = namespaces.iter().filter_map(|(namespace, occupants)| {
                Some((namespace, occupants.iter().find(|occupant| occupant.name != *own)?))
            });
            // If all namespaces get the same answer, ask for one.
            let asked = if sharer.sharing.is_alike_everywhere(sharing, pool) { 1 } else { usize::MAX };
            others.take(asked).find_map(|(namespace, occupant)| {
                let other = Sharer { namespace, sharing };
                Some((occupant.as_ref(), sharer.may_share(other, pool).err()?))
            })
        })
    }
}
