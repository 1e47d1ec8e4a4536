//! Skips IPv6 extension headers (RFC 8200, 4) up to the transport, without acting on them.
//!
//! The verifier checks this function on its own, once per type of context. Its result is a number
//! without known bits, so the different paths through the headers do not multiply what follows. It
//! costs nothing without such headers.

use aya_ebpf::{
    bindings::{__sk_buff, xdp_md},
    programs::TcContext,
};
use vipmux_common::abi::DropReason;

use crate::{
    frame::{self, Frame},
    wire::{pin, read},
};

const HOP_BY_HOP: u32 = 0;
const ROUTING: u32 = 43;
pub(crate) const FRAGMENT: u32 = 44;
const DESTINATION: u32 = 60;

/// The limit of headers; RFC 8200, 4.1 has six in the recommended order.
const MOST: usize = 8;
/// The limit of their bytes together, which is also a bound for the verifier: a power of two less
/// one.
const REACH: usize = 0x1fff;
/// The option with the length of a packet of more than 64 KiB, and its own length (RFC 2675, 2). The kernel joins
/// segments to such packets, where it is the first option (BIG TCP; `struct hop_jumbo_hdr` of include/net/ipv6.h).
const JUMBO: u16 = 0xc204_u16.to_be();
/// The first fragment of a datagram, with the ports.
pub(crate) const FIRST: u32 = 1;
/// A later fragment of a datagram.
pub(crate) const LATER: u32 = 2;
/// Instead of [`FIRST`] or [`LATER`]: not understood, or cut off.
const MALFORMED: u64 = 4;

/// The end of the extension headers.
pub(crate) struct Extensions {
    /// Bytes of all extension headers.
    pub(crate) length: usize,
    /// All ones in the 16 bits of the packet's length if an option has that, else 0.
    pub(crate) jumbo: usize,
    /// The number of the transport's protocol.
    pub(crate) next: u32,
    /// [`FIRST`], [`LATER`]; 0 for a whole datagram.
    pub(crate) fragment: u32,
    /// The identification that all fragments share, wire.
    pub(crate) id: u32,
}

/// A context with a packet in it.
pub(crate) trait Walk {
    /// Walks the extension headers from `at`. The first one is of type `next`.
    fn extensions(&self, at: usize, next: u32) -> Result<Extensions, DropReason>;
}

impl Walk for Frame {
    #[inline(always)]
    fn extensions(&self, at: usize, next: u32) -> Result<Extensions, DropReason> {
        decode(extensions_xdp(self.context, (at - self.start) as u32, next))
    }
}

impl Walk for TcContext {
    #[inline(always)]
    fn extensions(&self, at: usize, next: u32) -> Result<Extensions, DropReason> {
        decode(extensions_tc(self.skb.skb, (at - self.data()) as u32, next))
    }
}

/// Refuses to walk.
pub(crate) struct NoExtensions;

impl Walk for NoExtensions {
    #[inline(always)]
    fn extensions(&self, _at: usize, _next: u32) -> Result<Extensions, DropReason> {
        Err(DropReason::Malformed)
    }
}

#[inline(always)]
pub(crate) fn is_extension(next: u32) -> bool {
    matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn extensions_xdp(context: *mut xdp_md, offset: u32, next: u32) -> u64 {
    let (start, end) = frame::bounds(context);
    walk(start, end, offset, next)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn extensions_tc(context: *mut __sk_buff, offset: u32, next: u32) -> u64 {
    // SAFETY: the context is valid for the whole run.
    let (start, end) = unsafe { (pin((*context).data as usize), pin((*context).data_end as usize)) };
    walk(start, end, offset, next)
}

/// Packs the identification, whether there is a [`JUMBO`] option, the total length, the kind of fragment and the
/// transport's number, in this order: 32, 1, 15, 8 and 8 bits.
#[inline(always)]
fn walk(start: usize, end: usize, offset: u32, next: u32) -> u64 {
    // An ICMP error embeds a packet whose headers may begin far behind.
    if offset as usize > REACH {
        return MALFORMED << 8;
    }
    let (first, mut next) = (offset as usize & REACH, next & 0xff);
    let (mut length, mut fragment, mut id, mut jumbo) = (0_usize, 0_u32, 0_u32, 0_u64);
    // Once more than the limit, to see what follows the last header.
    for _ in 0..=MOST {
        if !is_extension(next) {
            let kind = u64::from(fragment) << 8 | u64::from(next);
            return u64::from(id) << 32 | jumbo << 31 | (length as u64) << 16 | kind;
        }
        let at = pin(start + first + (length & REACH));
        if at + 8 > end {
            return MALFORMED << 8;
        }
        // SAFETY: compared with the end above.
        let (following, units) = unsafe { (u32::from(read::<0, u8>(at)), usize::from(read::<1, u8>(at))) };
        // A fragment header has eight bytes and a zero here, so the common formula fits.
        length += (units + 1) * 8;
        if length > REACH {
            return MALFORMED << 8;
        }
        // SAFETY: compared with the end above.
        if next == HOP_BY_HOP && unsafe { read::<2, u16>(at) } == JUMBO {
            // SAFETY: as above. Less than 64 KiB is an error (RFC 2675, 3).
            jumbo = u64::from(unsafe { read::<4, u16>(at) } != 0);
        }
        // SAFETY: as above.
        if next == ROUTING && unsafe { read::<3, u8>(at) } != 0 {
            // The packet continues to another host, whose address the checksums cover (RFC 8200,
            // 4.4 and 8.1).
            return MALFORMED << 8;
        }
        if next == FRAGMENT {
            if units != 0 || id != 0 {
                return MALFORMED << 8;
            }
            // SAFETY: compared with the end above.
            let place = unsafe {
                id = read::<4, u32>(at);
                u16::from_be(read::<2, _>(at))
            };
            if place & 0xfff8 != 0 {
                // Later headers are only in the first fragment.
                return u64::from(id) << 32 | (length as u64) << 16 | u64::from(LATER) << 8 | u64::from(following);
            }
            // RFC 6946: a fragment that is first and last is a whole datagram.
            fragment = u32::from(place) & FIRST;
        }
        next = following;
    }
    MALFORMED << 8
}

#[inline(always)]
fn decode(word: u64) -> Result<Extensions, DropReason> {
    let fragment = (word >> 8) as u32 & 0xff;
    if fragment == MALFORMED as u32 {
        return Err(DropReason::Malformed);
    }
    Ok(Extensions {
        length: (word >> 16) as usize & REACH,
        jumbo: (word >> 31 & 1).wrapping_neg() as usize & 0xffff,
        next: word as u32 & 0xff,
        fragment,
        id: (word >> 32) as u32,
    })
}
