//! Describes an object or document of a source that cannot be used.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{object::Identity, validate::Flaw};

/// A document or an object that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The file; `-` for standard input. For an object from the API server: its kind and name.
    pub file: PathBuf,
    /// The document's number in the file, from 1, among those with content. 0: the problem is about
    /// the whole file or directory, or about an object from the API server. An item of a `List` is
    /// in `field`, as `items[i]`.
    pub document: usize,
    /// The line of the file, from 1, if known.
    pub line: Option<usize>,
    /// The path of the field at fault, such as `spec.ports[0].port`; empty: the whole document.
    pub field: String,
    /// The fault, in words.
    pub message: String,
}

impl Problem {
    /// Creates a problem of a whole file or directory.
    pub fn of_file(file: &Path, message: String) -> Self {
        Self { file: file.to_owned(), document: 0, line: None, field: String::new(), message }
    }

    /// Creates a problem from a flaw of an object from the API server.
    pub fn of_object(identity: &Identity, Flaw { path, message }: Flaw) -> Self {
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
