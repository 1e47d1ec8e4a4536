//! Map keys and values.
//!
//! Every type is `repr(C)` with explicit padding, so that no byte of a key is undefined, and has no arrays where the
//! hot path builds it (the compiler would call `memset`). Keys are aligned to 8 bytes, since the
//! verifier wants that of the merged stores that build them on the stack. Fields named *wire* hold the bytes as they are in a packet
//! (network byte order, loaded natively); all others are numbers in the host's byte order.

mod counters;
mod leadership;
mod records;

use core::mem::{align_of, offset_of, size_of};

pub use counters::{DropReason, Stat};
pub use leadership::*;
pub use records::*;

/// Changes whenever a type in this module, a map's type or the meaning of a value changes.
pub const ABI_VERSION: u32 = 7;

/// The versions whose maps an agent carries over to its own, older ones and newer ones: they only add to each other. In
/// such a family, maps come, and values grow at their ends, where zero stands for what was before ([`Config`]: the
/// default for zero); nothing else changes its place, its size or its meaning. Of the arrays of counters, which begin
/// anew with another size, indices may move with it. What cannot be done so begins the next family, at the next hundred.
pub const COMPATIBLE: core::ops::Range<u32> = 3..100;

/// The first three bytes of every hand-over MAC: locally administered, individual (IEEE 802-2014, 8.4). A frame with
/// such a source was balanced by another node.
pub const HANDOVER_PREFIX: [u8; 3] = [0x0e, 0x76, 0x6d];

/// Entries of each map, where the agent's configuration says nothing else.
pub mod capacity {
    /// Network interfaces, indexed by ifindex.
    pub const INTERFACES: u32 = 65_536;
    /// VIPs.
    pub const VIPS: u32 = 16_384;
    /// Slots of the index of VIPs: a power of two.
    pub const VIP_INDEX: u32 = 16_384;
    /// Port claims, so the sum over all Services of their ports on each VIP; also of the arrays indexed by slot.
    pub const SERVICES: u32 = 24_576;
    /// Slots of the arena of Maglev tables, two to an element ([`crate::table`]): 24 MiB. 10,000 Services of ten endpoints,
    /// all with a table of their own over local ones, take four fifths of it.
    pub const TABLES: u32 = 6_160_384;
    /// Backends: distinct (address, port, node).
    pub const BACKENDS: u32 = 262_144;
    /// Nodes.
    pub const NODES: u32 = 8_192;
    /// Nodes' MAC addresses.
    pub const PEERS: u32 = 16_384;
    /// Flow and reverse-flow records; the agent sizes them from the memory, up to 1 M.
    pub const FLOWS: u32 = 16_384;
    /// Fragmented datagrams whose later fragments are awaited, in each direction.
    pub const FRAGMENTS: u32 = 8_192;
    /// Others that spoke for a VIP lately: pairs of a VIP and a MAC.
    pub const SPEAKERS: u32 = 1_024;
    /// Clients that Services with session affinity remember.
    pub const AFFINITY: u32 = 65_536;
    /// Prefixes that Services with source ranges allow, over all Services.
    pub const SOURCE_RANGES: u32 = 65_536;
}

/// An IPv6 address, or an IPv4 address in its IPv4-mapped form (RFC 4291, 2.5.5.2): 16 wire bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Bytes 0 to 3, wire.
    pub w0: u32,
    /// Bytes 4 to 7, wire.
    pub w1: u32,
    /// Bytes 8 to 11, wire; `::ffff` of an IPv4-mapped address.
    pub w2: u32,
    /// Bytes 12 to 15, wire; an IPv4 address.
    pub w3: u32,
}

impl Address {
    /// `w2` of an IPv4-mapped address.
    pub const MAPPED: u32 = 0x0000_ffff_u32.to_be();

    /// The IPv4-mapped form of an IPv4 address given as its four wire bytes.
    #[inline(always)]
    pub const fn v4(wire: u32) -> Self {
        Self { w0: 0, w1: 0, w2: Self::MAPPED, w3: wire }
    }

