//! Keys and values of the maps.
//!
//! Every type is `repr(C)` with explicit padding, so that no byte of a key is undefined. Types that
//! the hot path builds have no arrays, for which the compiler would call `memset`. Keys are aligned
//! to 8 bytes: the verifier requires that for the merged stores which build them on the stack.
//! Fields named *wire* have the bytes as in a packet (network byte order, loaded natively). All
//! others are numbers in the host's byte order.

mod counters;
mod flows;
mod leadership;
mod records;

use core::mem::{align_of, offset_of, size_of};

pub use counters::{DropReason, Stat};
pub use flows::*;
pub use leadership::*;
pub use records::*;

/// Changes whenever a type in this module, a map's type or the meaning of a value changes.
pub const ABI_VERSION: u32 = 101;

/// The versions whose maps an agent takes over, older and newer ones: they only add to each other.
/// Within such a family, maps are added, and values grow at their ends. There, zero stands for the
/// former behavior ([`Config`]: the default for zero). Nothing else changes its place, its size or
/// its meaning. Arrays of counters start at zero when their size changes, so their indices may
/// change then. Any other change begins the next family, at the next hundred. Versions below 100 were never
/// released.
pub const COMPATIBLE: core::ops::Range<u32> = 101..200;

/// The first byte of every hand-over MAC: locally administered, individual (IEEE 802-2014, 8.4). The
/// others are a secret of the nodes. A frame with a node's hand-over MAC as its source was balanced
/// by that node.
pub const HANDOVER_PREFIX: u8 = 0x0e;

/// Entries of each map, unless the agent's configuration sets others.
pub mod capacity {
    /// Network interfaces, indexed by ifindex.
    pub const INTERFACES: u32 = 65_536;
    /// VIPs.
    pub const VIPS: u32 = 16_384;
    /// Slots of the index of VIPs: a power of two.
    pub const VIP_INDEX: u32 = 16_384;
    /// Port claims: the sum over all Services of their ports on each VIP. Also the size of the
    /// arrays that are indexed by slot.
    pub const SERVICES: u32 = 24_576;
    /// Elements of the index of Services: a power of two.
    pub const SERVICE_INDEX: u32 = 32_768;
    /// Slots of the arena of tables, two per element ([`crate::table`]): 24 MiB. 10,000
    /// Services of ten endpoints, all with a second table over local ones, need four fifths of it.
    pub const TABLES: u32 = 6_160_384;
    /// Backends: distinct (address, port, node).
    pub const BACKENDS: u32 = 262_144;
    /// Nodes.
    pub const NODES: u32 = 8_192;
    /// Numbers of segments: a power of two. Number 0 stands for no particular one.
    pub const SEGMENTS: u32 = 16;
    /// Nodes that have paths of their own on segments: those with the lowest indices.
    pub const PATH_NODES: u32 = 1_024;
    /// Elements of `NODES` ([`super::node_element`]).
    pub const NODE_ELEMENTS: u32 = NODES + (SEGMENTS - 1) * PATH_NODES;
    /// Nodes' MAC addresses.
    pub const PEERS: u32 = 16_384;
    /// Sets of the flow table, and of its reserve. The agent sizes it by RAM, up to 1 M records.
    pub const FLOW_SETS: u32 = SETS + super::reserve_sets(SETS);
    const SETS: u32 = 16_384 / super::WAYS;
    /// Kinds of refused frames: triples of an interface, a verdict and an error.
    pub const REFUSALS: u32 = 256;
    /// Bits of the index of local backends: a power of two.
    pub const LOCAL_PORTS: u32 = 65_536;
    /// Fragmented datagrams that wait for later fragments, in each direction.
    pub const FRAGMENTS: u32 = 8_192;
    /// Recent foreign speakers: pairs of a VIP and a MAC.
    pub const SPEAKERS: u32 = 1_024;
    /// Clients that Services with session affinity have recorded.
    pub const AFFINITY: u32 = 38_912;
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
    /// Bytes 8 to 11, wire; `::ffff` in an IPv4-mapped address.
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

    /// Returns whether this is an IPv4-mapped address.
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

    /// From eight bytes of a frame, loaded natively, of which the first six are the MAC address.
    #[inline(always)]
    pub const fn of_word(word: u64) -> Self {
        const SIX: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
        // SAFETY: any eight bytes are a value, and the type has no other ones.
        unsafe { core::mem::transmute::<u64, Self>(word & SIX) }
    }

