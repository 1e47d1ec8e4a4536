//! Direct server return: sends unchanged packets to a local backend that answers in the VIP's name.
//! The XDP program passed them. Their destination is the VIP, which the stack would not route to
//! the backend. So this program sends them before the stack sees them.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::{
        BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_fib_lookup as Lookup,
        bpf_redir_neigh as NextHop,
    },
    helpers::{bpf_fib_lookup, bpf_redirect_neigh, bpf_skb_change_head, bpf_skb_vlan_pop},
    programs::TcContext,
};
use vipmux_common::abi::{Address, INTERFACE_GENERIC, Interface, SERVICE_DIRECT};

use crate::{
    extensions::LATER,
    flow_entry, fragment,
    frame::ETHERNET_LENGTH,
    icmp::Embedded,
    linear,
    maps::{VIPS, copy},
    neighbor,
    packet::Packet,
    vip,
    wire::{pin, read},
};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Sends a packet to its backend. Leaves it to the stack if it is not for this interface's MAC, not
/// for such a Service, or if the backend has the node's own address.
#[inline(always)]
pub(crate) fn receive<const V6: bool>(context: &TcContext, interface: &Interface) -> i32 {
    match network(context, interface) {
        Some(ETHERNET_LENGTH) => send::<V6>(context, interface, ETHERNET_LENGTH),
        Some(0) => send::<V6>(context, interface, 0),
        _ => TC_ACT_UNSPEC,
    }
}

/// Returns the offset of the IP header. Generic XDP copies packets with too little headroom and
/// loses the length of their Ethernet header (`skb_pp_cow_data` of net/core/skbuff.c leaves
/// `mac_len` zero), so such packets begin after it.
#[inline(always)]
fn network(context: &TcContext, interface: &Interface) -> Option<usize> {
    let start = pin(context.data());
    if start + ETHERNET_LENGTH > pin(context.data_end()) {
        return None;
    }
    // SAFETY: compared with the end above.
    let destination: (u32, u16) = unsafe { (read::<0, _>(start), read::<4, _>(start)) };
    if destination == (interface.mac.head, interface.mac.tail) {
        Some(ETHERNET_LENGTH)
    } else {
        (interface.flags & INTERFACE_GENERIC != 0).then_some(0)
    }
}

#[inline(always)]
fn send<const V6: bool>(context: &TcContext, interface: &Interface, network: usize) -> i32 {
    linear::pull_headers::<V6>(context, network);
    let Some((client, backend)) = backend::<V6>(context, interface, network) else { return TC_ACT_UNSPEC };
    let Some(ifindex) = route::<V6>(context, &client, &backend) else { return TC_ACT_UNSPEC };
    let mut hop = MaybeUninit::<NextHop>::uninit();
    let words = hop.as_mut_ptr().cast::<u32>();
    // SAFETY: the five words of the structure. A tag beside the packet would leave with it.
    unsafe {
        if (*context.skb.skb).vlan_present != 0 && bpf_skb_vlan_pop(context.skb.skb) != 0 {
            return TC_ACT_SHOT;
        }
        // The kernel removes an Ethernet header and writes the new one there.
        if network == 0 && bpf_skb_change_head(context.skb.skb, ETHERNET_LENGTH as u32, 0) != 0 {
            return TC_ACT_SHOT;
        }
        words.write_volatile(u32::from(if V6 { AF_INET6 } else { AF_INET }));
        words.add(1).write_volatile(if V6 { backend.w0 } else { backend.w3 });
        words.add(2).write_volatile(if V6 { backend.w1 } else { 0 });
        words.add(3).write_volatile(if V6 { backend.w2 } else { 0 });
        words.add(4).write_volatile(if V6 { backend.w3 } else { 0 });
        bpf_redirect_neigh(ifindex, hop.as_mut_ptr(), size_of::<NextHop>() as i32, 0) as i32
    }
}

/// Returns the client and the backend's address, if the XDP program found such a Service for the
/// packet.
#[inline(always)]
fn backend<const V6: bool>(context: &TcContext, interface: &Interface, network: usize) -> Option<(Address, Address)> {
    let (start, end) = (pin(context.data()), pin(context.data_end()));
    let packet = Packet::<V6>::parse(pin(start + network), end)?;
    let vip = copy(&VIPS, &packet.destination)?;
    if !neighbor::is_announced(&vip, interface, vlan(context)) {
        return None;
    }
    let vip = vip.id;
    let transport = packet.transport(context, None).ok()?;
    if transport.fragment & LATER != 0 {
        let value = fragment::find(&packet.fragment(&transport))?;
        let target = fragment::target(&value, vip::Flags(0))?;
        return (value.direct != 0).then_some((packet.source, target.local?.address));
    }
    let key = if transport.protocol == Packet::<V6>::ICMP {
        Embedded::<V6>::parse(context, &transport, end)?.flow(vip, &packet.destination)?
    } else {
        linear::segment(context, &transport, start, end)?.flow(packet.source, vip)
    };
    let (target, flags) = flow_entry::look(&key, vip::Flags(0))?;
    (flags & SERVICE_DIRECT != 0).then_some((packet.source, target.local?.address))
}

/// Returns the 802.1Q VLAN id, which the kernel has already taken out of the packet; 0 for
/// untagged.
#[inline(always)]
fn vlan(context: &TcContext) -> u32 {
    // SAFETY: the context is valid for the whole run.
    let skb = unsafe { &*context.skb.skb };
    if skb.vlan_present == 0 { 0 } else { skb.vlan_tci & 0x0fff }
}

/// Returns the interface that reaches the backend; `None`: it is this node itself, or there is no
/// route.
#[inline(always)]
fn route<const V6: bool>(context: &TcContext, client: &Address, backend: &Address) -> Option<u32> {
    let mut lookup = MaybeUninit::<Lookup>::uninit();
    let words = lookup.as_mut_ptr().cast::<u64>();
    for index in 0..size_of::<Lookup>() / 8 {
        // SAFETY: within the structure. Volatile, or the compiler would call a function that is a
        // loop over bytes.
        unsafe { words.add(index).write_volatile(0) };
    }
    // SAFETY: all of it was written above; the context is valid for the whole run.
    unsafe {
        let lookup = &mut *lookup.as_mut_ptr();
        lookup.family = if V6 { AF_INET6 } else { AF_INET };
        lookup.ifindex = (*context.skb.skb).ifindex;
        if V6 {
            lookup.__bindgen_anon_3.ipv6_src = [client.w0, client.w1, client.w2, client.w3];
            lookup.__bindgen_anon_4.ipv6_dst = [backend.w0, backend.w1, backend.w2, backend.w3];
        } else {
            lookup.__bindgen_anon_3.ipv4_src = client.w3;
            lookup.__bindgen_anon_4.ipv4_dst = backend.w3;
        }
        let result = bpf_fib_lookup(context.skb.skb.cast(), lookup, size_of::<Lookup>() as i32, 0);
        // The MAC may be unknown: the kernel resolves it.
        (result == i64::from(BPF_FIB_LKUP_RET_SUCCESS) || result == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH))
            .then_some(lookup.ifindex)
    }
}
