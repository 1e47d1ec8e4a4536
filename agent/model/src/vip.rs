//! Defines the virtual IP address, and address families.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use serde::{Deserialize, Deserializer, Serialize};

/// A virtual IP address: the address that Services share. It is never an IPv4-mapped IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Vip(IpAddr);

impl Vip {
    /// Returns the VIP with this address. An IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2) becomes
    /// the IPv4 address.
    pub const fn new(address: IpAddr) -> Self {
        Self(address.to_canonical())
    }

    /// Returns the address.
    pub const fn address(self) -> IpAddr {
        self.0
    }

    /// Returns the address's family.
    pub const fn family(self) -> Family {
        Family::of(self.0)
    }

    /// Returns the address as a number. IPv4 addresses are in their mapped form (`::ffff:0:0/96`,
    /// RFC 4291, 2.5.5.2), so both families have one order.
    pub const fn number(self) -> u128 {
        match self.0 {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        }
    }

    /// Returns the VIP with this [`Vip::number`].
    pub const fn from_number(number: u128) -> Self {
        Self::new(IpAddr::V6(Ipv6Addr::from_bits(number)))
    }
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Vip {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IpAddr::deserialize(deserializer).map(Self::new)
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, in the order of their addresses.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the address's family.
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the other family.
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vip_is_canonical_however_it_is_made() {
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        let plain: IpAddr = [192, 0, 2, 1].into();
        assert_eq!(Vip::new(mapped).address(), plain);
        assert_eq!(Vip::from_number(Vip::new(plain).number()).address(), plain);
        assert_eq!(serde_json::from_str::<Vip>("\"::ffff:192.0.2.1\"").unwrap(), Vip::new(plain));
        assert_eq!(serde_json::to_string(&Vip::new(plain)).unwrap(), "\"192.0.2.1\"");
    }
}