    /// Returns the six bytes and two of zero, as they are in memory.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        // SAFETY: every byte is one of a field.
        unsafe { core::mem::transmute::<Self, u64>(self) }
    }

    /// Returns whether this may be a hand-over MAC ([`HANDOVER_PREFIX`]). Only `PEERS` knows.
    #[inline(always)]
    pub const fn may_be_handover(self) -> bool {
        self.head.to_ne_bytes()[0] == HANDOVER_PREFIX
    }
}

/// The time for which packets may still be under way that were sent before their sender's state
/// changed, in seconds.
pub const LATE_SECONDS: u32 = 5;

/// `CONFIG[0]`: the configuration of this node's data plane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// [`ABI_VERSION`] of the agent that made the maps.
    pub abi: u32,
    /// The id of the next new VIP. Ids are never reused, so no stale flow can match.
    pub next_vip: u32,
    /// The next generation of a backend or service slot with a new owner, and the next
    /// [`Node::epoch`]. Generations are never reused either.
    pub next_generation: u32,
    /// The kernel's `CONFIG_HZ`: jiffies per second.
    pub hz: u32,
    /// Idle timeout of a TCP flow, in jiffies.
    pub tcp_idle: u32,
    /// Idle timeout of a UDP flow, in jiffies.
    pub udp_idle: u32,
    /// The time that a closed TCP flow is still translated, in jiffies: since its last packet, or
    /// since the RST.
    pub closed_linger: u32,
    /// The time after the fence deadline at which the programs leave VIPs to the node's stack, in
    /// seconds. An agent that was removed must not swallow them forever.
    pub abandon_after: u32,
    /// The time that later fragments follow their first one, in jiffies.
    pub fragment_life: u32,
    /// The treatment of packets that no Service or no backend takes: [`UNCLAIMED_REJECT`],
    /// [`UNCLAIMED_DROP`] or [`UNCLAIMED_PASS`].
    pub unclaimed: u32,
    /// Packets that this node may answer in the VIPs' name per second, for each of TCP RSTs, ICMP
    /// errors and echo replies. Senders have shares of as many more ([`crate::budget`]).
    pub answers_per_second: u32,
    /// Zero.
    pub reserved: u32,
    /// Sets of the flow table, less one.
    pub flow_mask: u32,
    /// When a Service port or a backend was last removed: the low half of `jiffies_64`, up to a second ahead.
    pub removed: u32,
    /// The secret of the flow table.
    pub flow_secret: FlowSecret,
    /// This node's hand-over MAC, the source of frames that it hands over. All zero: not known, so
    /// the egress interface's own MAC is the source.
    pub handover: Mac,
}

/// Answered: TCP RST, ICMP port unreachable.
pub const UNCLAIMED_REJECT: u32 = 0;
/// Dropped silently.
pub const UNCLAIMED_DROP: u32 = 1;
/// Passed to the node's own stack.
pub const UNCLAIMED_PASS: u32 = 2;

/// `INTERFACES[ifindex]`: an interface with the program attached; with `bit` 0, an interface that
/// the agent has only changed; otherwise all zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The interface's own MAC.
    pub mac: Mac,
    /// One bit, its place in [`VipValue::interfaces`]; zero: not attached. A bond's cards have the
    /// bond's bit.
    pub bit: u32,
    /// [`INTERFACE_GENERIC`], [`INTERFACE_PARTIAL`], [`INTERFACE_OWN_MAC`], [`INTERFACE_BACKUP`],
    /// [`INTERFACE_NO_DIRECT`], [`INTERFACE_MERGED`], [`INTERFACE_UNSUMMED`], and for the agent [`INTERFACE_TAGS`],
    /// [`INTERFACE_FILTER`], [`INTERFACE_QDISC`] and [`INTERFACE_BYPASSED`]. From [`INTERFACE_MTU_SHIFT`] on: its MTU, bytes; 0:
    /// not known.
    pub flags: u32,
}

