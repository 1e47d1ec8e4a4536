//! vipmux's BPF programs: `vipmux_xdp` on each announcing interface, and `vipmux_egress` on each uplink.
//!
//! [`frame`] -> ARP: [`arp`]; Neighbor Discovery: [`ndp`]; IP: [`packet`] -> [`demux`] -> [`flow`] or [`service`] ->
//! local: [`nat`], elsewhere: [`forward`]. Reply -> [`restore`].
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod arp;
mod budget;
mod count;
mod demux;
mod extensions;
mod flow;
mod forward;
mod fragment;
mod frame;
mod icmp;
mod maps;
mod nat;
mod ndp;
mod neighbor;
mod outline;
mod packet;
mod partial;
mod reject;
mod restore;
mod reverse;
mod segment;
mod service;
mod verdict;
mod wire;

use aya_ebpf::{
    bindings::{
        TC_ACT_SHOT, TC_ACT_UNSPEC,
        xdp_action::XDP_PASS,
    },
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use vipmux_common::abi::DropReason;

use crate::{
    frame::{
        ETHERNET_LENGTH, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Frame, VLAN_TAG_LENGTH,
    },
    maps::INTERFACES,
    verdict::Verdict,
    wire::{pin, read},
};

/// Answers ARP and Neighbor Discovery for VIPs, and steers their packets to backends.
#[xdp]
pub fn vipmux_xdp(context: XdpContext) -> u32 {
    run::<false>(&context)
}

/// The same for frames in several buffers: where the MTU is larger than a page has room for.
#[xdp(frags)]
pub fn vipmux_xdp_frags(context: XdpContext) -> u32 {
    run::<true>(&context)
}

/// Flooded, mirrored and bridged frames are for others: only what is addressed to this very interface is looked at.
#[inline(always)]
fn run<const FRAGMENTED: bool>(context: &XdpContext) -> u32 {
    let Some(frame) = Frame::parse(context.ctx, FRAGMENTED) else { return XDP_PASS };
    let ifindex = context.ingress_ifindex() as u32;
    let Some(interface) = INTERFACES.get(ifindex) else { return XDP_PASS };
    let length = frame.length();
    let own = frame.destination == interface.mac;
    let verdict = match frame.ethertype {
        ETHERTYPE_IPV4 if own => outline::claimed::<false>(&frame, demux::receive::<false>(&frame, interface)),
        ETHERTYPE_IPV6 if own || frame.is_group() => outline::ipv6(&frame),
        ETHERTYPE_ARP if own || frame.is_group() => Verdict::of(arp::receive(&frame, interface)),
        _ => Verdict::PASS,
    };
    verdict.act(ifindex, length)
}

/// Turns backends' replies back into the VIP's, and keeps the stack from speaking ARP and Neighbor Discovery for VIPs led
/// elsewhere.
#[classifier]
pub fn vipmux_egress(context: TcContext) -> i32 {
    // SAFETY: the context is valid for the whole run.
    let mut protocol = unsafe { (*context.skb.skb).protocol } as u16;
    let mut network = ETHERNET_LENGTH;
    if protocol == ETHERTYPE_VLAN {
        // A tag in the frame itself: of a VLAN interface on a device that cannot add tags.
        let start = pin(context.data());
        network += VLAN_TAG_LENGTH;
        if start + network > pin(context.data_end()) {
            return TC_ACT_UNSPEC;
        }
        // SAFETY: compared with the end above.
        protocol = unsafe { read::<16, _>(start) };
    }
    let dropped = match protocol {
        ETHERTYPE_IPV4 => {
            restore::pull(&context, network);
            restore::restore::<false>(&context, network).err()
        }
        ETHERTYPE_IPV6 => {
            restore::pull(&context, network);
            if ndp::may_leave(&context, network) {
                restore::restore::<true>(&context, network).err()
            } else {
                Some(DropReason::NdpEgress)
            }
        }
        ETHERTYPE_ARP if !arp::may_leave(&context, network) => Some(DropReason::ArpEgress),
        _ => None,
    };
    match dropped {
        None => TC_ACT_UNSPEC,
        Some(reason) => {
            count::drop(reason as u32, u64::from(context.len()));
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
