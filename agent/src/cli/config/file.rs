//! Parses the YAML of a configuration file into entries, without knowledge of the keys.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{MessageFormatter as _, Spanned};

use super::ConfigProblem;

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// The key as it is written.
    pub(super) name: String,
    /// The line, from 1.
    pub(super) line: u64,
    /// The value.
    pub(super) value: Value,
}

/// Returns the entries of a file, in its order. An empty file has none.
pub(super) fn entries(text: &str) -> Result<Vec<Entry>, ConfigProblem> {
    // Only `true` and `false` are booleans: for options `on`, `off` and `no` are words.
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options::<Option<FileEntries>>(text, options)
        .map(|entries| entries.map_or_else(Vec::new, |FileEntries(entries)| entries))
        .map_err(|error| ConfigProblem {
            line: error.location().map(|location| location.line()),
            message: serde_saphyr::UserMessageFormatter.format_message(error.without_snippet()).into_owned(),
        })
}

struct FileEntries(Vec<Entry>);

impl<'de> Deserialize<'de> for FileEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Mapping;

        impl<'de> Visitor<'de> for Mapping {
            type Value = FileEntries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of options to values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileEntries, A::Error> {
                let mut entries = Vec::new();
                while let Some(Spanned { value: name, referenced, .. }) = map.next_key::<Spanned<String>>()? {
                    entries.push(Entry { name, line: referenced.line(), value: map.next_value()? });
                }
                Ok(FileEntries(entries))
            }
        }
        deserializer.deserialize_map(Mapping)
    }
}
