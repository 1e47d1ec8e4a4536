//! The address families of a cluster.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The families of Nodes, Pods and Services of a cluster. The machines have addresses of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IpFamilies {
    /// Only IPv4.
    Ipv4,
    /// Only IPv6.
    Ipv6,
    /// Both; IPv4 is the first.
    Dual,
}

impl fmt::Display for IpFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Dual => "dual",
        })
    }
}

impl IpFamilies {
    /// Returns those of an IPv4 and an IPv6 value that a cluster has.
    pub fn of<T>(self, v4: T, v6: T) -> Vec<T> {
        match self {
            Self::Ipv4 => vec![v4],
            Self::Ipv6 => vec![v6],
            Self::Dual => vec![v4, v6],
        }
    }

    /// Returns the same as a list with commas, as Kubernetes' options have it.
    pub fn list(self, v4: &impl ToString, v6: &impl ToString) -> String {
        self.of(v4.to_string(), v6.to_string()).join(",")
    }

    /// Returns the address of the first family.
    pub fn first(self, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
        match self {
            Self::Ipv4 | Self::Dual => v4.into(),
            Self::Ipv6 => v6.into(),
        }
    }
}
