//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use super::Mac;

/// An ARP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Hardware type; 1 for Ethernet.
    pub hardware: u16,
    /// Protocol type; 0x0800 for IPv4.
    pub protocol: u16,
    /// Lengths of a hardware and of a protocol address; 6 and 4.
    pub lengths: [u8; 2],
    /// 1 for a request, 2 for a reply.
    pub operation: u16,
    /// The sender's hardware address.
    pub sender_mac: Mac,
    /// The sender's protocol address.
    pub sender: Ipv4Addr,
    /// The target's hardware address; zero in a request.
    pub target_mac: Mac,
    /// The target's protocol address.
    pub target: Ipv4Addr,
}

impl Arp {
    /// Returns the question: who has `target`? Tell `sender`.
    pub fn request(sender_mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self {
            hardware: 1,
            protocol: 0x0800,
            lengths: [6, 4],
            operation: 1,
            sender_mac,
            sender,
            target_mac: [0; 6],
            target,
        }
    }

    /// A reply to the requester: `sender` is at `sender_mac`.
    pub fn reply(sender_mac: Mac, sender: Ipv4Addr, target_mac: Mac, target: Ipv4Addr) -> Self {
        Self { operation: 2, target_mac, ..Self::request(sender_mac, sender, target) }
    }

    /// A probe, which asks without a sender address (RFC 5227, 1.1).
    pub fn probe(sender_mac: Mac, target: Ipv4Addr) -> Self {
        Self::request(sender_mac, Ipv4Addr::UNSPECIFIED, target)
    }

    /// An announcement (RFC 5227, 1.1; RFC 5944, 4.6): a request for the sender's own address.
    pub fn announcement(sender_mac: Mac, sender: Ipv4Addr) -> Self {
        Self::request(sender_mac, sender, sender)
    }

    /// Returns the packet's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(28);
        bytes.extend(self.hardware.to_be_bytes());
        bytes.extend(self.protocol.to_be_bytes());
        bytes.extend(self.lengths);
        bytes.extend(self.operation.to_be_bytes());
        bytes.extend(self.sender_mac);
        bytes.extend(self.sender.octets());
        bytes.extend(self.target_mac);
        bytes.extend(self.target.octets());
        bytes
    }
}
