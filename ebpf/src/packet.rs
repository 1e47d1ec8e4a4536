//! Parses IPv4 (RFC 791) and IPv6 (RFC 8200) with one generic code.
//!
//! Wire fields are read as they are in the packet: network byte order, unless a name says
//! otherwise.

use vipmux_common::{
    abi::{Address, DropReason, FragmentKey},
    checksum,
};

use crate::{
    extensions::{self, FIRST, LATER, NoExtensions, Walk},
    wire::{pin, read, write},
};

pub(crate) const TCP: u32 = 6;
pub(crate) const UDP: u32 = 17;
pub(crate) const SCTP: u32 = 132;

const IPV4_LENGTH: usize = 20;
const IPV6_LENGTH: usize = 40;
/// The first byte of an IPv4 header without options: version 4, five words.
const PLAIN_IPV4: u8 = 0x45;
/// There are more fragments (RFC 791, 3.1).
const MORE_FRAGMENTS: u16 = 0x2000_u16.to_be();
/// The fragment offset (RFC 791, 3.1).
pub(crate) const FRAGMENT_OFFSET: u16 = 0x1fff_u16.to_be();

/// A packet whose fixed header is in the frame. Nothing else is verified yet.
pub(crate) struct Packet<const V6: bool> {
    pub(crate) at: usize,
    pub(crate) source: Address,
    pub(crate) destination: Address,
}

/// The transport: what follows the IP header and IPv6's extension headers.
pub(crate) struct Transport {
    /// Its offset.
    pub(crate) at: usize,
    pub(crate) protocol: u32,
    /// Its length by the IP header, bytes. [`LONGEST`] if that does not tell it.
    pub(crate) length: usize,
    /// [`FIRST`], [`LATER`]; 0 for a whole datagram.
    pub(crate) fragment: u32,
    /// The identification that all fragments share, wire.
    pub(crate) id: u32,
}

impl Transport {
    /// Returns the same in numbers that the verifier does not know. So it checks once what follows, and not again for
    /// extension headers and for a fragment. `zero`: [`unknown_zero`](crate::wire::unknown_zero).
    #[inline(always)]
    pub(crate) fn unknown(self, zero: u64) -> Self {
        let Self { length, fragment, id, .. } = self;
        Self { length: length ^ zero as usize, fragment: fragment ^ zero as u32, id: id ^ zero as u32, ..self }
    }
}

/// Loads an IPv6 address `OFFSET` bytes after `address`.
///
/// # Safety
/// As [`crate::wire::Wire::load`].
macro_rules! address {
    ($at:expr, $offset:literal) => {
        Address {
            w0: read::<$offset, _>($at),
            w1: read::<{ $offset + 4 }, _>($at),
            w2: read::<{ $offset + 8 }, _>($at),
            w3: read::<{ $offset + 12 }, _>($at),
        }
    };
}
pub(crate) use address;

/// The highest offset of a transport in its frame, which is also a bound for the verifier: a power of two less one.
pub(crate) const FARTHEST: usize = 0x3fff;
/// The length of a packet whose length does not fit 16 bits, as far as it matters.
const LONGEST: usize = u16::MAX as usize;

impl<const V6: bool> Packet<V6> {
    /// The fixed header's length, bytes.
    pub(crate) const LENGTH: usize = if V6 { IPV6_LENGTH } else { IPV4_LENGTH };
    /// The protocol number of ICMP or ICMPv6.
    pub(crate) const ICMP: u32 = if V6 { 58 } else { 1 };

    #[inline(always)]
    pub(crate) fn parse(at: usize, end: usize) -> Option<Self> {
        if at + Self::LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        let (source, destination) = unsafe {
            if V6 {
                (address!(at, 8), address!(at, 24))
            } else {
                (Address::v4(read::<12, _>(at)), Address::v4(read::<16, _>(at)))
            }
        };
        Some(Self { at, source, destination })
    }

    /// Checks the headers of a packet with `available` bytes. `None`: the packet is this node's own
    /// and will be segmented. Then its length is ignored; one that does not fit 16 bits is zero
    /// (iph_totlen in include/net/ip.h). So is that of a packet of more than 64 KiB, to which the
    /// kernel has joined segments (BIG TCP).
    #[inline(always)]
    pub(crate) fn transport<W: Walk>(&self, walk: &W, available: Option<usize>) -> Result<Transport, DropReason> {
        if V6 { self.transport_v6(walk, available) } else { self.transport_v4(available) }
    }

