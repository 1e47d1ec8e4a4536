//! Values that the programs write: records of flows and fragments, and their own state.

use core::mem::{offset_of, size_of};

use super::{Address, Mac};

/// Key of `FRAGMENTS` and `EGRESS_FRAGMENTS`: the fields that a datagram's fragments share (RFC
/// 791, 3.2; RFC 8200, 4.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    /// The source.
    pub source: Address,
    /// The destination.
    pub destination: Address,
    /// The identification, wire: IPv4's 16 bits as a number, or IPv6's 32.
    pub id: u32,
    /// IANA protocol number; 0 for IPv6, whose fragments are identified without it.
    pub protocol: u32,
}

/// Instead of a backend's index in [`FragmentValue::backend`]: the first fragment went to the
/// node's own stack.
pub const FRAGMENT_KERNEL: u32 = u32::MAX;

/// `FRAGMENTS[FragmentKey]`: the destination of the first fragment.
///
/// The kernel may give an LRU element to another key while a program reads it. `tag` is the first
/// field, so it is written first, and programs read it last. So they detect a value of another
/// datagram.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentValue {
    /// [`crate::hash::fragment`] of the key.
    pub tag: u32,
    /// Index into `BACKENDS`, or [`FRAGMENT_KERNEL`].
    pub backend: u32,
    /// [`super::Backend::generation`] at that time.
    pub backend_generation: u32,
    /// [`super::ServiceValue::slot`].
    pub slot: u32,
    /// `jiffies_64` at that time.
    pub seen: u64,
    /// 1: the Service is [`super::SERVICE_DIRECT`].
    pub direct: u32,
    /// Zero.
    pub reserved: u32,
}

/// `EGRESS_FRAGMENTS[FragmentKey]`: the new source of the first fragment. `tag` as in
/// [`FragmentValue`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressFragmentValue {
    /// [`crate::hash::fragment`] of the key.
    pub tag: u32,
    /// Zero.
    pub reserved: u32,
    /// The VIP.
    pub vip: Address,
    /// `jiffies_64` at that time.
    pub seen: u64,
}

/// Key of `SPEAKERS`: a VIP, and another machine that announces or probes it on its segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpeakerKey {
    /// The VIP.
    pub vip: Address,
    /// The sender of the ARP packet, or of the frame that Neighbor Discovery came in; never the
    /// interface's own MAC.
    pub mac: Mac,
}

/// `SPEAKERS[SpeakerKey]`: for the agent's duplicate address detection. Not read by programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speaker {
    /// The time of its last announcement: `CLOCK_BOOTTIME`, nanoseconds; 0: never.
    pub claimed: u64,
    /// The time of its last probe, sent to all without an address of its own (RFC 5227, 1.1; RFC
    /// 4862, 5.4.2): `CLOCK_BOOTTIME`, nanoseconds; 0: never.
    pub probed: u64,
    /// The first option, wire, of its last such solicitation: a nonce, if any (RFC 7527). 0: no
    /// option, or ARP.
    pub option: u64,
    /// The interface that heard it last.
    pub ifindex: u32,
    /// Zero.
    pub reserved: u32,
}

/// `BUDGETS[index]`, by [`crate::budget`]: a token bucket.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// `jiffies_64` at the last fill.
    pub filled: u64,
    /// The remaining tokens, times [`super::Config::hz`].
    pub left: u64,
}

/// Value of the per-CPU array `SCRATCH`: what an XDP program passes to the one that it calls by a
/// tail call. It has no meaning between packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// What the caller found out about the packet: 0 nothing, or one of the `RESULT_` numbers.
    pub result: u32,
    /// [`super::VipValue::id`], with [`RESULT_NEW`], [`RESULT_OPENING`] and [`RESULT_VIP`]. The path's
    /// MTU in bytes, or 0 for an end of the TTL, with [`RESULT_UNDELIVERABLE`].
    pub vip: u32,
    /// [`super::VipValue::flags`], where there is an id.
    pub vip_flags: u32,
    /// The number of backends that were tried in vain for the flow, with [`RESULT_NEW`].
    pub attempts: u32,
}

/// The packet is a whole TCP, UDP or SCTP packet to a VIP, and its flow has no record.
pub const RESULT_NEW: u32 = 1;
/// No Service claims the packet's port.
pub const RESULT_NO_SERVICE: u32 = 2;
/// The packet's Service has no backend.
pub const RESULT_NO_BACKEND: u32 = 3;
/// The packet cannot be handed over: it is longer than the path's MTU, or its TTL is at an end.
pub const RESULT_UNDELIVERABLE: u32 = 4;
/// The packet is a whole SYN or INIT to a VIP. No program has looked for a record of its flow.
pub const RESULT_OPENING: u32 = 5;
/// The packet is a whole TCP, UDP or SCTP packet to a VIP, and its flow may have a record.
pub const RESULT_VIP: u32 = 6;
/// The node's agent has been away for too long, and no node has handed the packet over.
pub const RESULT_ABANDONED: u32 = 7;

/// Index into the program arrays `CALLS` and `CALLS_FRAGMENTED`: new flows, IPv4. One more: IPv6.
pub const CALL_NEW: u32 = 0;
/// Index into the program arrays: the slow path, for packets that belong to no flow and begin none, IPv4.
/// One more: IPv6.
pub const CALL_SLOW: u32 = 2;
/// Index into the program arrays: frames that are not IPv4 or IPv6 without a VLAN tag.
pub const CALL_OTHER: u32 = 4;
/// Elements of the program arrays.
pub const CALLS: u32 = 5;
/// Index into the program array `CLASSIFIERS`: the program for replies.
pub const CALL_EGRESS: u32 = 0;
/// Index into the program array `CLASSIFIERS`: the program for direct server return.
pub const CALL_INGRESS: u32 = 1;

const _: () = {
    assert!(size_of::<FragmentKey>() == 40 && offset_of!(FragmentKey, id) == 32);
    assert!(size_of::<FragmentValue>() == 32 && offset_of!(FragmentValue, seen) == 16);
    assert!(size_of::<EgressFragmentValue>() == 32 && offset_of!(EgressFragmentValue, tag) == 0);
    assert!(size_of::<SpeakerKey>() == 24 && size_of::<Speaker>() == 32 && offset_of!(Speaker, ifindex) == 24);
    assert!(size_of::<Budget>() == 16);
    assert!(size_of::<Scratch>() == 16);
};
