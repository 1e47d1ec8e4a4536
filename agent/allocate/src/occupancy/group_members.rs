//! Indexes the Services with one sharing key by the settings that their group must agree on.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use super::Occupant;
use crate::request_snapshot::GroupSettings;
use vipmux_model::request::{Scope, Sharer};

/// The Services with one sharing key. Most lookups reach few namespaces, or find that all settings
/// are equal. So there are two indexes.
#[derive(Debug, Default)]
pub(crate) struct GroupMembers {
    all: BySettings,
    by_namespace: BTreeMap<String, BySettings>,
}

/// Services by the settings that their group must agree on.
#[derive(Debug, Default)]
struct BySettings(BTreeMap<GroupSettings, BTreeSet<Arc<Occupant>>>);

impl BySettings {
    fn add(&mut self, occupant: &Arc<Occupant>) {
        self.0.entry(occupant.snapshot.alike.clone()).or_default().insert(Arc::clone(occupant));
    }

    fn remove(&mut self, occupant: &Arc<Occupant>) {
        if let Some(occupants) = self.0.get_mut(&occupant.snapshot.alike) {
            occupants.remove(occupant);
            if occupants.is_empty() {
                self.0.remove(&occupant.snapshot.alike);
            }
        }
    }
}

impl GroupMembers {
    pub(crate) fn add(&mut self, occupant: &Arc<Occupant>) {
        self.all.add(occupant);
        self.by_namespace.entry(occupant.name.namespace().to_owned()).or_default().add(occupant);
    }

    pub(super) fn remove(&mut self, occupant: &Arc<Occupant>) {
        self.all.remove(occupant);
        if let Some(by_settings) = self.by_namespace.get_mut(occupant.name.namespace()) {
            by_settings.remove(occupant);
            if by_settings.0.is_empty() {
                self.by_namespace.remove(occupant.name.namespace());
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Occupant>> {
        self.all.0.values().flatten()
    }

    /// Whether the group of a Service with this key has any member.
    pub(crate) fn has_any(&self, sharer: Sharer<'_>) -> bool {
        self.of_group(sharer, |_| true).next().is_some()
    }

    /// Returns the first member with other settings in the group of a Service with this key.
    pub(crate) fn differing<'s>(&'s self, sharer: Sharer<'s>, alike: &'s GroupSettings) -> Option<&'s Occupant> {
        self.of_group(sharer, move |by_settings| by_settings != alike).next()
    }

    fn of_group<'s>(
        &'s self,
        sharer: Sharer<'s>,
        which: impl Fn(&GroupSettings) -> bool + 's,
    ) -> impl Iterator<Item = &'s Occupant> {
        let (near, far) = match sharer.sharing.key.as_ref().map(|key| &key.scope) {
            Some(Scope::Namespaces(names)) => (Some(names), None),
            Some(Scope::Cluster) | None => (None, Some(&self.all)),
        };
        let near = near
            .into_iter()
            .flat_map(move |names| iter::once(sharer.namespace).chain(names.iter().map(|name| &**name)));
        let by_settings = near.filter_map(|namespace| self.by_namespace.get(namespace)).chain(far);
        let occupants = by_settings
            .flat_map(|by_settings| &by_settings.0)
            .filter(move |(alike, _)| which(alike))
            .flat_map(|(_, occupants)| occupants);
        occupants.map(AsRef::as_ref).filter(move |occupant: &&Occupant| sharer.is_of_group_with(occupant.sharer()))
    }
}
