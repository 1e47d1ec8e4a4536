//! The frame under the program's eyes: Ethernet, one 802.1Q tag, IPv4, TCP and UDP.
//!
//! Wire fields are read as they lie, so they are in network byte order unless a name says otherwise.

use core::arch::asm;

use aya_ebpf::programs::XdpContext;
use vipmux_common::abi::{Address, DropReason, FlowKey, FragmentKey, Mac};

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800_u16.to_be();
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806_u16.to_be();
const ETHERTYPE_VLAN: u16 = 0x8100_u16.to_be();

pub(crate) const TCP: u32 = 6;
pub(crate) const UDP: u32 = 17;
pub(crate) const ICMP: u32 = 1;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

const ETHERNET_LENGTH: usize = 14;
const VLAN_TAG_LENGTH: usize = 4;
const IPV4_LENGTH: usize = 20;
const TCP_LENGTH: usize = 20;
const UDP_LENGTH: usize = 8;
/// More fragments, and the fragment offset (RFC 791, 3.1).
const FRAGMENT: u16 = 0x3fff_u16.to_be();
/// The fragment offset alone.
const FRAGMENT_OFFSET: u16 = 0x1fff_u16.to_be();

/// A number that is loaded from and stored to a packet, as it lies there.
pub(crate) trait Wire: Copy {
    /// Loads it from `address + OFFSET`, which need not be aligned.
    ///
    /// # Safety
    /// The place was compared with the packet's end, by this very `address`.
    unsafe fn load<const OFFSET: usize>(address: usize) -> Self;

    /// Stores it at `address + OFFSET`, which need not be aligned.
    ///
    /// # Safety
    /// As [`Self::load`].
    unsafe fn store<const OFFSET: usize>(address: usize, value: Self);
}

// One instruction each. The compiler would copy bytes, since it may not assume that a misaligned access works; in a packet it
// does, on every architecture that has `CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS`. (Allowing it everywhere, by
// `allows-misaligned-mem-access`, makes stack accesses that the verifier refuses.)
macro_rules! wire {
    ($($type:ty: $name:literal,)*) => {
        $(impl Wire for $type {
            #[inline(always)]
            unsafe fn load<const OFFSET: usize>(address: usize) -> Self {
                let value: u64;
                // SAFETY: the caller's bounds check.
                unsafe {
                    asm!(
                        concat!("{} = *(", $name, " *)({} + {})"),
                        out(reg) value, in(reg) address, const OFFSET,
                        options(pure, readonly, nostack, preserves_flags),
                    );
                }
                value as Self
            }

            #[inline(always)]
            unsafe fn store<const OFFSET: usize>(address: usize, value: Self) {
                // SAFETY: the caller's bounds check.
                unsafe {
                    asm!(
                        concat!("*(", $name, " *)({} + {}) = {}"),
                        in(reg) address, const OFFSET, in(reg) u64::from(value),
                        options(nostack, preserves_flags),
                    );
                }
            }
        })*
    };
}
wire!(u8: "u8", u16: "u16", u32: "u32",);

/// Loads what lies `OFFSET` bytes after `address`; see [`Wire::load`].
///
/// # Safety
/// As [`Wire::load`].
#[inline(always)]
pub(crate) unsafe fn read<const OFFSET: usize, T: Wire>(address: usize) -> T {
    // SAFETY: the caller's bounds check.
    unsafe { T::load::<OFFSET>(address) }
}

/// Stores `OFFSET` bytes after `address`; see [`Wire::store`].
///
/// # Safety
/// As [`Wire::load`].
#[inline(always)]
pub(crate) unsafe fn write<const OFFSET: usize, T: Wire>(address: usize, value: T) {
    // SAFETY: the caller's bounds check.
    unsafe { T::store::<OFFSET>(address, value) }
}

/// Keeps a packet pointer in one register, so that the verifier's bounds check holds for each use of it: the compiler
/// would otherwise compute it again from its parts, and the verifier not recognise it. Also the two that come from the
/// context, which loads them as 32 bits: the compiler would spill no more than those, and the verifier refuse it.
#[inline(always)]
pub(crate) fn pin(mut address: usize) -> usize {
    // SAFETY: a register moved onto itself. (Without any instruction, its line information would collide with the next
    // one's, which the kernel refuses.)
    unsafe { asm!("{0} = {0}", inout(reg) address, options(pure, nomem, nostack, preserves_flags)) };
    address
}