    /// Whether this is an IPv4-mapped address.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        self.w0 == 0 && self.w1 == 0 && self.w2 == Self::MAPPED
    }
}

/// A MAC address: six wire bytes, in two parts that load without byte-wise copies.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac {
    /// Bytes 0 to 3, wire.
    pub head: u32,
    /// Bytes 4 and 5, wire.
    pub tail: u16,
    /// Zero.
    pub padding: u16,
}

impl Mac {
    /// From the six bytes in wire order.
    pub const fn new(b: [u8; 6]) -> Self {
        Self { head: u32::from_ne_bytes([b[0], b[1], b[2], b[3]]), tail: u16::from_ne_bytes([b[4], b[5]]), padding: 0 }
    }

    /// The six bytes in wire order.
    pub const fn bytes(self) -> [u8; 6] {
        let (h, t) = (self.head.to_ne_bytes(), self.tail.to_ne_bytes());
        [h[0], h[1], h[2], h[3], t[0], t[1]]
    }

    /// Whether this is a hand-over MAC of any node ([`HANDOVER_PREFIX`]).
    #[inline(always)]
    pub const fn is_handover(self) -> bool {
        const MASK: u32 = u32::from_ne_bytes([0xff, 0xff, 0xff, 0]);
        const PREFIX: u32 = u32::from_ne_bytes([HANDOVER_PREFIX[0], HANDOVER_PREFIX[1], HANDOVER_PREFIX[2], 0]);
        self.head & MASK == PREFIX
    }

    /// The hand-over MAC of the node that has this MAC on the segment: the prefix and this one's last three bytes.
    pub const fn handover(self) -> Self {
        let b = self.bytes();
        Self::new([HANDOVER_PREFIX[0], HANDOVER_PREFIX[1], HANDOVER_PREFIX[2], b[3], b[4], b[5]])
    }
}

/// `CONFIG[0]`: what holds for the whole data plane of this node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// [`ABI_VERSION`] of the agent that made the maps.
    pub abi: u32,
    /// The id that the next new VIP gets; ids are never used twice, so no stale flow can match.
    pub next_vip: u32,
    /// The generation that the next backend or service slot gets that changes hands, and the next [`Node::epoch`]; never
    /// used twice either.
    pub next_generation: u32,
    /// The kernel's `CONFIG_HZ`: jiffies per second.
    pub hz: u32,
    /// An idle TCP flow's life, in jiffies.
    pub tcp_idle: u32,
    /// An idle UDP flow's life, in jiffies.
    pub udp_idle: u32,
    /// How long a closed TCP flow is still translated, in jiffies.
    pub closed_linger: u32,
    /// How long after the fence's deadline the programs stop minding VIPs, in seconds: an agent that was removed must not
    /// swallow them for ever.
    pub abandon_after: u32,
    /// How long later fragments follow their first one, in jiffies.
    pub fragment_life: u32,
    /// What becomes of packets that no Service or no backend takes: [`UNCLAIMED_REJECT`], [`UNCLAIMED_DROP`] or
    /// [`UNCLAIMED_PASS`].
    pub unclaimed: u32,
    /// How many packets each CPU may answer in the VIPs' name, per second: TCP RSTs, ICMP errors, echo replies.
    pub answers_per_second: u32,
    /// How many flows each CPU may record, per second, so that a flood of new ones cannot wash out the live ones.
    pub records_per_second: u32,
}

/// Answered: TCP RST, ICMP port unreachable.
pub const UNCLAIMED_REJECT: u32 = 0;
/// Dropped without a word.
pub const UNCLAIMED_DROP: u32 = 1;
/// Passed to the node's own stack.
pub const UNCLAIMED_PASS: u32 = 2;

