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

            /// The name in `inspect` and in the metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

counters! {
    /// The reason of a dropped packet: the index of its counter in `DROPS`.
    DropReason {
        /// An ARP request for a VIP that this node does not lead; its leader answers.
        ArpNotLeading = "arp_not_leading",
        /// An ARP request for a VIP that this node leads, after the fence deadline.
        ArpFenced = "arp_fenced",
        /// The node's own stack tried to send ARP for a VIP that it does not lead.
        ArpEgress = "arp_egress",
        /// A Neighbor Solicitation for a VIP that this node does not lead; its leader answers.
        NdpNotLeading = "ndp_not_leading",
        /// A Neighbor Solicitation for a VIP that this node leads, after the fence deadline.
        NdpFenced = "ndp_fenced",
        /// The node's own stack tried to send Neighbor Discovery for a VIP that it does not lead.
        NdpEgress = "ndp_egress",
        /// A truncated or inconsistent header of a packet to or from a VIP.
        Malformed = "malformed",
        /// A protocol that is not balanced.
        Protocol = "protocol",
        /// ICMP to a VIP that is neither an echo request nor an error about one of its flows.
        Icmp = "icmp",
        /// A fragment without a recent first fragment of its datagram, or a fragment of ICMP.
        Fragment = "fragment",
        /// The client's address is in none of the Service's source ranges.
        SourceRange = "source_range",
        /// A new flow to a local backend, and no record for it: all that it could have are of established
        /// connections to local backends, or other CPUs have locked them. Or a fragmented datagram, and its
        /// sender has too many of them.
        RecordLimited = "record_limited",
        /// No Service claims this port.
        NoService = "no_service",
        /// The Service has no ready backend.
        NoBackend = "no_backend",
        /// A handed-over frame, and this node has no backend for it.
        NotLocal = "not_local",
        /// The backend's node is not resolved or not attached.
        NodeUnreachable = "node_unreachable",
        /// The only backends are on the node that the frame came from.
        Hairpin = "hairpin",
        /// TTL of 1 or less at the hand-over.
        TtlExceeded = "ttl_exceeded",
        /// A packet is longer than the MTU of the path at the hand-over.
        TooBig = "too_big",
        /// Two live flows of one client to two VIP ports end at one backend port.
        TupleCollision = "tuple_collision",
        /// A flow's record could not be written.
        RecordFailed = "record_failed",
        /// A reply that should be translated could not be.
        ReplyFailed = "reply_failed",
    }
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
