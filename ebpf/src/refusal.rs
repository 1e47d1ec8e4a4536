//! Counts frames that the kernel refuses after the XDP program's verdict, of which no return value tells
//! the program. The programs are at tracepoints of include/trace/events/xdp.h, whose first arguments are
//! the interface and the XDP program.

use aya_ebpf::{helpers::bpf_probe_read_kernel, programs::RawTracePointContext};
use vipmux_common::abi::RefusalKey;

use crate::maps::{REFUSALS, TRACED};

/// Counts a frame that was refused, if the XDP program is this agent's.
#[inline(always)]
pub(crate) fn count(context: &RawTracePointContext, action: u32, errno: u32) {
    let Some(traced) = TRACED.get(0) else { return };
    let (interface, program): (*const u8, *const u8) = (context.arg(0), context.arg(1));
    let Some(aux) = field::<*const u8>(program, traced.aux_offset) else { return };
    if field(aux, traced.id_offset) != Some(traced.program) {
        return;
    }
    let Some(ifindex) = field(interface, traced.ifindex_offset) else { return };
    let key = RefusalKey { ifindex, action: action as u16, errno: errno as u16 };
    match REFUSALS.get_ptr_mut(&key) {
        // SAFETY: a per-CPU value; an interrupt in between costs a count.
        Some(frames) => unsafe { *frames += 1 },
        // A full map counts no further kinds.
        None => {
            let first = 1;
            let _full = REFUSALS.insert(&key, &first, 0);
        }
    }
}

/// Reads a field of a kernel object.
#[inline(always)]
fn field<T>(object: *const u8, offset: u32) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(object.wrapping_add(offset as usize).cast()).ok() }
}
