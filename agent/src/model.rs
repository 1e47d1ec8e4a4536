//! What vipmux knows of a cluster, parsed once and trusted afterwards.

pub mod advertisement;
pub mod dialects;
pub mod endpoints;
pub mod health;
pub(crate) mod ingest;
pub mod name;
pub mod node;
pub mod policy;
pub mod pool;
pub mod pools;
pub mod prefix;
pub mod probe;
pub mod range;
pub mod reason;
mod renew;
pub mod request;
pub mod selector;
pub mod service;
pub mod shown;
mod siblings;
pub mod tag;

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

pub use self::{
    ingest::{Model, Options},
    renew::Slices,
};

/// A virtual IP address: the address that Services share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Vip(pub IpAddr);

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order of their addresses.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The address' family.
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The other one.
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

impl Vip {
    /// Its family.
    pub const fn family(self) -> Family {
        Family::of(self.0)
    }
}

/// A Service port's protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// RFC 9293; what a missing `protocol` means.
    #[default]
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

impl Protocol {
    /// The IANA protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// A protocol's name is none of `TCP`, `UDP` and `SCTP`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol {0:?}: TCP, UDP and SCTP are known")]
pub struct UnknownProtocol(pub String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "TCP" => Ok(Self::Tcp),
            "UDP" => Ok(Self::Udp),
            "SCTP" => Ok(Self::Sctp),
            other => Err(UnknownProtocol(other.to_owned())),
        }
    }
}

/// One port of one VIP: what has exactly one owner (rule 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortClaim {
    /// The address.
    pub vip: Vip,
    /// The protocol.
    pub protocol: Protocol,
    /// The Service port; 0: every port.
    pub port: u16,
}

/// A Service's `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceName {
    /// `metadata.namespace`; `default` where a manifest leaves it out.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

/// A Node's `metadata.name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(pub String);

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl fmt::Display for PortClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            0 => write!(f, "every {} port on {}", self.protocol, self.vip),
            port => write!(f, "port {port}/{} on {}", self.protocol, self.vip),
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
