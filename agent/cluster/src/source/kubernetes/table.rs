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
    listing: BTreeMap<Kind, Listing>,
    /// Kinds that were listed once, or that the API server does not have.
    listed: BTreeSet<Kind>,
    problems: BTreeMap<Identity, Vec<Problem>>,
}

/// The objects of a list so far; `None`: as they are in force. The list counts when it is complete: in a part of
/// it, old and new objects are together, such as a pool and another one that took its place.
type Listing = BTreeMap<Identity, Option<Result<Object, Vec<Problem>>>>;

impl ObjectTable {
    /// Applies an update. Returns whether the snapshot changed.
    pub(super) fn apply(&mut self, WatchUpdate { kind, change }: WatchUpdate) -> bool {
        match change {
            ObjectChange::ListBegan => {
                self.listing.insert(kind, Listing::new());
                false
            }
            ObjectChange::Exists(identity, object) => {
                let Some(listing) = self.listing.get_mut(&kind) else { return self.put(kind, identity, object) };
                // A list of what did not change takes little memory.
                let same = object.as_ref().is_ok_and(|object| object.is_in(&identity, &self.objects));
                let same = same && !self.problems.contains_key(&identity);
                listing.insert(identity, (!same).then_some(object));
                false
            }
            ObjectChange::Gone(identity) => match self.listing.get_mut(&kind) {
                Some(listing) => {
                    listing.remove(&identity);
                    false
                }
                None => self.remove(kind, &identity),
            },
            ObjectChange::ListEnded => {
                let listing = self.listing.remove(&kind).unwrap_or_default();
                let mut changed = self.listed.insert(kind);
                let known = self.known.get(&kind).into_iter().flatten();
                let gone: Vec<_> = known.filter(|identity| !listing.contains_key(*identity)).cloned().collect();
                for identity in &gone {
                    changed |= self.remove(kind, identity);
                }
                for (identity, object) in listing {
                    if let Some(object) = object {
                        changed |= self.put(kind, identity, object);
                    }
                }
                changed
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

    fn put(&mut self, kind: Kind, identity: Identity, object: Result<Object, Vec<Problem>>) -> bool {
        self.known.entry(kind).or_default().insert(identity.clone());
        match object {
            Ok(object) => {
                let repaired = self.problems.remove(&identity).is_some();
                let same = object.is_in(&identity, &self.objects);
                if !same {
                    object.put(&identity, &mut self.objects);
                }
                repaired || !same
            }
            Err(mut problems) => {
                if identity.is_in(&self.objects) {
                    for problem in &mut problems {
                        problem.message.push_str("; the last good version stays in force");
                    }
                }
                let same = self.problems.get(&identity) == Some(&problems);
                self.problems.insert(identity, problems);
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
