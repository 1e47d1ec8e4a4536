//! Tells other nodes by the source MACs of their frames.

use vipmux_common::abi::{INTERFACE_OWN_MAC, Interface, Mac, PEER_HANDOVER};

use crate::{frame::Frame, maps::PEERS};

#[inline(always)]
fn peer(mac: Mac) -> Option<u32> {
    // SAFETY: a word of a map value. If the agent has just replaced it, it may be another node's.
    PEERS.get_ptr(mac).map(|peer| unsafe { *peer })
}

/// Returns whether another node has this MAC on a segment.
#[inline(always)]
pub(crate) fn is_node(mac: Mac) -> bool {
    peer(mac).is_some_and(|peer| peer & PEER_HANDOVER == 0)
}

/// Returns whether another node has handed the frame over. Nobody else knows its hand-over MAC.
#[inline(always)]
pub(crate) fn has_handed_over(frame: &Frame) -> bool {
    frame.source.may_be_handover() && peer(frame.source).is_some_and(|peer| peer & PEER_HANDOVER != 0)
}

/// Returns whether another node has handed the frame over, if it is for a VIP that is not announced
/// here. This matters where nodes have no hand-over MACs: only nodes send such frames here.
#[inline(always)]
pub(crate) fn has_handed_over_elsewhere(frame: &Frame, interface: &Interface) -> bool {
    interface.flags & INTERFACE_OWN_MAC != 0 && is_node(frame.source)
}
