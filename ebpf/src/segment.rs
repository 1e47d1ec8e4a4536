//! Parses TCP (RFC 9293), UDP (RFC 768) and SCTP (RFC 9260).

use vipmux_common::abi::{Address, DropReason, FlowKey, Interface};

use crate::{
    frame::Frame,
    packet::{Packet, SCTP, TCP, Transport, UDP},
    wire::{literal, read},
};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

const TCP_LENGTH: usize = 20;
const UDP_LENGTH: usize = 8;
/// Bytes of the common header and the first chunk's header.
const SCTP_LENGTH: usize = 12 + 4;
/// The same with the first field of an INIT.
const SCTP_INIT_LENGTH: usize = SCTP_LENGTH + 4;

/// Types of SCTP's chunks (RFC 9260, 3.2).
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;

/// A TCP segment, UDP datagram or SCTP packet whose headers are in the frame.
pub(crate) struct Segment {
    /// The transport header's address: 8 bytes are accessible, 20 for TCP.
    pub(crate) transport: usize,
    pub(crate) protocol: u32,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// TCP's flags, or the equivalent ones for SCTP; 0 for UDP.
    pub(crate) flags: u8,
    /// TCP's sequence number, host order. For an SCTP INIT, its initiate tag less one: the answer
    /// has that tag.
    pub(crate) sequence: u32,
    /// TCP's acknowledgement number, host order; SCTP's verification tag.
    pub(crate) acknowledged: u32,
}

/// A segment with the headers before it.
pub(crate) struct SegmentContext<'a, const V6: bool> {
    pub(crate) frame: &'a Frame,
    pub(crate) interface: &'a Interface,
    pub(crate) packet: &'a Packet<V6>,
    pub(crate) transport: &'a Transport,
    pub(crate) segment: &'a Segment,
}

impl Transport {
    /// Parses the needed fields of TCP, UDP or SCTP.
    #[inline(always)]
    pub(crate) fn segment(&self, end: usize) -> Result<Segment, DropReason> {
        let Self { at, protocol, length, .. } = *self;
        let fits = |bytes| if length < bytes || at + bytes > end { Err(DropReason::Malformed) } else { Ok(()) };
        // A length per protocol: the verifier follows no pointer with a variable length.
        match protocol {
            TCP => fits(TCP_LENGTH)?,
            UDP => fits(UDP_LENGTH)?,
            SCTP => fits(SCTP_LENGTH)?,
            _ => return Err(DropReason::Protocol),
        }
        // SAFETY: eight bytes at least were compared with the end.
        let (source_port, destination_port) = unsafe { (read::<0, _>(at), read::<2, _>(at)) };
        let mut segment = Segment {
            transport: at,
            protocol: UDP,
            source_port,
            destination_port,
            flags: 0,
            sequence: 0,
            acknowledged: 0,
        };
        if protocol == TCP {
            segment.protocol = literal::<TCP>();
            // SAFETY: compared with the end above.
            unsafe {
                segment.sequence = u32::from_be(read::<4, _>(at));
                segment.acknowledged = u32::from_be(read::<8, _>(at));
                segment.flags = read::<13, _>(at);
            }
        } else if protocol == SCTP {
            segment.association(end)?;
        }
        Ok(segment)
    }

    /// Returns the bytes that [`Self::segment`] needs at least.
    #[inline(always)]
    pub(crate) fn header_length(&self) -> Option<usize> {
        match self.protocol {
            TCP => Some(TCP_LENGTH),
            UDP => Some(UDP_LENGTH),
            SCTP => Some(SCTP_LENGTH),
            _ => None,
        }
    }

    /// Bytes of data in a TCP segment.
    #[inline(always)]
    pub(crate) fn data(&self, end: usize) -> Option<u32> {
        if self.at + TCP_LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        let header = usize::from(unsafe { read::<12, u8>(self.at) } >> 4) * 4;
        Some(self.length.saturating_sub(header) as u32)
    }
}

impl Segment {
    /// Translates an SCTP packet's first chunk to TCP's flags. An INIT, an INIT ACK and an ABORT
    /// are first or alone (RFC 9260, 6.10).
    #[inline(always)]
    fn association(&mut self, end: usize) -> Result<(), DropReason> {
        let at = self.transport;
        self.protocol = literal::<SCTP>();
        // SAFETY: the caller compared the common header and the first chunk's with the end.
        let chunk = unsafe {
            self.acknowledged = u32::from_be(read::<4, _>(at));
            read::<12, u8>(at)
        };
        self.flags = match chunk {
            INIT => SYN,
            INIT_ACK => SYN | ACK,
            ABORT => RST,
            SHUTDOWN | SHUTDOWN_ACK => FIN | ACK,
            _ => ACK,
        };
        if chunk == INIT {
            if at + SCTP_INIT_LENGTH > end {
                return Err(DropReason::Malformed);
            }
            // SAFETY: compared with the end above.
            self.sequence = u32::from_be(unsafe { read::<16, _>(at) }).wrapping_sub(1);
        }
        Ok(())
    }

    /// Returns the same in numbers that the verifier does not know. So it checks once what follows, and not again
    /// for each protocol. `zero`: [`unknown_zero`](crate::wire::unknown_zero). Nothing may be read or written at
    /// [`Self::transport`].
    #[inline(always)]
    pub(crate) fn unknown(self, zero: u64) -> Self {
        let Self { protocol, flags, sequence, acknowledged, .. } = self;
        Self {
            protocol: protocol ^ zero as u32,
            flags: flags ^ zero as u8,
            sequence: sequence ^ zero as u32,
            acknowledged: acknowledged ^ zero as u32,
            ..self
        }
    }

    /// A connection's first segment.
    #[inline(always)]
    pub(crate) fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    /// Returns whether this may be a flow's first packet.
    #[inline(always)]
    pub(crate) fn may_begin(&self) -> bool {
        self.is_syn() || self.protocol == UDP
    }

    #[inline(always)]
    pub(crate) fn flow(&self, client: Address, vip: u32) -> FlowKey {
        FlowKey {
            client,
            vip,
            client_port: self.source_port,
            vip_port: self.destination_port,
            protocol: self.protocol,
            reserved: 0,
        }
    }
}
