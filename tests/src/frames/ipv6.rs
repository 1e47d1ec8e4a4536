//! IPv6 (RFC 8200) with extension headers.

use std::net::Ipv6Addr;

use super::{Icmpv6, Ndp, Payload, Sctp, Tcp, Udp, low_byte, low_word};

/// An extension header. Its *next header* field and its length are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Hop-by-hop options (RFC 8200, 4.3), padded (4.2) to a multiple of eight bytes.
    HopByHop(Vec<u8>),
    /// Destination options (4.6), padded likewise.
    DestinationOptions(Vec<u8>),
    /// A routing header (4.4), padded with zeros.
    Routing {
        /// The routing type.
        kind: u8,
        /// Segments left. Checksums use the packet's destination, whatever this says.
        segments_left: u8,
        /// The data after the first four bytes.
        data: Vec<u8>,
    },
    /// A fragment header (4.5).
    Fragment {
        /// The offset, in units of eight bytes.
        offset: u16,
        /// More fragments come.
        more: bool,
        /// The identification.
        id: u32,
    },
    /// Another protocol's number and the whole header. The next header's number replaces its first
    /// byte.
    Other(u8, Vec<u8>),
}

impl Extension {
    fn protocol(&self) -> u8 {
        match self {
            Self::HopByHop(_) => 0,
            Self::Routing { .. } => 43,
            Self::Fragment { .. } => 44,
            Self::DestinationOptions(_) => 60,
            Self::Other(protocol, _) => *protocol,
        }
    }

    fn bytes(&self, next: u8) -> Vec<u8> {
        match self {
            Self::HopByHop(options) | Self::DestinationOptions(options) => {
                let mut contents = options.clone();
                match (2 + options.len()).next_multiple_of(8) - 2 - options.len() {
                    0 => {}
                    1 => contents.push(0),
                    padding => {
                        contents.extend([1, low_byte(padding - 2)]);
                        contents.resize(options.len() + padding, 0);
                    }
                }
                counted(next, &contents)
            }
            Self::Routing { kind, segments_left, data } => {
                let mut contents = [&[*kind, *segments_left], data.as_slice()].concat();
                contents.resize((2 + contents.len()).next_multiple_of(8) - 2, 0);
                counted(next, &contents)
            }
            Self::Fragment { offset, more, id } => {
                let word = offset << 3 | u16::from(*more);
                [&[next, 0][..], &word.to_be_bytes(), &id.to_be_bytes()].concat()
            }
            Self::Other(_, header) => {
                let mut bytes = header.clone();
                bytes[0] = next;
                bytes
            }
        }
    }
}

/// Returns a header whose length field counts units of eight bytes, without the first.
fn counted(next: u8, contents: &[u8]) -> Vec<u8> {
    [&[next, low_byte((2 + contents.len()) / 8 - 1)], contents].concat()
}

/// An IPv6 packet. Its lengths and *next header* fields are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// The source.
    pub source: Ipv6Addr,
    /// The destination.
    pub destination: Ipv6Addr,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Extension headers, in order.
    pub extensions: Vec<Extension>,
    /// Its payload.
    pub payload: Payload,
}

