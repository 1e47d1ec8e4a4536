//! Hand-over to the backend's node, on layer 2.

use aya_ebpf::{bindings::xdp_action::XDP_REDIRECT, helpers::bpf_redirect};
use vipmux_common::{
    abi::{DropReason, Interface, Node, Stat},
    checksum,
};

use crate::{
    Action, count,
    packet::{Frame, Segment, read, write},
};

/// Sends the frame on, unchanged above layer 2 but for the TTL, with this node's hand-over MAC as its source.
#[inline(always)]
pub(crate) fn hand_over(
    frame: &Frame,
    segment: &Segment,
    interface: &Interface,
    node: &Node,
) -> Result<Action, DropReason> {
    let at = segment.network;
    // SAFETY: `Ipv4::parse` compared the fixed header with the end.
    unsafe {
        let ttl: u8 = read::<8, _>(at);
        if ttl <= 1 {
            return Err(DropReason::TtlExceeded);
        }
        let before: u16 = read::<8, _>(at);
        write::<8, _>(at, ttl - 1);
        let change = checksum::change(u32::from(before), u32::from(read::<8, u16>(at)));
        write::<10, _>(at, checksum::update(read::<10, _>(at), change));
    }
    frame.write_macs(node.mac, interface.mac.handover());
    count::stat(Stat::HandedOver, frame.length());
    Ok(Action::Forward(node.ifindex))
}

/// Out of another interface than the frame came in by.
#[inline(always)]
pub(crate) fn redirect(ifindex: u32) -> u32 {
    // SAFETY: a helper with plain arguments; its result is XDP_REDIRECT or XDP_ABORTED.
    let action = unsafe { bpf_redirect(ifindex, 0) };
    if action == i64::from(XDP_REDIRECT) { XDP_REDIRECT } else { aya_ebpf::bindings::xdp_action::XDP_ABORTED }
}
