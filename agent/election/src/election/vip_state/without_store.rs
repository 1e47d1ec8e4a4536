//! Decisions without the store, which is away or slow: whether this node takes a VIP, or answers again for its own.
//!
//! The node asks its peers again when it is about to decide. It claims a VIP that it takes, and answers for it once
//! all living peers have answered since, and none claims it, too.

use std::time::Duration;

use super::{LeaseOperation, Phase, VipState, lease_operations::Predecessor};
use crate::{
    election::{
        context::Context,
        io::Command,
        role::Role,
        takeover_guard::{Takeover, is_confirmed},
        timing::{ANSWER_TIME, CLAIM_PROPAGATION, HEDGE_DELAY, MAX_ANSWER_AGE, SHORT_RETRY, STORE_RETRY},
    },
    membership::{Peers, SAMPLE, Why},
};

/// Returns the time of the earliest questions whose answers count.
fn earliest_question(now: Duration) -> Duration {
    now.saturating_sub(MAX_ANSWER_AGE)
}

/// Returns whether a majority answered lately, after `from`. Otherwise it is asked: a node that was cut off a moment
/// ago knows nothing of a leader that came back, and of another one that took the VIP.
fn is_answered(from: Duration, peers: &Peers, cx: &mut Context<'_>) -> bool {
    let is_answered = peers.evidence_since >= Some(from.max(earliest_question(cx.now)));
    if !is_answered {
        ask(cx);
    }
    is_answered
}

/// Asks the peers, and looks at their answers soon.
fn ask(cx: &mut Context<'_>) {
    cx.commands.push(Command::AskPeers);
    cx.schedule.wake_at(cx.now + ANSWER_TIME);
}

impl VipState {
    /// Asks for an evaluation when [`Self::hedge`] may have to decide.
    pub(in crate::election) fn hedge_later(&self, cx: &mut Context<'_>) {
        let at = self.operating_since + HEDGE_DELAY;
        if at > cx.now {
            cx.schedule.wake_at(at);
        }
    }

    /// Decides by the peers what the store does not answer in time. The operation goes on, and its
    /// result is compared with what was decided.
    pub(in crate::election) fn hedge(&mut self, peers: &Peers, cx: &mut Context<'_>) {
        use LeaseOperation::{CheckRead, CheckRefused, CheckSwap, TakeoverRead, TakeoverRefused, TakeoverSwap};
        match self.operation {
            Some(TakeoverRefused { until }) => return self.take_over_without_store(until, peers, cx),
            Some(CheckRefused { until }) => return self.check_without_store(until, peers, cx),
            Some(TakeoverRead | TakeoverSwap { .. } | CheckRead | CheckSwap) => {}
            _ => return,
        }
        let from = self.operating_since + HEDGE_DELAY;
        if cx.now < from {
            return self.hedge_later(cx);
        }
        let (epoch, goes_on) = match self.operation {
            Some(TakeoverRead) => (self.epoch() + 1, CheckRead),
            // The store may have written it already.
            Some(TakeoverSwap { epoch, .. }) => (epoch, CheckSwap),
            // Who announced a VIP that this node yielded may have the Lease.
            _ if self.role() != Role::Suspended => return,
            _ => {
                self.resume_without_store(from, peers, cx);
                return;
            }
        };
        if self.is_late(cx.now) {
            return;
        }
        // The Lease may name a leader that this node does not know, unless it knows the last one.
        let why = self.reason_without_store(from, peers, cx).filter(|why| matches!(why, Why::Down(_)));
        let Some(why) = why else {
            // The next answers of the others may confirm it.
            if peers.majority {
                cx.schedule.wake_at(cx.now + SHORT_RETRY);
            }
            return;
        };
        if cx.open {
            self.claim(epoch, why, peers, cx);
            self.operation = Some(goes_on);
        }
    }