/// `INTERFACES[ifindex]`: an interface where the program sees frames come in; or, with `bit` 0, one that the agent has
/// changed; all zero otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The interface's own MAC.
    pub mac: Mac,
    /// One bit, its place in [`VipValue::interfaces`]; zero: not attached. A bond's cards have the bond's.
    pub bit: u32,
    /// [`INTERFACE_GENERIC`], [`INTERFACE_PARTIAL`], [`INTERFACE_OWN_MAC`], and for the agent [`INTERFACE_TAGS`], [`INTERFACE_FILTER`] and
    /// [`INTERFACE_QDISC`].
    pub flags: u32,
}

/// The program runs in generic mode there: the driver has no native XDP, or was told not to use it.
pub const INTERFACE_GENERIC: u32 = 1;
/// Frames from local senders come in there, whose TCP and UDP checksums may be partial: of the pseudo-header alone, the
/// rest being left to a NIC that is never reached (`CHECKSUM_PARTIAL` in include/linux/skbuff.h). So veth, tap, virtio.
pub const INTERFACE_PARTIAL: u32 = 2;
/// The agent told the driver to leave VLAN tags in frames; to be taken back. Not read by programs.
pub const INTERFACE_TAGS: u32 = 4;
/// The egress program is a tc filter there, for want of a link. Not read by programs.
pub const INTERFACE_FILTER: u32 = 8;
/// The agent made the clsact qdisc which that filter is in. Not read by programs.
pub const INTERFACE_QDISC: u32 = 16;
/// What comes in there is handed over with the MAC of the interface that it leaves by, and not with a hand-over MAC: the
/// network takes no second MAC from a node (port security, forged-transmit filters).
pub const INTERFACE_OWN_MAC: u32 = 32;

/// This node answers ARP and NDP for the VIP.
pub const VIP_LEADING: u32 = 1;
/// Set by the program, together with clearing [`VIP_LEADING`], when a peer announced the VIP.
pub const VIP_YIELDED: u32 = 2;
/// A Service has every port of a protocol: where no claim names a packet's port, that with port 0 takes it.
pub const VIP_ALL_PORTS: u32 = 4;

/// `VIPS[Address]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VipValue {
    /// The VIP's id in [`ServiceKey`] and [`FlowKey`]; never used twice in the life of the maps.
    pub id: u32,
    /// [`VIP_LEADING`], [`VIP_YIELDED`], [`VIP_ALL_PORTS`].
    pub flags: u32,
    /// The interfaces it is announced on, a bit each ([`Interface::bit`]).
    pub interfaces: u32,
    /// The 802.1Q VLAN id it is announced on; 0 for untagged.
    pub vlan: u32,
    /// The epoch of its leadership.
    pub epoch: u64,
}

/// `VIP_INDEX[hash::vip(address)]`: what the walk of a packet needs of the VIP with that address, for far less than a
/// lookup in `VIPS` costs. All zero: no VIP has this index.
///
/// A write is not atomic, so one that changes more than [`VIP_CROWDED`] is made while that is set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VipSlot {
    /// The VIP.
    pub address: Address,
    /// [`VipValue::id`]; 0: look in `VIPS`.
    pub id: u32,
    /// [`VIP_ALL_PORTS`], [`VIP_CROWDED`].
    pub flags: u32,
    /// [`VipValue::interfaces`].
    pub interfaces: u32,
    /// [`VipValue::vlan`].
    pub vlan: u32,
}

/// Other VIPs have this index too: what is not the one here is to be looked up in `VIPS`. In [`VipSlot::flags`].
pub const VIP_CROWDED: u32 = 1 << 31;

/// Key of `SERVICES`: a port claim.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// [`VipValue::id`].
    pub vip: u32,
    /// Service port, wire; 0: every port that no other claim names ([`VIP_ALL_PORTS`]).
    pub port: u16,
    /// IANA protocol number: 6, 17 or 132.
    pub protocol: u8,
    /// Zero.
    pub padding: u8,
}

