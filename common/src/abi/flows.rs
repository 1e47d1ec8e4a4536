//! The flow table. [`crate::flow_table`] says where a record may be.

use core::mem::{align_of, offset_of, size_of};

use super::{Address, Backend};

/// IANA's protocol number of UDP, whose flows have no end.
pub const UDP: u8 = 17;

/// Records of a set.
pub const WAYS: u32 = 4;
/// Sets that share one set of the reserve.
pub const RESERVE_SHARE: u32 = 16;

/// Returns the number of sets in the reserve of a table with this many others.
pub const fn reserve_sets(sets: u32) -> u32 {
    sets.div_ceil(RESERVE_SHARE)
}

/// What tells a flow from all others of a node. Not the key of a map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The client.
    pub client: Address,
    /// [`super::VipValue::id`].
    pub vip: u32,
    /// The client's port, wire.
    pub client_port: u16,
    /// The Service's port, wire.
    pub vip_port: u16,
    /// IANA protocol number.
    pub protocol: u32,
    /// Zero.
    pub reserved: u32,
}

/// The client sent FIN. Anybody may have forged it.
pub const FLOW_CLIENT_FIN: u32 = 1;
/// The backend sent FIN. Or its Service does not have it any more ([`FlowRecord::orphan_flag`]).
pub const FLOW_BACKEND_FIN: u32 = 2;
/// Either side sent RST. Cleared by the client's next packet, so a forged RST does no lasting harm. Of datagrams:
/// the Service does not have the backend any more ([`FlowRecord::orphan_flag`]).
pub const FLOW_RESET: u32 = 4;
/// [`FlowRecord::isn`] was taken from the client's SYN.
pub const FLOW_ISN: u32 = 8;
/// The backend answered a SYN that did not come through the VIP: its replies are not translated,
/// even if earlier packets still arrive through the VIP. Set together with [`FLOW_RESET`].
pub const FLOW_DIRECT: u32 = 16;
/// With [`FLOW_REPLIES`]: the backend has sent nothing, or nothing but RSTs. Else: the client has sent no
/// second packet, or nothing but SYNs.
pub const FLOW_NEW: u32 = 32;
/// The client has sent nothing but SYNs, or one datagram.
pub const FLOW_HALF_OPEN: u32 = 64;
/// Not both sides have spoken, as far as this node sees them: anybody can have forged this flow. Records with
/// neither flag are established.
pub const FLOW_UNPROVEN: u32 = FLOW_NEW | FLOW_HALF_OPEN;
/// The backend is on this node, and its replies are translated by this record. No two live records
/// of one client port translate the replies of one backend port.
pub const FLOW_REPLIES: u32 = 128;

