//! Answers in a VIP's name to packets that go to no backend: TCP RST, ICMP port unreachable, ICMP echo reply.
//!
//! All are rate-limited, since a stranger can ask for any number of them, from any address. None is given to a peer's
//! hand-over (its node has answered, or will), to a fragment, or to an address that is no host's.

use aya_ebpf::{
    helpers::{bpf_csum_diff, bpf_xdp_adjust_head, bpf_xdp_adjust_tail},
    programs::XdpContext,
};
use vipmux_common::{
    abi::{Budget, Config, DropReason, Interface, Mac, Stat, UNCLAIMED_PASS, UNCLAIMED_REJECT},
    checksum,
};

use crate::{
    Action, count, flow,
    maps::{BUDGET, CONFIG, PEERS},
    packet::{ACK, FIN, Frame, Ipv4, RST, SYN, Segment, TCP, read, write},
};

/// An IPv4 header without options, and a TCP header without options.
const IPV4: usize = 20;
const TCP_HEADER: usize = 20;
/// An ICMP header, and as much of the offending packet: its IPv4 header and eight bytes (RFC 792).
const ICMP_HEADER: usize = 8;
const EMBEDDED: usize = IPV4 + 8;
/// Shorter Ethernet frames are padded by the sender; without the frame check sequence.
const SHORTEST_FRAME: usize = 60;
/// Seconds' worth of answers that a quiet CPU saves up.
const BURST: u64 = 1;
const TTL: u8 = 64;

/// What becomes of a packet that no Service or no backend takes.
#[inline(always)]
pub(crate) fn unclaimed(
    context: &XdpContext,
    frame: &Frame,
    interface: &Interface,
    reason: DropReason,
) -> Result<Action, DropReason> {
    let config = CONFIG.get(0).ok_or(reason)?;
    if frame.source.is_handover() {
        return Err(reason);
    }
    match config.unclaimed {
        UNCLAIMED_REJECT => {}
        // A peer's stack that does not have the address has forwarded the packet, and so would this one's, for ever.
        UNCLAIMED_PASS if is_peer(frame.source.head, frame.source.tail) => {}
        UNCLAIMED_PASS => return Ok(Action::Pass),
        _ => return Err(reason),
    }
    let packet = Ipv4::parse(frame.network, frame.end).ok_or(reason)?;
    let transport = packet.transport(Some(frame.end - packet.at)).map_err(|_| reason)?;
    let segment = transport.segment(frame.end).map_err(|_| reason)?;
    let is_rst = segment.flags & RST != 0;
    if is_rst || !is_host(packet.source) || !take(config, frame.length()) {
        return Err(reason);
    }
    let macs = (frame.source, interface.mac);
    let answer = if segment.protocol == TCP {
        let data = transport.data(frame.end).ok_or(reason)?;
        reset(context, frame, &packet, &segment, data, macs)
    } else {
        unreachable(context, frame, &packet, &segment, macs)
    };
    let action = answer.ok_or(reason)?;
    count::drop(reason, frame.length());
    count::stat(Stat::Rejected, frame.length());
    Ok(action)
}

/// Whether a node has this MAC. Not inlined: it is rarely asked, and its key would take the stack of all else.
#[inline(never)]
fn is_peer(head: u32, tail: u16) -> bool {
    PEERS.get_ptr(Mac { head, tail, padding: 0 }).is_some()
}

/// Answers an echo request (RFC 792) in place.
#[inline(always)]
pub(crate) fn echo(
    frame: &Frame,
    packet: &Ipv4,
    transport: usize,
    interface: &Interface,
) -> Result<Action, DropReason> {
    const REQUEST: u16 = u16::from_ne_bytes([8, 0]);
    const REPLY: u16 = 0;
    if transport + ICMP_HEADER > frame.end {
        return Err(DropReason::Malformed);
    }
    // SAFETY: compared with the end above.
    let kind: u16 = unsafe { read::<0, _>(transport) };
    let config = CONFIG.get(0).ok_or(DropReason::Icmp)?;
    if kind != REQUEST || frame.source.is_handover() || !is_host(packet.source) || !take(config, frame.length()) {
        return Err(DropReason::Icmp);
    }
    let at = packet.at;
    // SAFETY: compared with the end above, and by `Ipv4::parse`.
    unsafe {
        write::<0, _>(transport, REPLY);
        let change = checksum::change(u32::from(REQUEST), u32::from(REPLY));
        write::<2, u16>(transport, checksum::update(read::<2, _>(transport), change));
        let before: u16 = read::<8, _>(at);
        write::<8, _>(at, TTL);
        let change = checksum::change(u32::from(before), u32::from(read::<8, u16>(at)));
        write::<10, u16>(at, checksum::update(read::<10, _>(at), change));
        write::<12, _>(at, packet.destination);
        write::<16, _>(at, packet.source);
    }
    frame.write_macs(frame.source, interface.mac);
    count::stat(Stat::EchoAnswered, frame.length());
    Ok(Action::Transmit)
}

/// Whether an IPv4 address can be one host's: not "this network", loopback, multicast, reserved or broadcast.
#[inline(always)]
fn is_host(address: u32) -> bool {
    let first = address.to_ne_bytes()[0];
    first != 0 && first != 127 && first < 224
}

/// Takes one answer from this CPU's budget, if there is one left.
#[inline(always)]
fn take(config: &Config, length: u64) -> bool {
    let Some(budget) = BUDGET.get_ptr_mut(0) else { return false };
    let (rate, hz) = (u64::from(config.answers_per_second), u64::from(config.hz));
    let now = flow::now();
    // SAFETY: a per-CPU value; an interleaved run on this CPU costs at most an answer.
    unsafe {
        let Budget { filled, left } = *budget;
        let most = rate * hz * BURST;
        // Bounded, so that the product cannot overflow.
        let since = now.wrapping_sub(filled).min(hz * BURST);
        let left = (left + since * rate).min(most);
        (*budget).filled = now;
        if left < hz {
            (*budget).left = left;
            count::stat(Stat::AnswerLimited, length);
            return false;
        }
        (*budget).left = left - hz;
    }
    true
}

