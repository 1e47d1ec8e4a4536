//! What the programs write: records of flows and of fragments, and what they keep for themselves.

use core::mem::{offset_of, size_of};

use super::{Address, Mac};

/// Key of `FLOWS`.
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

/// The client sent FIN. This one and [`FLOW_RESET`] are the flags of [`FlowValue`], all five those of [`ReverseValue`].
pub const FLOW_CLIENT_FIN: u32 = 1;
/// The backend sent FIN.
pub const FLOW_BACKEND_FIN: u32 = 2;
/// Either side sent RST. Cleared by the client's next packet, so a forged RST does no lasting harm.
pub const FLOW_RESET: u32 = 4;
/// [`ReverseValue::isn`] was taken from the client's SYN.
pub const FLOW_ISN: u32 = 8;
/// The backend answered a SYN that did not come through the VIP: its replies are the client's own affair, and what is
/// still under way through the VIP does not change that. Set together with [`FLOW_RESET`], for agents of version 6 and
/// older.
pub const FLOW_DIRECT: u32 = 16;

/// `FLOWS[FlowKey]`.
///
/// An LRU element can be given to another key while a program reads it. `tag` comes first, so it is written first, and
/// programs read it last: a value of another flow is always told by it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowValue {
    /// [`crate::hash::flow`] of the key.
    pub tag: u32,
    /// Index into `BACKENDS`.
    pub backend: u32,
    /// [`super::Backend::generation`] when the flow was recorded.
    pub backend_generation: u32,
    /// [`super::ServiceValue::slot`].
    pub slot: u32,
    /// [`super::ServiceState::generation`] when the flow was recorded.
    pub slot_generation: u32,
    /// The [`super::Node::epoch`] in which the backend was found on that other node, taking new flows. While it lasts, the
    /// record leads there without a look at `BACKENDS`, which for many backends is not in the CPU's caches. Otherwise
    /// the generations decide. 0: not found so yet; always so of a local backend, whose entry delivery reads anyway.
    pub epoch: u32,
    /// [`super::Backend::node`]: it is the same for a backend's whole generation.
    pub node: u16,
    /// [`FLOW_CLIENT_FIN`], [`FLOW_RESET`].
    pub flags: u16,
    /// Low half of `jiffies_64` at the client's last packet. It wraps (after 49 days at 1000 Hz, 198 at 250): times are
    /// compared by wrapping subtraction, and a record that lies untouched for a whole wrap is once more as good as new.
    /// That does no harm: the generations still hold.
    pub seen: u32,
}

/// Key of `REVERSE`: a reply's source and destination.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReverseKey {
    /// The backend.
    pub backend: Address,
    /// The client.
    pub client: Address,
    /// The backend's port, wire.
    pub backend_port: u16,
    /// The client's port, wire.
    pub client_port: u16,
    /// IANA protocol number.
    pub protocol: u32,
}

/// `REVERSE[ReverseKey]`: what to put back into a reply. `tag` as in [`FlowValue`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReverseValue {
    /// [`crate::hash::reverse`] of the key.
    pub tag: u32,
    /// The client's initial sequence number, host order; valid with [`FLOW_ISN`].
    pub isn: u32,
    /// The VIP.
    pub vip: Address,
    /// The Service's port, wire.
    pub vip_port: u16,
    /// Zero.
    pub padding: u16,
    /// [`FLOW_CLIENT_FIN`], [`FLOW_BACKEND_FIN`], [`FLOW_RESET`], [`FLOW_ISN`], [`FLOW_DIRECT`].
    pub flags: u32,
    /// `jiffies_64` of the last packet of either side; frozen once the flow is closed.
    pub seen: u64,
    /// [`super::ServiceState::idle`] when the client's last packet came.
    pub idle: u32,
    /// Zero.
    pub reserved: u32,
}

/// Key of `FRAGMENTS` and `EGRESS_FRAGMENTS`: what the fragments of one datagram share (RFC 791, 3.2; RFC 8200, 4.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    /// The source.
    pub source: Address,
    /// The destination.
    pub destination: Address,
    /// The identification, wire: IPv4's 16 bits as a number, or IPv6's 32.
    pub id: u32,
    /// IANA protocol number; 0 for IPv6, whose fragments are told apart without it.
    pub protocol: u32,
}

/// In place of a backend's index in [`FragmentValue::backend`]: the first fragment went to the node's own stack.
pub const FRAGMENT_KERNEL: u32 = u32::MAX;

/// `FRAGMENTS[FragmentKey]`: where the first fragment went. `tag` as in [`FlowValue`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentValue {
    /// [`crate::hash::fragment`] of the key.
    pub tag: u32,
    /// Index into `BACKENDS`, or [`FRAGMENT_KERNEL`].
    pub backend: u32,
    /// [`super::Backend::generation`] then.
    pub backend_generation: u32,
    /// [`super::ServiceValue::slot`].
    pub slot: u32,
    /// `jiffies_64` then.
    pub seen: u64,
    /// 1: the Service is [`super::SERVICE_DIRECT`].
    pub direct: u32,
    /// Zero.
    pub reserved: u32,
}

