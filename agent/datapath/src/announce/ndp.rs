//! Builds NDP frames: unsolicited neighbor advertisements and the solicitations of duplicate
//! address detection.
//!
//! Advertisements follow RFC 4861, 7.2.6, and RFC 9131 for routers that do not know the address
//! yet. Solicitations follow RFC 4862, 5.4.2.

use std::net::Ipv6Addr;

use vipmux_common::{
    abi::Mac,
    checksum::{fold, sum},
};

use super::groups::SolicitedNodeGroup;

const ETHERTYPE: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
/// Receivers accept no other (RFC 4861, 7.1.2): a lower value shows that a router forwarded the
/// packet.
const HOP_LIMIT: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Neighbors replace the MAC that they know. *Solicited* stays off, since nobody asked. *Router*
/// stays off too.
const OVERRIDE: u8 = 0x20;
const SOURCE_LINK_LAYER_ADDRESS: u8 = 1;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
const NONCE: u8 = 14;
/// All nodes on the link, routers among them (RFC 4291, 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The destination MAC of [`ALL_NODES`] (RFC 2464, 7).
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Returns the frame that announces `vip` at `mac` to all nodes on the link.
pub(super) fn announcement(vip: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let message = message(ADVERTISEMENT, OVERRIDE, vip, option(TARGET_LINK_LAYER_ADDRESS, mac.bytes()));
    frame((mac.bytes(), vip), (ALL_NODES_MAC, ALL_NODES), message)
}

/// Returns the frame that asks whether another host has `vip`: from the unspecified address to the
/// group of `vip`. The nonce tells a solicitation of another host from a reflected one (RFC 7527).
pub(super) fn probe(vip: Ipv6Addr, group: SolicitedNodeGroup, mac: Mac, nonce: [u8; 6]) -> Vec<u8> {
    let message = message(SOLICITATION, 0, vip, nonce_option(nonce));
    frame((mac.bytes(), Ipv6Addr::UNSPECIFIED), (group.mac(), group.address), message)
}

/// Returns the solicitation for `vip` of a host that has the address `source` (RFC 4861, 4.3).
pub(super) fn solicitation(source: Ipv6Addr, vip: Ipv6Addr, group: SolicitedNodeGroup, mac: Mac) -> Vec<u8> {
    let message = message(SOLICITATION, 0, vip, option(SOURCE_LINK_LAYER_ADDRESS, mac.bytes()));
    frame((mac.bytes(), source), (group.mac(), group.address), message)
}

/// Returns the address that an advertisement is for, and the MAC that sent it. `None`: the frame is
/// no advertisement.
pub(super) fn advertised(frame: &[u8]) -> Option<(Ipv6Addr, Mac)> {
    const HEADER: usize = 14 + 40;
    let (source, ethertype) = (frame.get(6..12)?, frame.get(12..14)?);
    let (next_header, message) = (*frame.get(14 + 6)?, frame.get(HEADER..)?);
    if ethertype != ETHERTYPE || next_header != ICMPV6 || *message.first()? != ADVERTISEMENT {
        return None;
    }
    let target: [u8; 16] = message.get(8..24)?.try_into().ok()?;
    Some((target.into(), Mac::new(source.try_into().ok()?)))
}

/// Returns the nonce option, which ends a [`probe`] (RFC 3971, 5.3.2).
pub(super) fn nonce_option(nonce: [u8; 6]) -> [u8; 8] {
    option(NONCE, nonce)
}

/// Returns an option of eight bytes: length 1 in units of eight bytes (RFC 4861, 4.6).
fn option(kind: u8, value: [u8; 6]) -> [u8; 8] {
    let mut option = [kind, 1, 0, 0, 0, 0, 0, 0];
    option[2..].copy_from_slice(&value);
    option
}

/// Returns a message about `target` with one option (RFC 4861, 4.3 and 4.4) and checksum zero.
fn message(kind: u8, flags: u8, target: Ipv6Addr, option: [u8; 8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    message.extend(option);
    message
}

/// Returns the Ethernet frame of a message. Sets its checksum over the pseudo-header (RFC 8200,
/// 8.1).
fn frame(from: ([u8; 6], Ipv6Addr), to: ([u8; 6], Ipv6Addr), mut message: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or_default().to_be_bytes();
    let pseudo_header = [from.1.octets(), to.1.octets()].concat();
    let summed = sum(&pseudo_header) + sum(&length) + sum(&[0, ICMPV6]) + sum(&message);
    message[2..4].copy_from_slice(&(!fold(summed)).to_ne_bytes());
    let mut frame = [to.0, from.0].concat();
    frame.extend(ETHERTYPE);
    // Version 6, no traffic class, no flow label.
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length);
    frame.extend([ICMPV6, HOP_LIMIT]);
    frame.extend(pseudo_header);
    frame.extend(message);
    frame
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

    #[test]
    fn a_probe_is_laid_out_as_rfc_4862_and_rfc_7527_say() {
        let vip = "2001:db8::10".parse().unwrap();
        let mac = Mac::new([2, 0, 0x5e, 0x10, 0x20, 0x30]);
        let frame = probe(vip, SolicitedNodeGroup::of(vip, 7), mac, [1, 2, 3, 4, 5, 6]);
        #[rustfmt::skip]
        let expected = [
            0x33, 0x33, 0xff, 0, 0, 0x10, 2, 0, 0x5e, 0x10, 0x20, 0x30, 0x86, 0xdd,
            0x60, 0, 0, 0, 0, 32, 58, 255,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0xff, 0, 0, 0x10,
            135, 0, PROBE_CHECKSUM[0], PROBE_CHECKSUM[1], 0, 0, 0, 0,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
            14, 1, 1, 2, 3, 4, 5, 6,
        ];
        assert_eq!(frame, expected);
    }

    #[test]
    fn a_solicitation_names_its_sender_and_an_advertisement_is_read() {
        let (vip, source) = ("2001:db8::10".parse().unwrap(), "fe80::1".parse::<Ipv6Addr>().unwrap());
        let mac = Mac::new([2, 0, 0x5e, 0x10, 0x20, 0x30]);
        let frame = solicitation(source, vip, SolicitedNodeGroup::of(vip, 7), mac);
        assert_eq!(frame[22..38], source.octets());
        assert_eq!(frame[78..], [1, 1, 2, 0, 0x5e, 0x10, 0x20, 0x30]);
        assert_eq!(advertised(&frame), None);
        assert_eq!(advertised(&announcement(vip, mac)), Some((vip, mac)));
        assert_eq!(advertised(&announcement(vip, mac)[..60]), None);
    }

    /// Of 0xff02 + 0x0001 + 0xff00 + 0x0010 + 32 + 58 (pseudo-header) and
    /// 0x8700 + 0x2001 + 0x0db8 + 0x0010 + 0x0e01 + 0x0102 + 0x0304 + 0x0506.
    const PROBE_CHECKSUM: [u8; 2] = [0x35, 0xba];

    /// Of 0x2001 + 0x0db8 + 0x0010 + 0xff02 + 0x0001 + 32 + 58 (pseudo-header) and
    /// 0x8800 + 0x2000 + 0x2001 + 0x0db8 + 0x0010 + 0x0201 + 0x0200 + 0x5e10 + 0x2030.
    const CHECKSUM: [u8; 2] = [0x7a, 0xcd];
}
