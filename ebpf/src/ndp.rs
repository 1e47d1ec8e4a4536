//! Neighbor Discovery for VIPs (RFC 4861), in both directions.
//!
//! A solicitation's checksum is not verified: the answer uses nothing that it covers.

use aya_ebpf::{helpers::bpf_xdp_adjust_tail, programs::TcContext};
use vipmux_common::{
    abi::{Address, DropReason, Interface, Mac, Stat},
    checksum,
};

use crate::{
    count,
    frame::Frame,
    neighbor::{self, Reasons},
    packet::{Packet, address, write_address},
    verdict::{Outcome, Verdict},
    wire::{pin, read, write},
};

const IPV6: usize = Packet::<true>::LENGTH;
/// Type, code, checksum, flags, target.
const MESSAGE: usize = 24;
/// With a link-layer address option.
const ADVERTISEMENT: usize = MESSAGE + 8;
const SOLICITATION_TYPE: u8 = 135;
const ADVERTISEMENT_TYPE: u8 = 136;
const OVERRIDE: u8 = 0x20;
const SOLICITED: u8 = 0x40;
/// Option type 1, length 1: source link-layer address.
const SOURCE_LINK_LAYER: u16 = u16::from_ne_bytes([1, 1]);
/// Option type 2, length 1: target link-layer address.
const TARGET_LINK_LAYER: u16 = u16::from_ne_bytes([2, 1]);
/// The options that are looked at for a link-layer address.
const MOST_OPTIONS: usize = 4;
/// Packets from other links cannot have this hop limit (RFC 4861, 3.1).
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Address = Address { w0: 0xff02_0000_u32.to_be(), w1: 0, w2: 0, w3: 1_u32.to_be() };
const ALL_NODES_MAC: Mac = Mac::new([0x33, 0x33, 0, 0, 0, 1]);
const REASONS: Reasons = Reasons { not_leading: DropReason::NdpNotLeading, fenced: DropReason::NdpFenced };

/// A solicitation or an advertisement.
struct Message {
    source: Address,
    target: Address,
    is_solicitation: bool,
    hop_limit: u8,
    code: u8,
}

/// Parses the message at `at`, the offset of an IPv6 header without extension headers. Kernels too
/// ignore messages in fragments (RFC 6980), and nobody sends others. An IPv4-mapped address on the
/// wire is refused: it stands for an IPv4 VIP.
#[inline(always)]
fn parse(at: usize, end: usize) -> Option<Message> {
    if at + IPV6 + MESSAGE > end {
        return None;
    }
    // SAFETY: compared with the end above.
    unsafe {
        let kind: u8 = read::<40, _>(at);
        if read::<6, u8>(at) != Packet::<true>::ICMP as u8
            || (kind != SOLICITATION_TYPE && kind != ADVERTISEMENT_TYPE)
            || u16::from_be(read::<4, _>(at)) < MESSAGE as u16
        {
            return None;
        }
        let (source, target) = (address!(at, 8), address!(at, 48));
        if source.is_v4() || target.is_v4() {
            return None;
        }
        Some(Message {
            source,
            target,
            is_solicitation: kind == SOLICITATION_TYPE,
            hop_limit: read::<7, _>(at),
            code: read::<41, _>(at),
        })
    }
}

/// Returns whether this IPv6 frame is a solicitation or an advertisement, flooded unless it is for
/// this interface.
#[inline(always)]
pub(crate) fn may_concern(frame: &Frame, own: bool) -> bool {
    (own || frame.is_group()) && parse(frame.network, frame.end).is_some()
}

/// Answers or drops Neighbor Discovery about a VIP, including flooded packets. `Pass`: it is not
/// about a VIP.
#[inline(always)]
pub(crate) fn receive(frame: &Frame, interface: &Interface) -> Outcome {
    let Some(message) = parse(frame.network, frame.end) else { return Ok(Verdict::PASS) };
    if message.hop_limit != HOP_LIMIT || message.code != 0 {
        return Ok(Verdict::PASS);
    }
    if !message.is_solicitation {
        neighbor::hear(&message.target, link_layer(frame, TARGET_LINK_LAYER), frame, interface);
        return Ok(Verdict::PASS);
    }
    let sender = link_layer(frame, SOURCE_LINK_LAYER);
    if message.source == Address::default() {
        let option = first_option(frame);
        neighbor::hear_probe(&message.target, frame.source, option, frame, interface);
    } else if neighbor::hear(&message.source, sender, frame, interface) {
        return Ok(Verdict::PASS);
    }
    if !neighbor::answers(&message.target, sender, frame, interface, &REASONS)? {
        return Ok(Verdict::PASS);
    }
    let length = frame.length;
    let answer = advertise(frame, interface, &message, sender).ok_or(DropReason::Malformed)?;
    count::stat(Stat::NdpAnswered, length);
    Ok(answer)
}