/// `EGRESS_FRAGMENTS[FragmentKey]`: what the first fragment's source became. `tag` as in [`FlowValue`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressFragmentValue {
    /// [`crate::hash::fragment`] of the key.
    pub tag: u32,
    /// Zero.
    pub reserved: u32,
    /// The VIP.
    pub vip: Address,
    /// `jiffies_64` then.
    pub seen: u64,
}

/// Key of `SPEAKERS`: a VIP, and somebody else who speaks for it where it is announced, or asks whether anybody has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpeakerKey {
    /// The VIP.
    pub vip: Address,
    /// The sender of the ARP packet, or of the frame that Neighbor Discovery came in; never the interface's own MAC.
    pub mac: Mac,
}

/// `SPEAKERS[SpeakerKey]`: for the agent's duplicate address detection; no program reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speaker {
    /// When it last spoke as one that has the address: `CLOCK_BOOTTIME`, nanoseconds; 0: never.
    pub claimed: u64,
    /// When it last asked everybody, without an address of its own, whether anybody has it (RFC 5227, 1.1; RFC 4862, 5.4.2);
    /// likewise.
    pub probed: u64,
    /// The first option, wire, of its last such solicitation: a nonce, if any (RFC 7527). 0: it had none, or came by ARP.
    pub option: u64,
    /// The interface where it was heard last.
    pub ifindex: u32,
    /// Zero.
    pub reserved: u32,
}

/// Index into `BUDGET`: answers, [`super::Config::answers_per_second`].
pub const BUDGET_ANSWERS: u32 = 0;
/// Index into `BUDGET`: flow records, [`super::Config::records_per_second`].
pub const BUDGET_RECORDS: u32 = 1;
/// Elements of `BUDGET`.
pub const BUDGETS: u32 = 2;

/// Value of the per-CPU array `BUDGET`: a token bucket.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// `jiffies_64` when it was filled last.
    pub filled: u64,
    /// What is left, times [`super::Config::hz`].
    pub left: u64,
}

/// Value of the per-CPU array `LAPSE`: whether the agent has been away for longer than [`super::Config::abandon_after`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lapse {
    /// `jiffies_64` when the clock was asked last.
    pub checked: u64,
    /// 1: it has.
    pub abandoned: u64,
}

/// Value of the per-CPU array `SCRATCH`: what an XDP program tells the one that it calls by a tail call. Means nothing
/// between packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// What is known already: 0 nothing, or one of the `KNOWN_` numbers.
    pub known: u32,
    /// [`super::VipValue::id`], where it is [`KNOWN_NEW`].
    pub vip: u32,
    /// [`super::VipValue::flags`], where it is [`KNOWN_NEW`].
    pub vip_flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// The packet is a TCP, UDP or SCTP one to a VIP, whole, and its flow has no record.
pub const KNOWN_NEW: u32 = 1;
/// No Service claims the packet's port.
pub const KNOWN_NO_SERVICE: u32 = 2;
/// The Service that the packet is for has no backend.
pub const KNOWN_NO_BACKEND: u32 = 3;

/// Index into the program arrays `CALLS` and `CALLS_FRAGMENTED`: new flows, IPv4. One more: IPv6.
pub const CALL_NEW: u32 = 0;
/// Index into the program arrays: all that is neither a flow's nor begins one, IPv4. One more: IPv6.
pub const CALL_ODD: u32 = 2;
/// Elements of the program arrays.
pub const CALLS: u32 = 4;

const _: () = {
    assert!(size_of::<FlowKey>() == 32 && offset_of!(FlowKey, protocol) == 24);
    assert!(size_of::<FlowValue>() == 32 && offset_of!(FlowValue, tag) == 0 && offset_of!(FlowValue, epoch) == 20);
    assert!(offset_of!(FlowValue, flags) == 26 && offset_of!(FlowValue, seen) == 28);
    assert!(size_of::<ReverseKey>() == 40 && offset_of!(ReverseKey, backend_port) == 32);
    assert!(size_of::<ReverseValue>() == 48 && offset_of!(ReverseValue, vip) == 8);
    assert!(offset_of!(ReverseValue, seen) == 32 && offset_of!(ReverseValue, idle) == 40);
    assert!(offset_of!(ReverseValue, tag) == 0);
    assert!(size_of::<FragmentKey>() == 40 && offset_of!(FragmentKey, id) == 32);
    assert!(size_of::<FragmentValue>() == 32 && offset_of!(FragmentValue, seen) == 16);
    assert!(size_of::<EgressFragmentValue>() == 32 && offset_of!(EgressFragmentValue, tag) == 0);
    assert!(size_of::<SpeakerKey>() == 24 && size_of::<Speaker>() == 32 && offset_of!(Speaker, ifindex) == 24);
    assert!(size_of::<Budget>() == 16);
    assert!(size_of::<Lapse>() == 16 && size_of::<Scratch>() == 16);
};
