//! Builds frames field by field, with checksums computed from scratch. So they are independent of
//! the code under test, whose incremental updates must produce the same bytes.
//!
//! Covers Ethernet with 802.1Q tags, ARP, IPv4 with options, IPv6 with extension headers, TCP, UDP,
//! SCTP, ICMPv6 and neighbor discovery. IPv4's ICMP has no builders.

mod arp;
mod icmpv6;
mod ipv4;
mod ipv6;
mod ndp;
mod payload;
mod sctp;
mod transport;

use std::net::IpAddr;

use anyhow::{Result, bail};

pub use arp::Arp;
pub use icmpv6::Icmpv6;
pub use ipv4::Ipv4;
pub use ipv6::{Extension, Ipv6};
pub use ndp::{NA_OVERRIDE, NA_ROUTER, NA_SOLICITED, Ndp, multicast_mac, solicited_node};
pub use payload::Payload;
pub use sctp::{Chunk, Sctp, crc32c};
pub use transport::{ACK, FIN, PSH, RST, SYN, Tcp, Udp, UdpChecksum};

/// A MAC address in wire order.
pub type Mac = [u8; 6];

/// The Ethernet broadcast address.
pub const BROADCAST: Mac = [0xff; 6];
/// IPv4's Ethertype.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// IPv6's Ethertype.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// ARP's Ethertype.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// The Ethertype of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;

/// An Ethernet header, perhaps with 802.1Q tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// The destination.
    pub destination: Mac,
    /// The source.
    pub source: Mac,
    /// Tag control information (priority, DEI and VLAN id; host order) of each tag, outermost
    /// first.
    pub tags: Vec<u16>,
}

impl Ethernet {
    /// An untagged header.
    pub fn new(source: Mac, destination: Mac) -> Self {
        Self { destination, source, tags: Vec::new() }
    }

    /// Adds a tag inside the existing ones.
    pub fn tagged(mut self, control: u16) -> Self {
        self.tags.push(control);
        self
    }

    /// Returns a frame with any payload.
    pub fn frame(&self, ethertype: u16, contents: &[u8]) -> Vec<u8> {
        let mut frame = [self.destination, self.source].concat();
        for tag in &self.tags {
            frame.extend(ETHERTYPE_VLAN.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(contents);
        frame
    }

    /// Returns a frame with an ARP packet.
    pub fn arp(&self, arp: &Arp) -> Vec<u8> {
        self.frame(ETHERTYPE_ARP, &arp.bytes())
    }

    /// Returns a frame with an IPv4 packet.
    pub fn ipv4(&self, packet: &Ipv4) -> Vec<u8> {
        self.frame(ETHERTYPE_IPV4, &packet.bytes())
    }

    /// Returns a frame with an IPv6 packet.
    pub fn ipv6(&self, packet: &Ipv6) -> Vec<u8> {
        self.frame(ETHERTYPE_IPV6, &packet.bytes())
    }

    /// Returns a frame with a segment from one address to another. Fails if they are of different
    /// families.
    pub fn tcp(&self, (from, to): (IpAddr, IpAddr), segment: Tcp) -> Result<Vec<u8>> {
        Ok(match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.ipv4(&Ipv4::tcp(from, to, segment)),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.ipv6(&Ipv6::tcp(from, to, segment)),
            _ => bail!("{from} and {to} are of different families"),
        })
    }
}

/// Returns the Internet checksum of `bytes` (RFC 1071) in host order, by the simplest loop.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for (index, &byte) in bytes.iter().enumerate() {
        sum += u32::from(byte) << if index % 2 == 0 { 8 } else { 0 };
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Returns the low 16 bits, for a length field.
fn low_word(number: usize) -> u16 {
    let bytes = number.to_le_bytes();
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// Returns the low 8 bits.
fn low_byte(number: usize) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_the_rfc_1071_example() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0xff]), 0x00ff);
    }

    /// 192.168.0.1 to 192.168.0.199, UDP, 115 bytes, don't fragment: a header from textbooks.
    #[test]
    fn header_checksum_of_a_known_packet() {
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8,
            0x00, 0xc7,
        ];
        assert_eq!(checksum(&header), 0xb861);
    }
}
