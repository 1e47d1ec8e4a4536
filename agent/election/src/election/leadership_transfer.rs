//! Leadership transfer: the planned change of a VIP's leader.
//!
//! The old leader stops answering and says so ([`TransferStep::Take`]). The new one answers and
//! announces. The old one goes on forwarding packets that still arrive. The new one writes the
//! Lease. No other node can, as long as the old one is alive.

use std::time::Duration;

use super::{
    AbilityToLead, Command, Election,
    role::{Lost, Role},
    timing::{BALANCE_INTERVAL, CLAIM_GRACE, DRAIN_STALL, DRAIN_TIMEOUT, MAX_TRANSFER_BACKOFF, SETTLE_TIME},
    vip_state::{Phase, Successor},
};
use crate::{
    lease::Lease,
    membership::{ElectionMessage, Peers, TransferStep},
    mutation::Mutation,
    placement::{Candidate, LeaderPlacement, Preference},
    store_operation::StoreOperation,
};
use vipmux_model::{NodeName, Vip};

/// The most VIPs that are declined without being wanted, and noted.
const MOST_UNKNOWN: usize = 16_384;
/// The part of the VIPs beyond the bound that one batch of transfers moves, rounded up: one in so many. Each batch
/// has at most [`MOST_AT_ONCE`]. So 10,000 VIPs of one node are balanced in five minutes, however many other nodes
/// there are.
const SHARE: u64 = 32;
const MOST_AT_ONCE: u64 = 64;

/// The transfer of a VIP to another node.
struct Transfer {
    vip: Vip,
    successor: NodeName,
    /// This node cannot or should not lead the VIP at all. Otherwise it only leads more than its
    /// share.
    must: bool,
}

/// The VIPs that this node should no longer lead.
#[derive(Default)]
struct TransferPlan {
    transfers: Vec<Transfer>,
    /// The number of those that need not be.
    spare: u64,
    /// VIPs that neither this node nor another living one may lead.
    forbidden: Vec<Vip>,
    /// The time at which the other VIPs need another look.
    wake: Option<Duration>,
}

impl Election {
    /// Transfers the VIPs that other nodes should lead.
    pub(super) fn transfer_leaderships(&mut self, peers: &Peers, now: Duration) {
        if !self.fence.is_open(now) {
            // Another node may have taken them, so nothing is handed over.
            return self.release_unable(peers, now);
        }
        let led: Vec<Vip> = self.leading().collect();
        if led.is_empty() {
            return;
        }
        if !self.is_settled(peers, now) {
            self.schedule.wake_at(self.started + SETTLE_TIME);
            return;
        }
        let TransferPlan { transfers, spare, forbidden, wake } = self.plan_transfers(&led, peers, now);
        if let Some(wake) = wake {
            self.schedule.wake_at(wake);
        }
        for vip in forbidden {
            if !self.availability.lossy.contains(&vip) {
                self.give_up(vip, Lost::Forbidden, now);
            } else if let Some(Lease { version, .. }) = self.give_up(vip, Lost::Lossy, now) {
                // A Lease would say that the VIP is announced.
                self.commands.push(Command::Store(StoreOperation::Delete { vip, version }));
            }
        }
        let batch = if self.has_trouble(now) { 1 } else { balance_batch(spare) };
        self.begin_transfers(transfers, batch, now);
    }

    /// Gives up the VIPs that another node can announce, and this one cannot. Its kernel answers for none of
    /// them, and its claims would keep the other node away. A node that is cut off altogether gives up
    /// nothing: nobody hears its claims. Nor does one whose carrier may be back in a moment.
    fn release_unable(&mut self, peers: &Peers, now: Duration) {
        let is_heard = peers.evidence_since.is_some_and(|asked| now < asked + self.settings.lease);
        if !is_heard || !self.fence.is_closed_for(CLAIM_GRACE, now) {
            return;
        }
        let goes = |vip: &Vip| self.availability.unable.contains(vip) && self.has_other(*vip, peers);
        let own: Vec<Vip> = self.own_vips().map(|(vip, _)| vip).filter(goes).collect();
        for vip in own {
            self.give_up(vip, Lost::Unable, now);
        }
    }

