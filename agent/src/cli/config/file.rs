//! What is written in a configuration file, before anything is known of keys.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{MessageFormatter as _, Spanned};

use super::Problem;

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// As it is written.
    pub(super) name: String,
    /// Where, from 1.
    pub(super) line: u64,
    /// Its value.
    pub(super) given: Given,
}

/// A value.
pub(super) type Given = Value;

/// The entries of a file, in its order; of one that is empty none.
pub(super) fn entries(text: &str) -> Result<Vec<Entry>, Problem> {
    // Only `true` and `false` are booleans: options have `on`, `off` and `no` as words.
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options::<Option<Entries>>(text, options)
        .map(|entries| entries.map_or_else(Vec::new, |Entries(entries)| entries))
        .map_err(|error| Problem {
            line: error.location().map(|location| location.line()),
            message: serde_saphyr::UserMessageFormatter.format_message(error.without_snippet()).into_owned(),
        })
}

struct Entries(Vec<Entry>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Mapping;

        impl<'de> Visitor<'de> for Mapping {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of options to values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(Spanned { value: name, referenced, .. }) = map.next_key::<Spanned<String>>()? {
                    entries.push(Entry { name, line: referenced.line(), given: map.next_value()? });
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Mapping)
    }
}