/// The program runs in generic mode: the driver has no native XDP, or the configuration says so.
pub const INTERFACE_GENERIC: u32 = 1;
/// Frames of this interface may have partial TCP and UDP checksums: only of the pseudo-header, with the
/// rest left to a NIC that the frame may never reach (`CHECKSUM_PARTIAL` in include/linux/skbuff.h).
/// Local senders make such frames (veth, tap, virtio). In generic mode the kernel does so too, when it
/// joins segments (`tcp_gro_complete` in net/ipv4/tcp_offload.c).
pub const INTERFACE_PARTIAL: u32 = 2;
/// The agent made the driver leave VLAN tags in frames, and must undo that. Not read by programs.
pub const INTERFACE_TAGS: u32 = 4;
/// The egress program is a tc filter on this interface, since it can have no link. Not read by
/// programs.
pub const INTERFACE_FILTER: u32 = 8;
/// The agent made the clsact qdisc of that filter. Not read by programs.
pub const INTERFACE_QDISC: u32 = 16;
/// Frames that come in here are handed over with the egress interface's own MAC instead of a
/// hand-over MAC: the network takes no second MAC from a node (port security, forged-transmit
/// filters).
pub const INTERFACE_OWN_MAC: u32 = 32;
/// A card that its bond does not use now: another card stands in for it and gets the same broadcasts
/// and multicasts, which are left alone here.
pub const INTERFACE_BACKUP: u32 = 64;
/// Frames that come in here bypass the program, although it is attached. Not read by programs.
pub const INTERFACE_BYPASSED: u32 = 128;
/// The tc program for incoming packets is there for merged frames alone: no backend has direct server
/// return.
pub const INTERFACE_NO_DIRECT: u32 = 256;
/// The tc program for incoming packets sends frames that stand for several ([`FlowSecret::frame_mark`]).
pub const INTERFACE_MERGED: u32 = 512;
/// With [`INTERFACE_MERGED`]: an interface that frames leave by computes no checksums. So that program sends all
/// frames.
pub const INTERFACE_UNSUMMED: u32 = 1024;
/// See [`Interface::flags`].
pub const INTERFACE_MTU_SHIFT: u32 = 16;

/// This node answers ARP and NDP for the VIP.
pub const VIP_LEADING: u32 = 1;
/// Set by the program, which clears [`VIP_LEADING`] with it, when a peer announced the VIP.
pub const VIP_YIELDED: u32 = 2;
/// A Service has all ports of a protocol: the claim with port 0 takes packets to ports without a
/// claim of their own.
pub const VIP_ALL_PORTS: u32 = 4;
/// Until the fence deadline, the program does not yield the VIP to announcements with peers' MACs:
/// such announcements were forged lately. It counts them as those of foreign speakers, and the agent
/// asks the peers. Without [`VIP_LEADING`] it means nothing.
pub const VIP_ASSURED: u32 = 8;
/// The number of the VIP's segment: these bits, from [`VIP_SEGMENT_SHIFT`] on. The numbers are this
/// node's own.
pub const VIP_SEGMENT: u32 = (capacity::SEGMENTS - 1) << VIP_SEGMENT_SHIFT;
/// See [`VIP_SEGMENT`].
pub const VIP_SEGMENT_SHIFT: u32 = 8;

/// Returns the element of `NODES` with the path to a node for packets to a VIP with these flags.
#[inline(always)]
pub const fn node_element(vip_flags: u32, node: u32) -> u32 {
    let segment = (vip_flags & VIP_SEGMENT) >> VIP_SEGMENT_SHIFT;
    if segment == 0 || node >= capacity::PATH_NODES {
        return node;
    }
    capacity::NODES + (segment - 1) * capacity::PATH_NODES + node
}

/// Returns the index of the node that an element of `NODES` is about.
pub const fn node_of_element(element: u32) -> u32 {
    if element < capacity::NODES { element } else { (element - capacity::NODES) % capacity::PATH_NODES }
}

/// `VIPS[Address]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VipValue {
    /// The VIP's id in [`ServiceKey`] and [`FlowKey`]; never reused in the life of the maps.
    pub id: u32,
    /// [`VIP_LEADING`], [`VIP_YIELDED`], [`VIP_ALL_PORTS`], [`VIP_ASSURED`], [`VIP_SEGMENT`].
    pub flags: u32,
    /// The interfaces that announce it, one bit each ([`Interface::bit`]).
    pub interfaces: u32,
    /// The 802.1Q VLAN id of its announcements; 0 for untagged.
    pub vlan: u32,
    /// The epoch of its leadership.
    pub epoch: u64,
}

