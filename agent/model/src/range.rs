//! Parses address ranges, as in pools.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use crate::{Family, Vip, api::rules::RANGE, reason::quoted};

/// The description of a [subnet-router anycast address](subnet_anycast) in refusals.
pub const SUBNET_ANYCAST: &str = "a subnet's router anycast address (RFC 4291)";

/// Whether this is the [`Vip::number`] of a subnet-router anycast address (RFC 4291, 2.6.1): a
/// prefix, then zeros. Prefixes have 64 bits (2.5.4). Prefixes of other lengths are known only on
/// the interfaces.
pub(super) const fn is_anycast(number: u128) -> bool {
    !is_v4(number) && number.trailing_zeros() >= 64
}

/// Returns the subnet-router anycast address of the address's subnet (RFC 4291, 2.6.1), for any
/// length of the prefix in bits; `None`: it has none (RFC 6164, 5.1).
pub fn subnet_anycast(address: Ipv6Addr, prefix: u8) -> Option<Ipv6Addr> {
    let hosts = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
    (prefix < 127).then(|| Ipv6Addr::from_bits(address.to_bits() & !hosts))
}

/// Returns how many of the numbers up to and including this one are [anycast
/// addresses](is_anycast).
pub(super) const fn anycasts_up_to(number: u128) -> u128 {
    number >> 64
}

const fn is_v4(number: u128) -> bool {
    number >> 32 == 0xffff
}

/// Addresses from the first to the last, both included, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    /// The [`Vip::number`] of the lowest address.
    first: u128,
    /// The [`Vip::number`] of the highest address.
    last: u128,
}

/// The reason why a pool cannot have a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The text is not a CIDR, an address or a range.
    #[error("{}: {}", quoted(.0), RANGE.1)]
    Syntax(String),
    /// The first and last address are of different families.
    #[error("the range {} mixes IPv4 and IPv6", quoted(.0))]
    Mixed(String),
    /// The last address is before the first.
    #[error("the range {} ends before it begins", quoted(.0))]
    Reversed(String),
    /// It holds addresses that can never be a VIP.
    #[error("{} contains addresses that no host can have ({why})", quoted(.text))]
    NotUnicast {
        /// The range as written.
        text: String,
        /// The description of those addresses.
        why: &'static str,
    },
}

/// IPv4 blocks that contain no VIP: RFC 1122 section 3.2.1.3, RFC 5771, RFC 1112 section 4.
const NOT_UNICAST: [(Ipv4Addr, Ipv4Addr, &str); 3] = [
    (Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(0, 255, 255, 255), "0.0.0.0/8, this network"),
    (Ipv4Addr::new(127, 0, 0, 0), Ipv4Addr::new(127, 255, 255, 255), "127.0.0.0/8, loopback"),
    (Ipv4Addr::new(224, 0, 0, 0), Ipv4Addr::BROADCAST, "224.0.0.0/3, multicast and reserved"),
];

/// IPv6 blocks that contain no VIP (RFC 4291).
const NOT_UNICAST_V6: [(Ipv6Addr, u32, &str); 3] = [
    (Ipv6Addr::UNSPECIFIED, 127, "::/127, unspecified and loopback"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "fe80::/10, link-local"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "ff00::/8, multicast"),
];

/// The block of IPv6 that stands for IPv4 (RFC 4291 section 2.5.5.2).
const MAPPED: &str = "::ffff:0:0/96, mapped IPv4 addresses";

