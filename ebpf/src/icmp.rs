//! ICMP and ICMPv6 errors (RFC 792, RFC 4443) about packets of a flow: they follow the flow, in both directions, and
//! what they embed is translated as the flow is. Path MTU discovery (RFC 1191, RFC 8201) depends on it.
//!
//! The embedded TCP or UDP checksum is left as it is: nobody verifies it, and TCP's is not even among the eight bytes.

use vipmux_common::{
    abi::{Address, Backend, FlowKey, ReverseKey, Stat},
    checksum,
};

use crate::{
    count,
    frame::Frame,
    nat,
    packet::{FRAGMENT_OFFSET, Packet, SCTP, TCP, Transport, UDP, address, write_address},
    verdict::Verdict,
    wire::{read, write},
};

/// The ICMP header.
pub(crate) const HEADER: usize = 8;
const IPV4_ENDS: usize = HEADER + 20;
const IPV6_ENDS: usize = HEADER + 40;
/// From the ICMP header on: the embedded IPv4 header's checksum.
pub(crate) const CHECKSUM: usize = HEADER + 10;

/// What an ICMP error is about: a packet without IPv4 options or IPv6 extension headers.
pub(crate) struct Embedded<const V6: bool> {
    pub(crate) protocol: u32,
    /// The IPv4 header's checksum.
    pub(crate) checksum: u16,
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
}

/// From the ICMP header on: where the embedded destination address and ports are.
pub(crate) struct Places<const V6: bool>;

impl<const V6: bool> Places<V6> {
    pub(crate) const DESTINATION: usize = HEADER + if V6 { 24 } else { 16 };
    pub(crate) const PORTS: usize = if V6 { IPV6_ENDS } else { IPV4_ENDS };
}

impl<const V6: bool> Embedded<V6> {
    /// Of an ICMP message; `None` where it is no error about TCP, UDP or SCTP, or not understood.
    #[inline(always)]
    pub(crate) fn parse(message: &Transport, end: usize) -> Option<Self> {
        let Transport { at, length, .. } = *message;
        let needed = Places::<V6>::PORTS + 8;
        if length < needed || at + needed > end {
            return None;
        }
        // SAFETY: compared with the end above.
        unsafe {
            let kind: u8 = read::<0, _>(at);
            let first: u8 = read::<8, _>(at);
            let (is_error, is_plain, protocol) = if V6 {
                // Destination unreachable, packet too big, time exceeded, parameter problem.
                (matches!(kind, 1..=4), first >> 4 == 6, u32::from(read::<14, u8>(at)))
            } else {
                // The same, without packet too big, which is a code of the first.
                let plain = first == 0x45 && read::<14, u16>(at) & FRAGMENT_OFFSET == 0;
                (matches!(kind, 3 | 11 | 12), plain, u32::from(read::<17, u8>(at)))
            };
            if !is_error || !is_plain || !matches!(protocol, TCP | UDP | SCTP) {
                return None;
            }
            Some(if V6 {
                Self {
                    protocol,
                    checksum: 0,
                    source: address!(at, 16),
                    destination: address!(at, 32),
                    source_port: read::<IPV6_ENDS, _>(at),
                    destination_port: read::<{ IPV6_ENDS + 2 }, _>(at),
                }
            } else {
                Self {
                    protocol,
                    checksum: read::<CHECKSUM, _>(at),
                    source: Address::v4(read::<20, _>(at)),
                    destination: Address::v4(read::<24, _>(at)),
                    source_port: read::<IPV4_ENDS, _>(at),
                    destination_port: read::<{ IPV4_ENDS + 2 }, _>(at),
                }
            })
        }
    }

    /// The client's flow to the VIP of this id whose reply this is about; `None`: it is not from that VIP.
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

    /// The replies of the flow that this is about a packet of, on its way to the backend.
    #[inline(always)]
    pub(crate) fn reverse(&self) -> ReverseKey {
        ReverseKey {
            backend: self.destination,
            client: self.source,
            backend_port: self.destination_port,
            client_port: self.source_port,
            protocol: self.protocol,
        }
    }
}

/// Delivers an error about a reply: the backend sees it about what it sent itself.
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
            write::<IPV6_ENDS, _>(at, port);
            of_address + of_port + of_destination
        } else {
            let header = checksum::update(embedded.checksum, of_address);
            write::<CHECKSUM, _>(at, header);
            write::<20, _>(at, address.w3);
            write::<IPV4_ENDS, _>(at, port);
            of_address + of_port + checksum::change(u32::from(embedded.checksum), u32::from(header))
        };
        write::<2, u16>(at, checksum::update(read::<2, _>(at), change));
    }
    count::stat(Stat::Local, frame.length);
    Verdict::DELIVER
}