    /// Claims the VIP without the store. This node answers for it once all peers have answered since, and none
    /// claims it, too: their turns may be at the same time. In large clusters, where not all members are asked, it
    /// answers at once.
    fn claim(&mut self, epoch: u64, why: Why, peers: &Peers, cx: &mut Context<'_>) {
        let phase = if peers.members.len() < SAMPLE { Phase::Suspended } else { Phase::Leading };
        self.begin(epoch, why, None, phase, cx);
    }

    /// Returns why this node may take a VIP that nobody claims, while the store does not answer; `None`: it may
    /// not. A majority must have seen its leader's end, and answered lately, after `from`. There must be no gap in
    /// the answers for as long as claims take: while this node stood still or was cut off, another one may have
    /// taken the VIP.
    fn reason_without_store(&self, from: Duration, peers: &Peers, cx: &mut Context<'_>) -> Option<Why> {
        if !peers.majority || !cx.able || cx.now < cx.guard.steady + CLAIM_PROPAGATION {
            return None;
        }
        let Takeover::Granted { why, witnessed: true } = self.takeover(&cx.guard, cx.vip, peers, cx.now) else {
            return None;
        };
        let leader = self.latest.as_ref().map(|known| &known.node).filter(|leader| *leader != cx.local);
        let is_answered = is_answered(from, peers, cx);
        let is_confirmed = leader.is_none_or(|leader| is_confirmed(leader, peers, from.max(earliest_question(cx.now))));
        (is_answered && is_confirmed).then_some(why)
    }

    /// Takes a VIP over while the store is away. If the peers do not suffice until then, asks the store again.
    fn take_over_without_store(&mut self, until: Duration, peers: &Peers, cx: &mut Context<'_>) {
        if let Some(why) = self.reason_without_store(until.saturating_sub(STORE_RETRY), peers, cx) {
            let why = if matches!(why, Why::First | Why::Resumed) { Why::Unwritten } else { why };
            self.claim(self.epoch() + 1, why, peers, cx);
            self.operation = Some(LeaseOperation::CheckRefused { until: cx.now + STORE_RETRY });
            return;
        }
        if !peers.majority || cx.now >= until {
            self.operation = None;
            return self.pause(until.saturating_sub(cx.now), cx);
        }
        cx.schedule.wake_at(until.min(cx.now + SHORT_RETRY));
    }

    /// Decides without the Lease whether the VIP is still this node's own. If the peers do not suffice until then,
    /// asks the store again.
    fn check_without_store(&mut self, until: Duration, peers: &Peers, cx: &mut Context<'_>) {
        if self.resume_without_store(until.saturating_sub(STORE_RETRY), peers, cx) || cx.now >= until {
            self.operation = None;
            self.pause(until.saturating_sub(cx.now), cx);
        } else {
            cx.schedule.wake_at(until);
        }
    }

    /// Answers again for this node's VIP, for which it does not answer now, if the VIP is nobody else's: a majority
    /// says so, and all its states are newer than the doubt and than `from`.
    fn resume_without_store(&mut self, from: Duration, peers: &Peers, cx: &mut Context<'_>) -> bool {
        if !cx.open || !peers.majority || !matches!(self.role(), Role::Suspended | Role::Yielded) {
            return false;
        }
        let is_large = peers.members.len() >= SAMPLE;
        let newer = Some(self.since.max(if is_large { Duration::ZERO } else { earliest_question(cx.now) }));
        let alive = || peers.members.values().filter(|peer| peer.status.is_alive());
        if !is_answered(from.max(self.since), peers, cx) {
            return false;
        }
        let is_current = alive().all(|peer| peer.current > newer);
        if !is_current && !is_large {
            ask(cx);
            return false;
        }
        let is_clear = is_current
            && !alive().any(|peer| peer.state.leads(cx.vip))
            && self.predecessor(peers, cx) == Predecessor::Gone;
        if is_clear {
            self.lead(cx);
            if let Some(own) = self.own_mut() {
                own.must_reread = true;
            }
        } else {
            cx.schedule.wake_at(cx.now + SHORT_RETRY);
        }
        is_clear
    }
}
