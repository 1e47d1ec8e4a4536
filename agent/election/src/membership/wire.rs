//! The payloads that agents send each other, before they are sealed: one [`Wire`] in a datagram.
//!
//! The format is postcard: integers in as many bytes as they need, enums by the number of their
//! variant.

use serde::{Deserialize, Serialize};

use crate::membership::items::{ItemChange, MOST_ITEMS};
use vipmux_model::Vip;

/// The longest payload, bytes. Sealed, with the longest node name, and with the headers of IPv6 and
/// UDP, it fits Ethernet's 1500.
pub const MOST_PAYLOAD: usize = 1150;
/// The most bytes that [`Wire::Swim`] adds to a packet.
pub(super) const SWIM_OVERHEAD: usize = 4;
/// The most bytes that [`Wire::Delta`] adds to its changes.
pub(super) const DELTA_OVERHEAD: usize = 64;
/// The most nodes that one [`Wire::Left`] names. Each takes at most 20 bytes.
pub(super) const MOST_DEPARTED: usize = 50;

/// A payload. Numbers named `asked` are nanoseconds of the asker's clock, and mean nothing to
/// others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wire<'a> {
    /// A packet of SWIM.
    Swim {
        /// The sender is with a majority. Peers ignore which nodes a sender without a majority
        /// considers down.
        majority: bool,
        packet: &'a [u8],
    },
    Heartbeat(Heartbeat),
    Ack(Ack),
    Pull(Pull),
    Delta(Delta),
    Message {
        /// The receiver's last heartbeat to the sender; 0: none.
        asked: u64,
        message: ElectionMessage,
    },
    /// These nodes left: the sender itself, or others that reported it.
    Left(Vec<Departed>),
}

/// The question: are you alive, and do you consider me alive?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Heartbeat {
    pub(super) asked: u64,
    /// The asker's.
    pub(super) generation: u64,
    /// The number of members that it knows.
    pub(super) known: u64,
    pub(super) at: StateVersion,
}

/// A node that left. Nothing will follow of this generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Departed {
    /// [`MemberId::key`](crate::membership::swim::MemberId::key) of its name.
    pub(super) node: u64,
    pub(super) generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ack {
    pub(super) asked: u64,
    pub(super) at: StateVersion,
    /// The sender does not consider the asker alive: it considers this generation of it down, or
    /// knows this generation, which is newer than the asker's.
    pub(super) disowned: Option<u64>,
    /// The nodes that were down lately; none in large clusters.
    pub(super) gone: Vec<Gone>,
}

/// A node that the sender considers down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gone {
    /// [`MemberId::key`](super::MemberId::key) of its name.
    pub(super) node: u64,
    pub(super) generation: u64,
    /// The sender has not answered it as alive for this many nanoseconds.
    pub(super) silent: u64,
}

/// The version of a node's state. The number grows by one with each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StateVersion {
    /// A number that an agent draws when it starts; 0 is never drawn.
    pub(super) run: u64,
    pub(super) number: u64,
}

/// The question: what changed in your state since then?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pull {
    pub(super) asked: u64,
    /// The asker knows everything up to here.
    pub(super) since: StateVersion,
    /// The version at which the asker began. The receiver must still know all keys that were
    /// withdrawn since.
    pub(super) begun: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Delta {
    pub(super) asked: u64,
    /// The changes are those after `since`, up to `upto`.
    pub(super) upto: StateVersion,
    pub(super) since: u64,
    /// Given if the receiver must start over, from nothing: the version now, which goes into its
    /// further pulls.
    pub(super) reset: Option<u64>,
    /// There are further changes.
    pub(super) more: bool,
    pub(super) changes: Vec<ItemChange>,
}

/// A message of one node's election to another's. It may be lost: the sender repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ElectionMessage {
    /// The sender has stopped answering for the VIP: lead it with this epoch. The message is
    /// dropped if it is older than
    /// [`MembershipSettings::fresh`](super::MembershipSettings::fresh), since the sender may answer
    /// again.
    Take {
        /// The VIP.
        vip: Vip,
        /// The epoch to lead it with.
        epoch: u64,
    },
    /// The sender leads it now.
    Taken {
        /// The VIP.
        vip: Vip,
        /// The epoch of the leadership.
        epoch: u64,
    },
    /// The sender will not lead it.
    Declined {
        /// The VIP.
        vip: Vip,
        /// The epoch that was asked for.
        epoch: u64,
    },
}

/// A payload cannot be used. It changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// It is longer than any that is sent.
    #[error("{0} bytes are more than {MOST_PAYLOAD}")]
    TooLong(usize),
    /// It cannot be decoded.
    #[error("not a message of this version")]
    Undecodable(#[source] postcard::Error),
    /// Bytes follow the message.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// The sender is no Node of the cluster, or is this one.
    #[error("not from another Node")]
    Stranger,
    /// SWIM's message names another sender.
    #[error("SWIM's message names another sender")]
    Misnamed,
    /// SWIM refuses the message.
    #[error("SWIM refuses it")]
    Swim(#[source] foca::Error),
    /// The sender's state has more than [`MOST_ITEMS`].
    #[error("more than {MOST_ITEMS} items")]
    TooMany,
}

impl Wire<'_> {
    /// Encodes the payload.
    pub(super) fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        let mut buffer = [0; MOST_PAYLOAD];
        postcard::to_slice(self, &mut buffer).map(|used| used.to_vec())
    }
}

impl<'a> Wire<'a> {
    /// Decodes a payload.
    pub(super) fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        if payload.len() > MOST_PAYLOAD {
            return Err(Malformed::TooLong(payload.len()));
        }
        match postcard::take_from_bytes(payload).map_err(Malformed::Undecodable)? {
            (wire, []) => Ok(wire),
            (_, rest) => Err(Malformed::Trailing(rest.len())),
        }
    }
}

impl ItemChange {
    /// Returns its size in a [`Delta`], bytes.
    pub(super) fn size(&self) -> usize {
        let mut buffer = [0; MOST_PAYLOAD];
        postcard::to_slice(self, &mut buffer).map_or(MOST_PAYLOAD, |used| used.len())
    }
}
