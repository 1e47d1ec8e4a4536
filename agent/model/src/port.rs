//! Defines the ports of Services, and port claims.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZeroU16,
    str::FromStr,
};

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

/// Returns the ports as a list for people. At least three of consecutive numbers are one range:
/// `53/UDP,8000-8099/TCP`. A range stands where the first of its ports stood.
pub fn list(ports: &[Port]) -> String {
    /// Fewer are as short one by one.
    const LEAST: u16 = 3;
    let mut ordered: Vec<(Protocol, u16)> = ports.iter().map(|port| (port.protocol, port.number.into())).collect();
    ordered.sort_unstable();
    let follows = |one: &(Protocol, u16), next: &(Protocol, u16)| {
        one.1 > 0 && one.0 == next.0 && one.1.checked_add(1) == Some(next.1)
    };
    let ranges = ordered.chunk_by(follows).filter_map(|run| Some((*run.first()?, run.last()?.1)));
    let ranges: BTreeMap<(Protocol, u16), u16> =
        ranges.filter(|((_, first), last)| last - first + 1 >= LEAST).collect();
    let mut items = Vec::new();
    let mut shown = BTreeSet::new();
    for port in ports {
        let number: u16 = port.number.into();
        let range = ranges.range(..=(port.protocol, number)).next_back();
        match range.filter(|((protocol, _), last)| *protocol == port.protocol && number <= **last) {
            Some((start @ (protocol, first), last)) if shown.insert(start) => {
                items.push(format!("{first}-{last}/{protocol}"));
            }
            Some(_) => {}
            None => items.push(port.to_string()),
        }
    }
    items.join(",")
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

    #[test]
    fn a_list_has_ranges_of_ports() {
        for (ports, shown) in [
            ("", ""),
            ("80/TCP 81/TCP 443/TCP", "80/TCP,81/TCP,443/TCP"),
            ("53/UDP 53/TCP", "53/UDP,53/TCP"),
            ("5060/UDP 20000/UDP 20001/UDP 20002/UDP 80/TCP", "5060/UDP,20000-20002/UDP,80/TCP"),
            ("1/TCP 1/UDP 2/TCP 2/UDP 3/TCP 3/UDP", "1-3/TCP,1-3/UDP"),
            ("3/TCP 9/TCP 2/TCP 1/TCP", "1-3/TCP,9/TCP"),
            ("65533/TCP 65534/TCP 65535/TCP 1/UDP", "65533-65535/TCP,1/UDP"),
            ("all/TCP 1/TCP 2/TCP", "all/TCP,1/TCP,2/TCP"),
        ] {
            let ports: Vec<Port> = ports.split_whitespace().map(|port| port.parse().unwrap()).collect();
            assert_eq!(list(&ports), shown);
        }
    }
}
