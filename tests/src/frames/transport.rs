//! TCP (RFC 9293) and UDP (RFC 768).

use std::net::IpAddr;

use super::{low_word, payload::transport_checksum};

/// The sender has no more data.
pub const FIN: u8 = 0x01;
/// Opens a connection.
pub const SYN: u8 = 0x02;
/// Resets a connection.
pub const RST: u8 = 0x04;
/// The data is to be pushed to the application.
pub const PSH: u8 = 0x08;
/// The acknowledgement number is valid.
pub const ACK: u8 = 0x10;

/// A TCP segment. The data offset and the checksum are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// [`SYN`], [`ACK`] etc.
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledged: u32,
    /// Window.
    pub window: u16,
    /// Options, a multiple of four bytes up to forty.
    pub options: Vec<u8>,
    /// Data.
    pub data: Vec<u8>,
}

impl Tcp {
    /// A segment without options or data.
    pub fn new(source: u16, destination: u16, flags: u8) -> Self {
        Self {
            source,
            destination,
            flags,
            sequence: 0x1000_0000,
            acknowledged: 0,
            window: 64_240,
            options: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Sets the numbers.
    pub fn numbers(mut self, sequence: u32, acknowledged: u32) -> Self {
        (self.sequence, self.acknowledged) = (sequence, acknowledged);
        self
    }

    /// Sets the options.
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// Sets the data.
    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    pub(super) fn bytes(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.source.to_be_bytes());
        bytes.extend(self.destination.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledged.to_be_bytes());
        let offset = low_word((20 + self.options.len()) / 4) << 12;
        bytes.extend((offset | u16::from(self.flags)).to_be_bytes());
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0, 0, 0]);
        bytes.extend(&self.options);
        bytes.extend(&self.data);
        let sum = transport_checksum(source, destination, 6, &bytes).to_be_bytes();
        bytes[16..18].copy_from_slice(&sum);
        bytes
    }
}

/// The content of a UDP datagram's checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpChecksum {
    /// The checksum; all ones where it comes to zero.
    Computed,
    /// Zero: none was computed.
    Absent,
}

/// A UDP datagram. The length is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// The checksum field.
    pub checksum: UdpChecksum,
    /// Data.
    pub data: Vec<u8>,
}

impl Udp {
    /// A datagram with a checksum.
    pub fn new(source: u16, destination: u16, data: &[u8]) -> Self {
        Self { source, destination, checksum: UdpChecksum::Computed, data: data.to_vec() }
    }

    /// Leaves the checksum out.
    pub fn without_checksum(mut self) -> Self {
        self.checksum = UdpChecksum::Absent;
        self
    }

    pub(super) fn bytes(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.source.to_be_bytes());
        bytes.extend(self.destination.to_be_bytes());
        bytes.extend(low_word(8 + self.data.len()).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(&self.data);
        let sum = match (self.checksum, transport_checksum(source, destination, 17, &bytes)) {
            (UdpChecksum::Absent, _) => 0,
            (UdpChecksum::Computed, 0) => 0xffff,
            (UdpChecksum::Computed, sum) => sum,
        };
        bytes[6..8].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}
