//! Answers in a VIP's name to packets that go to no backend: TCP RST, ICMP errors, ICMP echo reply.
//!
//! All are rate-limited, since any host can request any number of them from any address. There is
//! no answer to a peer's hand-over (that node has answered, or will), to a fragment, or to an
//! address that is no host's. Nor is there one to a frame that stands for several: the kernel would still
//! take it for one, and the driver divide it. Its sender sends the segments again, alone.

use aya_ebpf::helpers::{bpf_csum_diff, bpf_xdp_adjust_head, bpf_xdp_adjust_tail};
use vipmux_common::{
    abi::{Address, DropReason, Interface, Stat, UNCLAIMED_PASS, UNCLAIMED_REJECT},
    budget::Kind,
    checksum,
};

use crate::{
    budget, count, fragment,
    frame::Frame,
    maps::config,
    merged::is_merged,
    packet::{Packet, TCP, Transport, write_address},
    peer,
    segment::{ACK, FIN, RST, SYN, Segment},
    time,
    verdict::{Outcome, Verdict},
    wire::{read, write},
};

/// A TCP header without options.
const TCP_HEADER: usize = 20;
const ICMP_HEADER: usize = 8;
/// Bytes of the offending packet's transport header that every receiver needs (RFC 792). More bytes
/// would make this an amplifier.
const EMBEDDED: usize = 8;
/// The minimum Ethernet frame without the frame check sequence. Senders pad shorter ones.
const SHORTEST_FRAME: usize = 60;
const HOPS: u8 = 64;

/// Handles a packet that no Service or no backend takes.
#[inline(always)]
pub(crate) fn unclaimed<const V6: bool>(frame: &Frame, interface: &Interface, reason: DropReason) -> Verdict {
    let drop = Verdict::drop(reason);
    if peer::has_handed_over(frame) {
        return drop;
    }
    match config().unclaimed {
        UNCLAIMED_REJECT => {}
        // A peer's stack without the address has forwarded the packet. This node's stack would too,
        // forever.
        UNCLAIMED_PASS if peer::is_node(frame.source) => {}
        UNCLAIMED_PASS => return Verdict::of(pass::<V6>(frame)),
        _ => return drop,
    }
    let length = frame.length;
    match answer::<V6>(frame, interface, length) {
        Some(verdict) => {
            count::drop(reason as u32, length);
            count::stat(Stat::Rejected, length);
            verdict
        }
        None => drop,
    }
}

/// Handles a packet that cannot be handed over: tells its sender, as a router does. It is longer than the
/// MTU of the path, so that shorter ones are sent (RFC 1191, 4; RFC 4443, 3.2), or its TTL is at an end
/// (RFC 792; RFC 4443, 3.3). `mtu`: 0 for the latter.
#[inline(always)]
pub(crate) fn undeliverable<const V6: bool>(frame: &Frame, interface: &Interface, mtu: u32) -> Verdict {
    let length = frame.length;
    let reason = if mtu == 0 { DropReason::TtlExceeded } else { DropReason::TooBig };
    match tell_sender::<V6>(frame, interface, mtu) {
        Some(verdict) => {
            count::drop(reason as u32, length);
            count::stat(Stat::Rejected, length);
            verdict
        }
        None => Verdict::drop(reason),
    }
}

/// IPv4 packets that are too long and may be fragmented are dropped.
#[inline(always)]
fn tell_sender<const V6: bool>(frame: &Frame, interface: &Interface, mtu: u32) -> Option<Verdict> {
    let packet = Packet::<V6>::parse(frame.network, frame.end)?;
    let transport = packet.transport(frame, Some(frame.available())).ok()?;
    let segment = transport.segment(frame.end).ok()?;
    let is_bare = transport.fragment == 0 && !is_merged(frame, interface);
    let is_told = is_bare && (mtu == 0 || !packet.may_be_fragmented());
    if !is_told || !is_host::<V6>(&packet.source) {
        return None;
    }
    if !allowed(Kind::Unreachable, &packet.source, frame.length) {
        return None;
    }
    let kind = u16::from_ne_bytes(match (V6, mtu) {
        (true, 0) => [3, 0],
        (true, _) => [2, 0],
        (false, 0) => [11, 0],
        (false, _) => [3, 4],
    });
    unreachable(frame, interface, &packet, &segment, (kind, mtu.to_be()))
}

/// To the node's own stack, with all later fragments.
#[inline(always)]
fn pass<const V6: bool>(frame: &Frame) -> Outcome {
    let packet = Packet::<V6>::parse(frame.network, frame.end).ok_or(DropReason::Malformed)?;
    let transport = packet.transport(frame, Some(frame.available()))?;
    fragment::record_kernel(&packet, &transport, time::now())?;
    Ok(Verdict::PASS)
}