    /// Returns the transport of a whole packet without IPv4 options and IPv6 extension headers. Its
    /// place is fixed, which saves instructions.
    #[inline(always)]
    pub(crate) fn whole(&self, available: usize) -> Option<Transport> {
        if V6 {
            return self.transport_v6(&NoExtensions, Some(available)).ok();
        }
        let at = self.at;
        // SAFETY: `parse` compared the fixed header with the end.
        let (version_length, total, fragment, protocol) = unsafe {
            let total = usize::from(u16::from_be(read::<2, _>(at)));
            (read::<0, u8>(at), total, read::<6, u16>(at), u32::from(read::<9, u8>(at)))
        };
        if version_length != PLAIN_IPV4 || fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
            return None;
        }
        let length = total.checked_sub(IPV4_LENGTH).filter(|_| total <= available)?;
        Some(Transport { at: at + IPV4_LENGTH, protocol, length, fragment: 0, id: 0 })
    }

    #[inline(always)]
    fn transport_v4(&self, available: Option<usize>) -> Result<Transport, DropReason> {
        let at = self.at;
        // SAFETY: `parse` compared the fixed header with the end.
        let (version_length, total, id, fragment, protocol) = unsafe {
            (
                read::<0, u8>(at),
                u16::from_be(read::<2, _>(at)) as usize,
                u32::from(read::<4, u16>(at)),
                read::<6, u16>(at),
                u32::from(read::<9, u8>(at)),
            )
        };
        let header = usize::from(version_length & 0x0f) * 4;
        let is_joined = |available| total == 0 && available > LONGEST;
        let total = if available.is_none_or(is_joined) { LONGEST } else { total };
        let is_cut = available.is_some_and(|available| total > available);
        if version_length >> 4 != 4 || header < IPV4_LENGTH || total < header || is_cut {
            return Err(DropReason::Malformed);
        }
        let fragment = if fragment & FRAGMENT_OFFSET != 0 {
            LATER
        } else {
            // More fragments, without a branch.
            u32::from(u16::from_be(fragment)) >> 13 & FIRST
        };
        Ok(Transport { at: pin(at + header), protocol, length: total - header, fragment, id })
    }

    #[inline(always)]
    fn transport_v6<W: Walk>(&self, walk: &W, available: Option<usize>) -> Result<Transport, DropReason> {
        let at = self.at;
        // SAFETY: `parse` compared the fixed header with the end.
        let (version, length, next) =
            unsafe { (read::<0, u8>(at) >> 4, u16::from_be(read::<4, _>(at)) as usize, u32::from(read::<6, u8>(at))) };
        let length = if available.is_none() { LONGEST } else { length };
        let is_cut = available.is_some_and(|available| length + IPV6_LENGTH > available);
        if version != 6 || is_cut {
            return Err(DropReason::Malformed);
        }
        let at = at + IPV6_LENGTH;
        if !extensions::is_extension(next) {
            return Ok(Transport { at, protocol: next, length, fragment: 0, id: 0 });
        }
        let extensions = walk.extensions(at, next)?;
        let length = length | extensions.jumbo;
        if extensions.length > length {
            return Err(DropReason::Malformed);
        }
        let length = length - extensions.length;
        Ok(Transport {
            at: pin(at + extensions.length),
            protocol: extensions.next,
            length,
            fragment: extensions.fragment,
            id: extensions.id,
        })
    }

    /// Returns the key that all fragments of this packet's datagram share.
    #[inline(always)]
    pub(crate) fn fragment(&self, transport: &Transport) -> FragmentKey {
        let protocol = if V6 { 0 } else { transport.protocol };
        FragmentKey { source: self.source, destination: self.destination, id: transport.id, protocol }
    }

    /// Writes the same key to a given place.
    #[inline(always)]
    pub(crate) fn fragment_into(&self, transport: &Transport, key: &mut FragmentKey) {
        key.source = self.source;
        key.destination = self.destination;
        key.id = transport.id;
        key.protocol = if V6 { 0 } else { transport.protocol };
    }

    /// Returns the sum of the pseudo-header that checksums cover (RFC 9293, 3.1; RFC 8200, 8.1).
    #[inline(always)]
    pub(crate) fn pseudo(source: &Address, destination: &Address, protocol: u32, length: u32) -> u64 {
        let sum = |address: &Address| {
            let last = u64::from(address.w3);
            if V6 { u64::from(address.w0) + u64::from(address.w1) + u64::from(address.w2) + last } else { last }
        };
        // The length is 16 bits in a frame; in IPv6's 32 bits the upper half is zero.
        sum(source) + sum(destination) + u64::from((protocol as u16).to_be()) + u64::from((length as u16).to_be())
    }

    /// Returns the effect of an address change on a checksum over it.
    #[inline(always)]
    pub(crate) fn change(from: &Address, to: &Address) -> u64 {
        let last = checksum::change(from.w3, to.w3);
        if V6 {
            checksum::change(from.w0, to.w0)
                + checksum::change(from.w1, to.w1)
                + checksum::change(from.w2, to.w2)
                + last
        } else {
            last
        }
    }

    /// Writes the destination address. Returns the effect on a checksum over it.
    #[inline(always)]
    pub(crate) fn set_destination(&self, address: &Address) -> u64 {
        let change = Self::change(&self.destination, address);
        let at = self.at;
        // SAFETY: `parse` compared the fixed header with the end.
        unsafe {
            if V6 {
                write::<24, _>(at, address.w0);
                write::<28, _>(at, address.w1);
                write::<32, _>(at, address.w2);
                write::<36, _>(at, address.w3);
            } else {
                write::<10, _>(at, checksum::update(read::<10, _>(at), change));
                write::<16, _>(at, address.w3);
            }
        }
        change
    }

    /// Swaps source and destination, which does not affect checksums.
    #[inline(always)]
    pub(crate) fn swap_addresses(&self) {
        let (at, source, destination) = (self.at, &self.destination, &self.source);
        // SAFETY: `parse` compared the fixed header with the end.
        unsafe {
            if V6 {
                write_address::<8>(at, source);
                write_address::<24>(at, destination);
            } else {
                write::<12, _>(at, source.w3);
                write::<16, _>(at, destination.w3);
            }
        }
    }

    /// Returns whether a router may fragment it: an IPv4 packet without "don't fragment".
    #[inline(always)]
    pub(crate) fn may_be_fragmented(&self) -> bool {
        const DONT_FRAGMENT: u16 = 0x4000_u16.to_be();
        // SAFETY: `parse` compared the fixed header with the end.
        !V6 && unsafe { read::<6, u16>(self.at) } & DONT_FRAGMENT == 0
    }

    /// Returns the TTL or the hop limit.
    #[inline(always)]
    pub(crate) fn hops(&self) -> u8 {
        // SAFETY: `parse` compared the fixed header with the end.
        unsafe { if V6 { read::<7, _>(self.at) } else { read::<8, _>(self.at) } }
    }

    /// Writes the TTL or the hop limit that follows `hops`, which is not zero.
    #[inline(always)]
    pub(crate) fn decrement_hops(&self, hops: u8) {
        let at = self.at;
        // SAFETY: `parse` compared the fixed header with the end.
        unsafe {
            if V6 {
                write::<7, _>(at, hops.wrapping_sub(1));
            } else {
                write::<8, _>(at, hops.wrapping_sub(1));
                write::<10, _>(at, checksum::decremented(read::<10, _>(at)));
            }
        }
    }

    /// Writes the TTL or the hop limit.
    #[inline(always)]
    pub(crate) fn set_hops(&self, hops: u8) {
        let at = self.at;
        // SAFETY: `parse` compared the fixed header with the end.
        unsafe {
            if V6 {
                write::<7, _>(at, hops);
            } else {
                let before: u16 = read::<8, _>(at);
                // Not read back: a load of more than the last store waits for that store.
                let after = u16::from_ne_bytes([hops, before.to_ne_bytes()[1]]);
                write::<8, _>(at, after);
                let change = checksum::change(u32::from(before), u32::from(after));
                write::<10, _>(at, checksum::update(read::<10, _>(at), change));
            }
        }
    }
}

/// Stores an IPv6 address `OFFSET` bytes after `at`.
///
/// # Safety
/// As [`crate::wire::Wire::load`].
#[inline(always)]
pub(crate) unsafe fn write_address<const OFFSET: usize>(at: usize, address: &Address) {
    let at = at + OFFSET;
    // SAFETY: the caller's bounds check.
    unsafe {
        write::<0, _>(at, address.w0);
        write::<4, _>(at, address.w1);
        write::<8, _>(at, address.w2);
        write::<12, _>(at, address.w3);
    }
}
