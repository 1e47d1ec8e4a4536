//! Combines the updates of all watches into one snapshot.

use std::collections::{BTreeMap, BTreeSet};

use super::kind_watch::{ObjectChange, WatchUpdate};
use vipmux_model::objects::{
    Objects, Problem,
    object::{Identity, Kind, Object},
};

/// Problems in a snapshot, over all objects, at most.
const MAX_PROBLEMS: usize = 1_000;

/// The objects of all kinds.
#[derive(Debug, Default)]
pub(super) struct ObjectTable {
    /// The objects in force. Their problems are added when a snapshot is taken.
    objects: Objects,
    /// Everything that the API server has, by kind. Includes malformed objects.
    known: BTreeMap<Kind, BTreeSet<Identity>>,
    /// The objects of a list that is in progress, by kind.
    listing: BTreeMap<Kind, BTreeSet<Identity>>,
    /// Kinds that were listed once, or that the API server does not have.
    listed: BTreeSet<Kind>,
    problems: BTreeMap<Identity, Vec<Problem>>,
}

impl ObjectTable {
    /// Applies an update. Returns whether the snapshot changed.
    pub(super) fn apply(&mut self, WatchUpdate { kind, change }: WatchUpdate) -> bool {
        match change {
            ObjectChange::ListBegan => {
                self.listing.insert(kind, BTreeSet::new());
                false
            }
            ObjectChange::Exists(identity, object) => {
                if let Some(listing) = self.listing.get_mut(&kind) {
                    listing.insert(identity.clone());
                }
                self.known.entry(kind).or_default().insert(identity.clone());
                self.put(&identity, object)
            }
            ObjectChange::Gone(identity) => {
                if let Some(listing) = self.listing.get_mut(&kind) {
                    listing.remove(&identity);
                }
                self.remove(kind, &identity)
            }
            ObjectChange::ListEnded => {
                let seen = self.listing.remove(&kind).unwrap_or_default();
                let gone: Vec<_> =
                    self.known.get(&kind).into_iter().flatten().filter(|it| !seen.contains(*it)).cloned().collect();
                for identity in &gone {
                    self.remove(kind, identity);
                }
                self.listed.insert(kind) || !gone.is_empty()
            }
        }
    }

    /// Returns whether all kinds were listed.
    pub(super) fn is_complete(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.listed.contains(kind))
    }

    /// Returns the objects in force. Snapshots share what did not change.
    pub(super) fn snapshot(&self) -> Objects {
        let mut problems: Vec<_> = self.problems.values().flatten().take(MAX_PROBLEMS).cloned().collect();
        problems.sort();
        Objects { problems, ..self.objects.clone() }
    }

    fn put(&mut self, identity: &Identity, object: Result<Object, Vec<Problem>>) -> bool {
        match object {
            Ok(object) => {
                let repaired = self.problems.remove(identity).is_some();
                let same = object.is_in(identity, &self.objects);
                if !same {
                    object.put(identity, &mut self.objects);
                }
                repaired || !same
            }
            Err(mut problems) => {
                if identity.is_in(&self.objects) {
                    for problem in &mut problems {
                        problem.message.push_str("; the last good version stays in force");
                    }
                }
                let same = self.problems.get(identity) == Some(&problems);
                self.problems.insert(identity.clone(), problems);
                !same
            }
        }
    }

    fn remove(&mut self, kind: Kind, identity: &Identity) -> bool {
        identity.take_from(&mut self.objects);
        self.problems.remove(identity);
        self.known.get_mut(&kind).is_some_and(|known| known.remove(identity))
    }
}

#[cfg(test)]
mod tests;
