//! vipmux's BPF programs: `vipmux_xdp` on each announcing interface, and `vipmux_egress` on each
//! uplink.
//!
//! ```text
//! frame -> ARP: arp; Neighbor Discovery: ndp; IP: packet -> demux -> a record of its flow, or its Service
//!                                                                 -> local: nat; elsewhere: forward
//! reply -> restore
//! ```
//!
//! | modules | contents |
//! | --- | --- |
//! | [`frame`], [`packet`], [`extensions`], [`segment`], [`linear`], [`wire`] | bounds-checked views: Ethernet, IP, extension headers, TCP, UDP, SCTP |
//! | [`maps`], [`scratch`], [`vip`], [`time`], [`lock`], [`count`], [`budget`] | maps and their values, locks, counters, rate limits |
//! | [`neighbor`], [`arp`], [`ndp`], [`peer`] | who answers for an address, and how; which frames are of other nodes |
//! | [`position`], [`flow`], [`destination`], [`flow_entry`], [`record`], [`occupancy`] | the flow table: find a record, read, judge and write it, make room |
//! | [`service`], [`client`], [`fragment`] | Services and their tables, source ranges and affinity, fragments |
//! | [`demux`], [`verdict`] | the path of a packet to its verdict |
//! | [`nat`], [`forward`], [`partial`], [`merged`] | to a backend here or on another node; partial checksums; merged frames |
//! | [`icmp`], [`reject`], [`abandoned`] | errors follow their flow; answers without a backend; packets without an agent |
//! | [`restore`], [`reply`], [`direct`] | replies and their records; direct server return |
//! | [`refusal`] | frames that the kernel refuses after a verdict |
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::needless_borrows_for_generic_args, reason = "what is not borrowed is copied to the stack")]

mod abandoned;
mod arp;
mod budget;
mod client;
mod count;
mod demux;
mod destination;
mod direct;
mod extensions;
mod flow;
mod flow_entry;
mod forward;
mod fragment;
mod frame;
mod icmp;
mod linear;
mod lock;
mod maps;
mod merged;
mod nat;
mod ndp;
mod neighbor;
mod occupancy;
mod packet;
mod partial;
mod peer;
mod position;
mod record;
mod refusal;
mod reject;
mod reply;
mod restore;
mod scratch;
mod segment;
mod service;
mod time;
mod verdict;
mod vip;
mod wire;

use core::ptr;

use aya_ebpf::{
    bindings::{
        TC_ACT_SHOT, TC_ACT_UNSPEC,
        xdp_action::{XDP_PASS, XDP_REDIRECT},
    },
    macros::{classifier, raw_tracepoint, xdp},
    programs::{RawTracePointContext, TcContext, XdpContext},
};
use vipmux_common::abi::{
    CALL_EGRESS, CALL_INGRESS, CALL_NEW, CALL_OTHER, CALL_SLOW, DropReason, INTERFACE_BACKUP, INTERFACE_NO_DIRECT,
    Interface,
};

use crate::{
    frame::{
        ETHERNET_LENGTH, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Frame, Untagged,
        VLAN_TAG_LENGTH,
    },
    maps::{CALLS, CALLS_FRAGMENTED, CLASSIFIERS, INTERFACES, activity},
    verdict::Verdict,
    wire::{pin, read},
};

/// Answers ARP for VIPs, and sends their packets to backends.
#[xdp]
pub fn vipmux_xdp(context: XdpContext) -> u32 {
    run::<false>(&context)
}

/// The same for frames in several buffers, if the MTU needs more than one page.
#[xdp(frags)]
pub fn vipmux_xdp_frags(context: XdpContext) -> u32 {
    run::<true>(&context)
}

/// Called for ARP, and for frames with a VLAN tag. In all others, [`vipmux_xdp`] finds the headers in
/// fixed places.
#[xdp]
pub fn vipmux_other(context: XdpContext) -> u32 {
    run_other::<false>(&context)
}

/// The same for frames in several buffers.
#[xdp(frags)]
pub fn vipmux_other_frags(context: XdpContext) -> u32 {
    run_other::<true>(&context)
}

/// Called for IPv4 packets whose flow [`vipmux_xdp`] does not know.
#[xdp]
pub fn vipmux_new_ipv4(context: XdpContext) -> u32 {
    run_new::<false, false>(&context)
}

/// The same for frames in several buffers.
#[xdp(frags)]
pub fn vipmux_new_ipv4_frags(context: XdpContext) -> u32 {
    run_new::<false, true>(&context)
}

/// Called for IPv4 packets that belong to no flow.
#[xdp]
pub fn vipmux_slow_v4(context: XdpContext) -> u32 {
    run_slow::<false, false>(&context)
}

/// The same for frames in several buffers.
#[xdp(frags)]
pub fn vipmux_slow_v4_frags(context: XdpContext) -> u32 {
    run_slow::<false, true>(&context)
}

/// Called for IPv6 packets whose flow [`vipmux_xdp`] does not know.
#[xdp]
pub fn vipmux_new_ipv6(context: XdpContext) -> u32 {
    run_new::<true, false>(&context)
}

