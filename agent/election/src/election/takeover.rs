//! The evaluation of all VIPs: the leader of each, the node that may take one without a leader, and
//! what else time brings.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use super::{
    Election,
    fencings::Aim,
    role::{Lost, Role},
    takeover_guard::Takeover,
    timing::{CLAIM_GRACE, CLAIM_PROPAGATION, RESTART_WAIT, SETTLE_TIME, TAKEOVER_TURN},
    vip_state::{LeaseOperation, OwnLeadership},
};
use crate::{
    membership::{Claimed, Peer, Peers, Why},
    mutation::Mutation,
    placement::{Candidate, LeaderPlacement, Preference, Preferences, Readiness},
};
use vipmux_model::{NodeName, Vip};

/// The most leaders whose records are read at once to know their promises. Where hundreds of nodes are gone,
/// each of the others would read hundreds of records. A node that does not know a promise waits for it.
const MOST_READS: usize = 16;

impl Election {
    /// Looks at every VIP that may have changed.
    pub(super) fn evaluate(&mut self, peers: &Peers, now: Duration) {
        if !self.schedule.begin(self.index.leaderless.len(), now) {
            return;
        }
        self.index.update(peers);
        self.update_leaders(peers, now);
        self.continue_fencing(peers, now);
        if self.index.preferences.is_none() {
            let preferences = Preferences::new(self.wanted.values(), &|candidate| self.preference(candidate, peers));
            self.index.preferences = Some(preferences);
        }
        self.begin_takeovers(peers, now);
        self.transfer_leaderships(peers, now);
        self.continue_own(peers, now);
    }

    /// Updates the leaders of the VIPs that changed.
    fn update_leaders(&mut self, peers: &Peers, now: Duration) {
        while let Some(vip) = self.index.touched.pop_first() {
            let Some(state) = self.states.get_mut(&vip) else { continue };
            let claim = self.index.claim(vip);
            // Two nodes may both believe to lead only where the store is away, or does not know yet. With equal
            // epochs the one gives way that did not write the Lease: the other one may have written it. Of stores
            // that differ, neither has the other node's Lease.
            let outdoes = |node: &NodeName, claim: &Claimed, own: &OwnLeadership| {
                let store = peers.members.get(node).and_then(|peer| peer.state.store);
                let differs = store.is_some() && store != self.store && self.store.is_some();
                // Of two nodes that claim it and do not answer yet, one gives way.
                let is_tied = state.role() == Role::Suspended && own.written.is_none() && !differs;
                let gives_way =
                    if is_tied { *node < self.local } else { own.written.is_none() || differs && *node < self.local };
                claim.epoch > own.epoch || claim.epoch == own.epoch && gives_way
            };
            let rival = claim.filter(|(node, claim)| state.own().is_some_and(|own| outdoes(node, claim, own)));
            if let Some((node, _)) = rival.filter(|_| !self.mutated.is(Mutation::IgnoresClaims)) {
                // This touches the VIP again.
                let node = node.clone();
                self.give_up(vip, Lost::Taken(node), now);
                continue;
            }
            if state.own().is_some() {
                self.index.set_leader(vip, Some(&self.local));
            } else {
                if let Some((node, claim)) = claim {
                    state.learn_claim(node, claim, self.stores_differ);
                }
                let leader = claim.map(|(node, _)| node.clone());
                self.index.set_leader(vip, leader.as_ref());
            }
        }
    }