/// `SERVICES[ServiceKey]`: the revision of a Service port that packets see. Replaced whole, atomically.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceValue {
    /// Index into `SERVICE_STATES`, `SERVICE_NAMES` and `SERVICE_STATS`.
    pub slot: u32,
    /// [`ServiceState::generation`] of the slot, copied into new flows.
    pub generation: u32,
    /// First slot of the Maglev table over all backends.
    pub table: u32,
    /// Its length; 0: no ready backend.
    pub table_length: u32,
    /// First slot of the table over this node's own backends.
    pub local_table: u32,
    /// Its length; 0: no such backend on this node.
    pub local_length: u32,
    /// [`SERVICE_KERNEL`], [`SERVICE_SPARE`].
    pub flags: u32,
    /// Session affinity by the client's address: how long a client without packets is remembered, in jiffies. 0: none.
    pub affinity: u32,
}

/// Packets are left to the node's own stack, so to kube-proxy: the Service's endpoints cannot be reached by a hand-over,
/// or the user wants it so. In [`ServiceValue::flags`].
pub const SERVICE_KERNEL: u32 = 1;
/// None of this node's own backends is ready: those in their table drain, and serve still. They get what peers hand over,
/// and what could only go back to the node that it came from. In [`ServiceValue::flags`].
pub const SERVICE_SPARE: u32 = 2;
/// Backends get packets with the VIP as their destination, and answer in its name: nothing is translated. In
/// [`ServiceState::flags`].
pub const SERVICE_DIRECT: u32 = 2;

/// `SERVICE_STATES[slot]`: read on a flow hit, instead of a second hash lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    /// Changes when the claim's owner changes or goes; flows of other generations are stale. 0: the slot is free.
    pub generation: u32,
    /// [`SERVICE_DIRECT`].
    pub flags: u32,
    /// An idle flow's life, in jiffies; 0: [`Config`]'s for the protocol.
    pub idle: u32,
    /// [`Range::set`] of the addresses that clients may have; 0: any. Every packet is held to it.
    pub ranges: u32,
}

/// Key of the LPM trie `SOURCE_RANGES`, after the length of the prefix (`struct bpf_lpm_trie_key_u8` in
/// include/uapi/linux/bpf.h): 32 bits for the set and those of the address, 96 more for an IPv4-mapped one. The value
/// is 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// A set of prefixes: one of the generations ([`Config::next_generation`]), so never used twice. Sets are never
    /// changed, only replaced.
    pub set: u32,
    /// [`Address::w0`] of the prefix; the four words are no [`Address`], since that would be aligned.
    pub w0: u32,
    /// [`Address::w1`].
    pub w1: u32,
    /// [`Address::w2`].
    pub w2: u32,
    /// [`Address::w3`].
    pub w3: u32,
}

/// Key of `AFFINITY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AffinityKey {
    /// The client.
    pub client: Address,
    /// [`ServiceValue::slot`].
    pub slot: u32,
    /// [`ServiceState::generation`] of the slot.
    pub generation: u32,
}

/// `AFFINITY[AffinityKey]`: the backend of a client's flows. `tag` as in [`FlowValue`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffinityValue {
    /// [`crate::hash::affinity`] of the key.
    pub tag: u32,
    /// Index into `BACKENDS`.
    pub backend: u32,
    /// [`Backend::generation`] then.
    pub backend_generation: u32,
    /// Zero.
    pub reserved: u32,
    /// `jiffies_64` of the client's last new flow.
    pub seen: u64,
}

/// `SERVICE_NAMES[slot]`: who owns the claim, for people and for a restarted agent. Not read by programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceOwner {
    /// Namespace (RFC 1123 label, at most 63 bytes), zero-terminated.
    pub namespace: [u8; 64],
    /// Name (RFC 1035 label, at most 63 bytes), zero-terminated.
    pub name: [u8; 64],
}

/// The backend takes new flows; unset while it drains.
pub const BACKEND_READY: u16 = 1;
/// The backend is on this node.
pub const BACKEND_LOCAL: u16 = 2;
/// The backend fails a health probe. Where it is ready all the same, so do all others of its Service port, or another
/// Service does not probe it. Not read by programs.
pub const BACKEND_FAILING: u16 = 4;

