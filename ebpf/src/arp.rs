//! ARP for VIPs (RFC 826, RFC 5227), in both directions.

use aya_ebpf::programs::TcContext;
use vipmux_common::abi::{Address, DropReason, Interface, Mac, Stat};

use crate::{
    count,
    frame::Frame,
    linear,
    neighbor::{self, Reasons},
    verdict::{Outcome, Verdict},
    wire::{pin, read, write},
};

const LENGTH: usize = 28;
/// Ethernet, IPv4, address lengths 6 and 4: the first six bytes of a supported packet.
const ETHERNET_IPV4: (u32, u16) = (u32::from_ne_bytes([0, 1, 8, 0]), u16::from_ne_bytes([6, 4]));
const REQUEST: u16 = 1_u16.to_be();
const REPLY: u16 = 2_u16.to_be();
const REASONS: Reasons = Reasons { not_leading: DropReason::ArpNotLeading, fenced: DropReason::ArpFenced };

/// Answers, drops or passes an ARP packet, including flooded ones.
#[inline(always)]
pub(crate) fn receive(frame: &Frame, interface: &Interface) -> Outcome {
    let at = frame.network;
    if at + LENGTH > frame.end {
        return Ok(Verdict::PASS);
    }
    // SAFETY: compared with the end above.
    let (kind, lengths, operation, sender, sender_ip, target_ip) = unsafe {
        (
            read::<0, u32>(at),
            read::<4, u16>(at),
            read::<6, u16>(at),
            Mac { head: read::<8, _>(at), tail: read::<12, _>(at), padding: 0 },
            read::<14, u32>(at),
            read::<24, u32>(at),
        )
    };
    if (kind, lengths) != ETHERNET_IPV4 {
        return Ok(Verdict::PASS);
    }
    if sender_ip == 0 {
        if operation == REQUEST {
            neighbor::hear_probe(&Address::v4(target_ip), sender, 0, frame, interface);
        }
    } else if neighbor::hear(&Address::v4(sender_ip), sender, frame, interface) {
        return Ok(Verdict::PASS);
    }
    if operation != REQUEST || !neighbor::answers(&Address::v4(target_ip), sender, frame, interface, &REASONS)? {
        return Ok(Verdict::PASS);
    }
    // RFC 826 answers to the sender that the packet names. A proxy's frame has another source.
    frame.write_macs(sender, interface.mac);
    // SAFETY: compared with the end above.
    unsafe {
        write::<6, _>(at, REPLY);
        write::<8, _>(at, interface.mac.head);
        write::<12, _>(at, interface.mac.tail);
        write::<14, _>(at, target_ip);
        write::<18, _>(at, sender.head);
        write::<22, _>(at, sender.tail);
        write::<24, _>(at, sender_ip);
    }
    count::stat(Stat::ArpAnswered, frame.length);
    Ok(Verdict::TRANSMIT)
}

/// Returns whether the node's own stack may send this ARP packet.
#[inline(always)]
pub(crate) fn may_leave(context: &TcContext, network: usize) -> bool {
    linear::pull(context, network + LENGTH);
    let at = pin(pin(context.data()) + network);
    if at + LENGTH > pin(context.data_end()) {
        return true;
    }
    // SAFETY: compared with the end above.
    let sender_ip: u32 = unsafe { read::<14, _>(at) };
    neighbor::may_speak(&Address::v4(sender_ip), context)
}
