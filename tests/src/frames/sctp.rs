//! SCTP (RFC 9260).

use super::low_word;

/// A chunk. Its length is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Type.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// The value, padded to four bytes on the wire.
    pub value: Vec<u8>,
}

impl Chunk {
    /// A chunk of any type.
    pub fn new(kind: u8, flags: u8, value: &[u8]) -> Self {
        Self { kind, flags, value: value.to_vec() }
    }

    /// DATA (type 0): a whole user message on stream 0.
    pub fn data(sequence: u32, data: &[u8]) -> Self {
        Self::new(0, 0x03, &[&sequence.to_be_bytes()[..], &[0; 8], data].concat())
    }

    /// INIT (type 1), which opens an association, with the tag for the replies.
    pub fn init(tag: u32) -> Self {
        let window = 65_536_u32;
        let streams = [0, 10, 0, 10];
        Self::new(1, 0, &[&tag.to_be_bytes()[..], &window.to_be_bytes(), &streams, &1_u32.to_be_bytes()].concat())
    }

    /// INIT ACK (type 2), the reply to it, with an opaque state cookie.
    pub fn init_ack(tag: u32) -> Self {
        let cookie = [0, 7, 0, 8, 1, 2, 3, 4];
        Self { kind: 2, value: [&Self::init(tag).value[..], &cookie].concat(), flags: 0 }
    }

    /// SACK (type 3) without gaps.
    pub fn sack(sequence: u32) -> Self {
        Self::new(3, 0, &[&sequence.to_be_bytes()[..], &65_536_u32.to_be_bytes(), &[0; 4]].concat())
    }

    /// ABORT (type 6) without causes; with T set, its tag is that of the packet it answers.
    pub fn abort(reflected: bool) -> Self {
        Self::new(6, u8::from(reflected), &[])
    }

    /// SHUTDOWN COMPLETE (type 14), the last of an association.
    pub fn shutdown_complete() -> Self {
        Self::new(14, 0, &[])
    }

    fn bytes(&self) -> Vec<u8> {
        let length = 4 + self.value.len();
        let mut bytes = vec![self.kind, self.flags];
        bytes.extend(low_word(length).to_be_bytes());
        bytes.extend(&self.value);
        bytes.resize(length.next_multiple_of(4), 0);
        bytes
    }
}

/// An SCTP packet. The checksum is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sctp {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// Verification tag; 0 with an INIT.
    pub tag: u32,
    /// Chunks.
    pub chunks: Vec<Chunk>,
}

impl Sctp {
    /// A packet with one chunk.
    pub fn new(source: u16, destination: u16, tag: u32, chunk: Chunk) -> Self {
        Self { source, destination, tag, chunks: vec![chunk] }
    }

    /// Appends a chunk.
    pub fn chunk(mut self, chunk: Chunk) -> Self {
        self.chunks.push(chunk);
        self
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.source.to_be_bytes(), self.destination.to_be_bytes()].concat();
        bytes.extend(self.tag.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.chunks.iter().flat_map(Chunk::bytes));
        // The polynomial's lowest coefficient goes first (RFC 9260, appendix A).
        let sum = crc32c(&bytes).to_le_bytes();
        bytes[8..12].copy_from_slice(&sum);
        bytes
    }
}

/// CRC32c (RFC 9260, appendix A), bit by bit.
pub fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4, and the check value of the CRC catalogs.
    #[test]
    fn crc32c_of_known_bytes() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
    }

    #[test]
    fn a_packet_is_laid_out_as_rfc_9260_says() {
        let bytes = Sctp::new(0x1234, 80, 7, Chunk::data(1, b"hello")).chunk(Chunk::abort(true)).bytes();
        #[rustfmt::skip]
        let expected = [
            0x12, 0x34, 0, 80, 0, 0, 0, 7,
            0, 3, 0, 21, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
            6, 1, 0, 4,
        ];
        assert_eq!([&bytes[..8], &bytes[12..]].concat(), expected);
        let zeroed = [&bytes[..8], &[0; 4], &bytes[12..]].concat();
        assert_eq!(bytes[8..12], crc32c(&zeroed).to_le_bytes());
    }
}