/// `VIP_INDEX[hash::vip(address)]`: a cache of `VIPS`, far cheaper than a lookup there. All zero:
/// no VIP has this index.
///
/// A write is not atomic. So a write that changes more than [`VIP_CROWDED`] is made while that flag
/// is set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VipSlot {
    /// The VIP.
    pub address: Address,
    /// [`VipValue::id`]; 0: look in `VIPS`.
    pub id: u32,
    /// [`VIP_ALL_PORTS`], [`VIP_SEGMENT`], [`VIP_CROWDED`].
    pub flags: u32,
    /// [`VipValue::interfaces`].
    pub interfaces: u32,
    /// [`VipValue::vlan`].
    pub vlan: u32,
}

/// Other VIPs have this index too: addresses other than this one must be looked up in `VIPS`. In
/// [`VipSlot::flags`].
pub const VIP_CROWDED: u32 = 1 << 31;

/// Key of `SERVICES`: a port claim.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// [`VipValue::id`].
    pub vip: u32,
    /// Service port, wire; 0: every port that no other claim has ([`VIP_ALL_PORTS`]).
    pub port: u16,
    /// IANA protocol number: 6, 17 or 132.
    pub protocol: u8,
    /// Zero.
    pub padding: u8,
}

/// `SERVICES[ServiceKey]`: the revision of a Service port for packets. Replaced as a whole,
/// atomically. A copy of it ([`crate::service_index`]) comes first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceValue {
    /// Index into `SERVICE_STATES`, `SERVICE_NAMES` and `SERVICE_STATS`.
    pub slot: u32,
    /// [`ServiceState::generation`] of the slot, copied into new flows.
    pub generation: u32,
    /// First slot of the table over all backends.
    pub table: u32,
    /// Its length; 0: no ready backend.
    pub table_length: u32,
    /// First slot of the table over this node's backends.
    pub local_table: u32,
    /// Its length; 0: no ready backend on this node.
    pub local_length: u32,
    /// [`SERVICE_KERNEL`], [`SERVICE_SPARE`], [`SERVICE_HASHES_VIP`].
    pub flags: u32,
    /// Session affinity by the client's address: the time that an idle client is remembered, in
    /// jiffies. 0: no affinity.
    pub affinity: u32,
}

/// Packets are left to the node's own stack and so to kube-proxy, because the Service's endpoints
/// cannot be reached by a hand-over, or by configuration. In [`ServiceValue::flags`].
pub const SERVICE_KERNEL: u32 = 1;
/// None of this node's backends is ready: those in their table drain, and still serve, or are not ready
/// yet. They get what peers hand over, and packets that could otherwise only go back to their node. In
/// [`ServiceValue::flags`].
pub const SERVICE_SPARE: u32 = 2;
/// The hash that selects a slot of the tables covers the VIP's address ([`crate::hash::flow`]). In
/// [`ServiceValue::flags`].
pub const SERVICE_HASHES_VIP: u32 = 4;
/// Direct server return: backends get packets with the VIP as destination and answer from it.
/// Nothing is translated. In [`ServiceState::flags`].
pub const SERVICE_DIRECT: u32 = 2;
/// The Service port is gone, and the slot is free. No packet goes to its backends any more, but
/// their replies are still translated. In [`ServiceState::flags`].
pub const SERVICE_GONE: u32 = 4;

/// `SERVICE_STATES[slot]`: read on a flow hit, instead of a second hash lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    /// Changes when the claim gets another owner or goes. Flows of other generations are stale. 0:
    /// the slot is free.
    pub generation: u32,
    /// [`SERVICE_DIRECT`], [`SERVICE_GONE`].
    pub flags: u32,
    /// Idle timeout of a flow, in jiffies; 0: [`Config`]'s for the protocol.
    pub idle: u32,
    /// [`Range::set`] of the admitted client addresses; 0: any. Applied to every packet.
    pub ranges: u32,
    /// The VIP, which replies come from.
    pub vip: Address,
}

/// Key of the LPM trie `SOURCE_RANGES`, after the prefix length (`struct bpf_lpm_trie_key_u8` in
/// include/uapi/linux/bpf.h). The length is 32 bits for the set and those of the address, 96 more
/// for an IPv4-mapped one. The value is 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// A set of prefixes: a generation ([`Config::next_generation`]), so never reused. Sets are
    /// never changed, only replaced.
    pub set: u32,
    /// [`Address::w0`] of the prefix. The four words are no [`Address`], which would be aligned.
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

