//! Converts between map types and types of `std`, in user space.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use crate::abi::{Address, Mac, NodeLabel, ServiceOwner};

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        let octets = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let word = |i: usize| u32::from_ne_bytes([octets[i], octets[i + 1], octets[i + 2], octets[i + 3]]);
        Self { w0: word(0), w1: word(4), w2: word(8), w3: word(12) }
    }
}

impl From<Ipv4Addr> for Address {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::V4(address).into()
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        let mut octets = [0; 16];
        for (bytes, word) in octets.chunks_exact_mut(4).zip([address.w0, address.w1, address.w2, address.w3]) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Ipv6Addr::from(octets).to_canonical()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.bytes();
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", b[0], b[1], b[2], b[3], b[4], b[5])
    }
}

/// The text is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidMac(String);

impl fmt::Display for InvalidMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a MAC address such as 02:00:5e:10:20:30", self.0)
    }
}

impl Error for InvalidMac {}

impl FromStr for Mac {
    type Err = InvalidMac;

    /// Parses six hexadecimal bytes separated by colons.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let byte = |part: &str| {
            let digits = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        bytes.map(Self::new).ok_or_else(|| InvalidMac(text.to_owned()))
    }
}

/// Returns `text` in a zero-terminated field, cut if it is too long (Kubernetes' limits leave
/// room).
fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let length = text.len().min(N - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl ServiceOwner {
    /// Returns the owner as `namespace/name`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: field(namespace), name: field(name) }
    }

    /// Returns the namespace and the name; empty for a free slot.
    pub fn parts(&self) -> (String, String) {
        (text(&self.namespace), text(&self.name))
    }
}

impl NodeLabel {
    /// Returns the label of the Node `name`.
    pub fn new(name: &str) -> Self {
        Self { name: field(name) }
    }
}

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::HANDOVER_PREFIX;

    #[test]
    fn addresses_survive_the_round_trip() {
        for address in ["192.0.2.1", "2001:db8::7", "::"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(IpAddr::from(Address::from(address)), address);
        }
        assert!(Address::from(Ipv4Addr::new(192, 0, 2, 1)).is_v4());
        assert_eq!(Address::from(Ipv4Addr::new(192, 0, 2, 1)), Address::v4(u32::from_ne_bytes([192, 0, 2, 1])));
    }

    #[test]
    fn a_mac_is_six_bytes_in_hexadecimal() {
        assert_eq!("02:00:5e:10:20:aF".parse(), Ok(Mac::new([2, 0, 0x5e, 0x10, 0x20, 0xaf])));
        for bad in
            ["", "02:00:5e:10:20", "02:00:5e:10:20:30:40", "02:00:5e:10:20:+3", "2:0:5e:10:20:30", "zz:00:5e:10:20:30"]
        {
            assert_eq!(bad.parse::<Mac>(), Err(InvalidMac(bad.to_owned())));
        }
    }

    #[test]
    fn a_hand_over_mac_has_a_prefix() {
        let mac = Mac::new([0x02, 0, 0x5e, 0x10, 0x20, 0x30]);
        assert!(!mac.may_be_handover() && Mac::new([HANDOVER_PREFIX, 1, 2, 3, 4, 5]).may_be_handover());
    }
}
