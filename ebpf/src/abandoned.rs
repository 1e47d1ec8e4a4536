//! What goes on after the agent has been away for too long ([`neighbor::is_abandoned`]): what other
//! nodes hand over, and flows with a record of a backend on this node. The node's stack gets all
//! else.
//!
//! [`neighbor::is_abandoned`]: crate::neighbor::is_abandoned

use vipmux_common::abi::{Interface, Scratch};

use crate::{
    extensions::LATER,
    flow_entry::{self, FlowEntry},
    fragment,
    frame::Frame,
    icmp::Embedded,
    maps::config,
    packet::Packet,
    position,
    scratch::pass_on,
    service::Source,
    time,
    verdict::{Outcome, Verdict},
    vip,
};

/// Handles an IP packet to a VIP that no node has handed over.
#[inline(always)]
pub(crate) fn receive<const V6: bool>(frame: &Frame, interface: &Interface) -> Outcome {
    let Some(packet) = Packet::<V6>::parse(frame.network, frame.end) else { return Ok(Verdict::PASS) };
    let Some((id, vip)) = vip::of(frame, interface, &packet) else { return Ok(Verdict::PASS) };
    match is_of_local_flow(&Source { frame, interface, vip }, &packet, id) {
        Some(true) => pass_on(Scratch::default(), Verdict::NEW),
        _ => Ok(Verdict::PASS),
    }
}

/// Returns whether the packet's flow has a live record of a backend on this node; `None`: it has no
/// record. Such a record decides about the packet in the next program, too.
#[inline(always)]
fn is_of_local_flow<const V6: bool>(source: &Source, packet: &Packet<V6>, id: u32) -> Option<bool> {
    let &Source { frame, vip, .. } = source;
    let transport = packet.transport(frame, Some(frame.available())).ok()?;
    let target = if transport.fragment & LATER != 0 {
        fragment::target(&fragment::find(&packet.fragment(&transport))?, vip)?
    } else if transport.protocol == Packet::<V6>::ICMP {
        let key = Embedded::<V6>::parse(frame, &transport, frame.end)?.flow(id, &packet.destination)?;
        flow_entry::look(&key, vip)?.0
    } else {
        let segment = transport.segment(frame.end).ok()?;
        let key = segment.flow(packet.source, id);
        let place = position::place(config(), &key);
        let entry = FlowEntry::get(config(), &key, place, vip)?;
        // A record of another node's backend must stay as it is.
        if !entry.is_local() {
            return None;
        }
        entry.destination(&segment, source, time::now()).ok()??.target
    };
    Some(target.local.is_some())
}
