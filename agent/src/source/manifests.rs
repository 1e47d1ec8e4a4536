//! A directory of Kubernetes manifests.
//!
//! [`read`] takes files, directories and standard input once; [`watch`] follows a directory. Both read what `kubectl apply
//! -f` does: YAML and JSON, several documents in a file, and lists. What is malformed is a
//! [`Problem`](super::Problem); the rest is used.
//!
//! ```text
//! files -> documents -> parse (object, validate, field) -> store -> Objects
//!   ^ queue (pending) <- inotify
//! ```

mod documents;
mod files;
mod list;
mod parallel;
mod parse;
mod pending;
mod queue;
mod store;
mod watch;

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use self::store::Store;
pub use self::watch::{WatchError, WatchGuard, watch};
use crate::source::Objects;

/// What stands for standard input.
pub const STDIN: &str = "-";

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
