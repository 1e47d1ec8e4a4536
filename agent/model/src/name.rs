//! Defines names of Nodes and Services, and the syntax of Kubernetes' names.

use std::{borrow::Borrow, fmt};

use serde::{Deserialize, Deserializer, Serialize};

use crate::reason::quoted;

/// Whether this is an RFC 1123 label: at most 63 lower-case letters, digits and hyphens, no hyphen
/// at either end.
pub fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether this is an RFC 1123 subdomain: labels with dots between them, at most 253 bytes.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// A Node's `metadata.name`: an RFC 1123 subdomain of at most 253 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NodeName(String);

/// The text cannot be the name of a Node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a Node's name: it must be an RFC 1123 subdomain of at most 253 bytes", quoted(.0))]
pub struct InvalidName(String);

impl NodeName {
    /// Returns the Node's name, if this is an RFC 1123 subdomain.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
        let name = name.into();
        if is_subdomain(&name) { Ok(Self(name)) } else { Err(InvalidName(name)) }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// The derived order, equality and hash are those of the text.
impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A Service's `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceName {
    namespace: String,
    name: String,
}

impl ServiceName {
    /// Returns the name of a Service. `namespace` is `default` where a manifest leaves it out.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns `metadata.namespace`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns `metadata.name`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_plain() {
        assert!(is_label("web-1") && is_label(&"a".repeat(63)) && is_subdomain("n1.example.org"));
        for text in ["", "-a", "a-", "A", "a_b", "a.b", &"a".repeat(64)] {
            assert!(!is_label(text), "{text}");
        }
        for text in ["", "a..b", ".a", &vec!["a".repeat(63); 5].join(".")] {
            assert!(!is_subdomain(text), "{text}");
        }
    }

    #[test]
    fn a_node_has_the_name_of_a_subdomain_however_it_is_made() {
        let longest = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        for text in ["n1", "n1.example.org", &longest] {
            let name = NodeName::new(text).unwrap();
            assert_eq!((name.as_str(), name.to_string().as_str()), (text, text));
            let json = serde_json::to_string(&name).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<NodeName>(&json).unwrap(), name);
        }
        for text in ["", "N1", "n_1", "../x", "n1 ", &format!("{longest}e")] {
            assert!(NodeName::new(text).is_err(), "{text}");
            assert!(serde_json::from_str::<NodeName>(&format!("{text:?}")).is_err(), "{text}");
        }
    }
}