    /// Continues what is under way for this node's own VIPs.
    fn continue_own(&mut self, peers: &Peers, now: Duration) {
        let own: Vec<_> = self.index.own.iter().copied().collect();
        let (mut announced, mut assured) = (false, false);
        for vip in own {
            let claim = self.index.claim(vip);
            let rival = claim.and_then(|(node, _)| peers.members.get(node));
            let rival_epoch = claim.map(|(_, claim)| claim.epoch);
            let Some((state, mut cx)) = self.state_of(vip, now) else { continue };
            // A rival gives the VIP up as soon as it hears this node's claim, and answers no longer than its deadline.
            let rival_ends = rival.map(|rival| state.since + cx.guard.lease_of(rival));
            let is_contested = state.own().is_some_and(|own| rival_epoch == Some(own.epoch));
            let claims_heard = cx.guard.stores_differ.then(|| state.since.max(cx.guard.back) + CLAIM_PROPAGATION);
            state.settle_announcements(peers, &mut cx);
            state.hedge(peers, &mut cx);
            announced |= state.own().is_some_and(|own| !own.announced_by.is_empty());
            assured |= state.own().is_some_and(OwnLeadership::is_assured);
            match state.role() {
                Role::Handing => state.continue_transfer(peers, &mut cx),
                Role::Conflicted => state.attempt(LeaseOperation::Detect, &mut cx),
                Role::Suspended if let Some(end) = rival_ends.max(claims_heard).filter(|end| now < *end) => {
                    cx.schedule.wake_at(end);
                }
                Role::Suspended | Role::Yielded if cx.open => state.attempt(LeaseOperation::CheckRead, &mut cx),
                Role::Leading if state.own().is_some_and(|own| !own.is_recorded()) => {
                    state.attempt(LeaseOperation::CheckRead, &mut cx);
                }
                // Of two claims with one epoch, the Lease says which one counts.
                Role::Leading if is_contested && state.operation.is_none() && state.not_before <= now => {
                    state.attempt(LeaseOperation::CheckRead, &mut cx);
                    state.not_before = now + CLAIM_GRACE;
                }
                Role::Leading | Role::Detecting | Role::Following | Role::Suspended | Role::Yielded => {}
            }
        }
        if announced {
            self.ask_announcers(now);
        }
        if assured {
            self.look_at_leases(now);
        }
    }

    /// Returns whether all candidates are known, or this node has waited long enough for them.
    pub(super) fn is_settled(&self, peers: &Peers, now: Duration) -> bool {
        now >= self.started + SETTLE_TIME || self.surveys.ended && self.all_candidates(peers, |_| true)
    }

    /// Returns whether the claims of all candidates are known, or this node has waited long enough
    /// for them.
    fn has_met_all(&mut self, peers: &Peers, now: Duration) -> bool {
        let end = self.started + RESTART_WAIT;
        if now >= end || self.all_candidates(peers, |peer| peer.current.is_some()) {
            return true;
        }
        self.schedule.wake_at(end);
        false
    }

    /// Returns whether all candidates but this node are peers of which this holds.
    pub(super) fn all_candidates(&self, peers: &Peers, holds: impl Fn(&Peer) -> bool) -> bool {
        let mut seen = BTreeSet::new();
        let mut pools = self.wanted.values().filter(|candidates| seen.insert(candidates.id()));
        let holds = |node: &NodeName| *node == self.local || peers.members.get(node).is_some_and(&holds);
        pools.all(|candidates| candidates.iter().all(|candidate| holds(&candidate.node)))
    }

    /// Returns the preference for a candidate; `None`: it cannot lead now.
    pub(super) fn preference(&self, candidate: &Candidate, peers: &Peers) -> Option<Preference> {
        let Candidate { node, excluded, cordoned, score, .. } = candidate;
        let (ready, draining) = if *node == self.local {
            self.availability.published()
        } else {
            let peer = peers.members.get(node).filter(|peer| peer.status.is_alive() && !peer.state.lapsed)?;
            (peer.state.ready, peer.state.draining)
        };
        let readiness = match (ready, draining) {
            (true, _) => Readiness::Ready,
            (false, false) => Readiness::HoldDown,
            (false, true) => Readiness::Unstable,
        };
        let leaving = *cordoned || draining && readiness != Readiness::Unstable;
        Some(Preference { excluded: *excluded, leaving, readiness, score: Reverse(*score) })
    }

    /// Returns a node as a candidate for a VIP; `None`: it is none.
    pub(super) fn candidate(&self, vip: Vip, node: &NodeName) -> Option<&Candidate> {
        self.wanted.get(&vip)?.iter().find(|candidate| candidate.node == *node)
    }

    /// Returns whether a node can announce a VIP.
    pub(super) fn is_able(&self, node: &NodeName, vip: Vip, peers: &Peers) -> bool {
        if *node == self.local {
            !self.availability.unable.contains(&vip)
        } else {
            peers.members.get(node).is_some_and(|peer| !peer.state.unable.contains(&vip))
        }
    }