impl AddressRange {
    /// Returns the range of one address; `Err` with the block's name if it can never be a VIP.
    pub fn single(address: IpAddr) -> Result<Self, &'static str> {
        let number = Vip::new(address).number();
        Self { first: number, last: number }.unicast()
    }

    /// Returns the lowest address's [`Vip::number`].
    pub const fn first(self) -> u128 {
        self.first
    }

    /// Returns the highest address's [`Vip::number`].
    pub const fn last(self) -> u128 {
        self.last
    }

    /// Whether the range contains the address.
    pub const fn contains(self, number: u128) -> bool {
        self.first <= number && number <= self.last
    }

    /// Returns the family of the addresses.
    pub const fn family(self) -> Family {
        if is_v4(self.first) { Family::V4 } else { Family::V6 }
    }

    /// Returns the range without its first and last address; `None`: nothing is left.
    pub const fn without_ends(self) -> Option<Self> {
        if self.last - self.first < 2 {
            return None;
        }
        Some(Self { first: self.first + 1, last: self.last - 1 })
    }

    /// Returns both ranges as one, if they meet or overlap.
    pub fn merged(self, other: Self) -> Option<Self> {
        let meet = self.family() == other.family()
            && self.first <= other.last.saturating_add(1)
            && other.first <= self.last.saturating_add(1);
        meet.then(|| Self { first: self.first.min(other.first), last: self.last.max(other.last) })
    }

    fn unicast(self) -> Result<Self, &'static str> {
        let overlaps = |first: u128, last: u128| self.first <= last && first <= self.last;
        let v4 = NOT_UNICAST
            .iter()
            .find(|(first, last, _)| overlaps(first.to_ipv6_mapped().to_bits(), last.to_ipv6_mapped().to_bits()));
        let v6 = NOT_UNICAST_V6.iter().find(|(base, length, _)| {
            let first = base.to_bits();
            overlaps(first, first | u128::MAX >> *length)
        });
        match v4.map(|block| block.2).or(v6.map(|block| block.2)) {
            Some(why) => Err(why),
            None => Ok(self),
        }
    }
}