/// `AFFINITY[AffinityKey]`: the backend of a client's flows. `tag` as in
/// [`FragmentValue`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffinityValue {
    /// [`crate::hash::affinity`] of the key.
    pub tag: u32,
    /// Index into `BACKENDS`.
    pub backend: u32,
    /// [`Backend::generation`] at that time.
    pub backend_generation: u32,
    /// Zero.
    pub reserved: u32,
    /// `jiffies_64` of the client's last new flow.
    pub seen: u64,
}

/// `SERVICE_NAMES[slot]`: the owner of the claim, for people and for a restarted agent. Not read by
/// programs.
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
/// The backend fails its health probe. It may still be ready: if all others of its Service port
/// fail too, or if another Service does not probe it. If not, flows of datagrams leave it.
pub const BACKEND_FAILING: u16 = 4;
/// The backend is not ready, and not because it terminates: flows of datagrams go to another one,
/// as kube-proxy sends them. If the backend terminates and still serves, they stay.
pub const BACKEND_STOPPING: u16 = 16;
/// The backend is gone, and the index is free. No packet goes there any more, but the replies of
/// its flows are still translated. Only with [`BACKEND_LOCAL`].
pub const BACKEND_GONE: u16 = 8;

/// `BACKENDS[index]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    /// The endpoint's address.
    pub address: Address,
    /// The endpoint's port, wire; 0: the port that the client requested.
    pub port: u16,
    /// [`BACKEND_READY`], [`BACKEND_LOCAL`], [`BACKEND_FAILING`], [`BACKEND_GONE`],
    /// [`BACKEND_STOPPING`].
    pub flags: u16,
    /// Its node's index in `NODES`.
    pub node: u32,
    /// Changes when the index gets another backend; 0: free.
    pub generation: u32,
    /// Zero.
    pub reserved: u32,
}

/// The node's program is attached: frames may be handed over to it.
pub const NODE_ATTACHED: u32 = 1;
/// The agent's own node.
pub const NODE_SELF: u32 = 2;
/// Neither its agent nor its kernel answers, so it is not [attached](NODE_ATTACHED). For people and
/// for a restarted agent.
pub const NODE_SILENT: u32 = 4;
/// The VLAN of the path is known: the 802.1Q VLAN id from [`NODE_VLAN_SHIFT`] on, 0 for untagged.
pub const NODE_VLAN: u32 = 8;
/// See [`NODE_VLAN`].
pub const NODE_VLAN_SHIFT: u32 = 16;

/// `NODES[index]`: a node, and the path to it by its InternalIP. Further elements have the same node
/// with the path to it for VIPs of one segment ([`node_element`]), so that no program looks at two.
/// All elements of a node have the same epoch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its MAC at the end of the path; all zero: not resolved.
    pub mac: Mac,
    /// Its hand-over MAC, for people. `PEERS` has it too.
    pub handover: Mac,
    /// The interface of *this* node that reaches it.
    pub ifindex: u32,
    /// That interface's MTU, bytes.
    pub mtu: u32,
    /// [`NODE_ATTACHED`], [`NODE_SELF`], [`NODE_SILENT`], [`NODE_VLAN`].
    pub flags: u32,
    /// Changes whenever a backend of this node goes, stops taking new flows or becomes local. So a
    /// flow record of the same epoch needs no check of its backend. A generation, and never another
    /// node's. 0 during such a change: no record has a valid epoch, and none gets one.
    pub epoch: u32,
}

impl Node {
    /// Returns [`Self::flags`] of a node that is attached, with a path of this VLAN.
    #[inline(always)]
    pub const fn attached(vlan: u32) -> u32 {
        NODE_ATTACHED | NODE_VLAN | vlan << NODE_VLAN_SHIFT
    }

    /// Returns the VLAN of the path; `None`: not known.
    #[inline(always)]
    pub const fn vlan(&self) -> Option<u32> {
        if self.flags & NODE_VLAN == 0 { None } else { Some(self.flags >> NODE_VLAN_SHIFT) }
    }

