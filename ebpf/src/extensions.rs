//! IPv6 extension headers (RFC 8200, 4): walked to the transport, not acted upon.
//!
//! A function of its own to the verifier, once for each type of context: it is verified alone, and its result is a
//! number of which nothing is known, so that how the end was reached does not multiply what follows. Nothing is paid for
//! it where there are no such headers.

use aya_ebpf::{
    bindings::{__sk_buff, xdp_md},
    programs::TcContext,
};
use vipmux_common::abi::DropReason;

use crate::{
    frame::{self, Frame},
    packet::{FIRST, LATER},
    wire::{pin, read},
};

const HOP_BY_HOP: u32 = 0;
const ROUTING: u32 = 43;
pub(crate) const FRAGMENT: u32 = 44;
const DESTINATION: u32 = 60;

/// Headers that are walked; RFC 8200, 4.1 has six in the recommended order.
const MOST: usize = 8;
/// Bytes that they may have together, and a bound that the verifier understands: a power of two less one.
const REACH: usize = 0x1fff;
/// In place of [`FIRST`] or [`LATER`]: not understood, or cut off.
const MALFORMED: u64 = 4;

/// Where the walk ended.
pub(crate) struct Found {
    /// Bytes of all extension headers.
    pub(crate) length: usize,
    /// The number of the transport's protocol.
    pub(crate) next: u32,
    /// [`FIRST`], [`LATER`]; 0 for a whole datagram.
    pub(crate) fragment: u32,
    /// The identification that fragments share, wire.
    pub(crate) id: u32,
}

/// Something with a packet in it.
pub(crate) trait Walk {
    /// Walks the extension headers that begin at `at`, the first of which is `next`.
    fn extensions(&self, at: usize, next: u32) -> Result<Found, DropReason>;
}

impl Walk for Frame {
    #[inline(always)]
    fn extensions(&self, at: usize, next: u32) -> Result<Found, DropReason> {
        decode(extensions_xdp(self.context, (at - self.start) as u32, next))
    }
}

impl Walk for TcContext {
    #[inline(always)]
    fn extensions(&self, at: usize, next: u32) -> Result<Found, DropReason> {
        decode(extensions_tc(self.skb.skb, (at - self.data()) as u32, next))
    }
}

/// Refuses to walk.
pub(crate) struct NoExtensions;

impl Walk for NoExtensions {
    #[inline(always)]
    fn extensions(&self, _at: usize, _next: u32) -> Result<Found, DropReason> {
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

/// The identification, the length of all, which fragment and the transport's number, in this order: 32, 16, 8 and 8 bits.
#[inline(always)]
fn walk(start: usize, end: usize, offset: u32, next: u32) -> u64 {
    let (first, mut next) = (offset as usize & 0xff, next & 0xff);
    let (mut length, mut fragment, mut id) = (0_usize, 0_u32, 0_u32);
    // Once more than that, to see what follows the last.
    for _ in 0..=MOST {
        if !is_extension(next) {
            return u64::from(id) << 32 | (length as u64) << 16 | u64::from(fragment) << 8 | u64::from(next);
        }
        let at = pin(start + first + (length & REACH));
        if at + 8 > end {
            return MALFORMED << 8;
        }
        // SAFETY: compared with the end above.
        let (following, units) = unsafe { (u32::from(read::<0, u8>(at)), usize::from(read::<1, u8>(at))) };
        // A fragment header has eight bytes and a zero here, so it is as the others.
        length += (units + 1) * 8;
        if length > REACH {
            return MALFORMED << 8;
        }
        // SAFETY: compared with the end above.
        if next == ROUTING && unsafe { read::<3, u8>(at) } != 0 {
            // It goes on to somebody else, whose address the checksums cover (RFC 8200, 4.4 and 8.1).
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
                // Whatever follows is in the first fragment.
                return u64::from(id) << 32 | (length as u64) << 16 | u64::from(LATER) << 8 | u64::from(following);
            }
            // RFC 6946: one that is first and last is a whole datagram.
            fragment = u32::from(place) & FIRST;
        }
        next = following;
    }
    MALFORMED << 8
}

#[inline(always)]
fn decode(found: u64) -> Result<Found, DropReason> {
    let fragment = (found >> 8) as u32 & 0xff;
    if fragment == MALFORMED as u32 {
        return Err(DropReason::Malformed);
    }
    Ok(Found { length: (found >> 16) as usize & REACH, next: found as u32 & 0xff, fragment, id: (found >> 32) as u32 })
}