/// RFC 9293, 3.10.7.1: a RST that the sender's window accepts.
#[inline(always)]
fn reset(
    context: &XdpContext,
    frame: &Frame,
    packet: &Ipv4,
    segment: &Segment,
    data: u32,
    (client_mac, own_mac): (Mac, Mac),
) -> Option<Action> {
    let (sequence, acknowledgement, flags) = if segment.flags & ACK != 0 {
        (segment.acknowledged, 0, RST)
    } else {
        let control = u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
        (0, segment.sequence.wrapping_add(data).wrapping_add(control), RST | ACK)
    };
    let (client, vip) = (packet.source, packet.destination);
    let (client_port, vip_port) = (segment.source_port, segment.destination_port);
    shrink(context, frame, (frame.network - frame.start + IPV4 + TCP_HEADER).max(SHORTEST_FRAME))?;
    let frame = Frame::parse(context)?;
    let at = frame.network;
    if at + IPV4 + TCP_HEADER > frame.end {
        return None;
    }
    // SAFETY: compared with the end above.
    unsafe {
        header(at, vip, client, 6, IPV4 + TCP_HEADER);
        write::<20, _>(at, vip_port);
        write::<22, _>(at, client_port);
        write::<24, _>(at, sequence.to_be());
        write::<28, _>(at, acknowledgement.to_be());
        write::<32, _>(at, u16::from_ne_bytes([5 << 4, flags]));
        write::<34, u16>(at, 0);
        write::<36, u32>(at, 0);
        let pseudo = u64::from(vip) + u64::from(client) + u64::from((6 + TCP_HEADER as u32).to_be() >> 16);
        let sum = pseudo
            + u64::from(read::<20, u32>(at))
            + u64::from(read::<24, u32>(at))
            + u64::from(read::<28, u32>(at))
            + u64::from(read::<32, u32>(at));
        write::<36, u16>(at, !checksum::fold(sum));
    }
    frame.write_macs(client_mac, own_mac);
    Some(Action::Transmit)
}

/// RFC 1122, 3.2.2.1: destination unreachable, port unreachable, with the offending packet's first bytes.
#[inline(always)]
fn unreachable(
    context: &XdpContext,
    frame: &Frame,
    packet: &Ipv4,
    segment: &Segment,
    (client_mac, own_mac): (Mac, Mac),
) -> Option<Action> {
    const PORT_UNREACHABLE: u16 = u16::from_ne_bytes([3, 3]);
    const GROWTH: usize = IPV4 + ICMP_HEADER;
    // With options, more than `EMBEDDED` bytes would have to be told.
    if segment.transport != packet.at + IPV4 {
        return None;
    }
    let (client, vip) = (packet.source, packet.destination);
    let link = frame.network - frame.start;
    shrink(context, frame, link + EMBEDDED)?;
    // SAFETY: the context is valid for the whole run.
    if unsafe { bpf_xdp_adjust_head(context.ctx, -(GROWTH as i32)) } != 0 {
        return None;
    }
    // Where the Ethernet header was, there is the packet now.
    frame.write_link(context, client_mac, own_mac)?;
    let frame = Frame::parse(context)?;
    let at = frame.network;
    if at + GROWTH + EMBEDDED > frame.end {
        return None;
    }
    // SAFETY: compared with the end above.
    unsafe {
        header(at, vip, client, 1, GROWTH + EMBEDDED);
        write::<20, _>(at, PORT_UNREACHABLE);
        write::<22, u16>(at, 0);
        write::<24, u32>(at, 0);
        let message = (at + IPV4) as *mut u32;
        let sum = bpf_csum_diff(core::ptr::null_mut(), 0, message, (ICMP_HEADER + EMBEDDED) as u32, 0);
        write::<22, u16>(at, !checksum::fold(sum as u64));
    }
    Some(Action::Transmit)
}

/// Makes the frame `length` bytes long, if it is longer.
#[inline(always)]
fn shrink(context: &XdpContext, frame: &Frame, length: usize) -> Option<()> {
    let present = frame.end - frame.start;
    if present <= length {
        return Some(());
    }
    // SAFETY: the context is valid for the whole run.
    let result = unsafe { bpf_xdp_adjust_tail(context.ctx, length as i32 - present as i32) };
    (result == 0).then_some(())
}

/// Writes an IPv4 header without options.
///
/// # Safety
/// 20 bytes from `at` on were compared with the packet's end.
#[inline(always)]
unsafe fn header(at: usize, source: u32, destination: u32, protocol: u8, total: usize) {
    const DONT_FRAGMENT: u16 = 0x4000_u16.to_be();
    // SAFETY: the caller's bounds check.
    unsafe {
        write::<0, u16>(at, u16::from_ne_bytes([0x45, 0]));
        write::<2, u16>(at, (total as u16).to_be());
        write::<4, u16>(at, 0);
        write::<6, u16>(at, DONT_FRAGMENT);
        write::<8, u16>(at, u16::from_ne_bytes([TTL, protocol]));
        write::<10, u16>(at, 0);
        write::<12, u32>(at, source);
        write::<16, u32>(at, destination);
        let sum = u64::from(read::<0, u32>(at))
            + u64::from(read::<4, u32>(at))
            + u64::from(read::<8, u32>(at))
            + u64::from(source)
            + u64::from(destination);
        write::<10, u16>(at, !checksum::fold(sum));
    }
}
