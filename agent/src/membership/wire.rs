//! What agents send one another, before it is sealed: one [`Wire`] in a datagram, as postcard writes it (integers in as
//! many bytes as they need, enums by the number of their variant).

use serde::{Deserialize, Serialize};

use crate::{
    membership::state::{Change, MOST_ITEMS},
    model::Vip,
};

/// Longest payload, bytes. Sealed, with the longest node name, and with the headers of IPv6 and UDP, it fits Ethernet's
/// 1500.
pub const MOST_PAYLOAD: usize = 1150;
/// What [`Wire::Swim`] adds to a packet at most.
pub(super) const SWIM_OVERHEAD: usize = 4;
/// What [`Wire::Delta`] adds to its changes at most.
pub(super) const DELTA_OVERHEAD: usize = 64;
/// Most nodes that one [`Wire::Left`] names: each takes twenty bytes at most.
pub(super) const MOST_DEPARTED: usize = 50;

/// One payload. Numbers named `asked` are nanoseconds of the asker's clock, and mean nothing to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wire<'a> {
    /// Of SWIM, to SWIM.
    Swim {
        /// The sender is on the side of a majority. Whom one without holds for down is its own trouble.
        majority: bool,
        packet: &'a [u8],
    },
    Ask(Ask),
    Answer(Answer),
    Pull(Pull),
    Delta(Delta),
    Told {
        /// What the receiver asked the sender last; 0: nothing.
        asked: u64,
        message: Message,
    },
    /// These have left: the sender itself, or others who told it so.
    Left(Vec<Departed>),
}

/// Are you there, and do you hold me for alive?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) asked: u64,
    /// The asker's.
    pub(super) generation: u64,
    /// How many members it knows.
    pub(super) known: u64,
    pub(super) at: Version,
}

/// A node that left. Of this generation of it, nothing will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Departed {
    /// [`Identity::key`](crate::membership::swim::Identity::key) of its name.
    pub(super) node: u64,
    pub(super) generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) asked: u64,
    pub(super) at: Version,
    /// The answerer does not take the asker for a living member: it holds this generation of it for down, or knows it
    /// for a newer one than the asker's.
    pub(super) disowned: Option<u64>,
    /// Whom the answerer has held for down since lately; of large clusters nobody.
    pub(super) gone: Vec<Gone>,
}

/// A node that the sender holds for down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gone {
    /// [`Identity::key`](super::Identity::key) of its name.
    pub(super) node: u64,
    pub(super) generation: u64,
    /// The sender has not answered it as a living one for so many nanoseconds.
    pub(super) silent: u64,
}

/// How far a node's state has come: one more with each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    /// A number that an agent draws when it starts; 0 is never drawn.
    pub(super) run: u64,
    pub(super) number: u64,
}

/// What changed in your state since then?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pull {
    pub(super) asked: u64,
    /// The asker knows everything up to here.
    pub(super) since: Version,
    /// The version, when what the asker knows was begun: all that went since must still be known to have gone.
    pub(super) begun: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Delta {
    pub(super) asked: u64,
    /// The changes are those after `since`, up to `upto`.
    pub(super) upto: Version,
    pub(super) since: u64,
    /// Given where the receiver has to start over, from nothing: the version now, which goes into its further pulls.
    pub(super) reset: Option<u64>,
    /// There are further ones.
    pub(super) more: bool,
    pub(super) changes: Vec<Change>,
}

/// What one node's election says to another's. It may be lost: the sender repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The sender has stopped answering for the VIP: lead it, with this epoch. It is not given out where more than
    /// [`Settings::fresh`](super::Settings::fresh) went by since it was sent: the sender may answer again.
    Take {
        /// Which.
        vip: Vip,
        /// The epoch to lead it with.
        epoch: u64,
    },
    /// The sender leads it now.
    Taken {
        /// Which.
        vip: Vip,
        /// With this epoch.
        epoch: u64,
    },
    /// The sender will not lead it.
    Declined {
        /// Which.
        vip: Vip,
        /// The epoch that it was to lead it with.
        epoch: u64,
    },
}

/// A payload is not to be used. Nothing was changed by it.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// It is longer than any that is sent.
    #[error("{0} bytes are more than {MOST_PAYLOAD}")]
    TooLong(usize),
    /// It means nothing.
    #[error("not a message of this version")]
    Undecodable(#[source] postcard::Error),
    /// There is more behind it.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// The sender is no Node that the manifests name, or is this one.
    #[error("not from another Node")]
    Stranger,
    /// It speaks in another's name.
    #[error("SWIM's message names another sender")]
    Misnamed,
    /// SWIM does not take it.
    #[error("SWIM refuses it")]
    Swim(#[source] foca::Error),
    /// The sender's state has more than [`MOST_ITEMS`].
    #[error("more than {MOST_ITEMS} items")]
    TooMany,
}

impl Wire<'_> {
    /// The payload.
    pub(super) fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        let mut buffer = [0; MOST_PAYLOAD];
        postcard::to_slice(self, &mut buffer).map(|used| used.to_vec())
    }
}

impl<'a> Wire<'a> {
    /// The payload's meaning.
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

impl Change {
    /// Its bytes in a [`Delta`].
    pub(super) fn size(&self) -> usize {
        let mut buffer = [0; MOST_PAYLOAD];
        postcard::to_slice(self, &mut buffer).map_or(MOST_PAYLOAD, |used| used.len())
    }
}
