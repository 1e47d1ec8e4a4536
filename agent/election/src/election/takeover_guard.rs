//! Decides when a VIP without a leader may be taken: not before its last leader's kernel stops
//! answering.
//!
//! Without a witness of that leader's end, the LAN is asked first. Without a majority, the leader's node
//! must be fenced before that ([`node_records`](super::node_records)).

use std::{collections::BTreeSet, time::Duration};

use super::{
    fencings::Fencings,
    role::LatestLeader,
    timing::{CLAIM_GRACE, DOWN_PROPAGATION, LONG_PROMISE, SETTLE_TIME, past},
};
use crate::{
    membership::{MemberStatus, Peer, Peers, SAMPLE, Why},
    mutation::{Mutated, Mutation},
};
use vipmux_model::{NodeName, Vip};

/// The decision whether a VIP without a leader may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Takeover {
    /// It may be taken now.
    Granted {
        why: Why,
        /// A majority saw the leader's end. Otherwise the LAN is asked first.
        witnessed: bool,
    },
    /// It may be taken at this time at the earliest.
    Later(Duration),
    /// This node must be fenced before: only its record tells whether it answers.
    Unfenced(NodeName),
}

impl Takeover {
    /// Grants a takeover from `at` on.
    fn from(at: Duration, now: Duration, why: Why, witnessed: bool) -> Self {
        if now < at { Self::Later(at) } else { Self::Granted { why, witnessed } }
    }
}

/// The facts about this node on which takeovers depend.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakeoverGuard<'a> {
    pub(super) local: &'a NodeName,
    pub(super) started: Duration,
    /// The VIPs that this node's kernel answered for when the agent started.
    pub(super) led_at_start: &'a BTreeSet<Vip>,
    /// The time since when this node has evidence without a gap.
    pub(super) back: Duration,
    /// The same with shorter gaps: what this node knew before may be old.
    pub(super) steady: Duration,
    /// The time that this node's kernel answers after the last evidence.
    pub(super) lease: Duration,
    /// Another member may have another store than this node.
    pub(super) stores_differ: bool,
    /// The nodes that are fenced.
    pub(super) fencings: &'a Fencings,
    pub(super) mutated: Mutated,
}

