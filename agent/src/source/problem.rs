//! What could not be used of what a source has.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{object::Identity, validate::Flaw};

/// A document or an object that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The file; `-` for standard input. Of an object that the API server has: its kind and name.
    pub file: PathBuf,
    /// The document's number in the file, from 1, among those with content; 0 where it is the whole file or directory, or an
    /// object that the API server has. An item of a `List` shows in `field`, as `items[i]`.
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
    pub(super) fn of_file(file: &Path, message: String) -> Self {
        Self { file: file.to_owned(), document: 0, line: None, field: String::new(), message }
    }

    /// A flaw of an object that the API server has.
    pub(super) fn of_object(identity: &Identity, Flaw { path, message }: Flaw) -> Self {
        let file = PathBuf::from(identity.to_string());
        Self { file, document: 0, line: None, field: path.to_string(), message }
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
