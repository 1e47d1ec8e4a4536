//! The way of a packet to a VIP: to a backend, to another node, or to an answer.
//!
//! It has three parts, each in its own program. So the verifier has three small problems instead of
//! their product, and each part has its own stack. [`established`] handles flows with a record,
//! which are nearly all packets. [`new`] makes records. [`slow_path`] handles the rest.
//!
//! A SYN is taken for new at once. While memory delivers its set of the flow table, [`new`] chooses a
//! backend. If the flow has a record after all, or none can be chosen, [`new`] runs again and looks
//! for the record first.

use core::ptr;

use vipmux_common::{
    abi::{
        Config, DropReason, FRAGMENT_KERNEL, FragmentKey, Interface, RESULT_ABANDONED, RESULT_NEW, RESULT_NO_BACKEND,
        RESULT_NO_SERVICE, RESULT_OPENING, RESULT_UNDELIVERABLE, RESULT_VIP, SERVICE_DIRECT, SERVICE_KERNEL, Scratch,
        Stat,
    },
    hash,
};

use crate::{
    abandoned, client, count,
    destination::{Destination, EntryState},
    extensions::LATER,
    flow_entry::{self, FlowEntry},
    forward, fragment,
    frame::{self, Frame},
    icmp::{self, Embedded},
    maps::{SCRATCH, config},
    nat, neighbor,
    packet::{FARTHEST, Packet, Transport},
    peer, position, record, reject,
    scratch::{look_for_record, pass_on, try_another_backend},
    segment::SegmentContext,
    service::{self, Source},
    time,
    verdict::{Outcome, Verdict},
    vip,
    wire::{opaque, pin, unknown_zero},
};

/// Handles an IP packet that is addressed to this interface's MAC.
#[inline(always)]
pub(crate) fn established<const V6: bool>(frame: &Frame, interface: &Interface) -> Outcome {
    let Some(packet) = Packet::<V6>::parse(frame.network, frame.end) else { return Ok(Verdict::PASS) };
    let Some((id, flags)) = vip::of(frame, interface, &packet) else { return Ok(Verdict::PASS) };
    let handed_over = flags.is_handed_over();
    let (config, now) = (config(), time::now());
    if neighbor::is_abandoned(config, now) && !handed_over && !peer::has_handed_over_elsewhere(frame, interface) {
        return pass_on(Scratch { result: RESULT_ABANDONED, ..Scratch::default() }, Verdict::SLOW);
    }
    let Some(transport) = packet.whole(frame.available()) else { return pass_on(Scratch::default(), Verdict::NEW) };
    let Ok(segment) = transport.segment(frame.end) else { return pass_on(Scratch::default(), Verdict::NEW) };
    let key = segment.flow(packet.source, id);
    let with = |result| Scratch { result, vip: id, vip_flags: flags.0, attempts: 0 };
    if segment.is_syn() {
        return pass_on(with(RESULT_OPENING), Verdict::NEW);
    }
    let context = SegmentContext { frame, interface, packet: &packet, transport: &transport, segment: &segment };
    let source = Source { frame, interface, vip: flags };
    let Some(entry) = FlowEntry::get(config, &key, position::place(config, &key), flags) else {
        return pass_on(with(RESULT_NEW), Verdict::NEW);
    };
    if let Some(node) = entry.plain_node(config, &segment, &source, now)
        && forward::is_plain(config, interface)
    {
        count::service(entry.slot(), frame.length, false);
        return forward::send(frame, &packet, node, config.handover, None, (false, 0));
    }
    if let Some(backend) = entry.plain_backend(config, &segment, now) {
        if handed_over {
            count::stat(Stat::FromPeer, frame.length);
        }
        count::service(entry.slot(), frame.length, false);
        return nat::deliver(&context, backend);
    }
    let destination = match entry.destination(&segment, &source, now) {
        Ok(Some(destination)) => destination,
        Ok(None) => return pass_on(with(RESULT_NEW), Verdict::NEW),
        Err(reason) => {
            if handed_over {
                count::stat(Stat::FromPeer, frame.length);
            }
            return Err(reason.into());
        }
    };
    if matches!(destination.entry, EntryState::Partial | EntryState::Renewed | EntryState::Reserve) {
        return pass_on(Scratch::default(), Verdict::NEW);
    }
    if handed_over {
        count::stat(Stat::FromPeer, frame.length);
    }
    if destination.ranges != 0 && !client::is_allowed(destination.ranges, &packet.source) {
        return Err(DropReason::SourceRange.into());
    }
    count::service(destination.slot, frame.length, false);
    send::<V6, true>(config, &context, &destination)
}