    /// Returns the VLAN of the path if it is known and not this one.
    #[inline(always)]
    pub const fn other_vlan(&self, than: u32) -> Option<u32> {
        let vlan = self.flags >> NODE_VLAN_SHIFT;
        if vlan != than && self.flags & NODE_VLAN != 0 { Some(vlan) } else { None }
    }
}

/// In `PEERS[Mac]`, besides the index of the node: the MAC is a hand-over MAC of that node, not one
/// that it has on a segment.
pub const PEER_HANDOVER: u32 = 1 << 31;

/// `NODE_NAMES[index]`: the Node's name (RFC 1123 subdomain, at most 253 bytes), zero-terminated.
/// For people and for a restarted agent; empty: the index is free.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLabel {
    /// The bytes.
    pub name: [u8; 256],
}

/// `FENCE[0]`: the fence deadline, until which ARP and NDP are answered. With a new deadline, the agent
/// writes zeros into the other fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// `CLOCK_BOOTTIME`, nanoseconds. 0: never.
    pub deadline: u64,
    /// `jiffies_64`. Until then, the programs need not compare the deadline with the clock: it is to
    /// come, or it passed less than [`Config::abandon_after`] ago.
    pub kept_until: u64,
    /// The same: it passed longer ago.
    pub abandoned_until: u64,
}

/// `ACTIVITY[0]`: where the XDP program ran since the agent looked last.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// The bits of these ports ([`Interface::bit`]). A frame on a card that its bond does not use sets
    /// none. The agent clears them. Two CPUs may undo each other's write, so a bit needs several frames
    /// at worst.
    pub ports: u32,
}

/// `TRACED[0]`: what the programs at tracepoints need to know, and in which places this kernel keeps it,
/// in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// The id of the agent's XDP program.
    pub program: u32,
    /// `net_device.ifindex`.
    pub ifindex_offset: u32,
    /// `bpf_prog.aux`.
    pub aux_offset: u32,
    /// `bpf_prog_aux.id`.
    pub id_offset: u32,
}

/// Key of `REFUSALS`, which has the numbers of frames that the kernel refused after the XDP program's
/// verdict.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefusalKey {
    /// Where the frame came in.
    pub ifindex: u32,
    /// The verdict, an `xdp_action` (include/uapi/linux/bpf.h).
    pub action: u16,
    /// The kernel's error, a positive errno; 0: it names none.
    pub errno: u16,
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
    assert!(size_of::<Config>() == 112 && offset_of!(Config, flow_mask) == 48);
    assert!(offset_of!(Config, handover) == 104);
    assert!(size_of::<Interface>() == 16 && offset_of!(Interface, bit) == 8);
    assert!(size_of::<VipValue>() == 24 && offset_of!(VipValue, flags) == 4 && offset_of!(VipValue, epoch) == 16);
    assert!(size_of::<VipSlot>() == 32 && offset_of!(VipSlot, id) == 16 && capacity::VIP_INDEX.is_power_of_two());
    assert!(size_of::<ServiceKey>() == 8 && align_of::<ServiceKey>() == 8 && offset_of!(ServiceKey, protocol) == 6);
    assert!(size_of::<ServiceValue>() == 32 && offset_of!(ServiceValue, local_table) == 16);
    assert!(size_of::<ServiceState>() == 32);
    assert!(size_of::<Range>() == 20 && offset_of!(Range, w0) == 4);
    assert!(size_of::<AffinityKey>() == 24 && offset_of!(AffinityKey, slot) == 16);
    assert!(size_of::<AffinityValue>() == 24 && offset_of!(AffinityValue, tag) == 0);
    assert!(size_of::<ServiceOwner>() == 128 && align_of::<ServiceOwner>() == 1);
    assert!(size_of::<Backend>() == 32 && offset_of!(Backend, node) == 20);
    assert!(size_of::<Node>() == 32 && offset_of!(Node, ifindex) == 16 && offset_of!(Node, epoch) == 28);
    assert!(size_of::<NodeLabel>() == 256);
    // A node's index must fit into a flow record.
    assert!(capacity::NODES <= 1 << 16 && capacity::SEGMENTS.is_power_of_two());
    assert!(size_of::<Fence>() == 24);
    assert!(size_of::<Activity>() == 4);
    assert!(size_of::<RefusalKey>() == 8 && size_of::<Traced>() == 16);
    assert!(size_of::<Count>() == 24);
};
