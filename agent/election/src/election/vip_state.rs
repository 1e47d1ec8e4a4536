//! The state of one VIP on this node.

use std::{collections::BTreeMap, time::Duration};

use super::role::{Leadership, Role};
use crate::{
    lease::{Lease, Version},
    membership::Why,
};
use vipmux_model::NodeName;

/// A leadership of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnLeadership {
    pub(super) epoch: u64,
    pub(super) why: Why,
    pub(super) since: Duration,
    /// `None`: the Lease must be written once the store is back.
    pub(super) written: Option<WrittenLease>,
}

/// A Lease that names this node, with the time at which it was written, or found to be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenLease {
    pub(super) at: Duration,
    pub(super) version: Version,
}

/// The last known leader, by a Lease or a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LatestLeader {
    pub(super) node: NodeName,
    pub(super) epoch: u64,
    pub(super) since: Duration,
    /// `None`: known by the Lease alone.
    pub(super) why: Option<Why>,
}

/// An operation at the store or on the LAN. A VIP has one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseOperation {
    /// Reads the Lease for a takeover.
    TakeoverRead,
    /// The store cannot be used for a takeover. The peers may decide until then.
    TakeoverRefused { until: Duration },
    /// Asks the LAN whether the last leader is alive after all.
    TakeoverProbe { lease: Option<Lease>, why: Why },
    /// Swaps the Lease for a takeover.
    TakeoverSwap { epoch: u64, why: Why },
    /// Reads the Lease to see whether it is still this node's.
    CheckRead,
    /// The store cannot be used for that. The peers may decide until then.
    CheckRefused { until: Duration },
    /// Swaps this node's Lease, so that no other node can.
    CheckSwap,
    /// Asks the LAN for another owner of the address.
    Detect,
}

/// The announcements of a VIP with a peer's MACs that the peer has not denied. Times are those of the
/// first one and of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenAnnouncements {
    pub(super) first: Duration,
    pub(super) last: Duration,
}

/// The node that a VIP is transferred to.
#[derive(Clone, Debug)]
pub(super) struct Successor {
    pub(super) node: NodeName,
    /// The number of messages to it.
    pub(super) asked: u32,
    /// The longest lease that it has published since.
    pub(super) lease: Duration,
}

/// The progress of leadership transfers of one VIP.
#[derive(Clone, Debug, Default)]
pub(super) struct Transfers {
    /// The node that should take the VIP now.
    pub(super) successor: Option<Successor>,
    /// No transfer begins before, since the last one failed.
    pub(super) not_before: Duration,
    /// The number of transfers without an answer since this node leads.
    pub(super) unanswered: u32,
    /// The epoch in which this node declined the VIP last, and when.
    pub(super) declined: Option<(u64, Duration)>,
}

/// The state of one VIP on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct VipState {
    pub(super) role: Role,
    /// The start of the role.
    pub(super) since: Duration,
    /// This node's leadership, whether or not it answers.
    pub(super) own: Option<OwnLeadership>,
    /// The newest leader that is known from Leases and claims.
    pub(super) latest: Option<LatestLeader>,
    /// The highest epoch that was known when the VIP came to be wanted again, or that was this
    /// node's own.
    pub(super) epoch_floor: u64,
    /// The operation under way, at the store or on the LAN.
    pub(super) operation: Option<LeaseOperation>,
    /// The time at which it began, with its first request, or at which the peers were last in doubt.
    pub(super) operating_since: Duration,
    /// No operation begins before.
    pub(super) not_before: Duration,
    /// The time since when the VIP may be taken. Turns count from then.
    pub(super) takeable_since: Option<Duration>,
    /// The time since when its leader is alive and does not claim it.
    pub(super) unclaimed_since: Option<Duration>,
    /// The Lease of this node's VIP must be read: it may be another one than this node wrote.
    pub(super) must_reread: bool,
    /// The announcements with peers' MACs since this node leads, as long as the peers have not denied
    /// them.
    pub(super) announced_by: BTreeMap<NodeName, OpenAnnouncements>,
    /// The time of the last announcement that a peer denied. While it is set, the VIP is assured.
    pub(super) forged: Option<Duration>,
    /// Another machine answered for it on the LAN when this node was about to take it.
    pub(super) answered: bool,
    pub(super) transfers: Transfers,
}

impl VipState {
    /// Returns the highest known epoch.
    pub(super) fn epoch(&self) -> u64 {
        let known = self.latest.as_ref().map_or(0, |known| known.epoch);
        let own = self.own.as_ref().map_or(0, |own| own.epoch);
        own.max(known).max(self.epoch_floor)
    }

    /// Returns whether the Lease says that this node leads.
    pub(super) fn is_written(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.written.is_some())
    }

    /// Returns whether this node is known to have led the VIP last.
    pub(super) fn was_led_by(&self, node: &NodeName) -> bool {
        self.latest.as_ref().is_some_and(|known| known.node == *node)
    }

    pub(super) fn leadership(&self, local: &NodeName) -> Leadership {
        let (leader, epoch, since, why) = match (&self.own, &self.latest) {
            (Some(own), _) => (Some(local), own.epoch, own.since, Some(&own.why)),
            (None, Some(known)) => (Some(&known.node), known.epoch, known.since, known.why.as_ref()),
            (None, None) => (None, 0, self.since, None),
        };
        let (leader, why) = (leader.cloned(), why.cloned());
        Leadership { role: self.role, leader, epoch, since, why, answered: self.answered }
    }
}
