//! Neighbor discovery (RFC 4861): solicitations and advertisements.

use std::net::Ipv6Addr;

use super::{Icmpv6, Mac};

/// The sender is a router.
pub const NA_ROUTER: u8 = 0x80;
/// The advertisement answers a solicitation.
pub const NA_SOLICITED: u8 = 0x40;
/// The advertisement overrides the known address.
pub const NA_OVERRIDE: u8 = 0x20;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// A neighbor solicitation or advertisement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ndp {
    /// ICMPv6 type: 135 for a solicitation, 136 for an advertisement.
    pub kind: u8,
    /// ICMPv6 code; 0.
    pub code: u8,
    /// [`NA_ROUTER`], [`NA_SOLICITED`], [`NA_OVERRIDE`]; 0 in a solicitation.
    pub flags: u8,
    /// The target address.
    pub target: Ipv6Addr,
    /// Options, byte for byte.
    pub options: Vec<u8>,
}

impl Ndp {
    /// Returns the question: who has `target`? Without options, as in duplicate address detection.
    pub fn solicitation(target: Ipv6Addr) -> Self {
        Self { kind: SOLICITATION, code: 0, flags: 0, target, options: Vec::new() }
    }

    /// An advertisement for `target`. Without options.
    pub fn advertisement(target: Ipv6Addr, flags: u8) -> Self {
        Self { kind: ADVERTISEMENT, flags, ..Self::solicitation(target) }
    }

    /// Adds the sender's link-layer address: the *source* option in a solicitation, the *target*
    /// option in an advertisement (RFC 4861, 4.6.1).
    pub fn mac(self, mac: Mac) -> Self {
        let kind = if self.kind == SOLICITATION { 1 } else { 2 };
        self.option(kind, &mac)
    }

    /// Appends an option. Type, length and data together are a multiple of eight bytes.
    pub fn option(mut self, kind: u8, data: &[u8]) -> Self {
        let length = ((2 + data.len()) / 8).to_le_bytes()[0];
        self.options.extend([kind, length]);
        self.options.extend(data);
        self
    }

    /// Returns it as an ICMPv6 message.
    pub fn message(&self) -> Icmpv6 {
        let data = [&self.target.octets()[..], &self.options].concat();
        Icmpv6 { kind: self.kind, code: self.code, word: [self.flags, 0, 0, 0], data }
    }
}

/// Returns the solicited-node multicast address of an address (RFC 4291, 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

/// Returns the MAC of an IPv6 multicast address (RFC 2464, 7).
pub fn multicast_mac(address: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = address.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Ipv6;

    /// The example of RFC 4291, 2.7.1.
    #[test]
    fn the_solicited_node_address_keeps_the_last_three_bytes() {
        let group = solicited_node("4037::01:800:200e:8c6c".parse().unwrap());
        assert_eq!(group, "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(group), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    }

    #[test]
    fn an_advertisement_is_laid_out_as_rfc_4861_says() {
        let vip: Ipv6Addr = "2001:db8::10".parse().unwrap();
        let message = Ndp::advertisement(vip, NA_SOLICITED | NA_OVERRIDE).mac([2, 0, 0, 0, 0, 1]);
        let bytes = Ipv6::ndp(vip, "2001:db8::c1".parse().unwrap(), &message).bytes();
        #[rustfmt::skip]
        let expected = [
            0x60, 0, 0, 0, 0, 32, 58, 255,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc1,
            136, 0, 0x89, 0x96, 0x60, 0, 0, 0,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
            2, 1, 2, 0, 0, 0, 0, 1,
        ];
        assert_eq!(bytes, expected);
    }
}
