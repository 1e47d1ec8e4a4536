//! Payloads of IP packets, of both versions.

use std::net::IpAddr;

use super::{Icmpv6, Sctp, Tcp, Udp, checksum, low_word};

/// An IP packet's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A TCP segment.
    Tcp(Tcp),
    /// A UDP datagram.
    Udp(Udp),
    /// An SCTP packet.
    Sctp(Sctp),
    /// An ICMPv6 message.
    Icmpv6(Icmpv6),
    /// Another protocol's number and bytes.
    Other(u8, Vec<u8>),
}

impl Payload {
    /// Returns the protocol's number and the bytes, with the checksum over the pseudo-header if the
    /// protocol has one.
    pub(super) fn bytes(&self, source: IpAddr, destination: IpAddr) -> (u8, Vec<u8>) {
        match self {
            Self::Tcp(tcp) => (6, tcp.bytes(source, destination)),
            Self::Udp(udp) => (17, udp.bytes(source, destination)),
            Self::Sctp(sctp) => (132, sctp.bytes()),
            Self::Icmpv6(message) => (58, message.bytes(source, destination)),
            Self::Other(protocol, bytes) => (*protocol, bytes.clone()),
        }
    }
}

/// Returns the checksum of `bytes`, whose own checksum field is zero, with the pseudo-header before
/// them (RFC 9293, 3.1, for IPv4; RFC 8200, 8.1). Host order.
pub(super) fn transport_checksum(source: IpAddr, destination: IpAddr, protocol: u8, bytes: &[u8]) -> u16 {
    let mut summed = Vec::new();
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => summed.extend(address.octets()),
            IpAddr::V6(address) => summed.extend(address.octets()),
        }
    }
    // IPv6 has a length of 32 bits and the protocol in the last of four bytes: the same words.
    summed.extend([0, protocol]);
    summed.extend(low_word(bytes.len()).to_be_bytes());
    summed.extend(bytes);
    checksum(&summed)
}
