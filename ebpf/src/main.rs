//! vipmux's BPF programs: `vipmux_xdp` on each announcing interface, and `vipmux_egress` on each uplink.
//!
//! Frame -> [`packet`] -> ARP: [`neighbor`]; IPv4: [`demux`] -> [`flow`] -> local: [`nat`], elsewhere: [`forward`].
//! Reply -> [`nat`].
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod count;
mod demux;
mod flow;
mod forward;
mod fragment;
mod icmp;
mod maps;
mod nat;
mod neighbor;
mod packet;
mod reject;

use aya_ebpf::{
    bindings::{
        TC_ACT_SHOT, TC_ACT_UNSPEC,
        xdp_action::{XDP_DROP, XDP_PASS, XDP_TX},
    },
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use vipmux_common::abi::{DropReason, Interface, Stat};

use crate::{
    maps::INTERFACES,
    packet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, Frame},
};

/// What becomes of a frame that is not dropped.
enum Action {
    /// Not ours: to the stack, untouched.
    Pass,
    /// To the stack, with a local backend as its destination.
    Deliver,
    /// An answer: out where it came in.
    Transmit,
    /// To another node, through this interface.
    Forward(u32),
}

/// Answers ARP for VIPs and steers their packets to backends.
#[xdp]
pub fn vipmux_xdp(context: XdpContext) -> u32 {
    let ifindex = context.ingress_ifindex() as u32;
    let Some(frame) = Frame::parse(&context) else { return XDP_PASS };
    let Some(interface) = INTERFACES.get(ifindex) else { return XDP_PASS };
    let action = match walk(&frame, interface) {
        Err(reason @ (DropReason::NoService | DropReason::NoBackend)) => {
            reject::unclaimed(&context, &frame, interface, reason)
        }
        action => action,
    };
    match action {
        Ok(Action::Pass) => {
            count::stat(Stat::Passed, frame.length());
            XDP_PASS
        }
        Ok(Action::Deliver) => XDP_PASS,
        Ok(Action::Transmit) => XDP_TX,
        Ok(Action::Forward(out)) if out == ifindex => XDP_TX,
        Ok(Action::Forward(out)) => forward::redirect(out),
        Err(reason) => {
            count::drop(reason, frame.length());
            XDP_DROP
        }
    }
}

/// Flooded, mirrored and bridged frames are for others: only what is addressed to this very interface is looked at.
#[inline(always)]
fn walk(frame: &Frame, interface: &Interface) -> Result<Action, DropReason> {
    let own = frame.destination == interface.mac;
    match frame.ethertype {
        ETHERTYPE_IPV4 if own => demux::ipv4(frame, interface),
        ETHERTYPE_ARP if own || frame.is_group() => neighbor::arp(frame, interface),
        _ => Ok(Action::Pass),
    }
}

/// Turns backends' replies back into the VIP's, and keeps the stack from speaking ARP for VIPs led elsewhere.
#[classifier]
pub fn vipmux_egress(context: TcContext) -> i32 {
    const NETWORK: usize = 14;
    // SAFETY: the context is valid for the whole run.
    let protocol = unsafe { (*context.skb.skb).protocol } as u16;
    let dropped = match protocol {
        ETHERTYPE_IPV4 => nat::restore(&context, NETWORK).err(),
        ETHERTYPE_ARP if !neighbor::may_leave(&context, NETWORK) => Some(DropReason::ArpEgress),
        _ => None,
    };
    match dropped {
        None => TC_ACT_UNSPEC,
        Some(reason) => {
            count::drop(reason, u64::from(context.len()));
            TC_ACT_SHOT
        }
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
