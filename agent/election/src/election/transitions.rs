//! The changes of one VIP's state.

use std::{collections::BTreeMap, time::Duration};

use super::{
    context::Context,
    io::Command,
    role::{Lost, Role},
    vip_state::{LatestLeader, LeaseOperation, OwnLeadership, Transfers, VipState, WrittenLease},
};
use crate::{
    lease::Lease,
    membership::{Claimed, Item, ItemKey, Why},
};
use vipmux_model::NodeName;

impl VipState {
    /// Takes in a Lease. Returns whether it is new.
    pub(super) fn learn(&mut self, lease: &Lease, now: Duration) -> bool {
        let new = self
            .latest
            .as_ref()
            .is_none_or(|known| lease.epoch > known.epoch || known.epoch == lease.epoch && known.node != lease.holder);
        if new {
            self.set_latest(lease.holder.clone(), lease.epoch, None, now);
        }
        new
    }

    /// Takes in a peer's claim. A peer that was away may claim a VIP that is known to be another's
    /// since. Where stores differ, a later leader may have been followed by one that did not know of it.
    pub(super) fn learn_claim(&mut self, node: &NodeName, claim: &Claimed, stores_differ: bool) {
        let Claimed { epoch, why, since } = claim.clone();
        if stores_differ || self.latest.as_ref().is_none_or(|known| known.epoch <= epoch) {
            self.epoch_floor = self.epoch();
            self.set_latest(node.clone(), epoch, Some(why), since);
        }
        if self.answered {
            // Its leader is known again, and may end before the LAN would be asked once more.
            self.not_before = Duration::ZERO;
        }
        self.forget_takeover();
    }

    pub(super) fn set_latest(&mut self, node: NodeName, epoch: u64, why: Option<Why>, since: Duration) {
        self.latest = Some(LatestLeader { node, epoch, since, why });
    }

    fn forget_takeover(&mut self) {
        (self.takeable_since, self.unclaimed_since, self.answered) = (None, None, false);
    }

    fn forget_announcements(&mut self) {
        (self.announced_by, self.forged) = (BTreeMap::new(), None);
    }

    /// Begins a leadership. With the role [`Role::Detecting`] the LAN is asked before the node
    /// answers, and with [`Role::Suspended`] the Lease is read again.
    pub(super) fn begin(&mut self, own: OwnLeadership, role: Role, cx: &mut Context<'_>) {
        let OwnLeadership { epoch, why, .. } = own.clone();
        cx.commands.push(Command::Publish(Item::Claim { vip: cx.vip, epoch, why: Some(why) }));
        (self.role, self.since, self.own) = (role, cx.now, Some(own));
        self.forget_takeover();
        self.forget_announcements();
        self.must_reread = false;
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
        self.epoch_floor = self.epoch_floor.max(own.epoch);
        cx.index.own.remove(&cx.vip);
        cx.index.touched.insert(cx.vip);
        cx.commands.push(Command::Withdraw(ItemKey::Claim(cx.vip)));
        let WrittenLease { version, .. } = own.written?;
        Some(Lease { holder: cx.local.clone(), epoch: own.epoch, version })
    }
}
