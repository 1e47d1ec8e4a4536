//! Address and port translation: to a local backend, and of its replies back to the VIP.

use aya_ebpf::{
    bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR},
    programs::TcContext,
};
use vipmux_common::{
    abi::{Address, Backend, DropReason, FragmentKey, ReverseKey, ReverseValue, Stat},
    checksum,
};

use crate::{
    Action, count,
    flow::{self, Reply},
    fragment,
    icmp::{self, Embedded},
    packet::{Frame, ICMP, Ipv4, Part, Segment, TCP, pin, read, write},
};

/// Makes the backend the destination; the stack takes it from there, and sees an ordinary connection from the client.
#[inline(always)]
pub(crate) fn deliver(
    frame: &Frame,
    packet: &Ipv4,
    segment: &Segment,
    backend: &Backend,
    now: u64,
) -> Result<Action, DropReason> {
    let key = ReverseKey {
        backend: backend.address,
        client: Address::v4(packet.source),
        backend_port: backend.port,
        client_port: segment.source_port,
        protocol: segment.protocol,
    };
    flow::remember(&key, Address::v4(packet.destination), segment, now)?;

    let of_address = set_destination(packet, backend.address.w3);
    let change = of_address + checksum::change(u32::from(segment.destination_port), u32::from(backend.port));
    // SAFETY: `Transport::segment` compared these headers with the end.
    unsafe {
        let at = segment.transport;
        write::<2, _>(at, backend.port);
        if segment.protocol == TCP {
            write::<16, _>(at, checksum::update(read::<16, _>(at), change));
        } else {
            let field: u16 = read::<6, _>(at);
            // RFC 768: zero means that there is none, so a computed zero is sent as all ones.
            if field != 0 {
                let updated = checksum::update(field, change);
                write::<6, _>(at, if updated == 0 { 0xffff } else { updated });
            }
        }
    }
    count::stat(Stat::Local, frame.length());
    Ok(Action::Deliver)
}

/// The later fragment of a datagram whose first one was delivered here.
#[inline(always)]
pub(crate) fn deliver_later(frame: &Frame, packet: &Ipv4, backend: &Backend) -> Action {
    set_destination(packet, backend.address.w3);
    count::stat(Stat::Local, frame.length());
    Action::Deliver
}

/// Writes the destination address; what that means to a checksum over it.
#[inline(always)]
pub(crate) fn set_destination(packet: &Ipv4, address: u32) -> u64 {
    let change = checksum::change(packet.destination, address);
    let at = packet.at;
    // SAFETY: `Ipv4::parse` compared the fixed header with the end.
    unsafe {
        write::<10, _>(at, checksum::update(read::<10, _>(at), change));
        write::<16, _>(at, address);
    }
    change
}

/// Turns a local backend's reply back into one of the VIP. `network` is the offset of the IPv4 header.
///
/// `Ok(false)`: not a reply of ours, left alone.
#[inline(always)]
pub(crate) fn restore(context: &TcContext, network: usize) -> Result<bool, DropReason> {
    pull(context, network);
    let (start, end) = (pin(context.data()), pin(context.data_end()));
    let Some(packet) = Ipv4::parse(pin(start + network), end) else { return Ok(false) };
    let Ok(transport) = packet.transport(None) else { return Ok(false) };
    if transport.part == Part::Later {
        return restore_later(context, network, &packet.fragment(&transport));
    }
    if transport.protocol == ICMP {
        return match Embedded::parse(transport.at, end) {
            Some(embedded) if transport.part == Part::Whole => {
                icmp::restore(context, network, transport.at - start, packet.source, &embedded)
            }
            _ => Ok(false),
        };
    }
    let Ok(segment) = transport.segment(end) else { return Ok(false) };
    let key = ReverseKey {
        backend: Address::v4(packet.source),
        client: Address::v4(packet.destination),
        backend_port: segment.source_port,
        client_port: segment.destination_port,
        protocol: segment.protocol,
    };
    let reply = match flow::reply(&key, segment.flags, segment.acknowledged, flow::now()) {
        Reply::Foreign => return Ok(false),
        Reply::Direct => {
            count::stat(Stat::DirectReplies, u64::from(context.len()));
            return Ok(false);
        }
        Reply::Of(reply) => reply,
    };
    if transport.part == Part::First && !fragment::record_egress(&packet.fragment(&transport), reply.vip) {
        return Err(DropReason::ReplyFailed);
    }
    rewrite(context, network, segment.transport - start, &key, &reply).map_err(|_| DropReason::ReplyFailed)?;
    count::stat(Stat::Replies, u64::from(context.len()));
    Ok(true)
}

/// A later fragment has neither ports nor checksum: only its source changes, as the first one's did.
#[inline(always)]
fn restore_later(context: &TcContext, network: usize, key: &FragmentKey) -> Result<bool, DropReason> {
    let Some(vip) = fragment::find_egress(key) else { return Ok(false) };
    set_source(context, network, key.source.w3, vip.w3).map_err(|_| DropReason::ReplyFailed)?;
    count::stat(Stat::Replies, u64::from(context.len()));
    Ok(true)
}

/// Makes the headers directly readable: enough for the longest IPv4 header and a TCP header, or all there is. The linear
/// part of a forwarded packet can be shorter. What stays out of reach is not translated.
#[inline(always)]
fn pull(context: &TcContext, network: usize) {
    let wanted = (network as u32 + 80).min(context.len());
    if context.data() + wanted as usize > context.data_end() {
        let _ = context.pull_data(wanted);
    }
}

/// By the checksum helpers alone: they know partial checksums and GSO.
#[inline(always)]
fn rewrite(
    context: &TcContext,
    network: usize,
    transport: usize,
    key: &ReverseKey,
    reply: &ReverseValue,
) -> Result<(), i64> {
    let (field, mangled) = if key.protocol == TCP { (16, 0) } else { (6, u64::from(BPF_F_MARK_MANGLED_0)) };
    let (backend, vip) = (key.backend.w3, reply.vip.w3);
    let pseudo = u64::from(BPF_F_PSEUDO_HDR) | mangled;
    context.l4_csum_replace(transport + field, u64::from(backend), u64::from(vip), pseudo | 4)?;
    context.l4_csum_replace(transport + field, u64::from(key.backend_port), u64::from(reply.vip_port), mangled | 2)?;
    context.store(transport, &reply.vip_port, 0)?;
    set_source(context, network, backend, vip)
}

#[inline(always)]
pub(crate) fn set_source(context: &TcContext, network: usize, from: u32, to: u32) -> Result<(), i64> {
    context.l3_csum_replace(network + 10, u64::from(from), u64::from(to), 4)?;
    context.store(network + 12, &to, 0)
}
