//! Partial checksums: a local sender leaves them to a NIC that the packet never reaches
//! (`CHECKSUM_PARTIAL` in include/linux/skbuff.h). The field then has the sum of the pseudo-header,
//! not complemented.
//!
//! Such frames only come in by interfaces with [`INTERFACE_PARTIAL`]. If delivered, they stay
//! partial, since the kernel knows about it. If native XDP sends them out, that knowledge is lost,
//! so the checksum is completed first.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::xdp_md,
    helpers::{bpf_csum_diff, bpf_xdp_load_bytes},
};
use vipmux_common::{
    abi::{INTERFACE_GENERIC, INTERFACE_PARTIAL},
    checksum,
};

use crate::{
    frame,
    packet::{Packet, TCP, UDP},
    segment::SegmentContext,
    wire::{opaque, pin, read, write},
};

/// The most bytes that are summed: a jumbo frame. A longer packet will still be segmented, so it is
/// partial.
const MOST: usize = 9_216;
/// Bytes that are summed at a time.
const BLOCK: usize = 32;

/// Returns whether a segment's checksum is partial.
#[inline(always)]
pub(crate) fn is_partial<const V6: bool>(context: &SegmentContext<'_, V6>) -> bool {
    context.interface.flags & INTERFACE_PARTIAL != 0 && rest(context) != FINAL
}

/// Completes a partial checksum of a packet that is sent out, where it would be taken as final.
#[inline(always)]
pub(crate) fn complete<const V6: bool>(context: &SegmentContext<'_, V6>) {
    let SegmentContext { interface, segment, .. } = context;
    if interface.flags & (INTERFACE_PARTIAL | INTERFACE_GENERIC) != INTERFACE_PARTIAL {
        return;
    }
    let sum = rest(context);
    if sum == FINAL || sum == UNKNOWN {
        return;
    }
    let field = !checksum::fold(sum);
    let at = segment.transport;
    // SAFETY: `Transport::segment` compared these headers with the end.
    unsafe {
        if segment.protocol == TCP {
            write::<16, _>(at, field);
        } else {
            write::<6, _>(at, if field == 0 { 0xffff } else { field });
        }
    }
}

/// Instead of a sum: the checksum is final.
const FINAL: u64 = u64::MAX;
/// Instead of a sum: the checksum is partial, and the packet is too long to sum.
const UNKNOWN: u64 = u64::MAX - 1;

/// Returns the sum of a partial segment with its field, or [`FINAL`], or [`UNKNOWN`]. One in 65,535
/// final checksums looks like a partial one, so it counts as partial only if the segment's sum does
/// not verify. A fragment's checksum is always final, and does not verify alone.
#[inline(always)]
fn rest<const V6: bool>(context: &SegmentContext<'_, V6>) -> u64 {
    let SegmentContext { frame, packet, transport, segment, .. } = context;
    let at = segment.transport;
    let field: u16 = match segment.protocol {
        // SAFETY: `Transport::segment` compared these headers with the end.
        TCP => unsafe { read::<16, _>(at) },
        // SAFETY: as above.
        UDP => unsafe { read::<6, _>(at) },
        _ => return FINAL,
    };
    if transport.fragment != 0 {
        return FINAL;
    }
    let length = transport.length as u32;
    let pseudo = Packet::<V6>::pseudo(&packet.source, &packet.destination, segment.protocol, length);
    if field != checksum::fold(pseudo) {
        return FINAL;
    }
    let offset = (at - frame.start) as u32;
    let sum = if frame.fragmented {
        partial_sum_buffers(frame.context, offset, length)
    } else {
        partial_sum(frame.context, offset, length)
    };
    if sum != UNKNOWN && checksum::fold(sum + pseudo) == 0xffff { FINAL } else { sum }
}

