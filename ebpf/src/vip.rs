//! Finds the VIP of a packet, and how nodes are reached for it.

use core::ptr;

use vipmux_common::{
    abi::{Address, Interface, Node, VIP_ALL_PORTS, VIP_CROWDED, VIP_SEGMENT, VipSlot, node_element},
    hash,
};

use crate::{
    frame::Frame,
    maps::{NODES, VIP_INDEX, VIPS},
    packet::Packet,
    peer,
    wire::opaque,
};

/// The two halves of an address, which fit into an argument.
#[inline(always)]
pub(crate) fn halves(address: &Address) -> (u64, u64) {
    let pair = |first: u32, second: u32| u64::from(first) | u64::from(second) << 32;
    (pair(address.w0, address.w1), pair(address.w2, address.w3))
}

#[inline(always)]
pub(crate) fn whole(high: u64, low: u64) -> Address {
    Address { w0: high as u32, w1: (high >> 32) as u32, w2: low as u32, w3: (low >> 32) as u32 }
}

/// Not in a map: another node has handed the packet over.
const HANDED_OVER: u32 = 1 << 30;

/// The flags of a packet's VIP, and how the packet came. One number, since the stack has no room for
/// more.
#[derive(Clone, Copy)]
pub(crate) struct Flags(pub(crate) u32);

impl Flags {
    /// Returns whether a claim takes packets to all ports.
    #[inline(always)]
    pub(crate) fn has_all_ports(self) -> bool {
        self.0 & VIP_ALL_PORTS != 0
    }

    /// Returns whether another node has handed the packet over.
    #[inline(always)]
    pub(crate) fn is_handed_over(self) -> bool {
        self.0 & HANDED_OVER != 0
    }

    /// Returns the path to the node of this index.
    #[inline(always)]
    pub(crate) fn path(self, node: u32) -> Option<&'static Node> {
        // The compiler would compute both.
        let element = if self.0 & VIP_SEGMENT == 0 { node } else { node_element(self.0, opaque(node.into()) as u32) };
        NODES.get(element)
    }
}

/// Returns the id and the flags of the VIP that a packet is for. The VIP must be announced here, or
/// the packet handed over, which is allowed wherever nodes reach each other. An IPv4-mapped address
/// on the wire is refused: it stands for an IPv4 VIP (RFC 4291, 2.5.5.2).
#[inline(always)]
pub(crate) fn of<const V6: bool>(frame: &Frame, interface: &Interface, packet: &Packet<V6>) -> Option<(u32, Flags)> {
    let address = &packet.destination;
    if V6 && address.is_v4() {
        return None;
    }
    let (id, flags, interfaces, vlan) = match indexed(address) {
        Indexed::Here(slot, id) => {
            // SAFETY: as in `indexed`.
            let field = |field: *const u32| unsafe { ptr::read_volatile(field) };
            (id, field(&slot.flags), field(&slot.interfaces), field(&slot.vlan))
        }
        Indexed::Elsewhere => {
            // A copy, so that the packet's own need not be in memory.
            let address = *address;
            let element = VIPS.get_ptr(&address)?;
            // SAFETY: a map value, which is always one of some VIP.
            let (id, flags, interfaces, vlan) = unsafe {
                let field = |field: *const u32| ptr::read_volatile(field);
                let vip = &*element;
                (field(&vip.id), field(&vip.flags), field(&vip.interfaces), field(&vip.vlan))
            };
            // The agent may have written this VIP and then another one to the element (see `maps::copy`).
            if VIPS.get_ptr(&address) != Some(element) {
                return None;
            }
            (id, flags, interfaces, vlan)
        }
        Indexed::Nowhere => return None,
    };
    let handed_over = if peer::has_handed_over(frame) {
        true
    } else if interfaces & interface.bit != 0 && vlan == frame.vlan {
        return Some((id, Flags(flags)));
    } else {
        peer::has_handed_over_elsewhere(frame, interface)
    };
    handed_over.then_some((id, Flags(flags | HANDED_OVER)))
}

/// Returns whether the address is a VIP, wherever it is announced.
#[inline(always)]
pub(crate) fn is_vip(address: &Address) -> bool {
    match indexed(address) {
        Indexed::Here(..) => true,
        // A copy, as above.
        Indexed::Elsewhere => VIPS.get_ptr(*address).is_some(),
        Indexed::Nowhere => false,
    }
}

/// What `VIP_INDEX` says about an address.
enum Indexed {
    /// The VIP of this id.
    Here(&'static VipSlot, u32),
    /// If it is a VIP, `VIPS` has it.
    Elsewhere,
    /// It is no VIP.
    Nowhere,
}

#[inline(always)]
fn indexed(address: &Address) -> Indexed {
    let Some(slot) = VIP_INDEX.get(hash::vip(address)) else { return Indexed::Nowhere };
    let (high, _) = halves(address);
    let indexed = &raw const slot.address;
    // SAFETY: a map value. The agent may write it meanwhile, but changes no more than the flag
    // alone without the flag, so that what is not here yet is looked up. What differs most is compared
    // first.
    unsafe {
        if ptr::read_volatile(&raw const (*indexed).w3) == address.w3
            && ptr::read_volatile(&raw const (*indexed).w2) == address.w2
            && ptr::read_volatile(indexed.cast::<u64>()) == high
        {
            let id = ptr::read_volatile(&raw const slot.id);
            if id != 0 {
                return Indexed::Here(slot, id);
            }
        }
        let is_crowded = ptr::read_volatile(&raw const slot.flags) & VIP_CROWDED != 0;
        if is_crowded { Indexed::Elsewhere } else { Indexed::Nowhere }
    }
}