#[inline(always)]
fn answer<const V6: bool>(frame: &Frame, interface: &Interface, length: u64) -> Option<Verdict> {
    let packet = Packet::<V6>::parse(frame.network, frame.end)?;
    let transport = packet.transport(frame, Some(frame.available())).ok()?;
    let segment = transport.segment(frame.end).ok()?;
    let is_bare = segment.flags & RST == 0 && transport.fragment == 0 && !is_merged(frame, interface);
    if !is_bare || !is_host::<V6>(&packet.source) {
        return None;
    }
    let kind = if segment.protocol == TCP { Kind::Reset } else { Kind::Unreachable };
    if !allowed(kind, &packet.source, length) {
        return None;
    }
    if segment.protocol == TCP {
        let data = transport.data(frame.end)?;
        reset(frame, interface, &packet, &segment, data)
    } else {
        let kind = u16::from_ne_bytes(if V6 { [1, 4] } else { [3, 3] });
        unreachable(frame, interface, &packet, &segment, (kind, 0))
    }
}

/// Answers an echo request (RFC 792; RFC 4443, 4.2) in place.
#[inline(always)]
pub(crate) fn echo<const V6: bool>(
    frame: &Frame,
    packet: &Packet<V6>,
    message: &Transport,
    interface: &Interface,
) -> Outcome {
    let (request, reply) = if V6 { ([128, 0], [129, 0]) } else { ([8, 0], [0, 0]) };
    let (request, reply) = (u16::from_ne_bytes(request), u16::from_ne_bytes(reply));
    let at = message.at;
    if message.length < ICMP_HEADER || at + ICMP_HEADER > frame.end {
        return Err(DropReason::Malformed.into());
    }
    // SAFETY: compared with the end above.
    let kind: u16 = unsafe { read::<0, _>(at) };
    let is_asked = kind == request && !peer::has_handed_over(frame) && is_host::<V6>(&packet.source);
    if !is_asked || !allowed(Kind::Echo, &packet.source, frame.length) {
        return Err(DropReason::Icmp.into());
    }
    // SAFETY: compared with the end above.
    unsafe {
        write::<0, _>(at, reply);
        let change = checksum::change(u32::from(request), u32::from(reply));
        write::<2, u16>(at, checksum::update(read::<2, _>(at), change));
    }
    packet.set_hops(HOPS);
    packet.swap_addresses();
    frame.write_macs(frame.source, interface.mac);
    count::stat(Stat::EchoAnswered, frame.length);
    Ok(Verdict::TRANSMIT)
}

/// Returns whether an address can be one host's. Excluded are "this network" or the unspecified
/// address, loopback, multicast, reserved and broadcast.
#[inline(always)]
fn is_host<const V6: bool>(address: &Address) -> bool {
    if V6 {
        let is_low = address.w0 == 0 && address.w1 == 0 && address.w2 == 0 && u32::from_be(address.w3) <= 1;
        !is_low && address.w0.to_ne_bytes()[0] != 0xff
    } else {
        let first = address.w3.to_ne_bytes()[0];
        first != 0 && first != 127 && first < 224
    }
}

/// Takes one answer from the budgets, if there is one left.
#[inline(always)]
fn allowed(kind: Kind, client: &Address, length: u64) -> bool {
    let allowed = budget::take(kind, client);
    if !allowed {
        count::stat(Stat::AnswerLimited, length);
    }
    allowed
}

/// RFC 9293, 3.10.7.1: a RST that the sender's window accepts.
#[inline(always)]
fn reset<const V6: bool>(
    frame: &Frame,
    interface: &Interface,
    packet: &Packet<V6>,
    segment: &Segment,
    data: u32,
) -> Option<Verdict> {
    let (sequence, acknowledgement, flags) = if segment.flags & ACK != 0 {
        (segment.acknowledged, 0, RST)
    } else {
        let control = u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
        (0, segment.sequence.wrapping_add(data).wrapping_add(control), RST | ACK)
    };
    let (client, vip) = (&packet.source, &packet.destination);
    let (client_port, vip_port) = (segment.source_port, segment.destination_port);
    let length = Packet::<V6>::LENGTH + TCP_HEADER;
    shrink(frame, (frame.link + length).max(SHORTEST_FRAME))?;
    let client_mac = frame.source;
    let frame = Frame::parse(frame.context, frame.fragmented)?;
    let at = frame.network;
    if at + length > frame.end {
        return None;
    }
    let ports = u32::from(vip_port) | u32::from(client_port) << 16;
    let control = u16::from_ne_bytes([5 << 4, flags]);
    let sum = Packet::<V6>::pseudo(vip, client, TCP, TCP_HEADER as u32)
        + u64::from(ports)
        + u64::from(sequence.to_be())
        + u64::from(acknowledgement.to_be())
        + u64::from(control);
    // SAFETY: compared with the end above.
    unsafe {
        header::<V6>(at, vip, client, TCP as u8, TCP_HEADER);
        let at = at + Packet::<V6>::LENGTH;
        write::<0, _>(at, vip_port);
        write::<2, _>(at, client_port);
        write::<4, _>(at, sequence.to_be());
        write::<8, _>(at, acknowledgement.to_be());
        write::<12, _>(at, control);
        write::<14, u16>(at, 0);
        write::<16, u16>(at, !checksum::fold(sum));
        write::<18, u16>(at, 0);
    }
    frame.write_macs(client_mac, interface.mac);
    Some(Verdict::TRANSMIT)
}