    /// Returns whether a transfer is under way or has just failed.
    fn has_trouble(&self, now: Duration) -> bool {
        let mut own = self.index.own.iter().filter_map(|vip| self.states.get(vip)?.own());
        own.any(|own| own.is_handing() || own.transfer_not_before > now)
    }

    fn plan_transfers(&self, led: &[Vip], peers: &Peers, now: Duration) -> TransferPlan {
        let mut plan = TransferPlan::default();
        let Some(preferences) = &self.index.preferences else { return plan };
        let preference = |candidate: &Candidate| self.preference(candidate, peers);
        let mut placement = LeaderPlacement::new(&self.wanted, &preference, preferences, &self.index.loads);
        let must = |vip: Vip, best: Preference| {
            let own = self.candidate(vip, &self.local).filter(|own| self.is_able(&own.node, vip, peers));
            own.and_then(preference).is_none_or(|mine| best.precedes(mine))
        };
        let best: Vec<_> = led.iter().map(|vip| placement.best(*vip, |node| self.is_able(node, *vip, peers))).collect();
        // A VIP that must go does so first, even if a successor has declined it for now. Otherwise VIPs that may stay
        // would go for the sake of balance, and come back.
        let stays = |(vip, best): &(&Vip, &Option<Preference>)| best.is_none_or(|best| !must(**vip, best));
        let stay = led.iter().zip(&best).filter(stays).count();
        let mut spare = u64::try_from(stay).unwrap_or(u64::MAX).saturating_sub(preferences.bound(&self.local));
        for (&vip, best) in led.iter().zip(best) {
            let Some(state) = self.states.get(&vip).filter(|state| state.operation.is_none()) else { continue };
            let not_before = state.own().map_or(state.not_before, |own| own.transfer_not_before.max(state.not_before));
            if not_before > now {
                plan.wake = Some(plan.wake.map_or(not_before, |first| first.min(not_before)));
                continue;
            }
            let able = |node: &NodeName| self.is_able(node, vip, peers);
            let own = self.candidate(vip, &self.local);
            let Some(best) = best else {
                let lossy = self.availability.lossy.contains(&vip);
                plan.forbidden.extend((own.is_none() || lossy).then_some(vip));
                continue;
            };
            let must = must(vip, best);
            if !must && spare == 0 {
                continue;
            }
            // The bound is for all VIPs of a node, and a score for those of one pool: a VIP that moved to a
            // lower score for balance would come back.
            let least = if must { 0 } else { own.map_or(0, |own| own.score) };
            let scores = |node: &NodeName| least == 0 || self.candidate(vip, node).is_some_and(|of| of.score >= least);
            let successor = placement.place(vip, 0, |node| *node != self.local && able(node) && scores(node));
            let Some(successor) = successor.filter(|node| must || placement.has_room(node)) else { continue };
            spare -= u64::from(!must);
            plan.spare += u64::from(!must);
            plan.transfers.push(Transfer { vip, successor: successor.clone(), must });
        }
        plan
    }

    /// Begins transfers: at most `batch` a second of those that need not be.
    fn begin_transfers(&mut self, transfers: Vec<Transfer>, mut batch: u64, now: Duration) {
        let next = self.rebalanced + BALANCE_INTERVAL;
        for Transfer { vip, successor, must } in transfers {
            if !must {
                if now < next || batch == 0 {
                    self.schedule.wake_at(if now < next { next } else { now + BALANCE_INTERVAL });
                    continue;
                }
                (self.rebalanced, batch) = (now, batch - 1);
            }
            if let Some((state, mut cx)) = self.state_of(vip, now) {
                let why = Lost::Handed(successor.clone());
                state.stop(Phase::Handing(Successor::new(successor)), why, &mut cx);
                if cx.mutated.is(Mutation::AnswersWhileHanding) {
                    cx.commands.pop();
                }
            }
        }
    }

