//! The state of one VIP on this node, and its changes.

mod announcements;
mod lease_operations;
mod transfer;
mod without_store;

use std::{collections::BTreeMap, time::Duration};

use super::{
    context::Context,
    io::Command,
    role::{LatestLeader, Leadership, Lost, Role},
    takeover_guard::{Takeover, TakeoverGuard},
};
use crate::{
    lease::{Lease, Version},
    membership::{Claimed, Item, ItemKey, Peers, Why},
};
use vipmux_model::{NodeName, Vip};

/// A Lease that names this node, with the time at which it was written, or found to be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenLease {
    pub(super) at: Duration,
    pub(super) version: Version,
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
    node: NodeName,
    /// The number of messages to it.
    asked: u32,
    /// The longest lease that it has published since.
    lease: Duration,
}

impl Successor {
    pub(super) const fn new(node: NodeName) -> Self {
        Self { node, asked: 0, lease: Duration::ZERO }
    }
}

/// The phase of a leadership: a [`Role`] other than [`Role::Following`].
#[derive(Clone, Debug)]
pub(super) enum Phase {
    Detecting,
    Conflicted,
    Leading,
    Yielded,
    Suspended,
    Handing(Successor),
}

/// A leadership of this node, whether or not it answers.
#[derive(Clone, Debug)]
pub(super) struct OwnLeadership {
    pub(super) epoch: u64,
    pub(super) why: Why,
    pub(super) since: Duration,
    /// `None`: the Lease must be written once the store is back.
    pub(super) written: Option<WrittenLease>,
    phase: Phase,
    /// The Lease must be read: it may be another one than this node wrote.
    must_reread: bool,
    /// The announcements with peers' MACs, as long as the peers have not denied them.
    pub(super) announced_by: BTreeMap<NodeName, OpenAnnouncements>,
    /// The time of the last announcement that a peer denied. While it is set, the VIP is assured.
    forged: Option<Duration>,
    /// No transfer begins before, since the last one failed.
    pub(super) transfer_not_before: Duration,
    /// The number of transfers without an answer.
    unanswered: u32,
}

impl OwnLeadership {
    /// Returns whether the program does not yield to announcements.
    pub(super) const fn is_assured(&self) -> bool {
        self.forged.is_some()
    }

    /// Returns whether a successor is asked to take the VIP.
    pub(super) const fn is_handing(&self) -> bool {
        matches!(self.phase, Phase::Handing(_))
    }

    /// Returns whether the Lease says that this node leads, as far as the node knows.
    pub(super) const fn is_recorded(&self) -> bool {
        self.written.is_some() && !self.must_reread
    }
}

/// The progress of a takeover of a VIP that another node leads, or no node.
#[derive(Clone, Debug, Default)]
pub(super) struct Follower {
    /// The time since when the VIP may be taken. Turns count from then.
    pub(super) takeable_since: Option<Duration>,
    /// The time since when its leader is alive and does not claim it.
    pub(super) unclaimed_since: Option<Duration>,
    /// Another machine answered for it on the LAN when this node was about to take it.
    answered: bool,
}

/// The position of this node towards a VIP.
#[derive(Clone, Debug)]
enum Position {
    Follower(Follower),
    Owner(OwnLeadership),
}

impl Default for Position {
    fn default() -> Self {
        Self::Follower(Follower::default())
    }
}

/// The state of one VIP on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct VipState {
    position: Position,
    /// The start of the role.
    pub(super) since: Duration,
    /// The newest leader that is known from Leases and claims.
    pub(super) latest: Option<LatestLeader>,
    /// The highest epoch that was known when the VIP came to be wanted again, or that was this
    /// node's own.
    epoch_floor: u64,
    /// The operation under way, at the store or on the LAN.
    pub(super) operation: Option<LeaseOperation>,
    /// The time at which it began, with its first request, or at which the peers were last in doubt.
    pub(super) operating_since: Duration,
    /// No operation begins before.
    pub(super) not_before: Duration,
    /// The epoch in which this node declined the VIP last, and when.
    declined: Option<(u64, Duration)>,
}