/// Sums bytes of the frame as 16-bit words. The verifier checks this function, and the one that it
/// calls at the end, on its own. So it need not follow where the loop ended.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn partial_sum(context: *mut xdp_md, offset: u32, length: u32) -> u64 {
    if length as usize > MOST {
        return UNKNOWN;
    }
    let (start, end) = frame::bounds(context);
    let mut at = pin(start + (offset as usize & 0x3fff));
    let blocks = length / BLOCK as u32;
    let mut sum = 0_u64;
    for block in 0..(MOST / BLOCK) as u32 {
        if block >= blocks || at + BLOCK > end {
            break;
        }
        // SAFETY: compared with the end above.
        sum += unsafe {
            u64::from(read::<0, u32>(at))
                + u64::from(read::<4, u32>(at))
                + u64::from(read::<8, u32>(at))
                + u64::from(read::<12, u32>(at))
                + u64::from(read::<16, u32>(at))
                + u64::from(read::<20, u32>(at))
                + u64::from(read::<24, u32>(at))
                + u64::from(read::<28, u32>(at))
        };
        at = pin(at + BLOCK);
    }
    let rest = partial_sum_rest(context, offset + blocks * BLOCK as u32, length % BLOCK as u32);
    if rest == UNKNOWN { UNKNOWN } else { sum + rest }
}

/// Sums less than a block.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn partial_sum_rest(context: *mut xdp_md, offset: u32, length: u32) -> u64 {
    let (start, end) = frame::bounds(context);
    let mut at = pin(start + (offset as usize & 0x7fff));
    let mut sum = 0_u64;
    for word in 0..(BLOCK / 2) as u32 {
        if word >= length / 2 {
            break;
        }
        if at + 2 > end {
            return UNKNOWN;
        }
        // SAFETY: compared with the end above.
        sum += u64::from(unsafe { read::<0, u16>(at) });
        at = pin(at + 2);
    }
    if length.is_multiple_of(2) {
        return sum;
    }
    if at + 1 > end {
        return UNKNOWN;
    }
    // SAFETY: compared with the end above.
    sum + u64::from(u16::from_ne_bytes([unsafe { read::<0, u8>(at) }, 0]))
}

/// [`partial_sum`] for a frame in several buffers, from which bytes are copied.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn partial_sum_buffers(context: *mut xdp_md, offset: u32, length: u32) -> u64 {
    if length as usize > MOST {
        return UNKNOWN;
    }
    let blocks = length / BLOCK as u32;
    let mut sum = 0_u64;
    for block in 0..(MOST / BLOCK) as u32 {
        if block >= blocks {
            break;
        }
        let part = partial_sum_copy(context, offset + block * BLOCK as u32, BLOCK as u32);
        if part == UNKNOWN {
            return UNKNOWN;
        }
        sum += part;
    }
    let left = length % BLOCK as u32;
    if left == 0 {
        return sum;
    }
    let rest = partial_sum_copy(context, offset + blocks * BLOCK as u32, left);
    if rest == UNKNOWN { UNKNOWN } else { sum + rest }
}

/// Copies a block, or less, and sums it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn partial_sum_copy(context: *mut xdp_md, offset: u32, length: u32) -> u64 {
    if length == 0 || length > BLOCK as u32 {
        return UNKNOWN;
    }
    // The same check again, for a verifier that does not conclude from a comparison with 0 that the
    // length is larger (Linux 6.1).
    let length = (opaque(u64::from(length - 1)) & (BLOCK as u64 - 1)) as u32 + 1;
    let mut block = MaybeUninit::<[u64; BLOCK / 8]>::uninit();
    let words = block.as_mut_ptr().cast::<u64>();
    for index in 0..BLOCK / 8 {
        // SAFETY: within the block. Volatile, or the compiler would call a function that is a loop
        // over bytes.
        unsafe { words.add(index).write_volatile(0) };
    }
    // SAFETY: the block has room for that many bytes; what is not copied is zero.
    unsafe {
        if bpf_xdp_load_bytes(context, offset, words.cast(), length) != 0 {
            return UNKNOWN;
        }
        bpf_csum_diff(core::ptr::null_mut(), 0, words.cast(), BLOCK as u32, 0) as u64 & 0xffff_ffff
    }
}