    /// Returns whether an agent that was asked to stop `waited` ago may stop: other nodes have
    /// taken its VIPs, or it waits in vain.
    pub fn has_left(&self, waited: Duration, peers: &Peers) -> bool {
        if waited >= DRAIN_TIMEOUT || self.own_vips().next().is_none() {
            return true;
        }
        let alone = !peers.members.values().any(|peer| peer.status.is_alive());
        let moves = |(vip, role)| role == Role::Handing || self.has_other(vip, peers);
        alone || waited >= DRAIN_STALL && !self.own_vips().any(moves)
    }

    /// Declines a VIP that this node does not want, or not yet. The message was perhaps sent twice, and must
    /// not be obeyed when the VIP is wanted.
    fn decline_unknown(&mut self, vip: Vip, epoch: u64, from: &NodeName, now: Duration) {
        if self.declined_unknown.len() >= MOST_UNKNOWN {
            self.declined_unknown.retain(|_, (_, at)| now < *at + MAX_TRANSFER_BACKOFF / 2);
            // What cannot be noted gets no answer. The leader waits for one.
            if self.declined_unknown.len() >= MOST_UNKNOWN {
                return;
            }
        }
        self.declined_unknown.insert(vip, (epoch, now));
        let message = ElectionMessage { step: TransferStep::Declined, vip, epoch };
        self.commands.push(Command::Send { to: from.clone(), message });
    }

    /// Returns whether the kernel may answer for a VIP because an earlier agent led it: until the maps are in sync,
    /// and no longer than the deadline that was found.
    fn may_have_flag(&self, vip: Vip, now: Duration) -> bool {
        self.led_at_start.contains(&vip) && !self.fence.informed && now < self.started + self.settings.lease
    }

    /// Handles a message of a peer.
    pub(super) fn receive(&mut self, from: &NodeName, message: ElectionMessage, now: Duration) {
        let ElectionMessage { step, vip, epoch } = message;
        if step == TransferStep::Take && self.may_have_flag(vip, now) {
            // An earlier agent may have taken it. The leader must not lead again yet, and asks once more.
            return;
        }
        let AbilityToLead { unable, draining, .. } = &self.availability;
        // A peer may not have read yet that this node's object is gone, and would get the VIP back at once.
        let is_candidate = self.candidate(vip, &self.local).is_some();
        let can = is_candidate && !unable.contains(&vip) && !draining && self.record.is_undisputed(self.settings.lease);
        if let Some((state, mut cx)) = self.state_of(vip, now) {
            state.receive(from, step, epoch, can, &mut cx);
        } else if step == TransferStep::Take {
            self.decline_unknown(vip, epoch, from, now);
        }
    }
}

/// Returns the number of VIPs that are transferred at once for the sake of balance, of so many beyond
/// the bound.
fn balance_batch(spare: u64) -> u64 {
    spare.div_ceil(SHARE).min(MOST_AT_ONCE)
}

#[cfg(test)]
mod tests {
    use vipmux_testing::pages::{FAILOVER, assert_says};

    use super::*;

    #[test]
    fn ten_thousand_vips_of_one_node_are_balanced_in_less_than_five_minutes() {
        for others in [1, 2, 9, 999] {
            let bound = 10_000_u64.div_ceil(others + 1) + 1;
            let mut led = 10_000;
            let batches = std::iter::from_fn(|| {
                let spare = (led > bound).then(|| led - bound)?;
                led -= balance_batch(spare);
                Some(())
            });
            let takes = BALANCE_INTERVAL * u32::try_from(batches.count()).unwrap();
            assert!(takes < Duration::from_mins(5), "{takes:?} with {others} other nodes");
        }
        assert_eq!(SHARE, 32);
        assert_says(FAILOVER, "a 32nd part of the surplus a second");
        assert_says(FAILOVER, &format!("at most {MOST_AT_ONCE}. So 10,000 VIPs"));
        assert_says(FAILOVER, "are spread within five minutes");
    }
}