impl VipState {
    /// Creates the state of a VIP that comes to be wanted.
    pub(super) fn new(epoch_floor: u64, declined: Option<(u64, Duration)>) -> Self {
        Self { epoch_floor, declined, ..Self::default() }
    }

    /// Returns this node's leadership; `None`: the VIP is not its own.
    pub(super) const fn own(&self) -> Option<&OwnLeadership> {
        match &self.position {
            Position::Owner(own) => Some(own),
            Position::Follower(_) => None,
        }
    }

    const fn own_mut(&mut self) -> Option<&mut OwnLeadership> {
        match &mut self.position {
            Position::Owner(own) => Some(own),
            Position::Follower(_) => None,
        }
    }

    /// Returns the progress of a takeover; `None`: the VIP is this node's own.
    pub(super) const fn follower(&self) -> Option<&Follower> {
        match &self.position {
            Position::Follower(follower) => Some(follower),
            Position::Owner(_) => None,
        }
    }

    /// Decides whether this node may take the VIP.
    pub(super) fn takeover(&self, guard: &TakeoverGuard<'_>, vip: Vip, peers: &Peers, now: Duration) -> Takeover {
        let unclaimed_since = self.follower().and_then(|follower| follower.unclaimed_since);
        guard.decide(vip, self.latest.as_ref(), unclaimed_since, peers, now)
    }

    pub(super) const fn follower_mut(&mut self) -> Option<&mut Follower> {
        match &mut self.position {
            Position::Follower(follower) => Some(follower),
            Position::Owner(_) => None,
        }
    }

    pub(super) const fn role(&self) -> Role {
        match &self.position {
            Position::Follower(_) => Role::Following,
            Position::Owner(OwnLeadership { phase, .. }) => match phase {
                Phase::Detecting => Role::Detecting,
                Phase::Conflicted => Role::Conflicted,
                Phase::Leading => Role::Leading,
                Phase::Yielded => Role::Yielded,
                Phase::Suspended => Role::Suspended,
                Phase::Handing(_) => Role::Handing,
            },
        }
    }

    /// Returns the highest known epoch.
    pub(super) fn epoch(&self) -> u64 {
        let latest = self.latest.as_ref().map_or(0, |latest| latest.epoch);
        let own = self.own().map_or(0, |own| own.epoch);
        own.max(latest).max(self.epoch_floor)
    }

    /// Returns whether this node is known to have led the VIP last.
    pub(super) fn was_led_by(&self, node: &NodeName) -> bool {
        self.latest.as_ref().is_some_and(|latest| latest.node == *node)
    }

    pub(super) fn leadership(&self, local: &NodeName) -> Leadership {
        let (leader, epoch, since, why) = match (self.own(), &self.latest) {
            (Some(own), _) => (Some(local), own.epoch, own.since, Some(&own.why)),
            (None, Some(latest)) => (Some(&latest.node), latest.epoch, latest.since, latest.why.as_ref()),
            (None, None) => (None, 0, self.since, None),
        };
        let (leader, why) = (leader.cloned(), why.cloned());
        let answered = self.follower().is_some_and(|follower| follower.answered);
        Leadership { role: self.role(), leader, epoch, since, why, answered }
    }

    /// Takes in a Lease. Returns whether it is new.
    pub(super) fn learn(&mut self, lease: &Lease, now: Duration) -> bool {
        let new = self.latest.as_ref().is_none_or(|latest| {
            lease.epoch > latest.epoch || latest.epoch == lease.epoch && latest.node != lease.holder
        });
        if new {
            self.set_latest(lease.holder.clone(), lease.epoch, None, now);
        }
        new
    }