/// A number that the compiler does not know and the verifier does: what depends on it stays told apart on each path.
#[inline(always)]
fn literal<const NUMBER: u32>() -> u32 {
    let number: u64;
    // SAFETY: a register is set.
    unsafe { asm!("{} = {}", out(reg) number, const NUMBER, options(pure, nomem, nostack, preserves_flags)) };
    number as u32
}

/// Ethernet and at most one 802.1Q tag.
pub(crate) struct Frame {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Where the network layer begins.
    pub(crate) network: usize,
    pub(crate) ethertype: u16,
    /// 802.1Q VLAN id, host order; 0 for untagged and for priority-tagged frames.
    pub(crate) vlan: u32,
    is_tagged: bool,
    /// 802.1Q tag control information, wire.
    tag: u16,
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
}

impl Frame {
    /// `None` where the frame is too short.
    #[inline(always)]
    pub(crate) fn parse(context: &XdpContext) -> Option<Self> {
        let (start, end) = (pin(context.data()), pin(context.data_end()));
        if start + ETHERNET_LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        let (destination, source, mut ethertype) = unsafe {
            (
                Mac { head: read::<0, _>(start), tail: read::<4, _>(start), padding: 0 },
                Mac { head: read::<6, _>(start), tail: read::<10, _>(start), padding: 0 },
                read::<12, u16>(start),
            )
        };
        let is_tagged = ethertype == ETHERTYPE_VLAN;
        let (mut vlan, mut tag, mut network) = (0, 0, start + ETHERNET_LENGTH);
        if is_tagged {
            network += VLAN_TAG_LENGTH;
            if network > end {
                return None;
            }
            // SAFETY: compared with the end above.
            unsafe {
                tag = read::<14, u16>(start);
                vlan = u32::from(u16::from_be(tag) & 0x0fff);
                ethertype = read::<16, _>(start);
            }
        }
        Some(Self { start, end, network: pin(network), ethertype, vlan, is_tagged, tag, destination, source })
    }

    /// Length in bytes, from the Ethernet header on.
    #[inline(always)]
    pub(crate) fn length(&self) -> u64 {
        (self.end - self.start) as u64
    }

    /// Whether the destination is a group address (IEEE 802, I/G bit), broadcast included.
    #[inline(always)]
    pub(crate) fn is_group(&self) -> bool {
        self.destination.head & u32::from_ne_bytes([1, 0, 0, 0]) != 0
    }

    /// Writes an Ethernet header, and a tag if this frame has one, to the start of a frame that has grown or shrunk.
    #[inline(always)]
    pub(crate) fn write_link(&self, context: &XdpContext, destination: Mac, source: Mac) -> Option<()> {
        let (start, end) = (pin(context.data()), pin(context.data_end()));
        if start + ETHERNET_LENGTH + VLAN_TAG_LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        unsafe {
            write::<0, _>(start, destination.head);
            write::<4, _>(start, destination.tail);
            write::<6, _>(start, source.head);
            write::<10, _>(start, source.tail);
            if self.is_tagged {
                write::<12, _>(start, ETHERTYPE_VLAN);
                write::<14, _>(start, self.tag);
                write::<16, _>(start, self.ethertype);
            } else {
                write::<12, _>(start, self.ethertype);
            }
        }
        Some(())
    }

    #[inline(always)]
    pub(crate) fn write_macs(&self, destination: Mac, source: Mac) {
        // SAFETY: `parse` compared the Ethernet header with the end.
        unsafe {
            write::<0, _>(self.start, destination.head);
            write::<4, _>(self.start, destination.tail);
            write::<6, _>(self.start, source.head);
            write::<10, _>(self.start, source.tail);
        }
    }
}

/// An IPv4 packet whose fixed header is in the frame; nothing else is known to be right yet.
pub(crate) struct Ipv4 {
    pub(crate) at: usize,
    pub(crate) source: u32,
    pub(crate) destination: u32,
}

impl Ipv4 {
    #[inline(always)]
    pub(crate) fn parse(at: usize, end: usize) -> Option<Self> {
        if at + IPV4_LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        unsafe { Some(Self { at, source: read::<12, _>(at), destination: read::<16, _>(at) }) }
    }