impl TakeoverGuard<'_> {
    /// Decides whether a VIP may be taken from its latest leader, which has not claimed it since `unclaimed_since`.
    pub(super) fn decide(
        &self,
        vip: Vip,
        latest: Option<&LatestLeader>,
        unclaimed_since: Option<Duration>,
        peers: &Peers,
        now: Duration,
    ) -> Takeover {
        let Some(latest) = latest else {
            return Takeover::Granted { why: Why::First, witnessed: !self.stores_differ };
        };
        if latest.node == *self.local {
            // It may have handed the VIP to a node that did not write the Lease, and forgotten that.
            // A store of this node's own does not know who has led the VIP since.
            let is_late = now >= past(LONG_PROMISE.max(self.lease), self.started);
            let witnessed = !self.stores_differ && (is_late || self.led_at_start.contains(&vip));
            return Takeover::Granted { why: Why::Resumed, witnessed };
        }
        let silent = |at| Takeover::from(at, now, Why::Silent(latest.node.clone()), false);
        let Some(peer) = peers.members.get(&latest.node) else {
            if now >= self.started + SETTLE_TIME && self.must_fence(&latest.node, self.lease, peers.majority, now) {
                return Takeover::Unfenced(latest.node.clone());
            }
            return silent(self.started + SETTLE_TIME);
        };
        match peer.status {
            MemberStatus::Down | MemberStatus::Left => self.decide_gone(vip, latest, peer, peers, now),
            // Nodes that were cut off together with it give it the time to come back.
            MemberStatus::Alive | MemberStatus::Suspected
                if peer.state.lapsed && now >= self.back.max(self.steady) + CLAIM_GRACE =>
            {
                Takeover::Granted { why: Why::Lapsed(latest.node.clone()), witnessed: true }
            }
            MemberStatus::Alive | MemberStatus::Suspected => {
                // Nobody could know its claims while it was down, or before it had the Lease.
                silent(unclaimed_since.unwrap_or(now).max(peer.since).max(latest.since) + CLAIM_GRACE)
            }
        }
    }

    /// Decides whether a VIP may be taken from a peer that is down, or has left.
    fn decide_gone(&self, vip: Vip, latest: &LatestLeader, peer: &Peer, peers: &Peers, now: Duration) -> Takeover {
        // A peer that took the VIP after this node lost touch with it is alive, whatever gossip
        // says.
        let same = peer.state.claims.get(&vip).is_some_and(|claim| claim.epoch >= latest.epoch);
        // If a majority has found it down since, it is not.
        let confirmed = peer.confirmed >= Some(latest.since);
        // A peer that has left said so itself.
        let has_left = peer.status == MemberStatus::Left;
        let witnessed = has_left || peers.majority && (latest.why.is_some() || same || confirmed);
        // Without a majority, the leader may be alive elsewhere, as may others who follow it. Perhaps
        // this node was cut off, reached only the store, and does not know yet what happened.
        if self.must_fence(&latest.node, self.lease_of(peer), has_left || peers.majority, now) {
            return Takeover::Unfenced(latest.node.clone());
        }
        let silent = self.silent_from(&latest.node, peer, peers, now);
        let at = if witnessed || !peers.majority { silent } else { silent.max(latest.since + CLAIM_GRACE) };
        Takeover::from(at, now, Why::Down(latest.node.clone()), witnessed)
    }

    /// Returns whether the record of a leader that is down is being read for the first time since.
    pub(super) fn is_about_to_know(&self, leader: &NodeName, peers: &Peers, now: Duration) -> bool {
        let gone = peers.members.get(leader).filter(|peer| !peer.status.is_alive());
        let is_new = gone.is_some_and(|peer| self.fencings.has_to_read(leader, peer.since));
        is_new && self.fencings.is_reading(leader, now)
    }

    /// Returns whether another leader's promise may have changed while this node was cut off, not long ago.
    /// Watches show within seconds what was written meanwhile.
    pub(super) fn is_unsure(&self, leader: &NodeName, now: Duration) -> bool {
        leader != self.local && now < self.back + SETTLE_TIME && self.fencings.is_unsure(leader)
    }

    /// Returns whether a node must be fenced before its VIPs are taken: this node has no majority, or the
    /// other one had none, and may answer for longer than `lease`.
    fn must_fence(&self, node: &NodeName, lease: Duration, majority: bool, now: Duration) -> bool {
        (!majority || self.fencings.promises_more(node, lease)) && !self.fencings.is_fenced(node, now)
    }

    /// Returns when the kernel of a peer that is down, or has left, stops answering.
    fn silent_from(&self, node: &NodeName, peer: &Peer, peers: &Peers, now: Duration) -> Duration {
        if self.mutated.is(Mutation::WaitsForNoSilence) {
            return Duration::ZERO;
        }
        let silent = self.silent_without_record(peer, peers);
        if self.is_unsure(node, now) {
            // Its record may have been its evidence until now, whoever did not answer it.
            return silent.max(past(LONG_PROMISE, self.back));
        }
        silent
    }

    /// Returns when the kernel of such a peer stops answering if its evidence is that of its peers.
    fn silent_without_record(&self, peer: &Peer, peers: &Peers) -> Duration {
        let lease = self.lease_of(peer);
        if peer.status == MemberStatus::Left {
            // It answers until its deadline for VIPs that it could not transfer. It sent no heartbeat since
            // it left. A node that it has transferred a VIP to may have died before it could say so.
            let longest = peers.members.values().map(|peer| self.lease_of(peer)).max().unwrap_or(lease);
            return past(longest, peer.since);
        }
        // What answers is not down, whatever gossip says. It will soon have another generation.
        let answered =
            peer.answered.filter(|answered| *answered > peer.since).map_or(Duration::ZERO, |at| past(lease, at));
        // A node that was cut off itself knows nothing of the time until it was back.
        if peers.members.len() >= SAMPLE {
            // Our last message to it may have extended its deadline once more.
            let heard = peer.heard.map_or(Duration::ZERO, |heard| past(lease, heard.max(self.back)));
            return heard.max(peer.since + DOWN_PROPAGATION).max(answered);
        }
        // If too few nodes confirm it, all know by then that it is down.
        past(lease, peer.silent.unwrap_or_else(|| peer.since.max(self.back) + DOWN_PROPAGATION)).max(answered)
    }

    /// Returns the time that a peer's kernel answers after its last evidence. Until the peer has
    /// published it, this node's own is assumed.
    pub(super) fn lease_of(&self, peer: &Peer) -> Duration {
        let published = peer.state.agent.as_ref().filter(|_| !self.mutated.is(Mutation::AssumesOwnLease));
        published.map_or(self.lease, |agent| agent.lease)
    }
}

/// Returns whether a majority has confirmed since `asked` that a leader is gone: it may have come back, and led
/// on, since this node lost touch with the others. In large clusters, where not all members are asked, the evidence
/// of this node stands for that.
pub(super) fn is_confirmed(leader: &NodeName, peers: &Peers, asked: Duration) -> bool {
    let is_large = peers.members.len() >= SAMPLE;
    let peer = peers.members.get(leader);
    let is_gone = peer.is_none_or(|peer| !peer.status.is_alive() && (is_large || peer.confirmed >= Some(asked)));
    peers.evidence_since >= Some(asked) && is_gone
}
