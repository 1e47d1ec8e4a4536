//! The transfer of one VIP: the messages of its leader and of the successor.

use std::time::Duration;

use super::{LeaseOperation, OwnLeadership, Phase, Position, VipState};
use crate::{
    election::{
        context::Context,
        role::Lost,
        timing::{LONG_PROMISE, MAX_TRANSFER_BACKOFF, TRANSFER_BACKOFF, TRANSFER_RESEND, TRANSFER_TIMEOUT, past},
    },
    lease::Lease,
    membership::{Peers, TransferStep, Why},
};
use vipmux_model::NodeName;

impl VipState {
    /// Asks the successor to take the VIP, if it is time to. Leads it again if the successor does
    /// not answer.
    pub(in crate::election) fn continue_transfer(&mut self, peers: &Peers, cx: &mut Context<'_>) {
        let Position::Owner(own) = &mut self.position else { return };
        let Phase::Handing(successor) = &mut own.phase else { return };
        let lease = peers.members.get(&successor.node).map_or(cx.guard.lease, |peer| cx.guard.lease_of(peer));
        // Its record may have been its evidence before this node was back.
        let promises_more = cx.guard.fencings.promises_more(&successor.node, lease);
        let lease = if promises_more { LONG_PROMISE } else { lease };
        // Its next agent may have another one.
        successor.lease = successor.lease.max(lease);
        let end = past(successor.lease, self.since + TRANSFER_TIMEOUT);
        if cx.now >= end {
            let pause = TRANSFER_BACKOFF * (1 << own.unanswered.min(4));
            own.transfer_not_before = cx.now + pause.min(MAX_TRANSFER_BACKOFF);
            own.unanswered += 1;
            return self.lead(cx);
        }
        if cx.now > self.since + TRANSFER_TIMEOUT || !cx.open {
            return cx.schedule.wake_at(end);
        }
        let next = self.since + TRANSFER_RESEND * successor.asked;
        if cx.now < next {
            return cx.schedule.wake_at(next);
        }
        successor.asked += 1;
        cx.send(successor.node.clone(), TransferStep::Take, own.epoch + 1);
        cx.schedule.wake_at(cx.now + TRANSFER_RESEND);
    }

    /// Handles a message about this VIP. `can`: this node can take it, as long as the fence is
    /// open.
    pub(in crate::election) fn receive(
        &mut self,
        from: &NodeName,
        step: TransferStep,
        epoch: u64,
        can: bool,
        cx: &mut Context<'_>,
    ) {
        match step {
            TransferStep::Take => {
                let accepted = self.accept(epoch, from, can, cx);
                if !accepted {
                    self.declined = Some((epoch, cx.now));
                }
                cx.send(from.clone(), if accepted { TransferStep::Taken } else { TransferStep::Declined }, epoch);
            }
            TransferStep::Taken if self.is_transferring(epoch, from) => {
                self.give_up(Lost::Handed(from.clone()), cx);
                self.set_latest(from.clone(), epoch, Some(Why::Handed(cx.local.clone())), cx.now);
            }
            TransferStep::Declined if self.is_transferring(epoch, from) => {
                self.lead(cx);
                if let Some(own) = self.own_mut() {
                    own.transfer_not_before = cx.now + MAX_TRANSFER_BACKOFF;
                }
                // The Lease may have a higher epoch: a node that wrote it need not know that it
                // did.
                self.attempt(LeaseOperation::CheckRead, cx);
            }
            TransferStep::Taken | TransferStep::Declined => {}
        }
    }

    fn is_transferring(&self, epoch: u64, to: &NodeName) -> bool {
        let Some(OwnLeadership { phase: Phase::Handing(successor), epoch: own, .. }) = self.own() else { return false };
        successor.node == *to && own + 1 == epoch
    }

    /// Begins to lead a VIP that its leader transfers, if this node can.
    ///
    /// Returns whether that leader is rid of it. It is also rid of it where this node leads since
    /// an earlier message, and may be transferring the VIP itself. The same holds where another
    /// node has led it since. But this node may have given up a leadership with that epoch that it had not
    /// written, because the old leader went on.
    fn accept(&mut self, epoch: u64, from: &NodeName, can: bool, cx: &mut Context<'_>) -> bool {
        if let Some(own) = self.own() {
            return epoch <= own.epoch;
        }
        let leads = cx.index.claim(cx.vip).is_some_and(|(node, claim)| node == from && claim.epoch + 1 == epoch);
        if epoch < self.epoch() || epoch == self.epoch() && !leads {
            return true;
        }
        // After it was declined, the old leader leads again. A message from before must not be
        // obeyed.
        let late = |(declined, at): (u64, Duration)| declined == epoch && cx.now < at + MAX_TRANSFER_BACKOFF / 2;
        if !can || !cx.open || epoch > Lease::MAX_EPOCH || self.declined.is_some_and(late) {
            return false;
        }
        self.operation = None;
        self.not_before = cx.now;
        self.begin(epoch, Why::Handed(from.clone()), None, Phase::Leading, cx);
        true
    }
}
