//! Hands over frames that stand for several, by the tc program of the ingress interface.
//!
//! The kernel joins segments before generic XDP (GRO), and a sender on the same machine may leave its
//! segments in one piece. A frame that XDP sends leaves as it is: a redirect refuses one that is longer
//! than the outlet's MTU (`xdp_ok_fwd_dev` of include/linux/filter.h), and `XDP_TX` gives it to the
//! driver, which may not be able to divide it (`generic_xdp_tx` of net/core/dev.c). What tc redirects
//! takes the way of the stack's own packets, which divides and checksums it (`validate_xmit_skb`).
//!
//! The XDP program writes the MACs and the tag, and marks the frame by metadata in front of it.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::{
        __sk_buff, TC_ACT_SHOT,
        bpf_hdr_start_off::BPF_HDR_START_MAC,
        xdp_action::{XDP_ABORTED, XDP_PASS},
        xdp_md,
    },
    helpers::{
        bpf_redirect, bpf_skb_change_head, bpf_skb_load_bytes_relative, bpf_skb_store_bytes, bpf_xdp_adjust_meta,
    },
};
use vipmux_common::abi::{INTERFACE_GENERIC, INTERFACE_MERGED, INTERFACE_MTU_SHIFT, INTERFACE_UNSUMMED, Interface};

use crate::{
    frame::{ETHERNET_LENGTH, Frame},
    maps::config,
    wire::{pin, read, write},
};

/// Bytes of the metadata, a multiple of 4. The last eight are the mark. The others are there for
/// [`Mark::find`].
const LENGTH: usize = 24;
/// Beside the outlet's ifindex in a verdict: the frame is merged.
pub(crate) const OUTLET: u32 = 1 << 30;

/// Returns the first word of this node's marks. The second one is the outlet's ifindex. The kernel keeps the
/// metadata of a frame that crosses a veth. So the next node on the same machine must not take the mark for
/// its own.
#[inline(always)]
fn own_mark() -> u32 {
    config().flow_secret.frame_mark()
}

/// Returns whether a frame stands for several. Only in generic mode the kernel joins segments before the
/// program. Such a frame is longer than what the interface receives.
#[inline(always)]
pub(crate) fn is_merged(frame: &Frame, interface: &Interface) -> bool {
    interface.flags & INTERFACE_GENERIC != 0 && frame.available() > (interface.flags >> INTERFACE_MTU_SHIFT) as usize
}

/// Returns [`OUTLET`] if the tc program of the interface sends a merged frame. Before an agent of this version
/// has attached it, XDP does.
#[inline(always)]
pub(crate) fn outlet_flag(merged: bool, interface: &Interface) -> u32 {
    let flags = interface.flags;
    if flags & INTERFACE_MERGED != 0 && (merged || flags & INTERFACE_UNSUMMED != 0) { OUTLET } else { 0 }
}

/// Marks a frame for the tc program, which sends it to this interface. Returns the kernel's action.
#[inline(always)]
pub(crate) fn mark(context: *mut xdp_md, outlet: u32) -> u32 {
    if merged_mark(context, outlet) == 0 { XDP_PASS } else { XDP_ABORTED }
}

/// Returns zero, or one if the frame has no room for the mark. The verifier checks this function on its
/// own.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn merged_mark(context: *mut xdp_md, outlet: u32) -> u32 {
    // SAFETY: the context is valid for the whole run.
    if unsafe { bpf_xdp_adjust_meta(context, -(LENGTH as i32)) } != 0 {
        return 1;
    }
    // SAFETY: as above.
    let (meta, start) = unsafe { (pin((*context).data_meta as usize), pin((*context).data as usize)) };
    if meta + LENGTH > start {
        return 1;
    }
    // SAFETY: compared with the end above.
    unsafe {
        write::<0, u64>(meta, 0);
        write::<8, u64>(meta, 0);
        write::<16, u32>(meta, own_mark());
        write::<20, u32>(meta, outlet);
    }
    0
}

/// A frame's mark, as the tc program finds it.
pub(crate) struct Mark {
    outlet: u32,
    /// The packet begins with its Ethernet header.
    has_link: bool,
}

impl Mark {
    /// Finds a frame's mark. Generic XDP may lose the length of the Ethernet header (`skb_pp_cow_data` of
    /// net/core/skbuff.c leaves `mac_len` zero). Then the packet begins after it, and the kernel takes
    /// that header for the metadata's end. The source MAC there is this node's own.
    #[inline(always)]
    pub(crate) fn find(skb: *mut __sk_buff) -> Option<Self> {
        const SHIFTED: usize = LENGTH - ETHERNET_LENGTH;
        // SAFETY: the context is valid for the whole run.
        let (meta, start) = unsafe { (pin((*skb).data_meta as usize), pin((*skb).data as usize)) };
        if meta + LENGTH > start {
            return None;
        }
        let own = own_mark();
        // SAFETY: compared with the end above.
        unsafe {
            if read::<{ LENGTH - 8 }, u32>(meta) == own {
                Some(Self { outlet: read::<{ LENGTH - 4 }, _>(meta), has_link: true })
            } else if read::<{ SHIFTED - 8 }, u32>(meta) == own {
                Some(Self { outlet: read::<{ SHIFTED - 4 }, _>(meta), has_link: false })
            } else {
                None
            }
        }
    }

    /// Sends the frame to its outlet.
    #[inline(always)]
    pub(crate) fn send(&self, skb: *mut __sk_buff) -> i32 {
        if !self.has_link && restore_link(skb).is_none() {
            return TC_ACT_SHOT;
        }
        // SAFETY: a helper with plain arguments.
        unsafe { bpf_redirect(self.outlet, 0) as i32 }
    }
}

/// Makes the Ethernet header a part of the packet again.
#[inline(always)]
fn restore_link(skb: *mut __sk_buff) -> Option<()> {
    const LINK: u32 = ETHERNET_LENGTH as u32;
    let mut link = MaybeUninit::<[u16; ETHERNET_LENGTH / 2]>::uninit();
    let bytes = link.as_mut_ptr().cast();
    // SAFETY: the first helper writes all of the array, or fails.
    unsafe {
        let is_done = bpf_skb_load_bytes_relative(skb.cast(), 0, bytes, LINK, BPF_HDR_START_MAC) == 0
            && bpf_skb_change_head(skb, LINK, 0) == 0
            && bpf_skb_store_bytes(skb, 0, bytes, LINK, 0) == 0;
        is_done.then_some(())
    }
}
