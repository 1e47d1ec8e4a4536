//! The counters, by name and index.

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant),* }

        impl $name {
            /// All counters, in the order of their indices.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Their number.
            #[expect(clippy::cast_possible_truncation, reason = "some dozens")]
            pub const COUNT: u32 = Self::ALL.len() as u32;

            /// The name in `inspect` and in the metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

macro_rules! drop_reasons {
    ($($variant:ident = $name:literal: $text:literal,)*) => {
        counters! {
            /// The reason of a dropped packet: the index of its counter in `DROPS`.
            DropReason { $(#[doc = $text] $variant = $name,)* }
        }

        impl DropReason {
            /// The text for people.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

// docs/packets.md has the texts too.
drop_reasons! {
    ArpNotLeading = "arp_not_leading": "an ARP request for a VIP that another node leads",
    ArpFenced = "arp_fenced": "an ARP request for a VIP that this node leads, after the fence deadline",
    ArpEgress = "arp_egress": "ARP of the node's own stack for a VIP that the node does not lead",
    NdpNotLeading = "ndp_not_leading": "a neighbor solicitation for a VIP that another node leads",
    NdpFenced = "ndp_fenced":
        "a neighbor solicitation for a VIP that this node leads, after the fence deadline",
    NdpEgress = "ndp_egress":
        "Neighbor Discovery of the node's own stack for a VIP that the node does not lead",
    Malformed = "malformed":
        "a header that is cut off or contradicts itself; more extension headers than are parsed; a VIP as the \
         source of a new flow; an ARP or NDP request that names a group as its sender",
    Protocol = "protocol": "not TCP, UDP, SCTP or ICMP",
    Icmp = "icmp": "neither an echo request within the limit, nor an error about a flow",
    Fragment = "fragment": "the first fragment was not seen, or the fragment is ICMP",
    SourceRange = "source_range": "the client is in none of the Service's source ranges",
    RecordLimited = "record_limited":
        "a new flow to a backend here, and no record is free for it; or a sender has too many fragmented \
         datagrams",
    NoService = "no_service": "no Service claims the port",
    NoBackend = "no_backend": "the Service has no ready backend",
    NotLocal = "not_local": "another node handed the packet over, and no backend for it is here",
    NodeUnreachable = "node_unreachable": "no backend is on a node that can be reached",
    Hairpin = "hairpin":
        "the only backends, or the flow's recorded backend, are on the node that sent the packet",
    TtlExceeded = "ttl_exceeded": "a TTL of 1, and the packet has to be handed over",
    TooBig = "too_big": "the packet is longer than the MTU of the path to the other node",
    TupleCollision = "tuple_collision":
        "the client uses one of its ports for two ports of the VIP that reach the same pod port",
    RecordFailed = "record_failed": "the kernel had no memory for the record of a fragmented datagram",
    ReplyFailed = "reply_failed": "a reply could not be translated",
}

counters! {
    /// An event: the index of its counter in `STATS`.
    Stat {
        /// Passed untouched: not for a VIP.
        Passed = "passed",
        /// ARP requests answered.
        ArpAnswered = "arp_answered",
        /// Neighbor Solicitations answered.
        NdpAnswered = "ndp_answered",
        /// A peer's announcement took a VIP from this node.
        Yielded = "yielded",
        /// ARP or Neighbor Discovery for a VIP from a MAC that is neither the interface's own nor a
        /// node's.
        Foreign = "foreign",
        /// The same from the interface's own MAC: reflected by the network, or another machine has
        /// that MAC too.
        Reflected = "reflected",
        /// Delivered to a backend on this node.
        Local = "local",
        /// Handed over to the backend's node.
        HandedOver = "handed_over",
        /// Delivered unchanged to a backend on this node, with the VIP as destination.
        Direct = "direct",
        /// Left to the node's own stack, by the Service's configuration.
        Kernel = "kernel",
        /// Frames from a hand-over MAC.
        FromPeer = "from_peer",
        /// Flow records made.
        NewFlows = "new_flows",
        /// New flows that were handed over without a record: all records that they could have
        /// are of live flows.
        Unrecorded = "unrecorded",
        /// Replies translated back.
        Replies = "replies",
        /// Packets that no Service or no backend takes, answered with TCP RST or ICMP port
        /// unreachable. Packets that are too long, answered with ICMP too.
        Rejected = "rejected",
        /// ICMP echo requests to a VIP, answered.
        EchoAnswered = "echo_answered",
        /// Answers that [`super::Config::answers_per_second`] did not allow.
        AnswerLimited = "answer_limited",
        /// SYN-ACKs of direct connections to a backend: left alone.
        DirectReplies = "direct_replies",
        /// Records given to another flow: their Service or backend was gone.
        EvictedInvalid = "evicted_invalid",
        /// Records given to another flow: their connection was closed.
        EvictedClosed = "evicted_closed",
        /// Records given to another flow: their client had sent nothing but SYNs, or one datagram.
        EvictedHalfOpen = "evicted_half_open",
        /// Records given to another flow: not both sides had spoken in another way. The backend here had sent
        /// nothing, or the client one packet.
        EvictedUnconfirmed = "evicted_unconfirmed",
        /// Records given to another flow: they were idle for longer than the timeout.
        EvictedIdle = "evicted_idle",
        /// Records given to another flow that needs one for its replies: they were live, but only
        /// a cache of what the Service's table says, or of datagrams.
        EvictedLive = "evicted_live",
    }
}
