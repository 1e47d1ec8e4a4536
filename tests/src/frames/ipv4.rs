//! IPv4 (RFC 791).

use std::net::Ipv4Addr;

use super::{Payload, Sctp, Tcp, Udp, checksum, low_byte, low_word};

/// An IPv4 packet. Lengths and the header's checksum are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// The source.
    pub source: Ipv4Addr,
    /// The destination.
    pub destination: Ipv4Addr,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub identification: u16,
    /// Flags and fragment offset, as the header's 16-bit word in host order.
    pub fragment: u16,
    /// Options, a multiple of four bytes up to forty.
    pub options: Vec<u8>,
    /// Its payload.
    pub payload: Payload,
}

/// Don't fragment.
const DONT_FRAGMENT: u16 = 0x4000;

impl Ipv4 {
    /// A packet as a Linux client sends it.
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, payload: Payload) -> Self {
        Self {
            source,
            destination,
            tos: 0,
            ttl: 64,
            identification: 0x1234,
            fragment: DONT_FRAGMENT,
            options: Vec::new(),
            payload,
        }
    }

    /// A TCP segment in a packet.
    pub fn tcp(source: Ipv4Addr, destination: Ipv4Addr, tcp: Tcp) -> Self {
        Self::new(source, destination, Payload::Tcp(tcp))
    }

    /// A UDP datagram in a packet.
    pub fn udp(source: Ipv4Addr, destination: Ipv4Addr, udp: Udp) -> Self {
        Self::new(source, destination, Payload::Udp(udp))
    }

    /// An SCTP packet in a packet.
    pub fn sctp(source: Ipv4Addr, destination: Ipv4Addr, sctp: Sctp) -> Self {
        Self::new(source, destination, Payload::Sctp(sctp))
    }

    /// Sets the time to live.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the options.
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// Sets the flags and the offset.
    pub fn fragment(mut self, fragment: u16) -> Self {
        self.fragment = fragment;
        self
    }

    /// Returns the packet's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let (protocol, contents) = self.payload.bytes(self.source.into(), self.destination.into());
        let mut bytes = self.header(protocol, contents.len());
        let sum = checksum(&bytes).to_be_bytes();
        bytes[10..12].copy_from_slice(&sum);
        bytes.extend(contents);
        bytes
    }

    /// Returns the header with its checksum left zero.
    fn header(&self, protocol: u8, contents: usize) -> Vec<u8> {
        let length = 20 + self.options.len();
        let mut header = vec![0x40 | low_byte(length / 4), self.tos];
        header.extend(low_word(length + contents).to_be_bytes());
        header.extend(self.identification.to_be_bytes());
        header.extend(self.fragment.to_be_bytes());
        header.extend([self.ttl, protocol, 0, 0]);
        header.extend(self.source.octets());
        header.extend(self.destination.octets());
        header.extend(&self.options);
        header
    }
}
