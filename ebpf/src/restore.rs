//! Translates replies of local backends back to the VIP's.
//!
//! It only uses the checksum helpers, which handle partial checksums and GSO. They also make the
//! changed bytes this packet's own. Where the kernel has no memory for that, the reply is dropped.

use core::ptr;

use aya_ebpf::{
    bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR},
    helpers::bpf_csum_diff,
    programs::TcContext,
};
use vipmux_common::{
    abi::{Address, DropReason, FragmentKey, Stat},
    checksum,
};

use crate::{
    count,
    extensions::{FIRST, LATER},
    fragment,
    icmp::{self, Embedded},
    linear,
    packet::{Packet, SCTP, TCP},
    reply::{self, Origin, Reply, ReplyKey},
    time,
    wire::{pin, unknown_zero},
};

/// Translates a local backend's reply to one of the VIP. Other packets stay unchanged. `network` is
/// the offset of the IP header.
#[inline(always)]
pub(crate) fn restore<const V6: bool>(context: &TcContext, network: usize) -> Result<(), DropReason> {
    let (start, end) = (pin(context.data()), pin(context.data_end()));
    let Some(packet) = Packet::<V6>::parse(pin(start + network), end) else { return Ok(()) };
    let Ok(transport) = packet.transport(context, None) else { return Ok(()) };
    if transport.fragment & LATER != 0 {
        return restore_later::<V6>(context, network, &packet.fragment(&transport));
    }
    if transport.protocol == Packet::<V6>::ICMP {
        return match Embedded::<V6>::parse(context, &transport, end) {
            Some(embedded) if transport.fragment == 0 => {
                let at = (transport.at - start, embedded.ports - start);
                error(context, network, at, &packet.source, &embedded)
            }
            _ => Ok(()),
        };
    }
    let Some(segment) = linear::segment(context, &transport, start, end) else { return Ok(()) };
    // Most packets that leave a node are of no backend.
    if !reply::is_local(&packet.source, segment.source_port) {
        return Ok(());
    }
    let zero = unknown_zero(packet.source.w3.into());
    let (transport, segment) = (transport.unknown(zero), segment.unknown(zero));
    let key = ReplyKey {
        backend: packet.source,
        client: packet.destination,
        backend_port: segment.source_port,
        client_port: segment.destination_port,
        protocol: segment.protocol,
    };
    let reply = match reply::reply(&key, segment.flags, segment.acknowledged, time::now()) {
        Reply::Foreign => return Ok(()),
        Reply::Direct => {
            count::stat(Stat::DirectReplies, u64::from(context.len()));
            return Ok(());
        }
        Reply::Of(reply) => reply,
    };
    if transport.fragment & FIRST != 0 && !fragment::record_egress(&packet.fragment(&transport), reply.vip) {
        return Err(DropReason::ReplyFailed);
    }
    rewrite::<V6>(context, network, transport.at - start, &key, &reply).map_err(|_| DropReason::ReplyFailed)?;
    count::stat(Stat::Replies, u64::from(context.len()));
    Ok(())
}

/// A later fragment has neither ports nor checksum: only its source changes, like the first one's.
#[inline(always)]
fn restore_later<const V6: bool>(context: &TcContext, network: usize, key: &FragmentKey) -> Result<(), DropReason> {
    let Some(vip) = fragment::find_egress(key) else { return Ok(()) };
    set_source::<V6>(context, network, &key.source, &vip).map_err(|_| DropReason::ReplyFailed)?;
    count::stat(Stat::Replies, u64::from(context.len()));
    Ok(())
}