    /// Checks the header of a packet of which `available` bytes are there. `None`: it is this node's own, still to be
    /// segmented, and its length is not looked at; one that does not fit 16 bits is zero (iph_totlen in include/net/ip.h).
    #[inline(always)]
    pub(crate) fn transport(&self, available: Option<usize>) -> Result<Transport, DropReason> {
        let at = self.at;
        // SAFETY: `parse` compared the fixed header with the end.
        let (version_length, total, fragment, protocol) = unsafe {
            (
                read::<0, u8>(at),
                u16::from_be(read::<2, _>(at)) as usize,
                read::<6, u16>(at),
                u32::from(read::<9, u8>(at)),
            )
        };
        let header = usize::from(version_length & 0x0f) * 4;
        let total = if available.is_none() { usize::from(u16::MAX) } else { total };
        let is_cut = available.is_some_and(|available| total > available);
        if version_length >> 4 != 4 || header < IPV4_LENGTH || total < header || is_cut {
            return Err(DropReason::Malformed);
        }
        let part = if fragment & FRAGMENT == 0 {
            Part::Whole
        } else if fragment & FRAGMENT_OFFSET == 0 {
            Part::First
        } else {
            Part::Later
        };
        Ok(Transport { at: pin(at + header), protocol, length: total - header, part })
    }

    /// What the fragments of this packet's datagram share.
    #[inline(always)]
    pub(crate) fn fragment(&self, transport: &Transport) -> FragmentKey {
        FragmentKey {
            source: Address::v4(self.source),
            destination: Address::v4(self.destination),
            // SAFETY: `parse` compared the fixed header with the end.
            id: u32::from(unsafe { read::<4, u16>(self.at) }),
            protocol: transport.protocol,
        }
    }
}

/// How much of a datagram a packet has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// A fragment, with the beginning of what the datagram carries.
    First,
    /// A fragment without ports.
    Later,
}

/// What follows the IPv4 header.
pub(crate) struct Transport {
    /// Where it begins.
    pub(crate) at: usize,
    pub(crate) protocol: u32,
    /// Its length by the IPv4 header, bytes.
    length: usize,
    pub(crate) part: Part,
}

impl Transport {
    /// Takes what the walk needs of TCP or UDP.
    #[inline(always)]
    pub(crate) fn segment(&self, end: usize) -> Result<Segment, DropReason> {
        let Self { at, protocol, length, .. } = *self;
        let needed = match protocol {
            TCP => TCP_LENGTH,
            UDP => UDP_LENGTH,
            _ => return Err(DropReason::Protocol),
        };
        if length < needed || at + UDP_LENGTH > end {
            return Err(DropReason::Malformed);
        }
        // SAFETY: eight bytes were compared with the end.
        let (source_port, destination_port) = unsafe { (read::<0, _>(at), read::<2, _>(at)) };
        let mut segment = Segment {
            transport: at,
            protocol: UDP,
            source_port,
            destination_port,
            flags: 0,
            sequence: 0,
            acknowledged: 0,
        };
        if protocol == TCP {
            if at + TCP_LENGTH > end {
                return Err(DropReason::Malformed);
            }
            segment.protocol = literal::<TCP>();
            // SAFETY: compared with the end above.
            unsafe {
                segment.sequence = u32::from_be(read::<4, _>(at));
                segment.acknowledged = u32::from_be(read::<8, _>(at));
                segment.flags = read::<13, _>(at);
            }
        }
        Ok(segment)
    }

    /// Bytes of data in a TCP segment.
    #[inline(always)]
    pub(crate) fn data(&self, end: usize) -> Option<u32> {
        if self.at + TCP_LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        let header = usize::from(unsafe { read::<12, u8>(self.at) } >> 4) * 4;
        Some(self.length.saturating_sub(header) as u32)
    }
}

/// A TCP segment or UDP datagram whose headers are in the frame.
pub(crate) struct Segment {
    /// Where the TCP or UDP header begins: 8 bytes may be touched, 20 for TCP.
    pub(crate) transport: usize,
    pub(crate) protocol: u32,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// TCP's flags; 0 for UDP.
    pub(crate) flags: u8,
    /// TCP's sequence number, host order.
    pub(crate) sequence: u32,
    /// TCP's acknowledgement number, host order.
    pub(crate) acknowledged: u32,
}

impl Segment {
    /// A connection's first segment.
    #[inline(always)]
    pub(crate) fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    #[inline(always)]
    pub(crate) fn flow(&self, client: u32, vip: u32) -> FlowKey {
        FlowKey {
            client: Address::v4(client),
            vip,
            client_port: self.source_port,
            vip_port: self.destination_port,
            protocol: self.protocol,
            reserved: 0,
        }
    }
}
