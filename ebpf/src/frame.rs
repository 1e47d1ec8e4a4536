//! Parses Ethernet with at most one 802.1Q tag.
//!
//! Wire fields are read as they are in the packet: network byte order, unless a name says
//! otherwise.

use aya_ebpf::{
    bindings::xdp_md,
    helpers::{bpf_xdp_adjust_head, bpf_xdp_get_buff_len},
};
use vipmux_common::abi::Mac;

use crate::wire::{opaque, pin, read, write, write_low};

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800_u16.to_be();
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd_u16.to_be();
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806_u16.to_be();
pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100_u16.to_be();

pub(crate) const ETHERNET_LENGTH: usize = 14;
pub(crate) const VLAN_TAG_LENGTH: usize = 4;

/// The bounds of the accessible bytes: the whole frame, or the linear part of a frame in several
/// buffers (`xdp.frags`).
#[inline(always)]
pub(crate) fn bounds(context: *mut xdp_md) -> (usize, usize) {
    // SAFETY: the context is valid for the whole run.
    unsafe { (pin((*context).data as usize), pin((*context).data_end as usize)) }
}

/// Returns the length of all buffers of a frame, in a program for several.
#[inline(always)]
fn length(context: *mut xdp_md) -> u64 {
    // SAFETY: the context is valid for the whole run. The helper is there where such programs can be
    // loaded.
    unsafe { bpf_xdp_get_buff_len(context) }
}

/// Returns the length of a frame with `linear` bytes in its first buffer. `packet`: the two bytes
/// where an IPv4 packet without a tag has its length. Zero is that of a packet of more than 64 KiB.
#[inline(always)]
fn frame_length(context: *mut xdp_md, fragmented: bool, linear: usize, ethertype: u16, packet: u16) -> u64 {
    let last = ETHERNET_LENGTH + usize::from(u16::from_be(packet).wrapping_sub(1));
    let is_linear = !fragmented || ethertype == ETHERTYPE_IPV4 && last < linear;
    if is_linear { linear as u64 } else { length(context) }
}

/// Returns all ones if two numbers are equal, else zero, by arithmetic.
#[inline(always)]
fn mask_if_equal(a: u16, b: u16) -> u16 {
    let difference = opaque(u64::from(a ^ b));
    // 0 - 1 borrows all the way up; any other 16-bit number does not.
    (difference.wrapping_sub(1) >> 48) as u16
}

/// Returns whether an address is a group's (IEEE 802, I/G bit), broadcast included.
#[inline(always)]
pub(crate) fn is_group(mac: Mac) -> bool {
    mac.head & u32::from_ne_bytes([1, 0, 0, 0]) != 0
}

/// Ethernet and at most one 802.1Q tag.
pub(crate) struct Frame {
    pub(crate) context: *mut xdp_md,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The offset of the network layer.
    pub(crate) network: usize,
    pub(crate) ethertype: u16,
    /// 802.1Q VLAN id, host order; 0 for untagged and for priority-tagged frames.
    pub(crate) vlan: u32,
    /// The Ethernet header's length with the tag, bytes.
    pub(crate) link: usize,
    /// All ones if there is a tag, else zero.
    tag_mask: u16,
    /// 802.1Q tag control information, wire.
    tag: u16,
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
    /// Length in bytes, from the Ethernet header on. What follows the packet in other buffers may be
    /// missing; see [`Self::measure`].
    pub(crate) length: u64,
    /// True if the program was loaded for frames in several buffers.
    pub(crate) fragmented: bool,
}

/// What [`Frame::parse_untagged`] finds.
pub(crate) enum Untagged {
    Ipv4(Frame),
    Ipv6(Frame),
    /// Another protocol, or a tag.
    Other,
    /// Too short for anything relevant.
    Short,
}

impl Frame {
    /// Parses a frame with an IP packet and without a tag.
    #[inline(always)]
    pub(crate) fn parse_untagged(context: *mut xdp_md, fragmented: bool) -> Untagged {
        let (start, end) = bounds(context);
        // As in `parse`.
        if start + ETHERNET_LENGTH + VLAN_TAG_LENGTH > end {
            return Untagged::Short;
        }
        // SAFETY: compared with the end above.
        let (destination, source, ethertype, packet) = unsafe {
            let (destination, source): (u64, u64) = (read::<0, _>(start), read::<6, _>(start));
            (Mac::of_word(destination), Mac::of_word(source), read::<12, u16>(start), read::<16, u16>(start))
        };
        // Each kind apart, so that its Ethertype is not compared again.
        let frame = |ethertype| Self {
            context,
            start,
            end,
            network: start + ETHERNET_LENGTH,
            link: ETHERNET_LENGTH,
            ethertype,
            vlan: 0,
            tag_mask: 0,
            tag: 0,
            destination,
            source,
            length: frame_length(context, fragmented, end - start, ethertype, packet),
            fragmented,
        };
        match ethertype {
            ETHERTYPE_IPV4 => Untagged::Ipv4(frame(ETHERTYPE_IPV4)),
            ETHERTYPE_IPV6 => Untagged::Ipv6(frame(ETHERTYPE_IPV6)),
            _ => Untagged::Other,
        }
    }

