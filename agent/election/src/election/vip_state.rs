//! The state of one VIP on this node, and the changes of its role.

use std::{collections::BTreeMap, time::Duration};

use super::{
    io::Command,
    leader_index::LeaderIndex,
    lease_operations::LeaseOperation,
    peer_announcements::OpenAnnouncements,
    role::{Leadership, Lost, Role},
    schedule::EvaluationSchedule,
    takeover_guard::TakeoverGuard,
};
use crate::{
    lease::{Lease, Version},
    membership::{Claimed, ElectionMessage, Item, ItemKey, TransferStep, Why},
    mutation::Mutated,
};
use vipmux_model::{NodeName, Vip};

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
pub(super) struct KnownLeader {
    pub(super) node: NodeName,
    pub(super) epoch: u64,
    pub(super) since: Duration,
    /// `None`: known by the Lease alone.
    pub(super) why: Option<Why>,
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
    pub(super) known: Option<KnownLeader>,
    /// The highest epoch that was known when the VIP came to be wanted again, or that was this
    /// node's own.
    pub(super) floor: u64,
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
    pub(super) doubted: bool,
    /// The announcements with peers' MACs since this node leads, as long as the peers have not denied
    /// them.
    pub(super) announced_by: BTreeMap<NodeName, OpenAnnouncements>,
    /// The time of the last announcement that a peer denied. While it is set, the VIP is assured.
    pub(super) forged: Option<Duration>,
    /// Another machine answered for it on the LAN when this node was about to take it.
    pub(super) answered: bool,
    pub(super) transfers: Transfers,
}

/// The rest of the election, as far as the methods of one VIP's state need it.
pub(super) struct Context<'a> {
    pub(super) vip: Vip,
    pub(super) now: Duration,
    pub(super) local: &'a NodeName,
    /// The fence is open.
    pub(super) open: bool,
    /// This node can announce the VIP.
    pub(super) able: bool,
    pub(super) guard: TakeoverGuard<'a>,
    pub(super) index: &'a mut LeaderIndex,
    pub(super) schedule: &'a mut EvaluationSchedule,
    pub(super) commands: &'a mut Vec<Command>,
    pub(super) mutated: Mutated,
}

impl Context<'_> {
    /// Sends a message about the VIP to a peer.
    pub(super) fn send(&mut self, to: NodeName, step: TransferStep, epoch: u64) {
        let message = ElectionMessage { step, vip: self.vip, epoch };
        self.commands.push(Command::Send { to, message });
    }
}

impl VipState {
    /// Takes in a Lease. Returns whether it is new.
    pub(super) fn learn(&mut self, lease: &Lease, now: Duration) -> bool {
        let new = self
            .known
            .as_ref()
            .is_none_or(|known| lease.epoch > known.epoch || known.epoch == lease.epoch && known.node != lease.holder);
        if new {
            self.set_known(lease.holder.clone(), lease.epoch, None, now);
        }
        new
    }

    /// Takes in a peer's claim. A peer that was away may claim a VIP that is known to be another's
    /// since. Where stores differ, a later leader may have been followed by one that did not know of it.
    pub(super) fn learn_claim(&mut self, node: &NodeName, claim: &Claimed, stores_differ: bool) {
        let Claimed { epoch, why, since } = claim.clone();
        if stores_differ || self.known.as_ref().is_none_or(|known| known.epoch <= epoch) {
            self.floor = self.epoch();
            self.set_known(node.clone(), epoch, Some(why), since);
        }
        if self.answered {
            // Its leader is known again, and may end before the LAN would be asked once more.
            self.not_before = Duration::ZERO;
        }
        self.forget_takeover();
    }

    pub(super) fn set_known(&mut self, node: NodeName, epoch: u64, why: Option<Why>, since: Duration) {
        self.known = Some(KnownLeader { node, epoch, since, why });
    }

    fn forget_takeover(&mut self) {
        (self.takeable_since, self.unclaimed_since, self.answered) = (None, None, false);
    }

    fn forget_announcements(&mut self) {
        (self.announced_by, self.forged) = (BTreeMap::new(), None);
    }

