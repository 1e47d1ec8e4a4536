//! Parses address prefixes, as in source ranges.

use std::{fmt, net::IpAddr, str::FromStr};

use crate::{Vip, reason::quoted};

/// All addresses of one family that share their first bits (CIDR, RFC 4632 section 3.1 and RFC 4291
/// section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// The text is neither like `192.0.2.0/24` nor like `2001:db8::/32`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is no CIDR such as 192.0.2.0/24 or 2001:db8::/32", quoted(.0))]
pub struct NotAPrefix(pub String);

impl Prefix {
    /// Returns the prefix of this address with `length` bits; `None`: the address has fewer bits.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        Some(Self { address: truncated(address, length)?, length })
    }

    /// Returns its lowest address: all bits after the length are zero.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Returns how many bits of an address count: 0 to 32, or 0 to 128.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// Whether it has IPv4 addresses.
    pub const fn is_ipv4(self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether the prefix contains the address. It never contains an address of the other family.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && truncated(address, self.length) == Some(self.address)
    }
}

/// Returns the address with all bits after the first `length` set to zero; `None`: it has fewer
/// bits.
fn truncated(address: IpAddr, length: u8) -> Option<IpAddr> {
    let width: u8 = if address.is_ipv4() { 32 } else { 128 };
    let rest = u32::from(width.checked_sub(length)?);
    let cleared = Vip::new(address).number().checked_shr(rest).unwrap_or(0).checked_shl(rest).unwrap_or(0);
    // A mapped address keeps the bits that mark it as mapped, which are not among the bits that
    // count.
    Some(if address.is_ipv4() {
        Vip::from_number(cleared).address()
    } else {
        std::net::Ipv6Addr::from_bits(cleared).into()
    })
}

impl FromStr for Prefix {
    type Err = NotAPrefix;

    /// Ignores white space around the text, and clears bits after the length. Kubernetes does both.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (address, length) = text.trim().split_once('/')?;
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let (address, length) = (address.parse::<IpAddr>().ok()?, length.parse::<u8>().ok().filter(|_| digits)?);
            match (address.to_canonical(), length.checked_sub(96)) {
                // An IPv4 prefix in its mapped form.
                (IpAddr::V4(mapped), Some(length)) if address.is_ipv6() => Self::new(mapped.into(), length),
                _ => Self::new(address, length),
            }
        };
        parse().ok_or_else(|| NotAPrefix(text.to_owned()))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl serde::Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_behind_the_length_are_cleared() {
        for (text, shown) in [
            ("192.0.2.77/24", "192.0.2.0/24"),
            (" 192.0.2.77/32\n", "192.0.2.77/32"),
            ("255.255.255.255/0", "0.0.0.0/0"),
            ("2001:db8::7/32", "2001:db8::/32"),
            ("2001:db8::7/128", "2001:db8::7/128"),
            ("ffff::/0", "::/0"),
            ("::ffff:192.0.2.77/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.77/80", "::/80"),
        ] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn a_malformed_prefix_is_quoted() {
        for text in ["", "192.0.2.1", "192.0.2.0/33", "2001:db8::/129", "192.0.2.0/+8", "192.0.2/24", "lan", "1.2.3.4/"]
        {
            let error = text.parse::<Prefix>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is no CIDR")), "{error}");
        }
    }

    #[test]
    fn a_prefix_holds_addresses_of_its_family_alone() {
        let holds = |prefix: &str, address: &str| prefix.parse::<Prefix>().unwrap().contains(address.parse().unwrap());
        assert!(holds("192.0.2.0/24", "192.0.2.255") && !holds("192.0.2.0/24", "192.0.3.0"));
        assert!(holds("0.0.0.0/0", "203.0.113.1") && !holds("::/0", "203.0.113.1"));
        assert!(holds("::/0", "2001:db8::1") && !holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("2001:db8::/33", "2001:db8:7fff::1") && !holds("2001:db8::/33", "2001:db8:8000::1"));
    }
}
