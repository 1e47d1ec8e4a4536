//! Reads Kubernetes manifests from files and directories, once or continuously.
//!
//! [`read`] reads files, directories and standard input once. [`watch`] follows a directory. Both
//! read what `kubectl apply -f` does: YAML and JSON, several documents in a file, and lists. A
//! malformed document is a [`Problem`](vipmux_model::objects::Problem), and the rest is used.
//!
//! ```text
//! files -> documents -> parse (object, validate, field) -> object_store -> Objects
//!   ^ change_queue <- inotify
//! ```

mod change_queue;
mod documents;
mod files;
mod json;
mod list;
mod object_store;
mod parallel;
mod parse;
mod watch;

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use self::object_store::ObjectStore;
pub use self::watch::{WatchError, WatchGuard, watch};
use vipmux_model::objects::Objects;

/// The path that means standard input.
pub const STDIN: &str = "-";

/// An error that leaves nothing to use.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {input}")]
pub struct ReadError {
    input: String,
    source: io::Error,
}

/// Reads manifests once: files of any name, directories, and `-` for standard input. In and below a
/// directory it reads the `*.yaml`, `*.yml` and `*.json` that are not hidden. Limits: 32 MiB per
/// file; below a directory 256 MiB, 65,536 files and 16,384 directories.
///
/// Malformed documents are in [`Objects::problems`], ordered by file and document. If an object is
/// defined twice, the definition in the file that was modified first is used. Among files of the
/// same time it is the first by name, and in a file the first document.
///
/// Blocks on the input. Documents are parsed on as many threads as there are processors.
pub fn read(paths: &[PathBuf]) -> Result<Objects, ReadError> {
    read_from(paths, &mut io::stdin())
}

fn read_from(paths: &[PathBuf], stdin: &mut dyn Read) -> Result<Objects, ReadError> {
    let (mut texts, mut general_problems) = (Vec::new(), Vec::new());
    for path in paths {
        let failed = |source| ReadError { input: format!("{:?}", path.to_string_lossy()), source };
        if path == Path::new(STDIN) {
            texts.push(
                files::text(path, &mut *stdin)
                    .map_err(|source| ReadError { input: "standard input".to_owned(), source })?,
            );
        } else if fs::metadata(path).map_err(failed)?.is_dir() {
            let listing = files::walk(path, &mut |_| {}).map_err(failed)?;
            texts.extend(listing.files.keys().filter_map(|path| files::load(path)));
            general_problems.extend(listing.problems);
        } else {
            texts.push(File::open(path).and_then(|file| files::of_file(path, file)).map_err(failed)?);
        }
    }
    let mut store = ObjectStore::default();
    store.set_general_problems(general_problems);
    for (file, parsed) in parse::all(texts) {
        store.put(&file, parsed);
    }
    tracing::debug!(ignored = store.ignored(), "objects of other kinds ignored");
    Ok(store.snapshot())
}

#[cfg(test)]
mod tests;
