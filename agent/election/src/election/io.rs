//! The inputs and commands of the election state machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;
use vipmux_common::abi::Mac;

use super::role::Lost;
use crate::{
    lease::{Lease, NodeRecord, StoreId, Version},
    membership::{ElectionMessage, Item, ItemKey, Why},
    placement::Candidates,
    store_operation::StoreOperation,
};
use vipmux_model::{NodeName, Vip};

/// An event that the election handles. Times are `CLOCK_BOOTTIME`.
#[derive(Clone, Debug)]
pub enum Input {
    /// The VIPs with their candidates. The maps are in sync with them. After a [`Command::Reload`],
    /// they must rest on evidence that is newer than it.
    Wanted(Arc<BTreeMap<Vip, Candidates>>),
    /// The VIPs that this node cannot announce now: no interface for them has a carrier and sends
    /// answers that arrive.
    Unable(BTreeSet<Vip>),
    /// The VIPs whose answers are known to be lost on their way from this node. They are unable too.
    Lossy(BTreeSet<Vip>),
    /// A heartbeat of the agent's event loop.
    Tick {
        /// At least one announcing interface has a carrier.
        carrier: bool,
    },
    /// Nodes with another gossip key may lead rather than this one (`true`), or no longer
    /// (`false`): see [`OtherKeys`](crate::membership::OtherKeys).
    Outranked(bool),
    /// The peers changed.
    Peers,
    /// A peer considered this node down.
    Disowned,
    /// A message of a peer.
    Message {
        /// The sender.
        from: NodeName,
        /// The message.
        message: ElectionMessage,
    },
    /// The result of a [`StoreOperation::Read`] or [`StoreOperation::Swap`].
    Stored {
        /// The VIP.
        vip: Vip,
        /// The result.
        outcome: LeaseOutcome,
    },
    /// The result of a [`StoreOperation::Survey`].
    Surveyed {
        /// The time at which the store was asked.
        asked: Duration,
        /// All Leases; `None`: the store is unavailable.
        leases: Option<OrdMap<Vip, Lease>>,
    },
    /// The id of the directory of Leases: the store works. An API server has none, and this is never given.
    Store(StoreId),
    /// The result of a [`StoreOperation::ReadRecord`] or [`StoreOperation::SwapRecord`].
    Recorded {
        /// The node.
        node: NodeName,
        /// The time of the command.
        asked: Duration,
        /// The result.
        outcome: RecordOutcome,
    },
    /// The record of a node changed, or is gone (`None`), as a watch says. That may come late, or never.
    RecordChanged {
        /// The node.
        node: NodeName,
        /// Its record.
        record: Option<NodeRecord>,
    },
    /// A Lease changed, or is gone (`None`), as a watch says. That may come late, or never.
    LeaseChanged {
        /// The VIP.
        vip: Vip,
        /// The Lease.
        lease: Option<Lease>,
    },
    /// The kernel saw announcements of a VIP that this node leads, with the MACs of peers.
    PeerAnnounced(PeerAnnouncement),
    /// The result of a [`Command::Probe`].
    Probed {
        /// The VIP.
        vip: Vip,
        /// The owner of the address.
        owner: AddressOwner,
    },
    /// This node should lead nothing as long as there is another (`true`), or may lead again
    /// (`false`).
    Drain(bool),
}

/// Announcements of a VIP with the MACs of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAnnouncement {
    /// The VIP.
    pub vip: Vip,
    /// The peers that have these MACs. Empty: at least one MAC is of no known peer.
    pub by: BTreeSet<NodeName>,
    /// The time of the last one, `CLOCK_BOOTTIME`.
    pub at: Duration,
    /// The kernel stopped answering for the VIP. It does not while the VIP is assured
    /// ([`Command::Assure`]).
    pub yielded: bool,
}

/// The result of a store operation on a Lease.
pub type LeaseOutcome = Outcome<Lease>;
/// The result of a store operation on the record of a node.
pub type RecordOutcome = Outcome<NodeRecord>;

