//! ICMP and ICMPv6 errors (RFC 792, RFC 4443) about a flow's packets. They follow the flow in both
//! directions, and the embedded packet is translated like the flow's. Path MTU discovery (RFC 1191,
//! RFC 8201) depends on it.
//!
//! The embedded TCP or UDP checksum is not updated: nobody verifies it, and TCP's is not even in
//! the eight bytes.

use vipmux_common::{
    abi::{Address, Backend, FlowKey, Stat},
    checksum,
};

use crate::{
    count,
    extensions::{LATER, Walk, is_extension},
    frame::Frame,
    nat,
    packet::{FRAGMENT_OFFSET, Packet, SCTP, TCP, Transport, UDP, address, write_address},
    reply::ReplyKey,
    verdict::Verdict,
    wire::{pin, read, write},
};

/// The ICMP header.
pub(crate) const HEADER: usize = 8;
/// Bytes of the transport header that an error must have (RFC 792).
const TRANSPORT: usize = 8;
/// From the ICMP header on: the offset of the embedded IPv4 header's checksum.
pub(crate) const CHECKSUM: usize = HEADER + 10;

/// The packet or first fragment that an ICMP error is about.
pub(crate) struct Embedded<const V6: bool> {
    /// The offset of its ports.
    pub(crate) ports: usize,
    pub(crate) protocol: u32,
    /// The IPv4 header's checksum.
    pub(crate) checksum: u16,
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
}

impl<const V6: bool> Embedded<V6> {
    /// From the ICMP header on: the offset of the embedded destination address.
    pub(crate) const DESTINATION: usize = HEADER + if V6 { 24 } else { 16 };

    /// Parses an ICMP message; `None` if it is no error about TCP, UDP or SCTP, or not understood.
    #[inline(always)]
    pub(crate) fn parse<W: Walk>(walk: &W, message: &Transport, end: usize) -> Option<Self> {
        const LEAST: usize = HEADER + TRANSPORT;
        let at = message.at;
        if message.length < LEAST + Packet::<V6>::LENGTH || at + LEAST + Packet::<V6>::LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        let (kind, headers) = unsafe { (read::<0, u8>(at), Self::headers(walk, at)) };
        // Destination unreachable, packet too big (in IPv4 a code of the former), time exceeded,
        // parameter problem.
        let is_error = if V6 { matches!(kind, 1..=4) } else { matches!(kind, 3 | 11 | 12) };
        let (length, protocol) = headers?;
        let ports = pin(at + HEADER + length);
        let is_whole = message.length >= LEAST + length && ports + TRANSPORT <= end;
        if !is_error || !matches!(protocol, TCP | UDP | SCTP) || !is_whole {
            return None;
        }
        // SAFETY: compared with the end above.
        unsafe {
            let (checksum, source, destination) = if V6 {
                (0, address!(at, 16), address!(at, 32))
            } else {
                (read::<CHECKSUM, _>(at), Address::v4(read::<20, _>(at)), Address::v4(read::<24, _>(at)))
            };
            let (source_port, destination_port) = (read::<0, _>(ports), read::<2, _>(ports));
            Some(Self { ports, protocol, checksum, source, destination, source_port, destination_port })
        }
    }

    /// Returns the length of the embedded IP headers, and what follows them; `None` for a later
    /// fragment.
    ///
    /// # Safety
    /// The fixed header was compared with the end.
    #[inline(always)]
    unsafe fn headers<W: Walk>(walk: &W, at: usize) -> Option<(usize, u32)> {
        // SAFETY: the caller's bounds check.
        unsafe {
            let first: u8 = read::<HEADER, _>(at);
            if !V6 {
                let length = usize::from(first & 0x0f) * 4;
                let is_first = read::<14, u16>(at) & FRAGMENT_OFFSET == 0;
                let is_sound = first >> 4 == 4 && length >= Packet::<V6>::LENGTH && is_first;
                return is_sound.then_some((length, u32::from(read::<17, u8>(at))));
            }
            let next = u32::from(read::<14, u8>(at));
            if first >> 4 != 6 {
                return None;
            }
            if !is_extension(next) {
                return Some((Packet::<V6>::LENGTH, next));
            }
            let extensions = walk.extensions(at + HEADER + Packet::<V6>::LENGTH, next).ok()?;
            (extensions.fragment != LATER).then_some((Packet::<V6>::LENGTH + extensions.length, extensions.next))
        }
    }

    /// Returns the client's flow to the VIP of this id whose reply this is about; `None`: the reply
    /// is not from that VIP.
    #[inline(always)]
    pub(crate) fn flow(&self, vip: u32, address: &Address) -> Option<FlowKey> {
        (self.source == *address).then_some(FlowKey {
            client: self.destination,
            vip,
            client_port: self.destination_port,
            vip_port: self.source_port,
            protocol: self.protocol,
            reserved: 0,
        })
    }

    /// Returns the replies' key of the flow whose packet, on its way to the backend, this is about.
    #[inline(always)]
    pub(crate) fn reply(&self) -> ReplyKey {
        ReplyKey {
            backend: self.destination,
            client: self.source,
            backend_port: self.destination_port,
            client_port: self.source_port,
            protocol: self.protocol,
        }
    }
}

/// Delivers an error about a reply. The backend sees it about the packet that it sent itself.
#[inline(always)]
pub(crate) fn deliver<const V6: bool>(
    frame: &Frame,
    packet: &Packet<V6>,
    at: usize,
    embedded: &Embedded<V6>,
    backend: &Backend,
) -> Verdict {
    let (address, port) = (&backend.address, nat::port(backend, embedded.source_port));
    let of_address = Packet::<V6>::change(&embedded.source, address);
    let of_port = checksum::change(u32::from(embedded.source_port), u32::from(port));
    // ICMPv6's checksum covers the addresses of the packet itself too (RFC 4443, 2.3).
    let of_destination = packet.set_destination(address);
    // SAFETY: `Embedded::parse` compared all of this with the end.
    unsafe {
        let change = if V6 {
            write_address::<{ HEADER + 8 }>(at, address);
            of_address + of_port + of_destination
        } else {
            let header = checksum::update(embedded.checksum, of_address);
            write::<CHECKSUM, _>(at, header);
            write::<20, _>(at, address.w3);
            of_address + of_port + checksum::change(u32::from(embedded.checksum), u32::from(header))
        };
        write::<0, _>(embedded.ports, port);
        write::<2, u16>(at, checksum::update(read::<2, _>(at), change));
    }
    count::stat(Stat::Local, frame.length);
    Verdict::DELIVER
}
