//! ARP for VIPs (RFC 826, RFC 5227), in both directions.

use aya_ebpf::{helpers::bpf_ktime_get_boot_ns, programs::TcContext};
use vipmux_common::abi::{Address, DropReason, Interface, Mac, Stat, VIP_LEADING, VIP_YIELDED, VipValue};

use crate::{
    Action, count,
    maps::{CONFIG, FENCE, PEERS, VIPS},
    packet::{Frame, pin, read, write},
};

const ARP_LENGTH: usize = 28;
/// Ethernet, IPv4, address lengths 6 and 4: the first six bytes of what is understood.
const ETHERNET_IPV4: (u32, u16) = (u32::from_ne_bytes([0, 1, 8, 0]), u16::from_ne_bytes([6, 4]));
const REQUEST: u16 = 1_u16.to_be();
const REPLY: u16 = 2_u16.to_be();
const NANOSECONDS: u64 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    InTime,
    Lapsed,
    Abandoned,
}

#[inline(always)]
fn standing() -> Standing {
    let deadline = FENCE.get(0).map_or(0, |fence| fence.deadline);
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    if now < deadline {
        Standing::InTime
    } else if now - deadline < CONFIG.get(0).map_or(0, |config| u64::from(config.abandon_after)) * NANOSECONDS {
        Standing::Lapsed
    } else {
        Standing::Abandoned
    }
}

/// Answers, drops or passes an ARP packet; also a flooded one.
#[inline(always)]
pub(crate) fn arp(frame: &Frame, interface: &Interface) -> Result<Action, DropReason> {
    let at = frame.network;
    if at + ARP_LENGTH > frame.end {
        return Ok(Action::Pass);
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
        return Ok(Action::Pass);
    }
    if sender_ip != 0
        && let Some(vip) = VIPS.get_ptr_mut(Address::v4(sender_ip))
    {
        yield_to(vip, sender, frame, interface);
        return Ok(Action::Pass);
    }
    if operation != REQUEST {
        return Ok(Action::Pass);
    }
    let Some(vip) = VIPS.get_ptr(Address::v4(target_ip)) else { return Ok(Action::Pass) };
    // SAFETY: a map value, which stays in place for the whole run.
    let vip = unsafe { &*vip };
    if !is_announced(vip, frame, interface) {
        return Ok(Action::Pass);
    }
    match standing() {
        Standing::Abandoned => return Ok(Action::Pass),
        _ if vip.flags & VIP_LEADING == 0 => return Err(DropReason::ArpNotLeading),
        Standing::Lapsed => return Err(DropReason::ArpFenced),
        Standing::InTime => {}
    }
    frame.write_macs(frame.source, interface.mac);
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
    count::stat(Stat::ArpAnswered, frame.length());
    Ok(Action::Transmit)
}

/// Whether the VIP is announced on this interface and VLAN.
#[inline(always)]
pub(crate) fn is_announced(vip: &VipValue, frame: &Frame, interface: &Interface) -> bool {
    vip.interfaces & interface.bit != 0 && vip.vlan == frame.vlan
}

/// A peer speaks for a VIP that we lead: it leads it now. Strangers are left to conflict detection.
#[inline(always)]
fn yield_to(vip: *mut VipValue, sender: Mac, frame: &Frame, interface: &Interface) {
    // SAFETY: a map value, which stays in place for the whole run. Only the flags are written, and the agent replaces
    // the whole element, so neither can leave a mixture.
    unsafe {
        let announced = is_announced(&*vip, frame, interface);
        if (*vip).flags & VIP_LEADING == 0 || !announced || sender == interface.mac {
            return;
        }
        if PEERS.get_ptr(sender).is_some() {
            (*vip).flags = (*vip).flags & !VIP_LEADING | VIP_YIELDED;
            count::stat(Stat::Yielded, frame.length());
        }
    }
}

/// Whether the node's own stack may send this ARP packet: not in the name of a VIP that it does not lead. A kernel that
/// has the VIP on a dummy interface sends such requests, and they would move clients.
#[inline(always)]
pub(crate) fn may_leave(context: &TcContext, network: usize) -> bool {
    let at = pin(context.data()) + network;
    if at + ARP_LENGTH > pin(context.data_end()) {
        return true;
    }
    // SAFETY: compared with the end above.
    let sender_ip: u32 = unsafe { read::<14, _>(at) };
    let Some(vip) = VIPS.get_ptr(Address::v4(sender_ip)) else { return true };
    // SAFETY: a map value, which stays in place for the whole run.
    let leading = unsafe { (*vip).flags & VIP_LEADING != 0 };
    match standing() {
        Standing::InTime => leading,
        Standing::Lapsed => false,
        Standing::Abandoned => true,
    }
}
