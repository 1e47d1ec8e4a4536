//! vipmux's BPF programs.
#![no_std]
#![no_main]

mod maps;

use aya_ebpf::{bindings::xdp_action::XDP_PASS, macros::xdp, programs::XdpContext};

/// Placeholder while the skeleton grows.
#[xdp]
pub fn vipmux_xdp(_context: XdpContext) -> u32 {
    XDP_PASS
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