    /// Parses a frame with a tag or without. `None` where it is too short.
    #[inline(always)]
    pub(crate) fn parse(context: *mut xdp_md, fragmented: bool) -> Option<Self> {
        let (start, end) = bounds(context);
        // Shorter frames have nothing relevant in them, tagged or not.
        if start + ETHERNET_LENGTH + VLAN_TAG_LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        let (destination, source, outer, tag, inner) = unsafe {
            (
                Mac::of_word(read::<0, _>(start)),
                Mac::of_word(read::<6, _>(start)),
                read::<12, u16>(start),
                read::<14, u16>(start),
                read::<16, u16>(start),
            )
        };
        // Without a branch, so that the verifier does not check all that follows twice.
        let mask = mask_if_equal(outer, ETHERTYPE_VLAN);
        let link = ETHERNET_LENGTH + (mask as usize & VLAN_TAG_LENGTH);
        let length = frame_length(context, fragmented, end - start, outer, inner);
        Some(Self {
            context,
            start,
            end,
            network: pin(start + link),
            link,
            ethertype: outer & !mask | inner & mask,
            vlan: u32::from(u16::from_be(tag) & 0x0fff & mask),
            tag_mask: mask,
            tag,
            destination,
            source,
            length,
            fragmented,
        })
    }

    /// Makes `length` that of all buffers. [`Self::parse`] does not ask for it if the packet's own
    /// length shows that it is in the first buffer: the call costs more than the rest of the parsing.
    #[inline(always)]
    pub(crate) fn measure(&mut self) {
        if self.fragmented {
            self.length = length(self.context);
        }
    }

    /// Bytes of the network layer.
    #[inline(always)]
    pub(crate) fn available(&self) -> usize {
        if self.fragmented { self.length as usize - self.link } else { self.end - self.network }
    }

    /// Returns whether the destination is a group's.
    #[inline(always)]
    pub(crate) fn is_group(&self) -> bool {
        is_group(self.destination)
    }

    /// Writes an Ethernet header, with a tag if this frame has one, to the start of a frame that
    /// has grown or shrunk.
    #[inline(always)]
    pub(crate) fn write_link(&self, destination: Mac, source: Mac) -> Option<()> {
        let (start, end) = bounds(self.context);
        if start + ETHERNET_LENGTH + VLAN_TAG_LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        unsafe {
            write::<0, _>(start, destination.head);
            write::<4, _>(start, destination.tail);
            write::<6, _>(start, source.head);
            write::<10, _>(start, source.tail);
            if self.tag_mask != 0 {
                write::<12, _>(start, ETHERTYPE_VLAN);
                write::<14, _>(start, self.tag);
                write::<16, _>(start, self.ethertype);
            } else {
                write::<12, _>(start, self.ethertype);
            }
        }
        Some(())
    }

    /// Writes the MACs, and the tag of another VLAN (0: none). Then nothing else may be read or written.
    #[inline(always)]
    pub(crate) fn retag(&self, destination: Mac, source: Mac, vlan: u32) -> Option<()> {
        (frame_retag(self.context, destination.word(), source.word(), vlan) == 0).then_some(())
    }

    #[inline(always)]
    pub(crate) fn write_macs(&self, destination: Mac, source: Mac) {
        // SAFETY: `parse` compared the Ethernet header with the end.
        unsafe {
            let (destination, source) = (destination.word(), source.word());
            write_low::<0, u32>(self.start, destination);
            write_low::<4, u16>(self.start, destination >> 32);
            write_low::<6, u32>(self.start, source);
            write_low::<10, u16>(self.start, source >> 32);
        }
    }
}

/// Writes the MACs, and adds, changes or removes the tag. The priority of a tag stays. Returns zero, or
/// one if there is no room. The verifier checks this function on its own, and with its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn frame_retag(context: *mut xdp_md, destination: u64, source: u64, vlan: u32) -> u32 {
    const PRIORITY: u16 = 0xf000;
    const TAG: i32 = VLAN_TAG_LENGTH as i32;
    let (start, end) = bounds(context);
    if start + ETHERNET_LENGTH + VLAN_TAG_LENGTH > end {
        return 1;
    }
    // SAFETY: compared with the end above.
    let (ethertype, tag) = unsafe { (read::<12, u16>(start), u16::from_be(read::<14, u16>(start))) };
    let is_tagged = ethertype == ETHERTYPE_VLAN;
    let growth = match (is_tagged, vlan) {
        (true, 0) => -TAG,
        (false, 1..) => TAG,
        _ => 0,
    };
    // SAFETY: the context is valid for the whole run.
    if growth != 0 && unsafe { bpf_xdp_adjust_head(context, -growth) } != 0 {
        return 1;
    }
    let (start, end) = bounds(context);
    if start + ETHERNET_LENGTH + VLAN_TAG_LENGTH > end {
        return 1;
    }
    // SAFETY: compared with the end above. The Ethertype is in its place: what the frame gains or
    // loses is in front of it.
    unsafe {
        write::<0, _>(start, destination as u32);
        write::<4, _>(start, (destination >> 32) as u16);
        write::<6, _>(start, source as u32);
        write::<10, _>(start, (source >> 32) as u16);
        if vlan != 0 {
            let priority = if is_tagged { tag & PRIORITY } else { 0 };
            write::<12, _>(start, ETHERTYPE_VLAN);
            write::<14, _>(start, (priority | vlan as u16).to_be());
        }
    }
    0
}
