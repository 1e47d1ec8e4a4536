//! The frame under the program's eyes: Ethernet, one 802.1Q tag, IPv4, TCP and UDP.
//!
//! Wire fields are read as they lie, so they are in network byte order unless a name says otherwise.

use core::arch::asm;

use aya_ebpf::programs::XdpContext;
use vipmux_common::abi::{Address, DropReason, FlowKey, Mac};

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800_u16.to_be();
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806_u16.to_be();
const ETHERTYPE_VLAN: u16 = 0x8100_u16.to_be();

pub(crate) const TCP: u32 = 6;
pub(crate) const UDP: u32 = 17;
const ICMP: u32 = 1;

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

/// Reads a `T` at `address`, which need not be aligned.
///
/// # Safety
/// `address..address + size_of::<T>()` was compared with the packet's end.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(address: usize) -> T {
    // SAFETY: the caller's bounds check; the target allows misaligned access (see .cargo/config.toml).
    unsafe { (address as *const T).read_unaligned() }
}

/// Writes a `T` at `address`, which need not be aligned.
///
/// # Safety
/// As [`read`].
#[inline(always)]
pub(crate) unsafe fn write<T: Copy>(address: usize, value: T) {
    // SAFETY: as in `read`.
    unsafe { (address as *mut T).write_unaligned(value) }
}

/// Keeps a packet pointer in one register, so that the verifier's bounds check holds for each use of it: the compiler
/// would otherwise compute it again from its parts, and the verifier not recognise it.
#[inline(always)]
pub(crate) fn pin(mut address: usize) -> usize {
    // SAFETY: a register moved onto itself. (Without any instruction, its line information would collide with the next
    // one's, which the kernel refuses.)
    unsafe { asm!("{0} = {0}", inout(reg) address, options(pure, nomem, nostack, preserves_flags)) };
    address
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
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
}

impl Frame {
    /// `None` where the frame is too short.
    #[inline(always)]
    pub(crate) fn parse(context: &XdpContext) -> Option<Self> {
        let (start, end) = (context.data(), context.data_end());
        if start + ETHERNET_LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        let (destination, source, mut ethertype) = unsafe {
            (
                Mac { head: read(start), tail: read(start + 4), padding: 0 },
                Mac { head: read(start + 6), tail: read(start + 10), padding: 0 },
                read::<u16>(start + 12),
            )
        };
        let (mut vlan, mut network) = (0, start + ETHERNET_LENGTH);
        if ethertype == ETHERTYPE_VLAN {
            network += VLAN_TAG_LENGTH;
            if network > end {
                return None;
            }
            // SAFETY: compared with the end above.
            unsafe {
                vlan = u32::from(u16::from_be(read(start + 14)) & 0x0fff);
                ethertype = read(start + 16);
            }
        }
        Some(Self { start, end, network: pin(network), ethertype, vlan, destination, source })
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

    #[inline(always)]
    pub(crate) fn write_macs(&self, destination: Mac, source: Mac) {
        // SAFETY: `parse` compared the Ethernet header with the end.
        unsafe {
            write(self.start, destination.head);
            write(self.start + 4, destination.tail);
            write(self.start + 6, source.head);
            write(self.start + 10, source.tail);
        }
    }
}

/// An IPv4 packet whose fixed header is in the frame; nothing else is known to be right yet.
pub(crate) struct Ipv4 {
    at: usize,
    pub(crate) source: u32,
    pub(crate) destination: u32,
}

impl Ipv4 {
    #[inline(always)]
    pub(crate) fn parse(frame: &Frame) -> Option<Self> {
        let at = frame.network;
        if at + IPV4_LENGTH > frame.end {
            return None;
        }
        // SAFETY: compared with the end above.
        unsafe { Some(Self { at, source: read(at + 12), destination: read(at + 16) }) }
    }

    /// Checks the headers and takes what the walk needs of TCP or UDP.
    #[inline(always)]
    pub(crate) fn segment(&self, frame: &Frame) -> Result<Segment, DropReason> {
        let at = self.at;
        // SAFETY: `parse` compared the fixed header with the end.
        let (version_length, total, fragment, protocol) = unsafe {
            (read::<u8>(at), u16::from_be(read(at + 2)) as usize, read::<u16>(at + 6), u32::from(read::<u8>(at + 9)))
        };
        let header = usize::from(version_length & 0x0f) * 4;
        if version_length >> 4 != 4 || header < IPV4_LENGTH || total > frame.end - at {
            return Err(DropReason::Malformed);
        }
        if fragment & FRAGMENT != 0 {
            return Err(DropReason::Fragment);
        }
        let transport = pin(at + header);
        let needed = match protocol {
            TCP => TCP_LENGTH,
            UDP => UDP_LENGTH,
            ICMP => return Err(DropReason::Icmp),
            _ => return Err(DropReason::Protocol),
        };
        if total < header + needed || transport + UDP_LENGTH > frame.end {
            return Err(DropReason::Malformed);
        }
        // SAFETY: eight bytes were compared with the end.
        let (source_port, destination_port) = unsafe { (read(transport), read(transport + 2)) };
        let mut segment =
            Segment { network: at, transport, protocol, source_port, destination_port, flags: 0, sequence: 0 };
        if protocol == TCP {
            if transport + TCP_LENGTH > frame.end {
                return Err(DropReason::Malformed);
            }
            // SAFETY: compared with the end above.
            unsafe {
                segment.sequence = u32::from_be(read(transport + 4));
                segment.flags = read(transport + 13);
            }
        }
        Ok(segment)
    }
}

/// A TCP segment or UDP datagram whose headers are in the frame.
pub(crate) struct Segment {
    /// Where the IPv4 header begins.
    pub(crate) network: usize,
    /// Where the TCP or UDP header begins: 8 bytes may be touched, 20 for TCP.
    pub(crate) transport: usize,
    pub(crate) protocol: u32,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// TCP's flags; 0 for UDP.
    pub(crate) flags: u8,
    /// TCP's sequence number, host order.
    pub(crate) sequence: u32,
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
