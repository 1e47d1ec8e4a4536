//! Unsolicited neighbour advertisements (RFC 4861, 7.2.6; RFC 9131 for routers that do not know the address yet).

use std::net::Ipv6Addr;

use vipmux_common::{
    abi::Mac,
    checksum::{fold, sum},
};

const ETHERTYPE: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
/// Receivers take no other (RFC 4861, 7.1.2): what came through a router has less.
const HOP_LIMIT: u8 = 255;
const ADVERTISEMENT: u8 = 136;
/// Neighbours replace the MAC that they know. Neither *solicited*, which nobody may claim who was not asked, nor *router*.
const OVERRIDE: u8 = 0x20;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
/// All nodes on the link, routers among them (RFC 4291, 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Where frames to [`ALL_NODES`] go (RFC 2464, 7).
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// `vip` is at `mac`: an Ethernet frame to all nodes on the link.
pub(super) fn announcement(vip: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let message = advertisement(vip, mac);
    let length = u16::try_from(message.len()).unwrap_or_default().to_be_bytes();
    let mut frame = [ALL_NODES_MAC, mac.bytes()].concat();
    frame.extend(ETHERTYPE);
    // Version 6, no traffic class, no flow label.
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length);
    frame.extend([ICMPV6, HOP_LIMIT]);
    frame.extend(vip.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    frame
}

/// RFC 4861, 4.4 and 4.6.1, with the checksum over the pseudo-header (RFC 8200, 8.1).
fn advertisement(vip: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(vip.octets());
    // The option's length is in units of eight bytes.
    message.extend([TARGET_LINK_LAYER_ADDRESS, 1]);
    message.extend(mac.bytes());
    let length = u8::try_from(message.len()).unwrap_or_default();
    let pseudo_header = [vip.octets(), ALL_NODES.octets()].concat();
    let summed = sum(&pseudo_header) + sum(&[0, length, 0, ICMPV6]) + sum(&message);
    message[2..4].copy_from_slice(&(!fold(summed)).to_ne_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_is_laid_out_as_rfc_4861_says() {
        let frame = announcement("2001:db8::10".parse().unwrap(), Mac::new([2, 0, 0x5e, 0x10, 0x20, 0x30]));
        #[rustfmt::skip]
        let expected = [
            0x33, 0x33, 0, 0, 0, 1, 2, 0, 0x5e, 0x10, 0x20, 0x30, 0x86, 0xdd,
            0x60, 0, 0, 0, 0, 32, 58, 255,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
            0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01,
            136, 0, CHECKSUM[0], CHECKSUM[1], 0x20, 0, 0, 0,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
            2, 1, 2, 0, 0x5e, 0x10, 0x20, 0x30,
        ];
        assert_eq!(frame, expected);
    }

    /// Of 0x2001 + 0x0db8 + 0x0010 + 0xff02 + 0x0001 + 32 + 58 (pseudo-header) and
    /// 0x8800 + 0x2000 + 0x2001 + 0x0db8 + 0x0010 + 0x0201 + 0x0200 + 0x5e10 + 0x2030.
    const CHECKSUM: [u8; 2] = [0x7a, 0xcd];
}