    /// Begins to take over the VIPs without a leader that are this node's turn.
    fn begin_takeovers(&mut self, peers: &Peers, now: Duration) {
        if self.index.leaderless.is_empty() {
            return;
        }
        let (granted, taking) = self.granted_takeovers(peers, now);
        let mut leaders = BTreeSet::new();
        for (vip, mine) in self.turns(granted, taking, peers, now) {
            let Some((state, mut cx)) = self.state_of(vip, now) else { continue };
            if let Some(follower) = state.follower_mut() {
                follower.takeable_since.get_or_insert(now);
            }
            if !mine {
                cx.schedule.wake_at(now + TAKEOVER_TURN);
            } else if state.not_before > now {
                cx.schedule.wake_at(state.not_before);
            } else if cx.open {
                leaders.extend(state.latest.as_ref().map(|known| known.node.clone()));
                state.attempt(LeaseOperation::TakeoverRead, &mut cx);
            }
        }
        if peers.majority {
            self.read_records(leaders, Aim::Displace, peers, now);
        }
    }

    /// Returns the VIPs without a leader that may be taken now, and how many this node is already
    /// about to take.
    fn granted_takeovers(&mut self, peers: &Peers, now: Duration) -> (Vec<(Vip, Why)>, u64) {
        let settled = self.is_settled(peers, now);
        if !settled {
            self.schedule.wake_at(self.started + SETTLE_TIME);
        }
        let met = self.has_met_all(peers, now);
        let ready_for_own = met && (settled || self.surveys.ended);
        let leaderless: Vec<Vip> = self.index.leaderless.iter().copied().collect();
        let (open, back) = (self.fence.is_open(now), self.fence.back(now));
        let (mut granted, mut taking) = (Vec::new(), 0);
        let (mut unfenced, mut unread) = (BTreeSet::new(), BTreeSet::new());
        for vip in leaderless {
            let Some((state, mut cx)) = self.state_of(vip, now) else { continue };
            // No other node takes what was this node's own, unless one took it while the store was
            // away.
            let ready = if state.was_led_by(cx.local) { ready_for_own } else { settled };
            if !ready {
                continue;
            }
            if state.operation.is_some() {
                if open && state.operating_since < back {
                    state.read_anew(&mut cx);
                }
                state.hedge(peers, &mut cx);
                taking += 1;
                continue;
            }
            if let Some(follower) = state.follower_mut() {
                follower.unclaimed_since.get_or_insert(now);
            }
            let leader = state.latest.as_ref().map(|known| &known.node);
            let unsure = leader.filter(|leader| unread.len() < MOST_READS && cx.guard.is_unsure(leader, now));
            unread.extend(unsure.cloned());
            match state.takeover(&cx.guard, vip, peers, now) {
                Takeover::Later(at) => cx.schedule.wake_at(at),
                Takeover::Unfenced(node) => drop(unfenced.insert(node)),
                Takeover::Granted { why, .. } => granted.push((vip, why)),
            }
        }
        self.read_records(unread, Aim::Know, peers, now);
        self.read_records(unfenced, Aim::Challenge, peers, now);
        (granted, taking)
    }

    /// Returns of each of these VIPs whether it is this node's turn to take it.
    fn turns(&self, granted: Vec<(Vip, Why)>, taking: u64, peers: &Peers, now: Duration) -> Vec<(Vip, bool)> {
        let Some(preferences) = self.index.preferences.as_ref().filter(|_| !granted.is_empty()) else {
            return Vec::new();
        };
        let preference = |candidate: &Candidate| self.preference(candidate, peers);
        let mut placement = LeaderPlacement::new(&self.wanted, &preference, preferences, &self.index.loads);
        // This node will soon lead what it is about to take.
        placement.add(&self.local, taking);
        let turn = |(vip, why)| {
            let since = self.states.get(&vip)?.follower().and_then(|follower| follower.takeable_since).unwrap_or(now);
            let turn = usize::try_from(now.saturating_sub(since).as_millis() / TAKEOVER_TURN.as_millis())
                .unwrap_or(usize::MAX);
            // No other node can take this node's own VIP again.
            let mine = if why == Why::Resumed {
                self.candidate(vip, &self.local).is_some() && self.is_able(&self.local, vip, peers)
            } else {
                placement.place(vip, turn, |node| self.is_able(node, vip, peers)) == Some(&self.local)
            };
            Some((vip, mine))
        };
        granted.into_iter().filter_map(turn).collect()
    }
}
