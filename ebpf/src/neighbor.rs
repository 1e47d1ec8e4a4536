//! Decides who answers for a VIP's address on the link, for ARP and Neighbor Discovery.

use core::ptr;

use aya_ebpf::{helpers::bpf_ktime_get_boot_ns, programs::TcContext};
use vipmux_common::{
    abi::{
        Address, Config, DropReason, Interface, Mac, Speaker, SpeakerKey, Stat, VIP_ASSURED, VIP_LEADING, VIP_YIELDED,
        VipValue,
    },
    budget::Kind,
};

use crate::{
    budget, count,
    frame::{Frame, is_group},
    maps::{INTERFACES, SPEAKERS, VIPS, config, copy, fence},
    peer,
};

const NANOSECONDS: u64 = 1_000_000_000;

/// The state of the fence deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    InTime,
    Lapsed,
    Abandoned,
}

#[inline(always)]
fn standing() -> Standing {
    // SAFETY: a map value, and a helper without arguments.
    let (deadline, now) = unsafe { (ptr::read_volatile(&raw const (*fence()).deadline), bpf_ktime_get_boot_ns()) };
    if now < deadline {
        Standing::InTime
    } else if now - deadline < u64::from(config().abandon_after) * NANOSECONDS {
        Standing::Lapsed
    } else {
        Standing::Abandoned
    }
}

/// Returns whether the agent has been away for so long that this node neither answers for VIPs nor
/// balances new flows ([`crate::abandoned`]). The clock is read once a second and after each new
/// deadline, since that costs more than all the rest.
#[inline(always)]
pub(crate) fn is_abandoned(config: &Config, now: u64) -> bool {
    let fence = fence();
    // SAFETY: a map value. If several CPUs ask the clock at once, their answers are the same.
    unsafe {
        if now < ptr::read_volatile(&raw const (*fence).kept_until) {
            return false;
        }
        if now < ptr::read_volatile(&raw const (*fence).abandoned_until) {
            return true;
        }
        let (is_abandoned, until) = (standing() == Standing::Abandoned, now + u64::from(config.hz));
        let answer = if is_abandoned { &raw mut (*fence).abandoned_until } else { &raw mut (*fence).kept_until };
        ptr::write_volatile(answer, until);
        is_abandoned
    }
}

/// The drop reasons of a protocol.
pub(crate) struct Reasons {
    pub(crate) not_leading: DropReason,
    pub(crate) fenced: DropReason,
}

/// Returns whether to answer a request of this sender for this address here and now; `Ok(false)`: it
/// passes. A group is no sender: an answer to it would go to many machines.
#[inline(always)]
pub(crate) fn answers(
    address: &Address,
    sender: Mac,
    frame: &Frame,
    interface: &Interface,
    reasons: &Reasons,
) -> Result<bool, DropReason> {
    let Some(vip) = copy(&VIPS, address) else { return Ok(false) };
    if !is_announced(&vip, interface, frame.vlan) {
        return Ok(false);
    }
    match standing() {
        Standing::Abandoned => Ok(false),
        Standing::Lapsed if vip.flags & VIP_LEADING != 0 => Err(reasons.fenced),
        Standing::InTime if vip.flags & VIP_LEADING != 0 && is_group(sender) => Err(DropReason::Malformed),
        Standing::InTime if vip.flags & VIP_LEADING != 0 => Ok(true),
        _ => Err(reasons.not_leading),
    }
}

/// Returns whether the VIP is announced on this interface and VLAN.
#[inline(always)]
pub(crate) fn is_announced(vip: &VipValue, interface: &Interface, vlan: u32) -> bool {
    vip.interfaces & interface.bit != 0 && vip.vlan == vlan
}

