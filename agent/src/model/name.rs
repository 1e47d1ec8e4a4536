//! Names of Kubernetes objects. Manifests were checked by nobody, and map values have bounded room for names.

use crate::model::Protocol;
use std::{fmt, str::FromStr};

/// Whether this is an RFC 1123 label: at most 63 lower-case letters, digits and hyphens, no hyphen at either end.
pub fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether this is an RFC 1123 subdomain: labels with dots between them, at most 253 bytes.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// A Service port's number and protocol, `80/TCP` or `all/TCP`: a port claim without the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// 1 to 65535; 0: every one.
    pub number: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => write!(f, "all/{}", self.protocol),
            number => write!(f, "{number}/{}", self.protocol),
        }
    }
}

impl Port {
    /// Every port there is: one of each protocol that stands for all.
    pub fn every() -> impl Iterator<Item = Self> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().map(|protocol| Self { number: 0, protocol })
    }
}

/// Not a port such as `80/TCP`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is no port such as 80/TCP", crate::model::reason::quoted(.0))]
pub struct NotAPort(pub String);

impl FromStr for Port {
    type Err = NotAPort;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (number, protocol) = text.split_once('/')?;
            let number = match number {
                "all" => 0,
                number => number.parse().ok().filter(|number| *number != 0)?,
            };
            Some(Self { number, protocol: protocol.parse().ok()? })
        };
        parse().ok_or_else(|| NotAPort(text.to_owned()))
    }
}

impl serde::Serialize for Port {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Port {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
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
    fn a_port_is_its_text_again() {
        let port: Port = "53/UDP".parse().unwrap();
        assert_eq!((port.number, port.protocol, port.to_string().as_str()), (53, Protocol::Udp, "53/UDP"));
        let all: Port = "all/TCP".parse().unwrap();
        assert_eq!((all.number, all.to_string().as_str()), (0, "all/TCP"));
        for text in ["", "53", "0/TCP", "65536/TCP", "53/udp", "53/UDP/x"] {
            assert!(text.parse::<Port>().is_err(), "{text}");
        }
    }
}
