//! A directory of Kubernetes manifests.
//!
//! [`read`] takes files, directories and standard input once; [`watch`] follows a directory. Both read what `kubectl apply
//! -f` does: YAML and JSON, several documents in a file, and lists. What is malformed is a [`Problem`]; the rest is used.
//!
//! ```text
//! files -> documents -> parse (object, validate, field) -> store -> Objects
//!   ^ queue (pending) <- inotify
//! ```

mod documents;
mod field;
mod files;
mod list;
mod object;
mod parallel;
mod parse;
mod pending;
mod queue;
mod store;
mod validate;
mod watch;

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Serialize;

use self::store::Store;
pub use self::watch::{WatchError, WatchGuard, watch};
use crate::source::Objects;

/// What stands for standard input.
pub const STDIN: &str = "-";

/// A document that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The file; `-` for standard input.
    pub file: PathBuf,
    /// The document's number in the file, from 1, among those with content; 0 where it is the whole file or directory. An
    /// item of a `List` shows in `field`, as `items[i]`.
    pub document: usize,
    /// The line of the file, from 1, where known.
    pub line: Option<usize>,
    /// The path of the field at fault, such as `spec.ports[0].port`; empty where it is the whole document.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl Problem {
    /// A problem of a whole file or directory.
    fn of_file(file: &Path, message: String) -> Self {
        Self { file: file.to_owned(), document: 0, line: None, field: String::new(), message }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if self.document > 0 {
            write!(f, ": document {}", self.document)?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Input that cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A path that was named is absent, or may not be read.
    #[error("cannot read {path:?}")]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Standard input failed.
    #[error("cannot read standard input")]
    Stdin {
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Reads manifests once: files of any name, directories (the `*.yaml`, `*.yml` and `*.json` in and below them that are not
/// hidden), and `-` for standard input. At most 32 MiB a file, 256 MiB, 65,536 files and 16,384 directories below a
/// directory.
///
/// Malformed documents are in [`Objects::problems`], ordered by file and document. Of an object that is defined twice the
/// first by file and document is used.
///
/// Blocks on the input; documents are parsed on as many threads as there are processors.
pub fn read(paths: &[PathBuf]) -> Result<Objects, ReadError> {
    read_from(paths, &mut io::stdin())
}

fn read_from(paths: &[PathBuf], stdin: &mut dyn Read) -> Result<Objects, ReadError> {
    let (mut texts, mut notices) = (Vec::new(), Vec::new());
    for path in paths {
        let failed = |source| ReadError::Path { path: path.clone(), source };
        if path == Path::new(STDIN) {
            texts.push(files::text(path, &mut *stdin).map_err(|source| ReadError::Stdin { source })?);
        } else if fs::metadata(path).map_err(failed)?.is_dir() {
            let tree = files::walk(path, &mut |_| {}).map_err(failed)?;
            texts.extend(tree.files.keys().filter_map(|path| files::load(path)));
            notices.extend(tree.problems);
        } else {
            texts.push(File::open(path).and_then(|file| files::text(path, file)).map_err(failed)?);
        }
    }
    let mut store = Store::default();
    store.notice(notices);
    for (file, parsed) in parse::all(texts) {
        store.put(&file, parsed);
    }
    tracing::debug!(ignored = store.ignored(), "objects of other kinds");
    Ok(store.snapshot())
}

#[cfg(test)]
mod tests;