/// Handles an announcement of an address. Returns whether it is a VIP. A peer that announces a VIP
/// that this node leads now leads it, unless the agent has set [`VIP_ASSURED`]. The agent handles
/// foreign speakers, and peers then.
#[inline(always)]
pub(crate) fn hear(address: &Address, sender: Mac, frame: &Frame, interface: &Interface) -> bool {
    let Some(vip) = copy(&VIPS, address) else { return false };
    if !is_announced(&vip, interface, frame.vlan) {
        return true;
    }
    if sender == interface.mac {
        count::stat(Stat::Reflected, frame.length);
        return true;
    }
    let is_node = peer::is_node(sender);
    note(address, sender, is_node, frame, |speaker, now| speaker.claimed = now);
    let leads = vip.flags & VIP_LEADING != 0;
    let is_assured = leads && vip.flags & VIP_ASSURED != 0 && standing() == Standing::InTime;
    if !is_node || is_assured {
        count::stat(Stat::Foreign, frame.length);
    } else if leads {
        give_up(address, vip.id);
        count::stat(Stat::Yielded, frame.length);
    }
    true
}

/// Stops answering for a VIP, before the agent knows. The element is looked up right before: if the agent
/// replaces two VIPs on one CPU between these two instructions, the second one stops, and its agent leads it
/// again.
#[inline(always)]
fn give_up(address: &Address, id: u32) {
    let Some(vip) = VIPS.get_ptr_mut(address) else { return };
    // SAFETY: a map value. Only its flags are written, and the agent replaces the whole element, so
    // neither can leave a mixture.
    unsafe {
        if (*vip).id == id {
            (*vip).flags = (*vip).flags & !(VIP_LEADING | VIP_ASSURED) | VIP_YIELDED;
        }
    }
}

/// Notes a broadcast probe for an address: its sender is about to take it (RFC 5227, 2.1.1; RFC
/// 4862, 5.4.3). A unicast probe to this node only checks whether it is still there, as switches
/// do.
#[inline(always)]
pub(crate) fn hear_probe(address: &Address, sender: Mac, option: u64, frame: &Frame, interface: &Interface) {
    if !frame.is_group() || sender == interface.mac {
        return;
    }
    let Some(vip) = copy(&VIPS, address) else { return };
    if is_announced(&vip, interface, frame.vlan) {
        note(address, sender, peer::is_node(sender), frame, |speaker, now| {
            (speaker.probed, speaker.option) = (now, option)
        });
    }
}

/// Records the speaker for the agent. New ones that are no nodes are limited, so that a host that makes
/// up MACs cannot evict all others. The element is replaced, and looked up again after it was copied, since an
/// LRU map may give it to another key meanwhile.
#[inline(always)]
fn note(address: &Address, mac: Mac, is_node: bool, frame: &Frame, heard: impl FnOnce(&mut Speaker, u64)) {
    let key = SpeakerKey { vip: *address, mac };
    let former = SPEAKERS.get_ptr(&key);
    if former.is_none() && !is_node && !budget::take(Kind::Speaker, address) {
        return;
    }
    // SAFETY: a copy of a map value, and a helper without arguments; the context is valid for the
    // whole run.
    let (mut speaker, now, ifindex) = unsafe {
        let speaker = former.map_or(Speaker::default(), |former| *former);
        (speaker, bpf_ktime_get_boot_ns(), (*frame.context).ingress_ifindex)
    };
    if former.is_some() && SPEAKERS.get_ptr(&key) != former {
        speaker = Speaker::default();
    }
    speaker.ifindex = ifindex;
    heard(&mut speaker, now);
    // Without room, which an LRU map makes, it is not recorded.
    let _ = SPEAKERS.insert(&key, &speaker, 0);
}

/// Returns whether the node's own stack may send for this address here: not for a VIP that it does
/// not lead, and not where the VIP is not announced. A kernel with the VIP on a dummy interface
/// would do so and move clients.
#[inline(always)]
pub(crate) fn may_speak(address: &Address, context: &TcContext) -> bool {
    let Some(vip) = copy(&VIPS, address) else { return true };
    // SAFETY: the context is valid for the whole run.
    let ifindex = unsafe { (*context.skb.skb).ifindex };
    // Interfaces on top of a port, such as a VLAN, have no bit. Their frames leave by the port.
    let bit = INTERFACES.get(ifindex).map_or(0, |interface| interface.bit);
    let announced = bit == 0 || vip.interfaces & bit != 0;
    match standing() {
        Standing::InTime => vip.flags & VIP_LEADING != 0 && announced,
        Standing::Lapsed => false,
        Standing::Abandoned => true,
    }
}