/// Returns a CIDR's first and last address. Bits after the prefix are ignored, as in MetalLB.
fn cidr(address: &str, length: &str) -> Option<(IpAddr, IpAddr)> {
    let address: IpAddr = address.trim().parse().ok()?;
    // `u8::from_str` accepts a sign.
    let length: u32 = length.bytes().all(|byte| byte.is_ascii_digit()).then(|| length.parse().ok())??;
    Some(match address {
        IpAddr::V4(v4) => {
            let hosts = u32::MAX.checked_shr(length).unwrap_or(0);
            (length <= 32).then_some(())?;
            (Ipv4Addr::from_bits(v4.to_bits() & !hosts).into(), Ipv4Addr::from_bits(v4.to_bits() | hosts).into())
        }
        IpAddr::V6(v6) => {
            let hosts = u128::MAX.checked_shr(length).unwrap_or(0);
            (length <= 128).then_some(())?;
            (Ipv6Addr::from_bits(v6.to_bits() & !hosts).into(), Ipv6Addr::from_bits(v6.to_bits() | hosts).into())
        }
    })
}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let parse = |end: &str| end.trim().parse::<IpAddr>().ok();
        let ends = if let Some((address, length)) = trimmed.split_once('/') {
            cidr(address, length)
        } else {
            let (first, last) = trimmed.split_once('-').unwrap_or((trimmed, trimmed));
            parse(first).zip(parse(last))
        };
        let (first, last) = ends.ok_or_else(|| RangeError::Syntax(text.to_owned()))?;
        let range = Self { first: Vip::new(first).number(), last: Vip::new(last).number() };
        if is_v4(range.first) != is_v4(range.last) {
            return Err(RangeError::Mixed(text.to_owned()));
        }
        if range.last < range.first {
            return Err(RangeError::Reversed(text.to_owned()));
        }
        let mapped = Vip::new(Ipv4Addr::UNSPECIFIED.into()).number();
        let range = if range.first < mapped && mapped < range.last { Err(MAPPED) } else { range.unicast() };
        range.map_err(|why| RangeError::NotUnicast { text: text.to_owned(), why })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", Vip::from_number(self.first), Vip::from_number(self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::vip;

    #[test]
    fn ranges_and_cidrs_have_both_ends() {
        for (text, shown) in [
            ("192.0.2.0/28", "192.0.2.0-192.0.2.15"),
            ("192.0.2.9/32", "192.0.2.9-192.0.2.9"),
            ("192.0.2.10/30", "192.0.2.8-192.0.2.11"),
            ("192.0.2.9", "192.0.2.9-192.0.2.9"),
            ("2001:db8::9", "2001:db8::9-2001:db8::9"),
            (" 192.0.2.1 - 192.0.2.9 ", "192.0.2.1-192.0.2.9"),
            ("2001:db8::/126", "2001:db8::-2001:db8::3"),
            ("2001:db8::1-2001:db8::ff", "2001:db8::1-2001:db8::ff"),
        ] {
            assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn a_malformed_range_is_refused_with_its_text() {
        for text in
            ["", "x", "192.0.2", "192.0.2.0/33", "192.0.2.0/+4", "2001:db8::/129", "192.0.2.0/", "1-2", "1.2.3.4/-1"]
        {
            assert_eq!(text.parse::<AddressRange>(), Err(RangeError::Syntax(text.to_owned())), "{text}");
        }
        let parse = |text: &str| text.parse::<AddressRange>().unwrap_err().to_string();
        assert_eq!(parse("192.0.2.9-192.0.2.1"), "the range \"192.0.2.9-192.0.2.1\" ends before it begins");
        for text in ["192.0.2.9-2001:db8::", "2001:db8::-192.0.2.9"] {
            assert_eq!(parse(text), format!("the range \"{text}\" mixes IPv4 and IPv6"));
        }
        for text in ["::/0", "::2-2001:db8::"] {
            let why = "contains addresses that no host can have (::ffff:0:0/96, mapped IPv4 addresses)";
            assert_eq!(parse(text), format!("\"{text}\" {why}"));
        }
    }

    #[test]
    fn addresses_that_are_no_hosts_are_refused() {
        for text in [
            "0.0.0.0/0",
            "127.0.0.1/32",
            "223.0.0.0-225.0.0.0",
            "255.255.255.255/32",
            "::/127",
            "fe80::1/128",
            "ff02::1/128",
        ] {
            assert!(matches!(text.parse::<AddressRange>(), Err(RangeError::NotUnicast { .. })), "{text}");
        }
        assert!(AddressRange::single([192, 0, 2, 1].into()).is_ok());
        assert!(AddressRange::single([224, 0, 0, 1].into()).is_err());
    }

    #[test]
    fn neighbors_merge_and_families_do_not() {
        let range = |text: &str| text.parse::<AddressRange>().unwrap();
        assert_eq!(range("192.0.2.0/31").merged(range("192.0.2.2/31")), Some(range("192.0.2.0/30")));
        assert_eq!(range("192.0.2.0/31").merged(range("192.0.2.3/32")), None);
    }

    #[test]
    fn a_range_of_more_than_two_addresses_has_an_inside() {
        let inside = |text: &str| text.parse::<AddressRange>().unwrap().without_ends().map(|range| range.to_string());
        assert_eq!(inside("192.0.2.0/29").as_deref(), Some("192.0.2.1-192.0.2.6"));
        assert_eq!((inside("192.0.2.0/31"), inside("192.0.2.0/32")), (None, None));
    }

    #[test]
    fn the_subnet_routers_anycast_address_is_recognized() {
        let anycast = |text: &str| is_anycast(vip(text).number());
        assert!(anycast("2001:db8::") && anycast("2001:db8:0:1::"));
        let of = |prefix| subnet_anycast("2001:db8::1:17".parse().unwrap(), prefix).map(|address| address.to_string());
        assert_eq!(of(112).as_deref(), Some("2001:db8::1:0"));
        assert_eq!((of(64).as_deref(), of(127), of(128)), (Some("2001:db8::"), None, None));
        assert!(!anycast("2001:db8::1") && !anycast("2001:db8:0:0:1::") && !anycast("192.0.0.0"));
    }

    #[test]
    fn a_vip_is_its_number_again() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let vip = vip(text);
            assert_eq!(Vip::from_number(vip.number()), vip);
        }
    }
}