impl Ipv6 {
    /// A packet as a Linux client sends it.
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr, payload: Payload) -> Self {
        Self {
            source,
            destination,
            traffic_class: 0,
            flow_label: 0x5_4321,
            hop_limit: 64,
            extensions: Vec::new(),
            payload,
        }
    }

    /// A TCP segment in a packet.
    pub fn tcp(source: Ipv6Addr, destination: Ipv6Addr, tcp: Tcp) -> Self {
        Self::new(source, destination, Payload::Tcp(tcp))
    }

    /// A UDP datagram in a packet.
    pub fn udp(source: Ipv6Addr, destination: Ipv6Addr, udp: Udp) -> Self {
        Self::new(source, destination, Payload::Udp(udp))
    }

    /// An SCTP packet in a packet.
    pub fn sctp(source: Ipv6Addr, destination: Ipv6Addr, sctp: Sctp) -> Self {
        Self::new(source, destination, Payload::Sctp(sctp))
    }

    /// An ICMPv6 message in a packet.
    pub fn icmpv6(source: Ipv6Addr, destination: Ipv6Addr, message: Icmpv6) -> Self {
        Self::new(source, destination, Payload::Icmpv6(message))
    }

    /// A message of neighbor discovery, with the hop limit of 255 that it must have (RFC 4861,
    /// 7.1).
    pub fn ndp(source: Ipv6Addr, destination: Ipv6Addr, message: &Ndp) -> Self {
        Self { flow_label: 0, ..Self::icmpv6(source, destination, message.message()).hop_limit(255) }
    }

    /// Sets the hop limit.
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// Appends an extension header.
    pub fn extension(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    /// Returns the packet in two fragments: the payload is cut after `at` bytes, a multiple of
    /// eight.
    pub fn cut(&self, at: usize, id: u32) -> [Self; 2] {
        let (protocol, contents) = self.payload.bytes(self.source.into(), self.destination.into());
        let part =
            |bytes: &[u8], offset, more| {
                Self { payload: Payload::Other(protocol, bytes.to_vec()), ..self.clone() }
                    .extension(Extension::Fragment { offset, more, id })
            };
        [part(&contents[..at], 0, true), part(&contents[at..], low_word(at / 8), false)]
    }

    /// Returns the packet's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let (mut next, mut contents) = self.payload.bytes(self.source.into(), self.destination.into());
        for extension in self.extensions.iter().rev() {
            contents = [extension.bytes(next), contents].concat();
            next = extension.protocol();
        }
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let mut bytes = first.to_be_bytes().to_vec();
        bytes.extend(low_word(contents.len()).to_be_bytes());
        bytes.extend([next, self.hop_limit]);
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.extend(contents);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    #[test]
    fn a_packet_is_laid_out_as_rfc_8200_says() {
        let mut packet = Ipv6::new(A, B, Payload::Other(59, vec![0xaa])).hop_limit(7);
        (packet.traffic_class, packet.flow_label) = (0x12, 0x3_4567);
        #[rustfmt::skip]
        let expected = [
            0x61, 0x23, 0x45, 0x67, 0, 1, 59, 7,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
            0xaa,
        ];
        assert_eq!(packet.bytes(), expected);
    }

    #[test]
    fn extension_headers_are_chained_and_filled_up() {
        let packet = Ipv6::new(A, B, Payload::Other(59, vec![]))
            .extension(Extension::HopByHop(vec![5, 2, 0, 0]))
            .extension(Extension::Routing { kind: 4, segments_left: 0, data: vec![9; 5] })
            .extension(Extension::Fragment { offset: 3, more: true, id: 0x0102_0304 })
            .extension(Extension::DestinationOptions(vec![1, 5, 0, 0, 0, 0, 0]))
            .extension(Extension::Other(51, vec![0, 1, 0, 0, 1, 2, 3, 4]));
        #[rustfmt::skip]
        let expected = [
            43, 0, 5, 2, 0, 0, 1, 0,
            44, 1, 4, 0, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0,
            60, 0, 0, 0x19, 1, 2, 3, 4,
            51, 1, 1, 5, 0, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0,
            59, 1, 0, 0, 1, 2, 3, 4,
        ];
        let bytes = packet.bytes();
        assert_eq!(bytes[4..7], [0, 56, 0]);
        assert_eq!(bytes[40..], expected);
    }

    #[test]
    fn the_parts_of_a_cut_packet_are_its_contents() {
        let packet = Ipv6::udp(A, B, Udp::new(1, 2, b"sixteen bytes..!"));
        let [first, later] = packet.cut(16, 7);
        let (first, later, whole) = (first.bytes(), later.bytes(), packet.bytes());
        assert_eq!([&first[48..], &later[48..]].concat(), whole[40..]);
        assert_eq!(first[40..48], [17, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!(later[40..48], [17, 0, 0, 0x10, 0, 0, 0, 7]);
    }
}