/// The same for frames in several buffers.
#[xdp(frags)]
pub fn vipmux_new_ipv6_frags(context: XdpContext) -> u32 {
    run_new::<true, true>(&context)
}

/// Called for IPv6 packets that belong to no flow, Neighbor Discovery among them.
#[xdp]
pub fn vipmux_slow_v6(context: XdpContext) -> u32 {
    run_slow::<true, false>(&context)
}

/// The same for frames in several buffers.
#[xdp(frags)]
pub fn vipmux_slow_v6_frags(context: XdpContext) -> u32 {
    run_slow::<true, true>(&context)
}

#[inline(always)]
fn run<const FRAGMENTED: bool>(context: &XdpContext) -> u32 {
    match Frame::parse_untagged(context.ctx, FRAGMENTED) {
        Untagged::Ipv4(frame) => handle::<FRAGMENTED>(context, frame),
        Untagged::Ipv6(frame) => handle::<FRAGMENTED>(context, frame),
        Untagged::Other => call::<FRAGMENTED>(context, CALL_OTHER),
        Untagged::Short => XDP_PASS,
    }
}

#[inline(always)]
fn run_other<const FRAGMENTED: bool>(context: &XdpContext) -> u32 {
    let Some(frame) = Frame::parse(context.ctx, FRAGMENTED) else { return XDP_PASS };
    handle::<FRAGMENTED>(context, frame)
}

/// Flooded, mirrored and bridged frames are for others. Only frames that are addressed to this
/// interface are handled, and address resolution. A bond gets flooded frames by each of its cards.
/// Those that come by a card that it does not use are copies.
#[inline(always)]
fn handle<const FRAGMENTED: bool>(context: &XdpContext, frame: Frame) -> u32 {
    let ifindex = context.ingress_ifindex() as u32;
    let Some(interface) = INTERFACES.get(ifindex) else { return XDP_PASS };
    show_run(interface);
    let length = frame.length;
    let own = frame.destination.word() == interface.mac.word();
    let is_v6 = frame.ethertype == ETHERTYPE_IPV6;
    let outcome = match frame.ethertype {
        ETHERTYPE_IPV4 if own => demux::established::<false>(&frame, interface),
        ETHERTYPE_IPV6 if ndp::may_concern(&frame, own) && (own || !is_backup(interface)) => Ok(Verdict::SLOW),
        ETHERTYPE_IPV6 if own => demux::established::<true>(&frame, interface),
        ETHERTYPE_ARP if own || frame.is_group() && !is_backup(interface) => arp::receive(&frame, interface),
        _ => Ok(Verdict::PASS),
    };
    match Verdict::of(outcome) {
        Verdict::NEW => call::<FRAGMENTED>(context, CALL_NEW + u32::from(is_v6)),
        Verdict::SLOW => call::<FRAGMENTED>(context, CALL_SLOW + u32::from(is_v6)),
        verdict => verdict.act(context.ctx, ifindex, length),
    }
}

/// Shows the agent that the program runs on this port: a driver may have accepted the program and
/// not run it. It writes only after the agent has looked. A card that its bond does not use shows
/// nothing about the others.
#[inline(always)]
fn show_run(interface: &Interface) {
    let activity = activity();
    // SAFETY: a global of the programs, whose only field is an aligned number.
    unsafe {
        let ports = ptr::read_volatile(&raw const (*activity).ports);
        if interface.bit & !ports != 0 && !is_backup(interface) {
            ptr::write_volatile(&raw mut (*activity).ports, ports | interface.bit);
        }
    }
}

/// Returns whether this is a card that its bond does not use.
#[inline(always)]
fn is_backup(interface: &Interface) -> bool {
    interface.flags & INTERFACE_BACKUP != 0
}

#[inline(always)]
fn run_new<const V6: bool, const FRAGMENTED: bool>(context: &XdpContext) -> u32 {
    let Some((frame, _, interface)) = enter::<FRAGMENTED>(context) else { return XDP_PASS };
    let length = frame.length;
    match demux::claimed(demux::new::<V6>(&frame, interface)) {
        Verdict::NEW => call::<FRAGMENTED>(context, CALL_NEW + u32::from(V6)),
        Verdict::SLOW => call::<FRAGMENTED>(context, CALL_SLOW + u32::from(V6)),
        // Read again, since the stack has no room.
        verdict => verdict.act(context.ctx, context.ingress_ifindex() as u32, length),
    }
}

#[inline(always)]
fn run_slow<const V6: bool, const FRAGMENTED: bool>(context: &XdpContext) -> u32 {
    let Some((mut frame, ifindex, interface)) = enter::<FRAGMENTED>(context) else { return XDP_PASS };
    // Answers are cut to their length.
    frame.measure();
    let length = frame.length;
    let outcome = if V6 && ndp::may_concern(&frame, frame.destination == interface.mac) {
        ndp::receive(&frame, interface)
    } else {
        demux::slow_path::<V6>(&frame, interface)
    };
    match Verdict::of(outcome) {
        Verdict::NEW => call::<FRAGMENTED>(context, CALL_NEW + u32::from(V6)),
        Verdict::SLOW => demux::undeliverable().act(context.ctx, ifindex, length),
        verdict => verdict.act(context.ctx, ifindex, length),
    }
}

