//! Converts between map types and types of `std`, in user space.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
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
    fn a_hand_over_mac_has_a_prefix() {
        let mac = Mac::new([0x02, 0, 0x5e, 0x10, 0x20, 0x30]);
        assert!(!mac.may_be_handover() && Mac::new([HANDOVER_PREFIX, 1, 2, 3, 4, 5]).may_be_handover());
    }
}
