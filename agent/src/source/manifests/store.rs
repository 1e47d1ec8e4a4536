//! All files' objects, put together.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::parse::{Entry, Parsed, Place};
use crate::source::{
    Objects, Problem,
    object::{Identity, Object},
};

/// What the files hold, kept so that a change of one file costs no more than that file.
#[derive(Debug, Default)]
pub(super) struct Store {
    files: BTreeMap<PathBuf, Parsed>,
    /// Who defines an object: the first is in force, others are told.
    definitions: BTreeMap<Identity, BTreeMap<Place, Definition>>,
    /// Identities with more than one definition.
    contested: BTreeSet<Identity>,
    /// Files that hold something malformed.
    flawed: BTreeSet<PathBuf>,
    /// Problems that are of no file.
    notices: Vec<Problem>,
    /// What is in force; its problems are put together when it is asked for.
    objects: Objects,
}

#[derive(Debug)]
struct Definition {
    object: Object,
    line: usize,
    /// [`Entry::path`], as text.
    path: String,
}

impl Store {
    /// Replaces what a file holds, keeping the last good version of what is malformed now. Says whether anything changed.
    pub(super) fn put(&mut self, file: &Path, mut parsed: Parsed) -> bool {
        let previous = self.files.remove(file);
        if let Some(previous) = previous.clone() {
            parsed.succeed(previous);
        }
        let changed = previous.as_ref() != Some(&parsed);
        if changed {
            self.withdraw(previous);
            self.publish(&parsed.objects);
            if parsed.malformed.is_empty() {
                self.flawed.remove(file);
            } else {
                self.flawed.insert(file.to_owned());
            }
        }
        self.files.insert(file.to_owned(), parsed);
        changed
    }

    /// Forgets a file. Says whether anything changed.
    pub(super) fn remove(&mut self, file: &Path) -> bool {
        let previous = self.files.remove(file);
        self.flawed.remove(file);
        let changed = previous.is_some();
        self.withdraw(previous);
        changed
    }

    /// Replaces the problems that are of no file. Says whether anything changed.
    pub(super) fn notice(&mut self, problems: Vec<Problem>) -> bool {
        let changed = self.notices != problems;
        self.notices = problems;
        changed
    }

    /// The files.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// What is in force now; shares all that stays with the next snapshot.
    pub(super) fn snapshot(&self) -> Objects {
        Objects { problems: self.problems(), ..self.objects.clone() }
    }

    /// Objects of kinds that are not read.
    pub(super) fn ignored(&self) -> usize {
        self.files.values().map(|parsed| parsed.ignored).sum()
    }

    fn problems(&self) -> Vec<Problem> {
        let malformed = self.flawed.iter().filter_map(|file| self.files.get(file)).flat_map(|parsed| &parsed.malformed);
        let mut problems = self.notices.clone();
        problems.extend(malformed.flat_map(|malformed| &malformed.problems).cloned());
        problems.extend(self.contested.iter().flat_map(|identity| self.contests(identity)));
        problems.sort();
        problems
    }

    /// A problem for each definition but the first.
    fn contests(&self, identity: &Identity) -> impl Iterator<Item = Problem> {
        let definitions = self.definitions.get(identity);
        let first = definitions.and_then(BTreeMap::first_key_value);
        definitions.into_iter().flatten().skip(1).zip(first.into_iter().cycle()).map(
            move |((place, it), (first, _))| {
                let (file, document) = (first.file.display(), first.document);
                Problem {
                    file: place.file.to_path_buf(),
                    document: place.document,
                    line: Some(it.line),
                    field: it.path.clone(),
                    message: format!("{identity} is defined in {file}, document {document}, too; that one is in force"),
                }
            },
        )
    }

    fn publish(&mut self, entries: &[Entry]) {
        for Entry { identity, place, object, line, path } in entries {
            let definition = Definition { object: object.clone(), line: *line, path: path.to_string() };
            self.definitions.entry(identity.clone()).or_default().insert(place.clone(), definition);
        }
        for entry in entries {
            self.settle(&entry.identity);
        }
    }

    fn withdraw(&mut self, parsed: Option<Parsed>) {
        for entry in parsed.into_iter().flat_map(|parsed| parsed.objects) {
            if let Some(definitions) = self.definitions.get_mut(&entry.identity) {
                definitions.remove(&entry.place);
            }
            self.settle(&entry.identity);
        }
    }

    /// Puts an identity's first definition in force.
    fn settle(&mut self, identity: &Identity) {
        let definitions = self.definitions.get(identity);
        if let Some((_, definition)) = definitions.and_then(BTreeMap::first_key_value) {
            definition.object.put(identity, &mut self.objects);
        } else {
            identity.take_from(&mut self.objects);
            self.definitions.remove(identity);
        }
        if self.definitions.get(identity).is_some_and(|definitions| definitions.len() > 1) {
            self.contested.insert(identity.clone());
        } else {
            self.contested.remove(identity);
        }
    }
}
