//! Combines the objects of all files.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use super::parse::{ObjectLocation, ParsedFile, ParsedObject};
use crate::file_stamp::ModificationTime;
use vipmux_model::objects::{
    Objects, Problem, UnreadObjects,
    object::{Identity, Object},
};

/// The content of all files. A change of one file costs no more than that file.
#[derive(Debug, Default)]
pub(super) struct ObjectStore {
    files: BTreeMap<PathBuf, ParsedFile>,
    /// The definitions of each object. One is in force, and the others are problems.
    definitions: BTreeMap<Identity, Definitions>,
    /// Objects whose definitions changed since the last snapshot.
    undecided: BTreeSet<Identity>,
    /// Objects with more than one definition.
    duplicated: BTreeSet<Identity>,
    /// Files with malformed objects, or with some that are not read and should be.
    reported_files: BTreeSet<PathBuf>,
    /// Problems that belong to no single file.
    general_problems: Vec<Problem>,
    /// The objects in force. Their problems are added when a snapshot is taken.
    objects: Objects,
}

/// The definitions of an object.
#[derive(Debug, Default)]
struct Definitions {
    all: BTreeMap<ObjectLocation, Definition>,
    /// The one in force, as it was at the last snapshot.
    in_force: Option<(ObjectLocation, Object)>,
}

#[derive(Debug)]
struct Definition {
    object: Object,
    /// Its file's.
    modified: ModificationTime,
    line: usize,
    /// [`ParsedObject::path`] as text.
    path: String,
}

impl ObjectStore {
    /// Replaces the content of a file. Keeps the last good version of objects that are malformed
    /// now. Returns whether anything changed.
    pub(super) fn put(&mut self, file: &Path, mut parsed: ParsedFile) -> bool {
        let previous = self.files.remove(file);
        if let Some(previous) = previous.clone() {
            parsed.keep_last_good(previous);
        }
        let changed = !previous.as_ref().is_some_and(|previous| previous.has_content_of(&parsed));
        if changed {
            self.remove_definitions(previous);
            self.add_definitions(&parsed.objects, parsed.modified);
            if parsed.malformed.is_empty() && parsed.unread == UnreadObjects::default() {
                self.reported_files.remove(file);
            } else {
                self.reported_files.insert(file.to_owned());
            }
        }
        self.files.insert(file.to_owned(), parsed);
        changed
    }

    /// Forgets a file. Returns whether anything changed.
    pub(super) fn remove(&mut self, file: &Path) -> bool {
        let previous = self.files.remove(file);
        self.reported_files.remove(file);
        let changed = previous.is_some();
        self.remove_definitions(previous);
        changed
    }

    /// Replaces the problems that belong to no single file. Returns whether anything changed.
    pub(super) fn set_general_problems(&mut self, problems: Vec<Problem>) -> bool {
        let changed = self.general_problems != problems;
        self.general_problems = problems;
        changed
    }

    /// Returns the files.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// Returns the number of the files.
    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Returns the objects in force. Snapshots share what did not change.
    pub(super) fn snapshot(&mut self) -> Objects {
        self.decide();
        Objects { problems: self.problems(), unread: self.unread(), ..self.objects.clone() }
    }

    /// Returns the number of objects of kinds that vipmux does not read.
    pub(super) fn ignored(&self) -> usize {
        self.files.values().map(|parsed| parsed.ignored).sum()
    }

    fn reported(&self) -> impl Iterator<Item = &ParsedFile> {
        self.reported_files.iter().filter_map(|file| self.files.get(file))
    }

    fn unread(&self) -> UnreadObjects {
        let mut unread = UnreadObjects::default();
        self.reported().for_each(|parsed| unread.extend(parsed.unread.clone()));
        unread
    }

    fn problems(&self) -> Vec<Problem> {
        let malformed = self.reported().flat_map(|parsed| &parsed.malformed);
        let mut problems = self.general_problems.clone();
        problems.extend(malformed.flat_map(|malformed| &malformed.problems).cloned());
        problems.extend(self.duplicated.iter().flat_map(|identity| self.duplicate_problems(identity)));
        problems.sort();
        problems
    }

    /// Returns a problem for each definition but the one in force.
    fn duplicate_problems(&self, identity: &Identity) -> impl Iterator<Item = Problem> {
        let definitions = self.definitions.get(identity);
        let in_force = definitions.and_then(|definitions| definitions.in_force.as_ref());
        let others = definitions.into_iter().flat_map(|definitions| &definitions.all);
        others.zip(in_force.into_iter().cycle()).filter(|((location, _), (place, _))| *location != place).map(
            move |((location, it), (place, _))| {
                let (file, document) = (place.file.display(), place.document);
                Problem {
                    file: location.file.to_path_buf(),
                    document: NonZeroUsize::new(location.document),
                    line: Some(it.line),
                    field: it.path.clone(),
                    message: format!("{identity} is defined in {file}, document {document}, too; that one is in force"),
                }
            },
        )
    }

    fn add_definitions(&mut self, entries: &[ParsedObject], modified: ModificationTime) {
        for ParsedObject { identity, location, object, line, path } in entries {
            let definition = Definition { object: object.clone(), modified, line: *line, path: path.to_string() };
            self.definitions.entry(identity.clone()).or_default().all.insert(location.clone(), definition);
            self.undecided.insert(identity.clone());
        }
    }

    fn remove_definitions(&mut self, parsed: Option<ParsedFile>) {
        for entry in parsed.into_iter().flat_map(|parsed| parsed.objects) {
            if let Some(definitions) = self.definitions.get_mut(&entry.identity) {
                definitions.all.remove(&entry.location);
            }
            self.undecided.insert(entry.identity);
        }
    }

    /// Decides which definition of each changed object is in force. All changes that were read
    /// together count, so an object may move from one file to another.
    fn decide(&mut self) {
        for identity in mem::take(&mut self.undecided) {
            let definitions = self.definitions.get_mut(&identity);
            if let Some(object) = definitions.and_then(Definitions::decide) {
                object.put(&identity, &mut self.objects);
            } else {
                identity.take_from(&mut self.objects);
                self.definitions.remove(&identity);
            }
            if self.definitions.get(&identity).is_some_and(|definitions| definitions.all.len() > 1) {
                self.duplicated.insert(identity);
            } else {
                self.duplicated.remove(&identity);
            }
        }
    }
}

impl Definitions {
    /// Decides which definition is in force, and returns its object. `None`: there is none.
    ///
    /// The one that was in force before stays: first the same object in the same file, then what
    /// is at its place, then another one in its file, then the same object elsewhere. If none was
    /// in force, the file that was modified first counts.
    fn decide(&mut self) -> Option<&Object> {
        let before = self.in_force.take();
        let order = |location: &ObjectLocation, definition: &Definition| {
            let (elsewhere, changed, moved) = before.as_ref().map_or((true, true, true), |(place, object)| {
                (place.file != location.file, *object != definition.object, place != location)
            });
            (elsewhere, changed, moved, definition.modified)
        };
        let (location, definition) = self.all.iter().min_by_key(|(location, it)| (order(location, it), *location))?;
        self.in_force = Some((location.clone(), definition.object.clone()));
        Some(&definition.object)
    }
}