/// The result of a store operation on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It was read; `None`: it does not exist.
    Read(Option<T>),
    /// It was swapped, and has this version now.
    Swapped(Version),
    /// It has another version than was expected.
    Conflict,
    /// The store cannot be used.
    Unavailable,
}

/// The owner of an address on the LAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressOwner {
    /// Nobody answered.
    Nobody,
    /// Nobody answered, and no other packet came in either. This node may be cut off.
    Unknown,
    /// An agent's node answered.
    Peer,
    /// Another host answered.
    ForeignSpeaker(Mac),
}

/// A command to execute, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Clear the VIP's leading flag: this node no longer answers for it.
    Follow {
        /// The VIP.
        vip: Vip,
        /// The reason.
        why: Lost,
    },
    /// Set the VIP's leading flag and announce it.
    Lead {
        /// The VIP.
        vip: Vip,
        /// The epoch of the leadership.
        epoch: u64,
        /// The reason.
        why: Why,
    },
    /// Let the kernel go on answering for this VIP when a peer announces it (`true`), or stop
    /// (`false`). [`Command::Follow`] ends it, too.
    Assure {
        /// The VIP.
        vip: Vip,
        /// It goes on.
        assured: bool,
    },
    /// Report that somebody announced this VIP with a peer's MAC. The peer denies it.
    Forged {
        /// The VIP.
        vip: Vip,
        /// The peer.
        by: NodeName,
    },
    /// Ask a peer for its state ([`Membership::ask`](crate::membership::Membership::ask)). An
    /// [`Input::Peers`] must follow its answer.
    Ask(NodeName),
    /// Ask the peers now ([`Membership::ask_peers`](crate::membership::Membership::ask_peers)), between two rounds
    /// of heartbeats.
    AskPeers,
    /// Set the fence deadline to this time, `CLOCK_BOOTTIME`.
    Extend(Duration),
    /// Read the wanted VIPs again.
    Reload,
    /// Send a round of heartbeats to the peers
    /// ([`Membership::schedule_heartbeats`](crate::membership::Membership::schedule_heartbeats)).
    Heartbeat,
    /// Discard the evidence so far
    /// ([`Membership::discard_evidence`](crate::membership::Membership::discard_evidence)).
    DiscardEvidence,
    /// Begin an operation at the store. Only the result of the latest one on a VIP's Lease may be given back. At
    /// most one survey, and one operation on each node's record, is under way.
    Store(StoreOperation),
    /// Send a message to a peer.
    Send {
        /// The receiver.
        to: NodeName,
        /// The message.
        message: ElectionMessage,
    },
    /// Publish an item of this node to all peers.
    Publish(Item),
    /// Withdraw an item.
    Withdraw(ItemKey),
    /// Ask the LAN who has an address.
    Probe {
        /// The address.
        vip: Vip,
        /// Ask as patiently as duplicate address detection, before the address is first used.
        /// Otherwise ask quickly.
        detect: bool,
    },
    /// Report a foreign speaker. The address is not announced.
    Conflict {
        /// The address.
        vip: Vip,
        /// The foreign speaker's MAC.
        mac: Mac,
    },
}

impl StoreOperation {
    /// Returns the input for an operation of the time `asked` that has failed. Nobody waits for a deletion.
    pub(crate) fn failed(&self, asked: Duration) -> Option<Input> {
        match self {
            Self::Read(vip) | Self::Swap { vip, .. } => {
                Some(Input::Stored { vip: *vip, outcome: LeaseOutcome::Unavailable })
            }
            Self::ReadRecord { node, .. } | Self::SwapRecord { node, .. } => {
                Some(Input::Recorded { node: node.clone(), asked, outcome: RecordOutcome::Unavailable })
            }
            Self::Survey => Some(Input::Surveyed { asked, leases: None }),
            Self::Delete { .. } => None,
        }
    }
}