/// Handles an IP packet that is addressed to this interface's MAC, if [`established`] does not know
/// its flow.
#[inline(always)]
pub(crate) fn new<const V6: bool>(frame: &Frame, interface: &Interface) -> Outcome {
    let Some(packet) = Packet::<V6>::parse(frame.network, frame.end) else { return Ok(Verdict::PASS) };
    let scratch = SCRATCH.get_ptr_mut(0).ok_or(Verdict::PASS)?;
    // Read for each use, since the stack has no room.
    // SAFETY: a per-CPU value.
    let result = move || unsafe { ptr::read_volatile(&raw const (*scratch).result) };
    // SAFETY: as above.
    let attempts = move || unsafe { ptr::read_volatile(&raw const (*scratch).attempts) };
    let is_opening = || result() == RESULT_OPENING;
    if !matches!(result(), RESULT_NEW | RESULT_OPENING | RESULT_VIP) {
        let Some((id, flags)) = vip::of(frame, interface, &packet) else { return Ok(Verdict::PASS) };
        // SAFETY: as above.
        unsafe { *scratch = Scratch { vip: id, vip_flags: flags.0, ..Scratch::default() } };
    }
    // Read back, since the verifier would check the rest for each way to find the VIP.
    // SAFETY: as above.
    let id = unsafe { ptr::read_volatile(&raw const (*scratch).vip) };
    // Read for each use, since the verifier would check the rest for packets that were handed over, and again for
    // others.
    // SAFETY: as above.
    let flags = move || vip::Flags(unsafe { ptr::read_volatile(&raw const (*scratch).vip_flags) });
    let zero = unknown_zero(id.into());
    let transport = packet.transport(frame, Some(frame.available()))?;
    let offset = (transport.at - frame.start) & FARTHEST;
    let transport = Transport { at: pin(frame.start + offset), ..transport.unknown(zero) };
    if transport.fragment & LATER != 0 || transport.protocol == Packet::<V6>::ICMP {
        return pass_on(Scratch::default(), Verdict::SLOW);
    }
    let segment = transport.segment(frame.end)?.unknown(zero);
    let key = segment.flow(packet.source, id);
    let place = position::place(config(), &key);
    position::fetch(place.set(config().flow_mask));
    if flags().is_handed_over() && attempts() == 0 && result() != RESULT_VIP {
        count::stat(Stat::FromPeer, frame.length);
    }
    let source = || Source { frame, interface, vip: flags() };
    let recorded = match result() {
        RESULT_NEW | RESULT_OPENING => None,
        _ => flow_entry::find(config(), &key, place, &segment, &source(), time::now())?,
    };
    let (mut destination, is_new, to_remember) = match recorded {
        Some(destination) => {
            if destination.ranges != 0 && !client::is_allowed(destination.ranges, &packet.source) {
                return Err(DropReason::SourceRange.into());
            }
            (destination, false, false)
        }
        None => {
            // A VIP's answers would come here again. Two VIPs that answer everything would loop
            // forever.
            if vip::is_vip(&packet.source) {
                return Err(DropReason::Malformed.into());
            }
            let service = service::find(&key, flags())?;
            let state = service::state(&service).ok_or(DropReason::NoService)?;
            if state.ranges != 0 && !client::is_allowed(state.ranges, &packet.source) {
                return Err(DropReason::SourceRange.into());
            }
            if service.flags & SERVICE_KERNEL != 0 {
                if is_opening() {
                    return look_for_record();
                }
                fragment::record_kernel(&packet, &transport, time::now())?;
                return Ok(Verdict::KERNEL);
            }
            let (target, to_remember) = match service::pick(&key, &service, &packet.destination, &source(), attempts())
            {
                Ok(picked) => picked,
                Err(_) if is_opening() => return look_for_record(),
                Err(reason) => return Err(reason.into()),
            };
            let (slot, slot_generation, flags) = (service.slot, service.generation, state.flags);
            let destination =
                Destination { target, slot, slot_generation, flags, ranges: 0, entry: EntryState::Partial };
            (destination, true, to_remember)
        }
    };
    if matches!(destination.entry, EntryState::Partial | EntryState::Renewed | EntryState::Reserve) {
        destination.entry = record::record(&key, place, &destination, &segment, time::now());
    }
    match destination.entry {
        EntryState::Existing => return look_for_record(),
        EntryState::Collision if (is_new || segment.is_syn()) && attempts() < hash::MOST_ATTEMPTS => {
            return try_another_backend();
        }
        _ => {}
    }
    let is_recorded = is_new && destination.entry == EntryState::Present;
    if is_recorded && to_remember {
        client::remember(&packet.source, &destination);
    }
    if is_recorded {
        count::stat(Stat::NewFlows, frame.length);
    }
    count::service(destination.slot, frame.length, is_recorded);
    fragment::record(&packet, &transport, &destination, time::now())?;
    let at = pin(frame.start + opaque(offset as u64) as usize);
    let transport = Transport { at, protocol: segment.protocol, ..transport };
    // Read again, since the stack has no room.
    let (_, end) = frame::bounds(frame.context);
    let segment = transport.segment(end)?;
    let context = SegmentContext { frame, interface, packet: &packet, transport: &transport, segment: &segment };
    send::<V6, false>(config(), &context, &destination)
}

