//! Counts frames that the kernel refuses after the XDP program's verdict, of which no return value tells
//! the program. The programs are at tracepoints of include/trace/events/xdp.h, whose first arguments are
//! the interface and the XDP program.

use core::ptr;

use aya_ebpf::{helpers::bpf_probe_read_kernel, programs::RawTracePointContext};
use vipmux_common::abi::RefusalKey;

use crate::maps::{REFUSALS, TRACED};

/// Where the kernel keeps an interface's index (`net_device.ifindex`) and a program's id
/// (`bpf_prog.aux`, `bpf_prog_aux.id`): the agent reads these offsets in the kernel's BTF.
#[unsafe(no_mangle)]
static OFFSETS: [u32; 3] = [0; 3];

/// Counts a frame that was refused, if the XDP program is this agent's.
#[inline(always)]
pub(crate) fn count(context: &RawTracePointContext, action: u32, errno: u32) {
    let (interface, program): (*const u8, *const u8) = (context.arg(0), context.arg(1));
    let Some(auxiliary) = field::<*const u8>(program, 1) else { return };
    if field::<u32>(auxiliary, 2).as_ref() != TRACED.get(0) {
        return;
    }
    let Some(ifindex) = field(interface, 0) else { return };
    let key = RefusalKey { ifindex, action: action as u16, errno: errno as u16 };
    match REFUSALS.get_ptr_mut(&key) {
        // SAFETY: a per-CPU value; an interrupt in between costs a count.
        Some(frames) => unsafe { *frames += 1 },
        // A full map counts no further kinds.
        None => drop(REFUSALS.insert(&key, &1, 0)),
    }
}

/// Reads a field of a kernel object.
#[inline(always)]
fn field<T>(object: *const u8, offset: usize) -> Option<T> {
    // SAFETY: the loader replaces the values, so the compiler must not know them. The helper checks the
    // address.
    unsafe {
        let offset = ptr::read_volatile(&raw const OFFSETS[offset]);
        bpf_probe_read_kernel(object.wrapping_add(offset as usize).cast()).ok()
    }
}
