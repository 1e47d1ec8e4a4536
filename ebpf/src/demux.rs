//! From (VIP, protocol, port) to a backend.

use vipmux_common::{
    abi::{Address, DropReason, FlowKey, FragmentKey, Interface, NODE_ATTACHED, Node, ServiceKey, ServiceValue, Stat},
    hash,
};

use crate::{
    Action, count,
    flow::{self, Target},
    forward, fragment,
    icmp::{self, Embedded},
    maps::{NODES, SERVICES, TABLES, VIPS},
    nat, neighbor,
    packet::{Frame, ICMP, Ipv4, Part},
    reject,
};

/// The walk of an IPv4 packet that is addressed to this interface's MAC.
#[inline(always)]
pub(crate) fn ipv4(frame: &Frame, interface: &Interface) -> Result<Action, DropReason> {
    let Some(packet) = Ipv4::parse(frame.network, frame.end) else { return Ok(Action::Pass) };
    let Some(vip) = VIPS.get_ptr(Address::v4(packet.destination)) else { return Ok(Action::Pass) };
    // SAFETY: a map value, which stays in place for the whole run.
    let vip = unsafe { &*vip };
    if !neighbor::is_announced(vip, frame, interface) {
        return Ok(Action::Pass);
    }
    let transport = packet.transport(Some(frame.end - packet.at))?;
    if transport.part == Part::Later {
        return later(frame, interface, &packet, &packet.fragment(&transport));
    }
    if transport.protocol == ICMP {
        return match (transport.part, Embedded::parse(transport.at, frame.end)) {
            (Part::Whole, Some(embedded)) => error(frame, interface, &packet, vip.id, transport.at, &embedded),
            (Part::Whole, None) => reject::echo(frame, &packet, transport.at, interface),
            _ => Err(DropReason::Fragment),
        };
    }
    let segment = transport.segment(frame.end)?;
    let key = segment.flow(packet.source, vip.id);
    let hash = hash::flow(&key);
    let now = flow::now();
    let handed_over = frame.source.is_handover();
    if handed_over {
        count::stat(Stat::FromPeer, frame.length());
    }

    let found = flow::find(&key, hash, &segment, now).filter(|(target, _)| is_fit(target, frame, handed_over));
    let (target, slot, new) = match found {
        Some((target, slot)) => (target, slot, false),
        None => {
            let service = service(&key)?;
            let target = choose(&service, hash, frame, handed_over)?;
            let new = flow::record(&key, hash, &target, &service, now);
            if new {
                count::stat(Stat::NewFlows, frame.length());
            }
            (target, service.slot, new)
        }
    };
    count::service(slot, frame.length(), new);
    if transport.part == Part::First && !fragment::record(&packet.fragment(&transport), &target, slot, now) {
        return Err(DropReason::RecordFailed);
    }
    match target.local {
        Some(backend) => nat::deliver(frame, &packet, &segment, backend, now),
        None => forward::hand_over(frame, &packet, interface, node(&target)?),
    }
}

/// An ICMP error about a reply goes where the flow goes.
#[inline(always)]
fn error(
    frame: &Frame,
    interface: &Interface,
    packet: &Ipv4,
    vip: u32,
    at: usize,
    embedded: &Embedded,
) -> Result<Action, DropReason> {
    let key = embedded.flow(vip, packet.destination).ok_or(DropReason::Icmp)?;
    let hash = hash::flow(&key);
    let handed_over = frame.source.is_handover();
    if handed_over {
        count::stat(Stat::FromPeer, frame.length());
    }
    let target = match flow::look(&key, hash).filter(|target| is_fit(target, frame, handed_over)) {
        Some(target) => target,
        None => choose(&service(&key).map_err(|_| DropReason::Icmp)?, hash, frame, handed_over)?,
    };
    match target.local {
        Some(backend) => Ok(icmp::deliver(frame, packet, at, embedded, backend)),
        None => forward::hand_over(frame, packet, interface, node(&target)?),
    }
}

/// A fragment without ports goes where the first one of its datagram went.
#[inline(always)]
fn later(frame: &Frame, interface: &Interface, packet: &Ipv4, key: &FragmentKey) -> Result<Action, DropReason> {
    let (target, slot) = fragment::find(key).ok_or(DropReason::Fragment)?;
    let handed_over = frame.source.is_handover();
    if handed_over {
        count::stat(Stat::FromPeer, frame.length());
    }
    if !is_fit(&target, frame, handed_over) {
        return Err(if handed_over { DropReason::NotLocal } else { DropReason::Hairpin });
    }
    count::service(slot, frame.length(), false);
    match target.local {
        Some(backend) => Ok(nat::deliver_later(frame, packet, backend)),
        None => forward::hand_over(frame, packet, interface, node(&target)?),
    }
}

/// A copy of the Service port's revision: the element itself may be replaced at any time.
#[inline(always)]
fn service(key: &FlowKey) -> Result<ServiceValue, DropReason> {
    let claim = ServiceKey { vip: key.vip, port: key.vip_port, protocol: key.protocol as u8, padding: 0 };
    // SAFETY: elements are never changed in place, only replaced whole, and freed after the run.
    unsafe { SERVICES.get(claim) }.copied().ok_or(DropReason::NoService)
}

#[inline(always)]
fn node(target: &Target) -> Result<&'static Node, DropReason> {
    match NODES.get(target.node) {
        Some(node) if node.flags & NODE_ATTACHED != 0 => Ok(node),
        _ => Err(DropReason::NodeUnreachable),
    }
}

/// Whether a frame may go to this backend: a handed-over one only to a local one, and none back to where it came from.
#[inline(always)]
fn is_fit(target: &Target, frame: &Frame, handed_over: bool) -> bool {
    target.local.is_some() || !handed_over && node(target).is_ok_and(|node| node.mac != frame.source)
}

#[inline(always)]
fn at(table: u32, length: u32, hash: u32) -> Option<Target> {
    let index = TABLES.get(table.wrapping_add(hash::slot(hash, length)))?;
    Target::get(*index)
}

/// The table's backend for a new flow, or the next best where it cannot be taken.
#[inline(always)]
fn choose(service: &ServiceValue, hash: u32, frame: &Frame, handed_over: bool) -> Result<Target, DropReason> {
    if service.table_length == 0 {
        return Err(DropReason::NoBackend);
    }
    let first = at(service.table, service.table_length, hash).ok_or(DropReason::NoBackend)?;
    if is_fit(&first, frame, handed_over) {
        return Ok(first);
    }
    if service.local_length != 0 {
        return at(service.local_table, service.local_length, hash).ok_or(DropReason::NoBackend);
    }
    if handed_over {
        return Err(DropReason::NotLocal);
    }
    let came_back = NODES.get(first.node).is_some_and(|node| node.mac == frame.source);
    let mut next = hash;
    for _ in 0..hash::PROBES {
        next = hash::next(next);
        if let Some(target) = at(service.table, service.table_length, next)
            && is_fit(&target, frame, handed_over)
        {
            return Ok(target);
        }
    }
    Err(if came_back { DropReason::Hairpin } else { DropReason::NodeUnreachable })
}
