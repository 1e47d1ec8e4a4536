//! What goes into the state machine and what comes out of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;
use vipmux_common::abi::Mac;

use super::{
    lease::{Lease, Version},
    placement::Contenders,
    tenure::Lost,
};
use crate::{
    membership::{Item, Key, Message, Why},
    model::{NodeName, Vip},
};

/// What happened. Times are `CLOCK_BOOTTIME`.
#[derive(Clone, Debug)]
pub enum Input {
    /// The VIPs with who may lead them, and the maps are in sync with them. After a [`Command::Gather`], only what rests on
    /// evidence that is newer than it.
    Wanted(Arc<BTreeMap<Vip, Contenders>>),
    /// The VIPs that this node cannot announce now: there is no interface with a carrier for them.
    Unable(BTreeSet<Vip>),
    /// The agent's loop turned.
    Tick {
        /// At least one announcing interface has a carrier.
        carrier: bool,
    },
    /// Something about the peers changed.
    Peers,
    /// A peer held this node for down.
    Disowned,
    /// A peer's word.
    Told {
        /// Whose.
        from: NodeName,
        /// What it says.
        message: Message,
    },
    /// The end of a [`Command::Read`] or [`Command::Swap`].
    Stored {
        /// The VIP.
        vip: Vip,
        /// How it ended.
        outcome: Outcome,
    },
    /// The end of a [`Command::Survey`].
    Surveyed {
        /// When the store was asked.
        asked: Duration,
        /// All Leases; `None`: the store is unavailable.
        leases: Option<OrdMap<Vip, Lease>>,
    },
    /// The kernel saw a peer announce a VIP that this node led, and stopped answering for it.
    PeerAnnounced(Vip),
    /// The end of a [`Command::Probe`].
    Probed {
        /// The VIP.
        vip: Vip,
        /// Who answered.
        found: Found,
    },
    /// This node is to lead nothing, as long as there is another (`true`), or is no longer (`false`).
    Drain(bool),
}

/// What became of a store operation on a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was read; `None`: there is none.
    Read(Option<Lease>),
    /// It was swapped, and has this version now.
    Swapped(Version),
    /// It has another version than was expected.
    Conflict,
    /// The store cannot be used.
    Unavailable,
}

/// Who has an address on the LAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nobody answered.
    Nobody,
    /// Nobody answered, and nothing else came in either: this node may be cut off.
    Nothing,
    /// An agent's node did.
    Peer,
    /// Somebody else did.
    Stranger(Mac),
}

/// What to do about it, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Clear the VIP's flag: this node no longer answers for it.
    Follow {
        /// The VIP.
        vip: Vip,
        /// Why.
        why: Lost,
    },
    /// Set the VIP's flag and announce it.
    Lead {
        /// The VIP.
        vip: Vip,
        /// The epoch of the leadership.
        epoch: u64,
        /// Why.
        why: Why,
    },
    /// Push the fence's deadline to this time, `CLOCK_BOOTTIME`.
    Extend(Duration),
    /// Read anew what is wanted.
    Gather,
    /// Begin a round of asking the peers ([`Membership::ask`](crate::membership::Membership::ask)).
    Ask,
    /// What peers answered so far is no evidence any more ([`Membership::renounce`](crate::membership::Membership::renounce)).
    Renounce,
    /// Read a Lease. Of each VIP only the end of the latest operation may be given back.
    Read(Vip),
    /// Write a Lease with this node as its holder.
    Swap {
        /// The VIP.
        vip: Vip,
        /// The version that it must have; `None`: there must be none.
        expected: Option<Version>,
        /// The epoch.
        epoch: u64,
    },
    /// Read all Leases. One is under way at most.
    Survey,
    /// Remove a Lease, if it has this version.
    Delete {
        /// The VIP.
        vip: Vip,
        /// The version.
        version: Version,
    },
    /// Tell a peer.
    Tell {
        /// Whom.
        to: NodeName,
        /// What.
        message: Message,
    },
    /// Tell all peers of this node.
    Publish(Item),
    /// Tell them that it is no longer so.
    Withdraw(Key),
    /// Ask the LAN who has an address.
    Probe {
        /// The address.
        vip: Vip,
        /// Before it is first put into service, with all the patience of duplicate address detection; otherwise quickly.
        detect: bool,
    },
    /// A stranger has the address: it is not announced.
    Conflict {
        /// The address.
        vip: Vip,
        /// The stranger's MAC.
        mac: Mac,
    },
}
