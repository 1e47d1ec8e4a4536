//! Combines the objects of all files.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use super::parse::{ObjectLocation, ParsedFile, ParsedObject};
use vipmux_model::objects::{
    Objects, Problem,
    object::{Identity, Object},
};

/// The content of all files. A change of one file costs no more than that file.
#[derive(Debug, Default)]
pub(super) struct ObjectStore {
    files: BTreeMap<PathBuf, ParsedFile>,
    /// The definitions of each object. The first is in force, and the others are problems.
    definitions: BTreeMap<Identity, BTreeMap<ObjectLocation, Definition>>,
    /// Objects with more than one definition.
    duplicated: BTreeSet<Identity>,
    /// Files with malformed objects.
    malformed_files: BTreeSet<PathBuf>,
    /// Problems that belong to no single file.
    general_problems: Vec<Problem>,
    /// The objects in force. Their problems are added when a snapshot is taken.
    objects: Objects,
}

#[derive(Debug)]
struct Definition {
    object: Object,
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
        let changed = previous.as_ref() != Some(&parsed);
        if changed {
            self.remove_definitions(previous);
            self.add_definitions(&parsed.objects);
            if parsed.malformed.is_empty() {
                self.malformed_files.remove(file);
            } else {
                self.malformed_files.insert(file.to_owned());
            }
        }
        self.files.insert(file.to_owned(), parsed);
        changed
    }

    /// Forgets a file. Returns whether anything changed.
    pub(super) fn remove(&mut self, file: &Path) -> bool {
        let previous = self.files.remove(file);
        self.malformed_files.remove(file);
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

    /// Returns the objects in force. Snapshots share what did not change.
    pub(super) fn snapshot(&self) -> Objects {
        Objects { problems: self.problems(), ..self.objects.clone() }
    }

    /// Returns the number of objects of kinds that vipmux does not read.
    pub(super) fn ignored(&self) -> usize {
        self.files.values().map(|parsed| parsed.ignored).sum()
    }

    fn problems(&self) -> Vec<Problem> {
        let malformed =
            self.malformed_files.iter().filter_map(|file| self.files.get(file)).flat_map(|parsed| &parsed.malformed);
        let mut problems = self.general_problems.clone();
        problems.extend(malformed.flat_map(|malformed| &malformed.problems).cloned());
        problems.extend(self.duplicated.iter().flat_map(|identity| self.duplicate_problems(identity)));
        problems.sort();
        problems
    }

    /// Returns a problem for each definition but the first.
    fn duplicate_problems(&self, identity: &Identity) -> impl Iterator<Item = Problem> {
        let definitions = self.definitions.get(identity);
        let first = definitions.and_then(BTreeMap::first_key_value);
        definitions.into_iter().flatten().skip(1).zip(first.into_iter().cycle()).map(
            move |((location, it), (first, _))| {
                let (file, document) = (first.file.display(), first.document);
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

    fn add_definitions(&mut self, entries: &[ParsedObject]) {
        for ParsedObject { identity, location, object, line, path } in entries {
            let definition = Definition { object: object.clone(), line: *line, path: path.to_string() };
            self.definitions.entry(identity.clone()).or_default().insert(location.clone(), definition);
        }
        for entry in entries {
            self.update_in_force(&entry.identity);
        }
    }

    fn remove_definitions(&mut self, parsed: Option<ParsedFile>) {
        for entry in parsed.into_iter().flat_map(|parsed| parsed.objects) {
            if let Some(definitions) = self.definitions.get_mut(&entry.identity) {
                definitions.remove(&entry.location);
            }
            self.update_in_force(&entry.identity);
        }
    }

    /// Puts an object's first definition in force.
    fn update_in_force(&mut self, identity: &Identity) {
        let definitions = self.definitions.get(identity);
        if let Some((_, definition)) = definitions.and_then(BTreeMap::first_key_value) {
            definition.object.put(identity, &mut self.objects);
        } else {
            identity.take_from(&mut self.objects);
            self.definitions.remove(identity);
        }
        if self.definitions.get(identity).is_some_and(|definitions| definitions.len() > 1) {
            self.duplicated.insert(identity.clone());
        } else {
            self.duplicated.remove(identity);
        }
    }
}