#[inline(always)]
fn rewrite<const V6: bool>(
    context: &TcContext,
    network: usize,
    transport: usize,
    key: &ReplyKey,
    reply: &Origin,
) -> Result<(), i64> {
    // SCTP's CRC32c covers neither address nor port, and the ports are the same on both sides.
    if key.protocol != SCTP {
        let (field, mangled) = if key.protocol == TCP { (16, 0) } else { (6, u64::from(BPF_F_MARK_MANGLED_0)) };
        let pseudo = u64::from(BPF_F_PSEUDO_HDR) | mangled;
        replace::<V6>(context, transport + field, &key.backend, &reply.vip, pseudo)?;
        let (port, vip_port) = (u64::from(key.backend_port), u64::from(reply.vip_port));
        context.l4_csum_replace(transport + field, port, vip_port, mangled | 2)?;
        context.store(transport, &reply.vip_port, 0)?;
    }
    set_source::<V6>(context, network, &key.backend, &reply.vip)
}

/// Updates a checksum for a changed address.
#[inline(always)]
fn replace<const V6: bool>(
    context: &TcContext,
    field: usize,
    from: &Address,
    to: &Address,
    flags: u64,
) -> Result<(), i64> {
    if V6 {
        let (from, to) = (ptr::from_ref(from).cast_mut().cast(), ptr::from_ref(to).cast_mut().cast());
        // SAFETY: both point to the 16 bytes of an address.
        let difference = unsafe { bpf_csum_diff(from, 16, to, 16, 0) };
        context.l4_csum_replace(field, 0, difference as u64, flags)
    } else {
        context.l4_csum_replace(field, u64::from(from.w3), u64::from(to.w3), flags | 4)
    }
}

#[inline(always)]
fn set_source<const V6: bool>(context: &TcContext, network: usize, from: &Address, to: &Address) -> Result<(), i64> {
    if V6 {
        context.store(network + 8, to, 0)
    } else {
        context.l3_csum_replace(network + 10, u64::from(from.w3), u64::from(to.w3), 4)?;
        context.store(network + 12, &to.w3, 0)
    }
}

/// Translates an error of a local backend or of this node about a client's packet, into one about
/// the packet that the client sent. `icmp`, `ports`: the offsets of its header and of the embedded
/// ports. An error about an unknown flow stays unchanged.
#[inline(always)]
fn error<const V6: bool>(
    context: &TcContext,
    network: usize,
    (icmp, ports): (usize, usize),
    source: &Address,
    embedded: &Embedded<V6>,
) -> Result<(), DropReason> {
    let key = embedded.reply();
    let Some(origin) = reply::look(&key, time::now()) else { return Ok(()) };
    let is_backends = *source == key.backend;
    rewrite_error::<V6>(context, (icmp, ports), embedded.checksum, &key, &origin)
        .map_err(|_| DropReason::ReplyFailed)?;
    if is_backends {
        // ICMPv6's checksum covers the addresses of the packet itself too (RFC 4443, 2.3).
        let covered = if V6 {
            replace::<V6>(context, icmp + 2, &key.backend, &origin.vip, u64::from(BPF_F_PSEUDO_HDR))
        } else {
            Ok(())
        };
        covered
            .and_then(|()| set_source::<V6>(context, network, &key.backend, &origin.vip))
            .map_err(|_| DropReason::ReplyFailed)?;
    }
    count::stat(Stat::Replies, u64::from(context.len()));
    Ok(())
}

#[inline(always)]
fn rewrite_error<const V6: bool>(
    context: &TcContext,
    (icmp, ports): (usize, usize),
    before: u16,
    key: &ReplyKey,
    reply: &Origin,
) -> Result<(), i64> {
    let (field, port, vip_port) = (icmp + 2, key.backend_port, reply.vip_port);
    replace::<V6>(context, field, &key.backend, &reply.vip, 0)?;
    context.l4_csum_replace(field, u64::from(port), u64::from(vip_port), 2)?;
    if V6 {
        context.store(icmp + Embedded::<V6>::DESTINATION, &reply.vip, 0)?;
    } else {
        let header = checksum::update(before, checksum::change(key.backend.w3, reply.vip.w3));
        context.l4_csum_replace(field, u64::from(before), u64::from(header), 2)?;
        context.store(icmp + icmp::CHECKSUM, &header, 0)?;
        context.store(icmp + Embedded::<V6>::DESTINATION, &reply.vip.w3, 0)?;
    }
    context.store(ports + 2, &vip_port, 0)
}