/// A packet that no Service or no backend takes continues to the program that answers it.
#[inline(always)]
pub(crate) fn claimed(outcome: Outcome) -> Verdict {
    let verdict = Verdict::of(outcome);
    let result = match verdict {
        Verdict::NO_SERVICE => RESULT_NO_SERVICE,
        Verdict::NO_BACKEND => RESULT_NO_BACKEND,
        verdict => return verdict,
    };
    Verdict::of(pass_on(Scratch { result, ..Scratch::default() }, Verdict::SLOW))
}

/// Returns why a packet cannot be handed over that is about a flow, or a fragment. Nobody is told.
#[inline(always)]
pub(crate) fn undeliverable() -> Verdict {
    match SCRATCH.get(0) {
        Some(Scratch { vip: 0, .. }) => Verdict::drop(DropReason::TtlExceeded),
        _ => Verdict::drop(DropReason::TooBig),
    }
}

/// Handles the remaining packets to a VIP: without ports, or without a backend.
#[inline(always)]
pub(crate) fn slow_path<const V6: bool>(frame: &Frame, interface: &Interface) -> Outcome {
    let scratch = SCRATCH.get(0).ok_or(Verdict::PASS)?;
    match scratch.result {
        RESULT_NO_SERVICE => return Ok(reject::unclaimed::<V6>(frame, interface, DropReason::NoService)),
        RESULT_NO_BACKEND => return Ok(reject::unclaimed::<V6>(frame, interface, DropReason::NoBackend)),
        RESULT_ABANDONED => return abandoned::receive::<V6>(frame, interface),
        RESULT_UNDELIVERABLE => return Ok(reject::undeliverable::<V6>(frame, interface, scratch.vip)),
        _ => {}
    }
    let Some(packet) = Packet::<V6>::parse(frame.network, frame.end) else { return Ok(Verdict::PASS) };
    let Some((id, flags)) = vip::of(frame, interface, &packet) else { return Ok(Verdict::PASS) };
    let source = Source { frame, interface, vip: flags };
    let transport = packet.transport(frame, Some(frame.available()))?;
    if flags.is_handed_over() {
        count::stat(Stat::FromPeer, frame.length);
    }
    if transport.fragment & LATER != 0 {
        return later(&source, &packet, &packet.fragment(&transport));
    }
    if transport.fragment != 0 {
        return Err(DropReason::Fragment.into());
    }
    match Embedded::<V6>::parse(frame, &transport, frame.end) {
        Some(embedded) => error(&source, &packet, id, transport.at, &embedded),
        None => reject::echo(frame, &packet, &transport, interface),
    }
}