/// Returns the first eight bytes after a message: its first option, if that has eight bytes. 0:
/// there are fewer bytes.
#[inline(always)]
fn first_option(frame: &Frame) -> u64 {
    let at = frame.network;
    if at + IPV6 + ADVERTISEMENT > frame.end {
        return 0;
    }
    // SAFETY: compared with the end above.
    unsafe { read::<64, _>(at) }
}

/// Returns the MAC in a message's option of this type and length (RFC 4861, 4.6.1). Without one, it is
/// the frame's source.
#[inline(always)]
fn link_layer(frame: &Frame, option: u16) -> Mac {
    const REACH: usize = 0x1fff;
    let options = frame.network + IPV6 + MESSAGE;
    // SAFETY: `parse` compared the message with the end.
    let length = usize::from(u16::from_be(unsafe { read::<4, _>(frame.network) })) - MESSAGE;
    let mut offset = 0;
    for _ in 0..MOST_OPTIONS {
        let at = pin(options + (offset & REACH));
        if offset + 8 > length || at + 8 > frame.end {
            break;
        }
        // SAFETY: compared with the end above.
        let (head, head_mac, tail_mac) = unsafe { (read::<0, u16>(at), read::<2, _>(at), read::<6, _>(at)) };
        if head == option {
            return Mac { head: head_mac, tail: tail_mac, padding: 0 };
        }
        let [_, units] = head.to_ne_bytes();
        if units == 0 {
            break;
        }
        offset += usize::from(units) * 8;
    }
    frame.source
}

/// RFC 4861, 7.2.4: to the sender, or to all nodes if the solicitation came from the unspecified
/// address (duplicate address detection, RFC 4862, 5.4.3).
#[inline(always)]
fn advertise(frame: &Frame, interface: &Interface, message: &Message, sender: Mac) -> Option<Verdict> {
    let unspecified = message.source == Address::default();
    let (to, to_mac, flags) =
        if unspecified { (ALL_NODES, ALL_NODES_MAC, OVERRIDE) } else { (message.source, sender, OVERRIDE | SOLICITED) };
    let change = (frame.link + IPV6 + ADVERTISEMENT) as i32 - frame.length as i32;
    // SAFETY: the context is valid for the whole run.
    if change != 0 && unsafe { bpf_xdp_adjust_tail(frame.context, change) } != 0 {
        return None;
    }
    let frame = Frame::parse(frame.context, frame.fragmented)?;
    let at = frame.network;
    if at + IPV6 + ADVERTISEMENT > frame.end {
        return None;
    }
    let (vip, mac) = (&message.target, interface.mac);
    // SAFETY: compared with the end above.
    unsafe {
        write::<4, _>(at, (ADVERTISEMENT as u16).to_be());
        write::<7, _>(at, HOP_LIMIT);
        write_address::<8>(at, vip);
        write_address::<24>(at, &to);
        write::<40, _>(at, u16::from_ne_bytes([ADVERTISEMENT_TYPE, 0]));
        write::<44, _>(at, u32::from_ne_bytes([flags, 0, 0, 0]));
        write_address::<48>(at, vip);
        write::<64, _>(at, TARGET_LINK_LAYER);
        write::<66, _>(at, mac.head);
        write::<70, _>(at, mac.tail);
        let words = |address: &Address| {
            u64::from(address.w0) + u64::from(address.w1) + u64::from(address.w2) + u64::from(address.w3)
        };
        let sum = Packet::<true>::pseudo(vip, &to, Packet::<true>::ICMP, ADVERTISEMENT as u32)
            + u64::from(u16::from_ne_bytes([ADVERTISEMENT_TYPE, 0]))
            + u64::from(u32::from_ne_bytes([flags, 0, 0, 0]))
            + words(vip)
            + u64::from(TARGET_LINK_LAYER)
            + u64::from(mac.head)
            + u64::from(mac.tail);
        write::<42, _>(at, !checksum::fold(sum));
    }
    frame.write_macs(to_mac, mac);
    Some(Verdict::TRANSMIT)
}

/// Returns whether the node's own stack may send this packet, if it is Neighbor Discovery.
#[inline(always)]
pub(crate) fn may_leave(context: &TcContext, network: usize) -> bool {
    let at = pin(pin(context.data()) + network);
    match parse(at, pin(context.data_end())) {
        Some(message) if message.is_solicitation => neighbor::may_speak(&message.source, context),
        Some(message) => neighbor::may_speak(&message.target, context),
        None => true,
    }
}