    /// Takes in a peer's claim to a VIP that is not this node's own. A peer that was away may claim a VIP that is
    /// known to be another's since. Where stores differ, a later leader may have been followed by one that did not
    /// know of it.
    pub(super) fn learn_claim(&mut self, node: &NodeName, claim: &Claimed, stores_differ: bool) {
        let Claimed { epoch, why, since } = claim.clone();
        if stores_differ || self.latest.as_ref().is_none_or(|latest| latest.epoch <= epoch) {
            self.epoch_floor = self.epoch();
            self.set_latest(node.clone(), epoch, Some(why), since);
        }
        if self.follower_mut().is_some_and(|follower| std::mem::take(follower).answered) {
            // Its leader is known again, and may end before the LAN would be asked once more.
            self.not_before = Duration::ZERO;
        }
    }

    pub(super) fn set_latest(&mut self, node: NodeName, epoch: u64, why: Option<Why>, since: Duration) {
        self.latest = Some(LatestLeader { node, epoch, since, why });
    }

    /// Begins a leadership. In the phase [`Phase::Detecting`] the LAN is asked before the node
    /// answers, and in [`Phase::Suspended`] the Lease is read again.
    pub(super) fn begin(
        &mut self,
        epoch: u64,
        why: Why,
        written: Option<WrittenLease>,
        phase: Phase,
        cx: &mut Context<'_>,
    ) {
        cx.commands.push(Command::Publish(Item::Claim { vip: cx.vip, epoch, why: Some(why.clone()) }));
        let (detects, leads) = (matches!(phase, Phase::Detecting), matches!(phase, Phase::Leading));
        self.since = cx.now;
        self.position = Position::Owner(OwnLeadership {
            epoch,
            why,
            since: cx.now,
            written,
            phase,
            must_reread: false,
            announced_by: BTreeMap::new(),
            forged: None,
            transfer_not_before: cx.now,
            unanswered: 0,
        });
        cx.index.own.insert(cx.vip);
        cx.index.touched.insert(cx.vip);
        cx.schedule.dirty = true;
        if detects {
            self.operation = Some(LeaseOperation::Detect);
            cx.commands.push(Command::Probe { vip: cx.vip, detect: true });
        } else if leads {
            self.lead(cx);
        }
    }

    /// Answers, from now on or again.
    ///
    /// While the fence is closed, the VIP is suspended instead. Its announcement would not leave
    /// the node, and when the fence opens nobody would learn of the new leader.
    pub(super) fn lead(&mut self, cx: &mut Context<'_>) {
        let Position::Owner(own) = &mut self.position else { return };
        (self.since, cx.schedule.dirty) = (cx.now, true);
        if !cx.open {
            own.phase = Phase::Suspended;
            return;
        }
        own.phase = Phase::Leading;
        if own.is_assured() {
            cx.commands.push(Command::Assure { vip: cx.vip, assured: true });
        }
        cx.commands.push(Command::Lead { vip: cx.vip, epoch: own.epoch, why: own.why.clone() });
    }

    /// Stops answering. The VIP stays this node's own.
    pub(super) fn stop(&mut self, phase: Phase, why: Lost, cx: &mut Context<'_>) {
        let Position::Owner(own) = &mut self.position else { return };
        if matches!(own.phase, Phase::Leading) {
            cx.commands.push(Command::Follow { vip: cx.vip, why });
        }
        own.phase = phase;
        (self.since, cx.schedule.dirty) = (cx.now, true);
    }

    /// Gives the VIP up. Returns the Lease as this node wrote it last.
    pub(super) fn give_up(&mut self, why: Lost, cx: &mut Context<'_>) -> Option<Lease> {
        self.stop(Phase::Suspended, why, cx);
        self.operation = None;
        let Position::Owner(own) = std::mem::take(&mut self.position) else { return None };
        // Later epochs must be higher, whatever becomes of the Lease.
        self.epoch_floor = self.epoch_floor.max(own.epoch);
        cx.index.own.remove(&cx.vip);
        cx.index.touched.insert(cx.vip);
        cx.commands.push(Command::Withdraw(ItemKey::Claim(cx.vip)));
        let WrittenLease { version, .. } = own.written?;
        Some(Lease { holder: cx.local.clone(), epoch: own.epoch, version })
    }
}