    /// Returns the highest known epoch.
    pub(super) fn epoch(&self) -> u64 {
        let known = self.known.as_ref().map_or(0, |known| known.epoch);
        let own = self.own.as_ref().map_or(0, |own| own.epoch);
        own.max(known).max(self.floor)
    }

    /// Returns whether the Lease says that this node leads.
    pub(super) fn is_written(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.written.is_some())
    }

    /// Returns whether this node is known to have led the VIP last.
    pub(super) fn was_led_by(&self, node: &NodeName) -> bool {
        self.known.as_ref().is_some_and(|known| known.node == *node)
    }

    pub(super) fn leadership(&self, local: &NodeName) -> Leadership {
        let (leader, epoch, since, why) = match (&self.own, &self.known) {
            (Some(own), _) => (Some(local), own.epoch, own.since, Some(&own.why)),
            (None, Some(known)) => (Some(&known.node), known.epoch, known.since, known.why.as_ref()),
            (None, None) => (None, 0, self.since, None),
        };
        let (leader, why) = (leader.cloned(), why.cloned());
        Leadership { role: self.role, leader, epoch, since, why, answered: self.answered }
    }

    /// Begins a leadership. With the role [`Role::Detecting`] the LAN is asked before the node
    /// answers, and with [`Role::Suspended`] the Lease is read again.
    pub(super) fn begin(&mut self, own: OwnLeadership, role: Role, cx: &mut Context<'_>) {
        let OwnLeadership { epoch, why, .. } = own.clone();
        cx.commands.push(Command::Publish(Item::Claim { vip: cx.vip, epoch, why: Some(why) }));
        (self.role, self.since, self.own) = (role, cx.now, Some(own));
        self.forget_takeover();
        self.forget_announcements();
        self.doubted = false;
        self.transfers = Transfers { not_before: cx.now, declined: self.transfers.declined, ..Transfers::default() };
        cx.index.own.insert(cx.vip);
        cx.index.touched.insert(cx.vip);
        cx.schedule.dirty = true;
        match role {
            Role::Detecting => {
                self.operation = Some(LeaseOperation::Detect);
                cx.commands.push(Command::Probe { vip: cx.vip, detect: true });
            }
            Role::Suspended => {}
            _ => self.lead(cx),
        }
    }

    /// Answers, from now on or again.
    ///
    /// While the fence is closed, the VIP is suspended instead. Its announcement would not leave
    /// the node, and when the fence opens nobody would learn of the new leader.
    pub(super) fn lead(&mut self, cx: &mut Context<'_>) {
        cx.schedule.dirty = true;
        if !cx.open {
            (self.role, self.since, self.transfers.successor) = (Role::Suspended, cx.now, None);
            return;
        }
        let Some(own) = &self.own else { return };
        (self.role, self.since, self.transfers.successor) = (Role::Leading, cx.now, None);
        if self.is_assured() {
            cx.commands.push(Command::Assure { vip: cx.vip, assured: true });
        }
        cx.commands.push(Command::Lead { vip: cx.vip, epoch: own.epoch, why: own.why.clone() });
    }

    /// Stops answering. The VIP may stay this node's own.
    pub(super) fn stop(&mut self, role: Role, why: Lost, cx: &mut Context<'_>) {
        if self.role == Role::Leading {
            cx.commands.push(Command::Follow { vip: cx.vip, why });
        }
        (self.role, self.since) = (role, cx.now);
        cx.schedule.dirty = true;
    }

    /// Gives the VIP up. Returns the Lease as this node wrote it last.
    pub(super) fn give_up(&mut self, why: Lost, cx: &mut Context<'_>) -> Option<Lease> {
        self.stop(Role::Following, why, cx);
        self.transfers.successor = None;
        self.forget_takeover();
        self.forget_announcements();
        self.operation = None;
        let own = self.own.take()?;
        // Later epochs must be higher, whatever becomes of the Lease.
        self.floor = self.floor.max(own.epoch);
        cx.index.own.remove(&cx.vip);
        cx.index.touched.insert(cx.vip);
        cx.commands.push(Command::Withdraw(ItemKey::Claim(cx.vip)));
        let WrittenLease { version, .. } = own.written?;
        Some(Lease { holder: cx.local.clone(), epoch: own.epoch, version })
    }
}
