//! What the watches told, put together.

use std::collections::{BTreeMap, BTreeSet};

use super::feed::{Event, Told};
use crate::source::{
    Objects, Problem,
    object::{Identity, Kind, Object},
};

/// Problems that are told, over all objects.
const PROBLEMS_MAX: usize = 1_000;

/// All kinds' objects.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// What is in force; its problems are put together when it is asked for.
    objects: Objects,
    /// Everything that the API server has, by kind; also what is malformed.
    known: BTreeMap<Kind, BTreeSet<Identity>>,
    /// Those seen since a kind is being listed anew.
    listing: BTreeMap<Kind, BTreeSet<Identity>>,
    /// Kinds that were listed once, or that the API server does not have.
    listed: BTreeSet<Kind>,
    problems: BTreeMap<Identity, Vec<Problem>>,
}

impl Table {
    /// Takes in what a watch told. Says whether there is something to pass on.
    pub(super) fn take(&mut self, Event { kind, told }: Event) -> bool {
        match told {
            Told::Begun => {
                self.listing.insert(kind, BTreeSet::new());
                false
            }
            Told::There(identity, object) => {
                if let Some(listing) = self.listing.get_mut(&kind) {
                    listing.insert(identity.clone());
                }
                self.known.entry(kind).or_default().insert(identity.clone());
                self.put(&identity, object)
            }
            Told::Gone(identity) => {
                if let Some(listing) = self.listing.get_mut(&kind) {
                    listing.remove(&identity);
                }
                self.remove(kind, &identity)
            }
            Told::Done => {
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

    /// Whether all kinds were listed.
    pub(super) fn is_complete(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.listed.contains(kind))
    }

    /// What is in force now; shares all that stays with the next snapshot.
    pub(super) fn snapshot(&self) -> Objects {
        let mut problems: Vec<_> = self.problems.values().flatten().take(PROBLEMS_MAX).cloned().collect();
        problems.sort();
        Objects { problems, ..self.objects.clone() }
    }

    fn put(&mut self, identity: &Identity, object: Result<Object, Vec<Problem>>) -> bool {
        match object {
            Ok(object) => {
                let mended = self.problems.remove(identity).is_some();
                let same = object.is_in(identity, &self.objects);
                if !same {
                    object.put(identity, &mut self.objects);
                }
                mended || !same
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