/// A record of the flow table: one cache line.
///
/// A program writes a record as a whole while it holds the set's lock. Without it, programs change
/// `flags`, `epoch` and `seen` in place. A record may be given to another flow at that moment.
/// This does no harm: an epoch is one node's alone, a time only delays an eviction, and a flag is
/// corrected by the next packet.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRecord {
    /// Not of this record, but of its set. In the first record
    /// ([`crate::flow_table::LOCK_WAY`]): the set's lock. In the second one
    /// ([`crate::flow_table::OVERFLOW_WAY`]): when a flow that has this set as its first one last
    /// used its second one, as `seen` with the lowest bit set; 0: never. In the third one
    /// ([`crate::flow_table::RESERVE_WAY`]): the same of the reserve. Zero in the fourth one.
    pub of_set: u32,
    /// [`crate::flow_table::Place::check`].
    pub check: u32,
    /// [`super::VipValue::id`]; 0: the record is free.
    pub vip: u32,
    /// The client's port, wire.
    pub client_port: u16,
    /// The Service's port, wire.
    pub vip_port: u16,
    /// The client.
    pub client: Address,
    /// Index into `BACKENDS`.
    pub backend: u32,
    /// The backend's generation, or a later one that was the newest of all when the flow was
    /// recorded. Any later backend of the index has a newer one.
    pub backend_generation: u32,
    /// [`super::ServiceValue::slot`].
    pub slot: u32,
    /// [`super::ServiceState::generation`] when the flow was recorded.
    pub slot_generation: u32,
    /// [`super::Backend::node`], which is constant for a backend's generation.
    pub node: u16,
    /// IANA protocol number.
    pub protocol: u8,
    /// [`FLOW_CLIENT_FIN`] and the others.
    pub flags: u8,
    /// The [`super::Node::epoch`] in which the backend was found on that other node and took new
    /// flows. While the epoch lasts, the record needs no look at `BACKENDS`, which with many
    /// backends is not in the CPU's caches. Otherwise the generations decide. 0: not found yet.
    /// Local backends always have 0, since delivery reads their entry anyway; in the reserve they have
    /// [`crate::flow_table::RESERVE_EPOCH`].
    pub epoch: u32,
    /// The client's initial sequence number, host order; valid with [`FLOW_ISN`].
    pub isn: u32,
    /// Low half of `jiffies_64` at a recent packet: of the client, or with [`FLOW_REPLIES`] of
    /// either side. It is at most a second older than the last packet, and frozen once the flow is
    /// closed. It wraps after 49 days at 1000 Hz, 198 at 250. Times are compared by wrapping
    /// subtraction, so a record that is idle for a whole wrap looks new again. That does no harm:
    /// the generations still decide.
    pub seen: u32,
}

impl FlowRecord {
    /// Returns the flow.
    pub const fn key(&self) -> FlowKey {
        let Self { client, vip, client_port, vip_port, protocol, .. } = *self;
        FlowKey { client, vip, client_port, vip_port, protocol: protocol as u32, reserved: 0 }
    }

    /// Returns the flag with which the agent marks a record whose Service does not have the backend any more,
    /// although another Service may have it. With the next datagram, such a flow chooses another backend. A
    /// connection stays until it is closed. A SYN after that chooses anew.
    pub const fn orphan_flag(&self) -> u32 {
        if self.protocol == UDP { FLOW_RESET } else { FLOW_BACKEND_FIN }
    }
}

impl Backend {
    /// Returns whether a flow record with this [`FlowRecord::backend_generation`] and this index is
    /// of this backend.
    #[inline(always)]
    pub const fn is_of(&self, generation: u32) -> bool {
        self.generation != 0 && generation.wrapping_sub(self.generation).cast_signed() >= 0
    }
}

/// `FLOWS[set]`: one set of the flow table, or after these one of its reserve.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSet {
    /// The ways.
    pub records: [FlowRecord; WAYS as usize],
}

/// The secret of a node's flow table: random numbers. See [`crate::flow_table::Place::new`].
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowSecret {
    /// The first summand.
    pub sum: u64,
    /// The factors of the words of the client's address.
    pub client: [u64; 4],
    /// The factor of port and protocol.
    pub port: u64,
}

impl FlowSecret {
    /// Returns the first word of the mark that this node's programs put in front of merged frames, as
    /// metadata. Another node on the same machine has another one. Never 0.
    #[inline(always)]
    pub const fn frame_mark(&self) -> u32 {
        (self.sum >> 32) as u32 | 1
    }
}

impl core::fmt::Debug for FlowSecret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FlowSecret(..)")
    }
}

const _: () = {
    assert!(size_of::<FlowKey>() == 32 && offset_of!(FlowKey, protocol) == 24);
    assert!(size_of::<FlowRecord>() == 64 && align_of::<FlowRecord>() == 64);
    assert!(offset_of!(FlowRecord, vip) == 8 && offset_of!(FlowRecord, client) == 16);
    assert!(offset_of!(FlowRecord, backend) == 32 && offset_of!(FlowRecord, node) == 48);
    assert!(offset_of!(FlowRecord, flags) == 51 && offset_of!(FlowRecord, seen) == 60);
    assert!(size_of::<FlowSet>() == 256 && size_of::<FlowSecret>() == 48);
};
