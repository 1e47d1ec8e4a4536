//! The payloads that agents send each other, before they are sealed: one [`Wire`] in a datagram.
//!
//! The format is postcard: integers in as many bytes as they need, enums by the number of their
//! variant.
//!
//! Agents of several versions live together during each upgrade. So each build reads what later
//! ones may add:
//!
//! - A field at the end of a payload is ignored where it is not known.
//! - An item, the reason of a claim, and an election's message begin with their length. One that
//!   cannot be read is skipped.
//! - All else, such as a new kind of payload, needs a new version ([`WireVersions`]). It goes to
//!   peers only whose range has that version. Before the range is known, a node sends its oldest
//!   version.

use serde::{Deserialize, Serialize};

use crate::membership::{
    item_kind::ItemKind,
    items::ItemChange,
    member_id::MemberId,
    payload::{MOST_PAYLOAD, delimited},
};
use vipmux_model::Vip;

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
        /// `None`: a later version's.
        #[serde(with = "delimited")]
        message: Option<ElectionMessage>,
    },
    /// These nodes left: the sender itself, or others that reported it. Nothing will follow of these generations.
    Left(Vec<MemberId>),
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
    pub(super) changes: Vec<DeltaChange>,
}

/// A change in a [`Delta`]; `None`: a later version's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeltaChange(#[serde(with = "delimited")] pub(super) Option<ItemChange>);

/// A message of one node's election to another's, about the transfer of a VIP. It may be lost: the sender repeats
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectionMessage {
    /// The step of the transfer.
    pub step: TransferStep,
    /// The VIP.
    pub vip: Vip,
    /// The epoch of the next leadership.
    pub epoch: u64,
}

/// A step of a leadership transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferStep {
    /// The sender has stopped answering for the VIP: lead it with this epoch. The message is
    /// dropped if it is older than
    /// [`MembershipSettings::fresh`](super::MembershipSettings::fresh), since the sender may answer
    /// again.
    Take,
    /// The sender leads it now.
    Taken,
    /// The sender will not lead it.
    Declined,
}

/// A payload cannot be used. It changed nothing, except for [`Malformed::TooMany`].
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// It is longer than any that is sent.
    #[error("{0} bytes are more than {MOST_PAYLOAD}")]
    TooLong(usize),
    /// It cannot be decoded.
    #[error("not a message of this version")]
    Undecodable(#[source] postcard::Error),
    /// The sender is no Node of the cluster, or is this one.
    #[error("not from another Node")]
    Stranger,
    /// SWIM's message names another sender.
    #[error("SWIM's message names another sender")]
    Misnamed,
    /// SWIM refuses the message.
    #[error("SWIM refuses it")]
    Swim(#[source] foca::Error),
    /// The sender has too many items of a kind. The last ones are left out, and all else counts.
    #[error("more than {most} {kind}", most = .0.most(), kind = .0)]
    TooMany(ItemKind),
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
        // Fields of a later version may follow.
        postcard::take_from_bytes(payload).map(|(wire, _)| wire).map_err(Malformed::Undecodable)
    }
}

/// Returns a payload as a later version may send it: with a change, if it has any, and a field that
/// this version does not know. Tests send these.
#[cfg(any(test, feature = "simulation", debug_assertions))]
pub fn as_of_a_later_version(payload: &[u8]) -> Vec<u8> {
    let mut later = match Wire::decode(payload) {
        Ok(Wire::Delta(mut delta)) => {
            delta.changes.insert(0, DeltaChange(None));
            Wire::Delta(delta).encode().unwrap_or_else(|_| payload.to_vec())
        }
        _ => payload.to_vec(),
    };
    let room = MOST_PAYLOAD.saturating_sub(later.len());
    later.extend(b"later".iter().take(room));
    later
}

impl DeltaChange {
    /// Returns its size in a [`Delta`], bytes.
    pub(super) fn size(&self) -> usize {
        let mut buffer = [0; MOST_PAYLOAD];
        postcard::to_slice(self, &mut buffer).map_or(MOST_PAYLOAD, |used| used.len())
    }
}