/// An ICMP error (RFC 792; RFC 4443, 2.1) with the offending packet's first bytes. `kind`: its type and
/// code, and `field`: the four bytes after its checksum, both wire.
#[inline(always)]
fn unreachable<const V6: bool>(
    frame: &Frame,
    interface: &Interface,
    packet: &Packet<V6>,
    segment: &Segment,
    (kind, field): (u16, u32),
) -> Option<Verdict> {
    let embedded = Packet::<V6>::LENGTH + EMBEDDED;
    let growth = Packet::<V6>::LENGTH + ICMP_HEADER;
    // With options or extension headers, more bytes would be needed.
    if segment.transport != packet.at + Packet::<V6>::LENGTH {
        return None;
    }
    let (client, vip, client_mac) = (&packet.source, &packet.destination, frame.source);
    shrink(frame, frame.link + embedded)?;
    // SAFETY: the context is valid for the whole run.
    if unsafe { bpf_xdp_adjust_head(frame.context, -(growth as i32)) } != 0 {
        return None;
    }
    // The packet now begins where the Ethernet header was.
    frame.write_link(client_mac, interface.mac)?;
    let frame = Frame::parse(frame.context, frame.fragmented)?;
    let at = frame.network;
    if at + growth + embedded > frame.end {
        return None;
    }
    let length = ICMP_HEADER + embedded;
    // SAFETY: compared with the end above.
    unsafe {
        header::<V6>(at, vip, client, Packet::<V6>::ICMP as u8, length);
        let at = at + Packet::<V6>::LENGTH;
        write::<0, _>(at, kind);
        write::<2, u16>(at, 0);
        write::<4, u32>(at, field);
        let sum = bpf_csum_diff(core::ptr::null_mut(), 0, at as *mut u32, length as u32, 0) as u64;
        let pseudo = if V6 { Packet::<V6>::pseudo(vip, client, Packet::<V6>::ICMP, length as u32) } else { 0 };
        write::<2, _>(at, !checksum::fold(sum + pseudo));
    }
    Some(Verdict::TRANSMIT)
}

/// Cuts the frame to `length` bytes, if it is longer.
#[inline(always)]
fn shrink(frame: &Frame, length: usize) -> Option<()> {
    let present = frame.length as usize;
    if present <= length {
        return Some(());
    }
    // SAFETY: the context is valid for the whole run.
    let result = unsafe { bpf_xdp_adjust_tail(frame.context, length as i32 - present as i32) };
    (result == 0).then_some(())
}

/// Writes an IPv4 header without options, or an IPv6 header, before `length` bytes of `protocol`.
///
/// # Safety
/// It was compared with the packet's end.
#[inline(always)]
unsafe fn header<const V6: bool>(at: usize, source: &Address, destination: &Address, protocol: u8, length: usize) {
    const DONT_FRAGMENT: u16 = 0x4000_u16.to_be();
    // SAFETY: the caller's bounds check.
    unsafe {
        if V6 {
            write::<0, _>(at, u32::from_ne_bytes([0x60, 0, 0, 0]));
            write::<4, _>(at, (length as u16).to_be());
            write::<6, _>(at, u16::from_ne_bytes([protocol, HOPS]));
            write_address::<8>(at, source);
            write_address::<24>(at, destination);
            return;
        }
        write::<0, u16>(at, u16::from_ne_bytes([0x45, 0]));
        write::<2, u16>(at, ((Packet::<V6>::LENGTH + length) as u16).to_be());
        write::<4, u16>(at, 0);
        write::<6, u16>(at, DONT_FRAGMENT);
        write::<8, u16>(at, u16::from_ne_bytes([HOPS, protocol]));
        write::<10, u16>(at, 0);
        write::<12, u32>(at, source.w3);
        write::<16, u32>(at, destination.w3);
        let sum = u64::from(read::<0, u32>(at))
            + u64::from(read::<4, u32>(at))
            + u64::from(read::<8, u32>(at))
            + u64::from(source.w3)
            + u64::from(destination.w3);
        write::<10, u16>(at, !checksum::fold(sum));
    }
}