/// `BACKENDS[index]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    /// The endpoint's address.
    pub address: Address,
    /// The endpoint's port, wire; 0: the port that the client asked for.
    pub port: u16,
    /// [`BACKEND_READY`], [`BACKEND_LOCAL`], [`BACKEND_FAILING`].
    pub flags: u16,
    /// Its node's index in `NODES`.
    pub node: u32,
    /// Changes when the index is given to another backend; 0: free.
    pub generation: u32,
    /// Zero.
    pub reserved: u32,
}

/// The node's program is attached: frames may be handed over to it.
pub const NODE_ATTACHED: u32 = 1;
/// The agent's own node.
pub const NODE_SELF: u32 = 2;

/// `NODES[index]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its MAC on the segment; all zero: not resolved.
    pub mac: Mac,
    /// Its hand-over MAC.
    pub handover: Mac,
    /// The interface of *this* node through which it is reached.
    pub ifindex: u32,
    /// That interface's MTU, bytes.
    pub mtu: u32,
    /// [`NODE_ATTACHED`], [`NODE_SELF`].
    pub flags: u32,
    /// Changes with every backend of this node that goes, stops taking new flows or becomes local, so that a flow record
    /// of the same epoch needs no look at its backend. From the generations, and never another node's. 0 while such a
    /// change is under way: no record of any epoch is right, and none gets one.
    pub epoch: u32,
}

/// `NODE_NAMES[index]`: the Node's name (RFC 1123 subdomain, at most 253 bytes), zero-terminated. For people and for a
/// restarted agent; empty: the index is free.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLabel {
    /// The bytes.
    pub name: [u8; 256],
}

/// `FENCE[0]`: until when ARP and NDP are answered.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// `CLOCK_BOOTTIME`, nanoseconds. 0: never.
    pub deadline: u64,
}

/// Value of the per-CPU arrays `STATS`, `DROPS` and `SERVICE_STATS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
    /// New flows (`SERVICE_STATS` only).
    pub flows: u64,
}

const _: () = {
    assert!(size_of::<Address>() == 16 && align_of::<Address>() == 8);
    assert!(size_of::<Mac>() == 8 && align_of::<Mac>() == 8);
    assert!(size_of::<Config>() == 48);
    assert!(size_of::<Interface>() == 16 && offset_of!(Interface, bit) == 8);
    assert!(size_of::<VipValue>() == 24 && offset_of!(VipValue, flags) == 4 && offset_of!(VipValue, epoch) == 16);
    assert!(size_of::<VipSlot>() == 32 && offset_of!(VipSlot, id) == 16 && capacity::VIP_INDEX.is_power_of_two());
    assert!(size_of::<ServiceKey>() == 8 && align_of::<ServiceKey>() == 8 && offset_of!(ServiceKey, protocol) == 6);
    assert!(size_of::<ServiceValue>() == 32 && offset_of!(ServiceValue, local_table) == 16);
    assert!(size_of::<ServiceState>() == 16);
    assert!(size_of::<Range>() == 20 && offset_of!(Range, w0) == 4);
    assert!(size_of::<AffinityKey>() == 24 && offset_of!(AffinityKey, slot) == 16);
    assert!(size_of::<AffinityValue>() == 24 && offset_of!(AffinityValue, tag) == 0);
    assert!(size_of::<ServiceOwner>() == 128 && align_of::<ServiceOwner>() == 1);
    assert!(size_of::<Backend>() == 32 && offset_of!(Backend, node) == 20);
    assert!(size_of::<Node>() == 32 && offset_of!(Node, ifindex) == 16 && offset_of!(Node, epoch) == 28);
    assert!(size_of::<NodeLabel>() == 256);
    // A node's index fits into a flow record.
    assert!(capacity::NODES <= 1 << 16);
    assert!(size_of::<Fence>() == 8);
    assert!(size_of::<Count>() == 24);
};
