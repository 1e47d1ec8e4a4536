//! BPF programs for tests and the bench.
#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

use aya_ebpf::{
    bindings::xdp_action::{XDP_ABORTED, XDP_PASS, XDP_TX},
    helpers::bpf_jiffies64,
    macros::xdp,
    programs::XdpContext,
};

/// For the peers of veths: XDP_TX and XDP_REDIRECT into a veth need a program at the other end.
#[xdp]
pub fn pass(_context: XdpContext) -> u32 {
    XDP_PASS
}

/// Writes the time by which flow records age, `jiffies_64`, over the frame's first eight bytes.
#[xdp]
pub fn clock(context: XdpContext) -> u32 {
    let at = context.data();
    if at + 8 > context.data_end() {
        return XDP_ABORTED;
    }
    // SAFETY: eight bytes were compared with the end; a helper without arguments.
    unsafe { (at as *mut u64).write_unaligned(bpf_jiffies64()) };
    XDP_TX
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
