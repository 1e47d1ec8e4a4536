//! Describes an object or document of a source that cannot be used.

use std::{
    fmt,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use serde::{Serialize, Serializer};

use super::{object::Identity, validate::Flaw};

/// A document or an object that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The file; `-` for standard input. For an object from the API server: its kind and name.
    pub file: PathBuf,
    /// The document's number in the file, among those with content. `None` (in JSON 0): the problem
    /// is about the whole file or directory, or about an object from the API server. An item of a
    /// `List` is in `field`, as `items[i]`.
    #[serde(serialize_with = "number_or_zero")]
    pub document: Option<NonZeroUsize>,
    /// The line of the file, from 1, if known.
    pub line: Option<usize>,
    /// The path of the field at fault, such as `spec.ports[0].port`. The empty path is the whole
    /// document.
    pub field: String,
    /// The fault, in words.
    pub message: String,
}

impl Problem {
    /// Creates a problem of a whole file or directory.
    pub fn of_file(file: &Path, message: String) -> Self {
        Self { file: file.to_owned(), document: None, line: None, field: String::new(), message }
    }

    /// Creates a problem from a flaw of an object from the API server.
    pub fn of_object(identity: &Identity, Flaw { path, message }: Flaw) -> Self {
        let file = PathBuf::from(identity.to_string());
        Self { file, document: None, line: None, field: path.to_string(), message }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(document) = self.document {
            write!(f, ": document {document}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}

#[expect(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference to the field")]
fn number_or_zero<S: Serializer>(number: &Option<NonZeroUsize>, serializer: S) -> Result<S::Ok, S::Error> {
    number.map_or(0, NonZeroUsize::get).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_a_whole_file_has_document_0_in_json() {
        let problem = Problem::of_file(Path::new("a.yaml"), "not UTF-8".to_owned());
        let json = r#"{"file":"a.yaml","document":0,"line":null,"field":"","message":"not UTF-8"}"#;
        assert_eq!(serde_json::to_string(&problem).unwrap(), json);
        let second = Problem { document: NonZeroUsize::new(2), ..problem };
        assert!(serde_json::to_string(&second).unwrap().contains(r#""document":2,"#));
        assert_eq!(second.to_string(), "a.yaml: document 2: not UTF-8");
    }
}
