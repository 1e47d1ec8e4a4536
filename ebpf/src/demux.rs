//! The walk of a packet to a VIP: to a backend, to its node, or to an answer.

use vipmux_common::{
    abi::{DropReason, FRAGMENT_KERNEL, FragmentKey, Interface, SERVICE_DIRECT, SERVICE_KERNEL, Stat, VipValue},
    hash,
};

use crate::{
    budget, count,
    flow::{self, Found},
    forward, fragment,
    frame::Frame,
    icmp::{self, Embedded},
    maps::VIPS,
    nat, neighbor,
    packet::{FIRST, LATER, Packet},
    reject, service,
    verdict::{Outcome, Verdict},
};

/// The walk of an IP packet that is addressed to this interface's MAC.
#[inline(always)]
pub(crate) fn receive<const V6: bool>(frame: &Frame, interface: &Interface) -> Outcome {
    let Some(packet) = Packet::<V6>::parse(frame.network, frame.end) else { return Ok(Verdict::PASS) };
    let Some(vip) = VIPS.get_ptr(&packet.destination) else { return Ok(Verdict::PASS) };
    // SAFETY: a map value, which stays in place for the whole run.
    let vip = unsafe { &*vip };
    let now = flow::now();
    if !neighbor::is_announced(vip, frame, interface) || neighbor::is_abandoned(now) {
        return Ok(Verdict::PASS);
    }
    let transport = packet.transport(frame, Some(frame.available()))?;
    let handed_over = frame.source.is_handover();
    if handed_over {
        count::stat(Stat::FromPeer, frame.length());
    }
    if transport.fragment & LATER != 0 {
        return later(frame, interface, &packet, &packet.fragment(&transport), handed_over);
    }
    if transport.protocol == Packet::<V6>::ICMP {
        if transport.fragment != 0 {
            return Err(DropReason::Fragment.into());
        }
        return match Embedded::<V6>::parse(transport.at, frame.end) {
            Some(embedded) => error(frame, interface, &packet, vip, transport.at, &embedded, handed_over),
            None => reject::echo(frame, &packet, transport.at, interface),
        };
    }
    let segment = transport.segment(frame.end)?;
    let key = segment.flow(packet.source, vip.id);
    let tag = hash::flow(&key);

    let (found, new) = match flow::find(&key, tag, &segment, now) {
        Some(found) if service::is_fit(&found.target, frame, handed_over) => {
            if found.ranges != 0 && !service::allows(found.ranges, &packet.source) {
                return Err(DropReason::SourceRange.into());
            }
            (found, false)
        }
        _ => {
            let service = service::find(&key, vip)?;
            if service.flags & SERVICE_KERNEL != 0 {
                if transport.fragment & FIRST != 0 && !fragment::record_kernel(&packet.fragment(&transport), now) {
                    return Err(DropReason::RecordFailed.into());
                }
                return Ok(Verdict::KERNEL);
            }
            let state = service::state(&service).ok_or(DropReason::NoService)?;
            if state.ranges != 0 && !service::allows(state.ranges, &packet.source) {
                return Err(DropReason::SourceRange.into());
            }
            let target = service::pick(&key, tag, &service, frame, handed_over, now)?;
            let new = budget::record(now);
            if new && flow::record(&key, tag, &target, &service, now) {
                count::stat(Stat::NewFlows, frame.length());
            }
            let found = Found {
                target,
                slot: service.slot,
                flags: state.flags,
                idle: state.idle,
                ranges: 0,
                recorded: new,
            };
            (found, new)
        }
    };
    count::service(found.slot, frame.length(), new);
    if transport.fragment & FIRST != 0 && !fragment::record(&packet.fragment(&transport), &found, now) {
        return Err(DropReason::RecordFailed.into());
    }
    match found.target.local {
        Some(_) if found.flags & SERVICE_DIRECT != 0 => Ok(Verdict::DIRECT),
        Some(backend) => nat::deliver(frame, interface, &packet, &transport, &segment, backend, &found, now),
        None => {
            if !found.recorded {
                count::stat(Stat::Unrecorded, frame.length());
            }
            forward::hand_over_segment(frame, &packet, &transport, &segment, interface, service::node(&found.target)?)
        }
    }
}

/// An ICMP error about a reply goes where the flow goes.
#[inline(always)]
fn error<const V6: bool>(
    frame: &Frame,
    interface: &Interface,
    packet: &Packet<V6>,
    vip: &VipValue,
    at: usize,
    embedded: &Embedded<V6>,
    handed_over: bool,
) -> Outcome {
    let key = embedded.flow(vip.id, &packet.destination).ok_or(DropReason::Icmp)?;
    let tag = hash::flow(&key);
    let (target, flags) = match flow::look(&key, tag) {
        Some((target, flags)) if service::is_fit(&target, frame, handed_over) => (target, flags),
        _ => {
            let service = service::find(&key, vip).map_err(|_| DropReason::Icmp)?;
            if service.flags & SERVICE_KERNEL != 0 {
                return Ok(Verdict::KERNEL);
            }
            let hash = if service.affinity == 0 { tag } else { hash::client(&key.client) };
            let flags = service::state(&service).map_or(0, |state| state.flags);
            (service::choose(&service, hash, frame, handed_over)?, flags)
        }
    };
    match target.local {
        Some(_) if flags & SERVICE_DIRECT != 0 => Ok(Verdict::DIRECT),
        Some(backend) => Ok(icmp::deliver(frame, packet, at, embedded, backend)),
        None => forward::hand_over(frame, packet, interface, service::node(&target)?),
    }
}

/// A fragment without ports goes where the first one of its datagram went.
#[inline(always)]
fn later<const V6: bool>(
    frame: &Frame,
    interface: &Interface,
    packet: &Packet<V6>,
    key: &FragmentKey,
    handed_over: bool,
) -> Outcome {
    let value = fragment::find(key).ok_or(DropReason::Fragment)?;
    if value.backend == FRAGMENT_KERNEL {
        return Ok(Verdict::KERNEL);
    }
    let target = fragment::target(&value).ok_or(DropReason::Fragment)?;
    if !service::is_fit(&target, frame, handed_over) {
        let reason = if handed_over { DropReason::NotLocal } else { DropReason::Hairpin };
        return Err(reason.into());
    }
    count::service(value.slot, frame.length(), false);
    match target.local {
        Some(_) if value.direct != 0 => Ok(Verdict::DIRECT),
        Some(backend) => Ok(nat::deliver_later(frame, packet, backend)),
        None => forward::hand_over(frame, packet, interface, service::node(&target)?),
    }
}
