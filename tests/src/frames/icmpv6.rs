//! ICMPv6 (RFC 4443).

use std::net::IpAddr;

use super::payload::transport_checksum;

/// The longest excerpt of a packet in an error. The error must fit into the minimum MTU of 1280
/// bytes (RFC 4443, 2.4).
const MOST_OF_A_PACKET: usize = 1280 - 40 - 8;

/// An ICMPv6 message. The checksum is computed, over the pseudo-header too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Icmpv6 {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// The four bytes after the checksum.
    pub word: [u8; 4],
    /// The rest: data, options, or the packet that caused the error.
    pub data: Vec<u8>,
}

impl Icmpv6 {
    /// An echo request (type 128).
    pub fn echo_request(id: u16, sequence: u16, data: &[u8]) -> Self {
        let ([a, b], [c, d]) = (id.to_be_bytes(), sequence.to_be_bytes());
        Self { kind: 128, code: 0, word: [a, b, c, d], data: data.to_vec() }
    }

    /// An echo reply (type 129).
    pub fn echo_reply(id: u16, sequence: u16, data: &[u8]) -> Self {
        Self { kind: 129, ..Self::echo_request(id, sequence, data) }
    }

    /// Destination unreachable (type 1): 0 no route, 1 prohibited, 3 address unreachable, 4 port
    /// unreachable.
    pub fn unreachable(code: u8, packet: &[u8]) -> Self {
        Self::error(1, code, 0, packet)
    }

    /// Packet too big (type 2), for a next hop with this MTU in bytes.
    pub fn packet_too_big(mtu: u32, packet: &[u8]) -> Self {
        Self::error(2, 0, mtu, packet)
    }

    /// Time exceeded (type 3): 0 hop limit, 1 reassembly.
    pub fn time_exceeded(code: u8, packet: &[u8]) -> Self {
        Self::error(3, code, 0, packet)
    }

    /// Parameter problem (type 4): 0 erroneous field, 1 unknown next header, 2 unknown option; and
    /// its offset in the packet.
    pub fn parameter_problem(code: u8, pointer: u32, packet: &[u8]) -> Self {
        Self::error(4, code, pointer, packet)
    }

    /// An error about a packet, given as its bytes from the IPv6 header on. The error has as much
    /// of it as fits.
    fn error(kind: u8, code: u8, word: u32, packet: &[u8]) -> Self {
        let data = packet[..packet.len().min(MOST_OF_A_PACKET)].to_vec();
        Self { kind, code, word: word.to_be_bytes(), data }
    }

    pub(super) fn bytes(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let mut bytes = [&[self.kind, self.code, 0, 0], &self.word[..], &self.data].concat();
        let sum = transport_checksum(source, destination, 58, &bytes).to_be_bytes();
        bytes[2..4].copy_from_slice(&sum);
        bytes
    }
}
