//! The agent's view of leaders and members, for people. No program reads it.

use core::{
    fmt,
    mem::{offset_of, size_of},
};

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal, $text:literal,)* }) => {
        $(#[$doc])*
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant = $code),* }

        impl $name {
            /// All of them, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in `inspect`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// Returns the meaning of a code. `Err`: the unknown code of a newer agent.
            pub const fn of(code: u32) -> Result<Self, u32> {
                match code { $($code => Ok(Self::$variant),)* code => Err(code) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

codes! {
    /// The part of the agent's own node for a VIP: [`Leader::role`].
    Role {
        /// Another node leads it, or none.
        Following = 0, "following",
        /// It holds the VIP, and probes the LAN for another owner before it answers for the first
        /// time.
        Detecting = 1, "detecting",
        /// It holds the VIP, and a foreign speaker has the address.
        Conflicted = 2, "conflicted",
        /// It answers for the VIP.
        Leading = 3, "leading",
        /// It stopped answering because a peer announced the VIP.
        Yielded = 4, "yielded",
        /// It stopped answering until it knows that the VIP is still its own.
        Suspended = 5, "suspended",
        /// It stopped answering so that another node can lead.
        Handing = 6, "handing",
    }
}

codes! {
    /// Why this node leads: [`Leader::why`], if that is not 0.
    Why {
        /// Nobody led the VIP before.
        First = 1, "first",
        /// It led the VIP before its agent restarted.
        Resumed = 2, "resumed",
        /// The former leader, [`Leader::other`], was down.
        Down = 3, "down",
        /// The former leader, [`Leader::other`], transferred the VIP.
        Handed = 4, "handed",
        /// The former leader, [`Leader::other`], held the VIP and was not heard of.
        Silent = 5, "silent",
        /// No leader was known, and the Leases could not be read.
        Unwritten = 6, "unwritten",
        /// The leader, [`Leader::other`], is not heard, and another machine answers for the VIP on the LAN.
        Answered = 7, "answered",
        /// The former leader, [`Leader::other`], was alive and stopped answering.
        Lapsed = 8, "lapsed",
    }
}

codes! {
    /// A member's state: [`Member::standing`].
    Standing {
        /// It is alive.
        Alive = 1, "alive",
        /// A probe failed, and it has not answered since. It still counts as alive.
        Suspected = 2, "suspected",
        /// It is down.
        Down = 3, "down",
        /// It announced that it leaves.
        Left = 4, "left",
        /// It is the agent's own node.
        Own = 5, "this_node",
        /// It was heard with another gossip key, and is no member.
        OtherKey = 6, "other_key",
    }
}

/// Value of the LPM trie `LEADERS`: the leader of a VIP. Each VIP for which the agent takes part
/// has an entry. Its key is the four words of the VIP's [`Address`](super::Address).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    /// The leader's index in `NODES` plus one; 0: no known leader.
    pub node: u32,
    /// The [`Role`] of the agent's own node.
    pub role: u32,
    /// The epoch of the leadership; 0 without a leader.
    pub epoch: u64,
    /// The time of the change, nanoseconds of `CLOCK_BOOTTIME`; for another node, when the agent
    /// learned of it.
    pub since: u64,
    /// [`Why`]; 0: not known.
    pub why: u32,
    /// The index in `NODES` of the other node that `why` is about, plus one; 0: none.
    pub other: u32,
}

/// The node's maps are in sync, and it may lead. In [`Member::flags`].
pub const MEMBER_READY: u32 = 1;
/// The node drains: it gives up its VIPs and takes no others.
pub const MEMBER_DRAINING: u32 = 2;

/// `MEMBERS[index]`, by the index of `NODES`: the agent on that node, or this one. No entry: it was
/// never heard of.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its generation: how often it came back under a new identity.
    pub generation: u64,
    /// The time of its last message, nanoseconds of `CLOCK_BOOTTIME`; 0: never, or it is the
    /// agent's own node.
    pub heard: u64,
    /// The time of the last change of its standing, nanoseconds of `CLOCK_BOOTTIME`.
    pub since: u64,
    /// [`Standing`].
    pub standing: u32,
    /// [`MEMBER_READY`], [`MEMBER_DRAINING`].
    pub flags: u32,
    /// The number of VIPs that it says it leads.
    pub claims: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<Leader>() == 32 && offset_of!(Leader, epoch) == 8 && offset_of!(Leader, why) == 24);
    assert!(size_of::<Member>() == 40 && offset_of!(Member, standing) == 24 && offset_of!(Member, claims) == 32);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_of_one_value_and_unknown_codes_of_none() {
        macro_rules! check {
            ($($name:ident),*) => {
                $(
                    for (place, known) in $name::ALL.iter().enumerate() {
                        assert_eq!($name::of(*known as u32), Ok(*known));
                        assert!($name::ALL[..place].iter().all(|other| other.name() != known.name()), "{known:?}");
                    }
                    assert_eq!($name::of(9), Err(9));
                )*
                assert_eq!((Why::of(0), Standing::of(0)), (Err(0), Err(0)), "not known");
            };
        }
        check!(Role, Why, Standing);
        assert_eq!(Role::of(Leader::default().role), Ok(Role::Following));
    }
}
