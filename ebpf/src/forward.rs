//! Hand-over to the backend's node, on layer 2.

use vipmux_common::abi::{
    Config, DropReason, INTERFACE_GENERIC, INTERFACE_OWN_MAC, INTERFACE_PARTIAL, Interface, Mac, Node,
    RESULT_UNDELIVERABLE, Scratch, Stat,
};

use crate::{
    count,
    frame::Frame,
    maps::INTERFACES,
    merged,
    packet::Packet,
    partial,
    scratch::pass_on,
    segment::SegmentContext,
    verdict::{Outcome, Verdict},
};

/// Sends the frame to the node, with the tag of the path. Above layer 2, only the TTL changes.
#[inline(always)]
pub(crate) fn hand_over<const V6: bool>(
    config: &Config,
    frame: &Frame,
    packet: &Packet<V6>,
    interface: &Interface,
    node: &Node,
) -> Outcome {
    let (source, vlan) = (source(config, interface, node), node.other_vlan(frame.vlan));
    let merged = merged::is_merged(frame, interface);
    send(frame, packet, node, source, vlan, (merged, merged::outlet_flag(merged, interface)))
}

/// Returns whether frames of this interface leave as they are but for the TTL and the MACs, with this
/// node's hand-over MAC. Others may have partial checksums, stand for several, or keep the interface's
/// own MAC.
#[inline(always)]
pub(crate) fn is_plain(config: &Config, interface: &Interface) -> bool {
    interface.flags & (INTERFACE_GENERIC | INTERFACE_PARTIAL | INTERFACE_OWN_MAC) == 0 && config.handover.word() != 0
}

/// Sends the frame with these MACs, and with another tag if the path's VLAN is not the frame's. `merged`:
/// it stands for several; with [`merged::outlet_flag`].
#[inline(always)]
pub(crate) fn send<const V6: bool>(
    frame: &Frame,
    packet: &Packet<V6>,
    node: &Node,
    source: Mac,
    other_vlan: Option<u32>,
    (merged, flag): (bool, u32),
) -> Outcome {
    let is_long = !merged && frame.available() > node.mtu as usize && node.mtu != 0;
    let outlet = node.ifindex | flag;
    let hops = packet.hops();
    if is_long || hops <= 1 {
        return undeliverable(if is_long { node.mtu } else { 0 });
    }
    packet.decrement_hops(hops);
    match other_vlan {
        None => frame.write_macs(node.mac, source),
        Some(vlan) => frame.retag(node.mac, source, vlan).ok_or(DropReason::NodeUnreachable)?,
    }
    count::stat(Stat::HandedOver, frame.length);
    Ok(Verdict::forward(outlet))
}

/// Passes a packet to the program that answers it. `mtu`: 0 if its TTL is at an end.
#[inline(always)]
fn undeliverable(mtu: u32) -> Outcome {
    pass_on(Scratch { result: RESULT_UNDELIVERABLE, vip: mtu, ..Scratch::default() }, Verdict::SLOW)
}

/// As [`hand_over`], for a packet with its own checksum, which may have to be completed.
#[inline(always)]
pub(crate) fn hand_over_segment<const V6: bool>(
    config: &Config,
    context: &SegmentContext<'_, V6>,
    node: &Node,
) -> Outcome {
    partial::complete(context);
    hand_over(config, context.frame, context.packet, context.interface, node)
}

/// Returns the source MAC of a handed-over frame: this node's hand-over MAC, unless the network
/// takes no second one.
#[inline(always)]
fn source(config: &Config, interface: &Interface, node: &Node) -> Mac {
    let handover = config.handover;
    if interface.flags & INTERFACE_OWN_MAC == 0 && handover.word() != 0 {
        return handover;
    }
    INTERFACES.get(node.ifindex).map_or(interface.mac, |outlet| outlet.mac)
}
