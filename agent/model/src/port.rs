//! Defines the ports of Services, and port claims.

use std::{fmt, num::NonZeroU16, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Protocol, Vip};

/// A port of a VIP. It has exactly one owner (rule 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortClaim {
    /// The address.
    pub vip: Vip,
    /// The protocol.
    pub protocol: Protocol,
    /// The Service port.
    pub port: PortNumber,
}

impl fmt::Display for PortClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            PortNumber::Every => write!(f, "every {} port on {}", self.protocol, self.vip),
            PortNumber::One(port) => write!(f, "port {port}/{} on {}", self.protocol, self.vip),
        }
    }
}

/// The number of a Service port, or every port that no other claim names. The number 0 stands for
/// every port in the maps, in JSON and in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "u16", into = "u16")]
pub enum PortNumber {
    /// Every port.
    Every,
    /// This port.
    One(NonZeroU16),
}

impl PortNumber {
    /// Returns the number; `None` for every port.
    pub const fn one(self) -> Option<NonZeroU16> {
        match self {
            Self::Every => None,
            Self::One(number) => Some(number),
        }
    }
}

impl From<u16> for PortNumber {
    fn from(number: u16) -> Self {
        NonZeroU16::new(number).map_or(Self::Every, Self::One)
    }
}

impl From<PortNumber> for u16 {
    fn from(number: PortNumber) -> Self {
        number.one().map_or(0, NonZeroU16::get)
    }
}

/// A Service port's number and protocol, `80/TCP` or `all/TCP`: a port claim without the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The number.
    pub number: PortNumber,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            PortNumber::Every => write!(f, "all/{}", self.protocol),
            PortNumber::One(number) => write!(f, "{number}/{}", self.protocol),
        }
    }
}

impl Port {
    /// Returns, for each protocol, the port that stands for all of its ports.
    pub fn every() -> impl Iterator<Item = Self> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .map(|protocol| Self { number: PortNumber::Every, protocol })
    }
}

/// The text is not a port such as `80/TCP`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is no port such as 80/TCP", crate::reason::quoted(.0))]
pub struct NotAPort(pub String);

impl FromStr for Port {
    type Err = NotAPort;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (number, protocol) = text.split_once('/')?;
            let number = match number {
                "all" => PortNumber::Every,
                number => PortNumber::One(number.parse().ok()?),
            };
            Some(Self { number, protocol: protocol.parse().ok()? })
        };
        parse().ok_or_else(|| NotAPort(text.to_owned()))
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_its_text_again() {
        let port: Port = "53/UDP".parse().unwrap();
        assert_eq!((port.number, port.protocol, port.to_string().as_str()), (53.into(), Protocol::Udp, "53/UDP"));
        let all: Port = "all/TCP".parse().unwrap();
        assert_eq!((all.number, all.to_string().as_str()), (PortNumber::Every, "all/TCP"));
        for text in ["", "53", "0/TCP", "65536/TCP", "53/udp", "53/UDP/x"] {
            assert!(text.parse::<Port>().is_err(), "{text}");
        }
    }
}