/// Sends the packet to the backend. `RECORDED`: a record's, which [`flow_entry::find`] has returned.
#[inline(always)]
fn send<const V6: bool, const RECORDED: bool>(
    config: &Config,
    context: &SegmentContext<'_, V6>,
    destination: &Destination,
) -> Outcome {
    match destination.target.local {
        // Its replies would not be translated, or the program that sends it finds the backend by
        // the record.
        Some(_) if destination.entry == EntryState::NoRoom => Err(DropReason::RecordLimited.into()),
        Some(_) if destination.entry == EntryState::Collision => Err(DropReason::TupleCollision.into()),
        Some(_) if destination.flags & SERVICE_DIRECT != 0 => Ok(Verdict::DIRECT),
        Some(backend) => nat::deliver(context, backend),
        None => {
            let node = match destination.target.remote {
                // `Source::is_fit` has just checked it.
                Some(node) if RECORDED => node,
                _ => service::node(&destination.target)?,
            };
            if destination.entry != EntryState::Present {
                count::stat(Stat::Unrecorded, context.frame.length);
            }
            forward::hand_over_segment(config, context, node)
        }
    }
}

/// Sends an ICMP error about a reply after its flow.
#[inline(always)]
fn error<const V6: bool>(source: &Source, packet: &Packet<V6>, id: u32, at: usize, embedded: &Embedded<V6>) -> Outcome {
    let key = embedded.flow(id, &packet.destination).ok_or(DropReason::Icmp)?;
    let &Source { frame, interface, vip } = source;
    let (target, state) = match flow_entry::look(&key, vip) {
        Some((target, state)) if service::is_fit(&target, source) => (target, state),
        _ => {
            let service = service::find(&key, vip).map_err(|_| DropReason::Icmp)?;
            if service.flags & SERVICE_KERNEL != 0 {
                return Ok(Verdict::KERNEL);
            }
            let state = service::state(&service).ok_or(DropReason::NoService)?;
            (service::choose(&service, service::hash(&key, &service, &packet.destination), source)?, state.flags)
        }
    };
    match target.local {
        Some(_) if state & SERVICE_DIRECT != 0 => Ok(Verdict::DIRECT),
        Some(backend) => Ok(icmp::deliver(frame, packet, at, embedded, backend)),
        None => {
            let node = service::node(&target)?;
            forward::hand_over(config(), frame, packet, interface, node)
        }
    }
}

/// Sends a fragment without ports after its datagram's first fragment.
#[inline(always)]
fn later<const V6: bool>(source: &Source, packet: &Packet<V6>, key: &FragmentKey) -> Outcome {
    let &Source { frame, interface, vip } = source;
    let value = fragment::find(key).ok_or(DropReason::Fragment)?;
    if value.backend == FRAGMENT_KERNEL {
        return Ok(Verdict::KERNEL);
    }
    let target = fragment::target(&value, vip).ok_or(DropReason::Fragment)?;
    if !service::is_fit(&target, source) {
        if vip.is_handed_over() {
            return Err(DropReason::NotLocal.into());
        }
        service::node(&target)?;
        return Err(DropReason::Hairpin.into());
    }
    count::service(value.slot, frame.length, false);
    match target.local {
        Some(_) if value.direct != 0 => Ok(Verdict::DIRECT),
        Some(backend) => Ok(nat::deliver_later(frame, packet, backend)),
        None => {
            let node = service::node(&target)?;
            forward::hand_over(config(), frame, packet, interface, node)
        }
    }
}
