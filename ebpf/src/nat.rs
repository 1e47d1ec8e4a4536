//! Address and port translation: to a local backend, and of its replies back to the VIP.

use aya_ebpf::{
    bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR},
    programs::TcContext,
};
use vipmux_common::{
    abi::{Address, Backend, DropReason, ReverseKey, Stat},
    checksum,
};

use crate::{
    Action, count,
    flow::{self, Reply},
    packet::{Frame, Ipv4, Segment, TCP, UDP, pin, read, write},
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

    let address = backend.address.w3;
    let of_address = checksum::change(packet.destination, address);
    let change = of_address + checksum::change(u32::from(segment.destination_port), u32::from(backend.port));
    // SAFETY: `Ipv4::parse` and `Transport::segment` compared these headers with the end.
    unsafe {
        let at = packet.at;
        write::<10, _>(at, checksum::update(read::<10, _>(at), of_address));
        write::<16, _>(at, address);
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

/// More fragments, and the fragment offset (RFC 791, 3.1).
const MORE_FRAGMENTS: u16 = 0x2000_u16.to_be();
const FRAGMENT_OFFSET: u16 = 0x1fff_u16.to_be();

/// A reply's headers, as far as they matter here.
struct Outgoing {
    /// Offset of the TCP or UDP header from the frame's start.
    transport: usize,
    key: ReverseKey,
    flags: u8,
    /// TCP's acknowledgement number, host order.
    acknowledged: u32,
    first_fragment: bool,
}

/// Turns a local backend's reply back into one of the VIP. `network` is the offset of the IPv4 header.
///
/// `Ok(false)`: not a reply of ours, left alone.
#[inline(always)]
pub(crate) fn restore(context: &TcContext, network: usize) -> Result<bool, DropReason> {
    let Some(outgoing) = parse(context, network) else { return Ok(false) };
    let key = &outgoing.key;
    let reply = match flow::reply(key, outgoing.flags, outgoing.acknowledged, flow::now()) {
        Reply::Foreign => return Ok(false),
        Reply::Direct => {
            count::stat(Stat::DirectReplies, u64::from(context.len()));
            return Ok(false);
        }
        Reply::Of(reply) => reply,
    };
    if outgoing.first_fragment {
        return Err(DropReason::ReplyFailed);
    }
    rewrite(context, network, &outgoing, reply.vip.w3, reply.vip_port).map_err(|_| DropReason::ReplyFailed)?;
    count::stat(Stat::Replies, u64::from(context.len()));
    Ok(true)
}

#[inline(always)]
fn parse(context: &TcContext, network: usize) -> Option<Outgoing> {
    // Enough for the longest IPv4 header and a TCP header, or all there is: the linear part can be shorter.
    let wanted = (network as u32 + 80).min(context.len());
    if context.data() + wanted as usize > context.data_end() {
        context.pull_data(wanted).ok()?;
    }
    let (start, end) = (pin(context.data()), pin(context.data_end()));
    let at = pin(start + network);
    if at + 20 > end {
        return None;
    }
    // SAFETY: compared with the end above.
    let (version_length, fragment, protocol, source, destination) = unsafe {
        (read::<0, u8>(at), read::<6, u16>(at), u32::from(read::<9, u8>(at)), read::<12, u32>(at), read::<16, u32>(at))
    };
    let header = usize::from(version_length & 0x0f) * 4;
    if version_length >> 4 != 4 || header < 20 || fragment & FRAGMENT_OFFSET != 0 || protocol != TCP && protocol != UDP
    {
        return None;
    }
    let transport = pin(at + header);
    if transport + 8 > end {
        return None;
    }
    // SAFETY: compared with the end above.
    let (backend_port, client_port) = unsafe { (read::<0, _>(transport), read::<2, _>(transport)) };
    let key = ReverseKey {
        backend: Address::v4(source),
        client: Address::v4(destination),
        backend_port,
        client_port,
        protocol,
    };
    let (mut flags, mut acknowledged) = (0, 0);
    if protocol == TCP {
        if transport + 20 > end {
            return None;
        }
        // SAFETY: compared with the end above.
        unsafe {
            acknowledged = u32::from_be(read::<8, _>(transport));
            flags = read::<13, _>(transport);
        }
    }
    let first_fragment = fragment & MORE_FRAGMENTS != 0;
    Some(Outgoing { transport: network + header, key, flags, acknowledged, first_fragment })
}

/// By the checksum helpers alone: they know partial checksums and GSO.
#[inline(always)]
fn rewrite(context: &TcContext, network: usize, outgoing: &Outgoing, vip: u32, port: u16) -> Result<(), i64> {
    let (field, mangled) = if outgoing.key.protocol == TCP { (16, 0) } else { (6, u64::from(BPF_F_MARK_MANGLED_0)) };
    let (transport, backend) = (outgoing.transport, u64::from(outgoing.key.backend.w3));
    let pseudo = u64::from(BPF_F_PSEUDO_HDR) | mangled;
    context.l4_csum_replace(transport + field, backend, u64::from(vip), pseudo | 4)?;
    context.l4_csum_replace(transport + field, u64::from(outgoing.key.backend_port), u64::from(port), mangled | 2)?;
    context.l3_csum_replace(network + 10, backend, u64::from(vip), 4)?;
    context.store(network + 12, &vip, 0)?;
    context.store(transport, &port, 0)
}