/// Continues in another program.
#[inline(always)]
fn call<const FRAGMENTED: bool>(context: &XdpContext, index: u32) -> u32 {
    let calls = if FRAGMENTED { &CALLS_FRAGMENTED } else { &CALLS };
    // SAFETY: it only returns if the element is empty. The agent fills the elements before it
    // attaches these programs.
    unsafe { calls.tail_call(context, index) };
    XDP_PASS
}

#[inline(always)]
fn enter<const FRAGMENTED: bool>(context: &XdpContext) -> Option<(Frame, u32, &'static Interface)> {
    let frame = Frame::parse(context.ctx, FRAGMENTED)?;
    let ifindex = context.ingress_ifindex() as u32;
    Some((frame, ifindex, INTERFACES.get(ifindex)?))
}

/// Translates backends' replies to the VIP, and prevents the stack from sending ARP and Neighbor
/// Discovery for VIPs that other nodes lead.
#[classifier]
pub fn vipmux_egress(context: TcContext) -> i32 {
    let Some((protocol, network)) = network(&context) else { return TC_ACT_UNSPEC };
    let dropped = match protocol {
        ETHERTYPE_IPV4 => {
            linear::pull_headers::<false>(&context, network);
            restore::restore::<false>(&context, network).err()
        }
        ETHERTYPE_IPV6 => {
            linear::pull_headers::<true>(&context, network);
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

/// Sends packets that the XDP program left: merged frames for other nodes, and packets for backends with
/// direct server return. Attached only if there are any.
#[classifier]
pub fn vipmux_ingress(context: TcContext) -> i32 {
    let skb = context.skb.skb;
    if let Some(mark) = merged::Mark::find(skb) {
        return mark.send(skb);
    }
    // SAFETY: the context is valid for the whole run.
    let (protocol, ifindex) = unsafe { ((*skb).protocol as u16, (*skb).ifindex) };
    let Some(interface) = INTERFACES.get(ifindex) else { return TC_ACT_UNSPEC };
    if interface.flags & INTERFACE_NO_DIRECT != 0 {
        return TC_ACT_UNSPEC;
    }
    match protocol {
        ETHERTYPE_IPV4 => direct::receive::<false>(&context, interface),
        ETHERTYPE_IPV6 => direct::receive::<true>(&context, interface),
        _ => TC_ACT_UNSPEC,
    }
}

/// Stands in for [`vipmux_egress`] while the agent moves that one to the first place of an
/// interface. The kernel attaches no program twice there (`bpf_mprog_attach` of kernel/bpf/mprog.c).
#[classifier]
pub fn vipmux_egress_stand_in(context: TcContext) -> i32 {
    call_classifier(&context, CALL_EGRESS)
}

/// The same for [`vipmux_ingress`].
#[classifier]
pub fn vipmux_ingress_stand_in(context: TcContext) -> i32 {
    call_classifier(&context, CALL_INGRESS)
}

#[inline(always)]
fn call_classifier(context: &TcContext, index: u32) -> i32 {
    // SAFETY: it only returns if the element is empty. The agent fills the elements when it loads
    // these programs.
    unsafe { CLASSIFIERS.tail_call(context, index) };
    TC_ACT_UNSPEC
}

/// Returns the protocol above the link, wire, and its offset. The frame itself may have a tag: from
/// a VLAN interface on a device that cannot add tags.
#[inline(always)]
fn network(context: &TcContext) -> Option<(u16, usize)> {
    // SAFETY: the context is valid for the whole run.
    let protocol = unsafe { (*context.skb.skb).protocol } as u16;
    if protocol != ETHERTYPE_VLAN {
        return Some((protocol, ETHERNET_LENGTH));
    }
    let network = ETHERNET_LENGTH + VLAN_TAG_LENGTH;
    linear::pull(context, network);
    let start = pin(context.data());
    if start + network > pin(context.data_end()) {
        return None;
    }
    // SAFETY: compared with the end above.
    Some((unsafe { read::<16, _>(start) }, network))
}

/// Counts frames that were refused at a redirect (`_trace_xdp_redirect_err` of
/// include/linux/filter.h), in native and in generic mode.
#[raw_tracepoint(tracepoint = "xdp_redirect_err")]
pub fn vipmux_redirect_err(context: RawTracePointContext) -> i32 {
    let error: i32 = context.arg(3);
    refusal::count(&context, XDP_REDIRECT, error.unsigned_abs());
    0
}

/// Counts frames that a driver could not send back, and aborted ones. After a refused redirect some
/// drivers report this too.
#[raw_tracepoint(tracepoint = "xdp_exception")]
pub fn vipmux_exception(context: RawTracePointContext) -> i32 {
    let action: u32 = context.arg(2);
    if action != XDP_REDIRECT {
        refusal::count(&context, action, 0);
    }
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
