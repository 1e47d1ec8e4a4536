//! What becomes of each VIP as things are known now: who leads it, whose turn it is to take one over that nobody leads, and what
//! else time brings.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

#[cfg(any(test, feature = "simulation"))]
use super::simulation::Mutation;
use super::{
    Command, Election, Role,
    permission::{CLAIMLESS, Permission},
    placement::{Contender, Placement, Reluctance, Standings},
    tenure::{Errand, Lost},
};
use crate::{
    membership::{Peers, Why},
    model::{NodeName, Vip},
};

/// How long after the start a holder that is not heard of is left alone, and nothing is begun that depends on who else is there.
pub(super) const SETTLE: Duration = Duration::from_secs(3);
/// How long after the start a node waits for what others claim, before it comes back to what was its own.
const MEET: Duration = Duration::from_millis(500);
/// How long the one whose turn it is has to act.
const TURN: Duration = Duration::from_millis(400);
/// No evaluation follows another before,
const SPACING: Duration = Duration::from_millis(5);
/// and this for each VIP that nobody leads: about five times what looking at one takes.
const SPACING_EACH: Duration = Duration::from_micros(2);

/// What each node that is there cannot announce, of those for whom that is anything.
pub(super) struct Unable<'a>(BTreeMap<&'a NodeName, &'a BTreeSet<Vip>>);

impl Unable<'_> {
    pub(super) fn includes(&self, node: &NodeName, vip: Vip) -> bool {
        self.0.get(node).is_some_and(|vips| vips.contains(&vip))
    }
}

impl Election {
    /// Looks at every VIP.
    pub(super) fn evaluate(&mut self, peers: &Peers, now: Duration) {
        let free = u32::try_from(self.overview.free.len()).unwrap_or(u32::MAX);
        let next = self.evaluated + SPACING + SPACING_EACH * free;
        if now < next && self.evaluated > Duration::ZERO {
            self.wake = Some(next);
            return;
        }
        (self.evaluated, self.dirty, self.wake) = (now, false, None);
        self.overview.update(peers);
        self.hear(now);
        if self.overview.standings.is_none() {
            let standings = Standings::new(self.wanted.values(), &|contender| self.standing(contender, peers));
            self.overview.standings = Some(standings);
        }
        self.take_turns(peers, now);
        self.leave(peers, now);
        self.attend(now);
    }

    pub(super) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Takes note of what has changed.
    fn hear(&mut self, now: Duration) {
        while let Some(vip) = self.overview.touched.pop_first() {
            let Some(place) = self.places.get_mut(&vip) else { continue };
            let claim = self.overview.claim(vip);
            let outdone = match (&place.tenure, claim) {
                // Both may think that it is theirs only where the store is away, or does not know yet. Of equals the one gives
                // way that did not write the Lease: it may be the other that did.
                (Some(tenure), Some((_, claim))) => (claim.epoch, true) > (tenure.epoch, tenure.written.is_some()),
                _ => false,
            };
            #[cfg(any(test, feature = "simulation"))]
            let outdone = outdone && self.mutation != Some(Mutation::IgnoresClaims);
            if outdone && let Some((node, _)) = claim {
                // Which touches it again.
                let node = node.clone();
                self.give_up(vip, Lost::Taken(node), now);
                continue;
            }
            if place.tenure.is_some() {
                self.overview.settle(vip, Some(&self.local));
            } else {
                if let Some((node, claim)) = claim {
                    place.hear(node, claim);
                }
                let leader = claim.map(|(node, _)| node.clone());
                self.overview.settle(vip, leader.as_ref());
            }
        }
        self.doubt(now);
    }

    /// Looks at the Leases of those VIPs that a peer claims in the same epoch.
    fn doubt(&mut self, now: Duration) {
        for vip in &self.overview.held {
            let Some(place) = self.places.get_mut(vip).filter(|place| place.role == Role::Leading) else { continue };
            let free = place.errand.is_none() && place.rest <= now;
            let Some(tenure) = place.tenure.as_ref().filter(|_| free) else { continue };
            if self.overview.claim(*vip).is_some_and(|(_, claim)| claim.epoch == tenure.epoch) {
                (place.errand, place.rest) = (Some(Errand::CheckRead), now + CLAIMLESS);
                self.commands.push(Command::Read(*vip));
            }
        }
    }

    /// Whether all who may lead are known, or it was long enough to wait for them.
    pub(super) fn is_settled(&self, peers: &Peers, now: Duration) -> bool {
        let heard = |contender: &Contender| contender.node == self.local || peers.members.contains_key(&contender.node);
        now >= self.started + SETTLE || self.begun && self.pools().all(|contenders| contenders.iter().all(heard))
    }

    /// Whether all who may lead were heard of, and what they claim, or it was long enough to wait for those that are there.
    fn has_met_all(&mut self, peers: &Peers, now: Duration) -> bool {
        let end = self.started + MEET;
        let met = |node: &NodeName| peers.members.get(node).is_some_and(|peer| peer.current.is_some());
        let all = |contenders: &[Contender]| {
            contenders.iter().all(|contender| contender.node == self.local || met(&contender.node))
        };
        if now >= end || self.pools().all(all) {
            return true;
        }
        self.wake_at(end);
        false
    }

    fn pools(&self) -> impl Iterator<Item = &[Contender]> {
        let mut seen = None;
        // Neighbours in address order mostly are of one pool.
        self.wanted.values().filter_map(move |contenders| {
            let pool = contenders.as_ptr();
            (seen.replace(pool) != Some(pool)).then_some(&**contenders)
        })
    }

    /// How a contender stands; `None`: it cannot lead now.
    pub(super) fn standing(&self, contender: &Contender, peers: &Peers) -> Option<Reluctance> {
        let Contender { node, excluded, cordoned, .. } = contender;
        let (draining, ready) = if *node == self.local {
            (self.draining, self.ready)
        } else {
            let peer = peers.members.get(node).filter(|peer| peer.standing.lives())?;
            (peer.state.draining, peer.state.ready)
        };
        Some(Reluctance { excluded: *excluded, leaving: *cordoned || draining, unready: !ready })
    }

    /// Whether this node is among those that may lead a VIP at all.
    fn may_lead(&self, vip: Vip) -> bool {
        let contenders = self.wanted.get(&vip);
        contenders.is_some_and(|contenders| contenders.iter().any(|contender| contender.node == self.local))
    }

    /// Whether a node can announce a VIP.
    pub(super) fn is_able(&self, node: &NodeName, vip: Vip, peers: &Peers) -> bool {
        if *node == self.local {
            !self.unable.contains(&vip)
        } else {
            peers.members.get(node).is_some_and(|peer| !peer.state.unable.contains(&vip))
        }
    }

    pub(super) fn unable<'a>(&'a self, peers: &'a Peers) -> Unable<'a> {
        let others = peers.members.iter().map(|(name, peer)| (name, &peer.state.unable));
        Unable(others.chain([(&self.local, &self.unable)]).filter(|(_, unable)| !unable.is_empty()).collect())
    }

    /// Begins to take over what is this node's turn to take.
    fn take_turns(&mut self, peers: &Peers, now: Duration) {
        if self.overview.free.is_empty() {
            return;
        }
        let (granted, taking) = self.grant(peers, now);
        let open = self.is_open(now);
        for (vip, mine) in self.turns(granted, taking, peers, now) {
            let Some(place) = self.places.get_mut(&vip) else { continue };
            place.open.get_or_insert(now);
            let rest = place.rest;
            if !mine {
                self.wake_at(now + TURN);
            } else if !open || rest > now {
                self.wake_at(rest.max(now + SPACING * 2));
            } else {
                place.errand = Some(Errand::TakeRead);
                self.commands.push(Command::Read(vip));
            }
        }
    }

    /// Those of the VIPs that nobody leads which may be taken now, and how many this node is about to take already.
    fn grant(&mut self, peers: &Peers, now: Duration) -> (Vec<(Vip, Why)>, u64) {
        let settled = self.is_settled(peers, now);
        if !settled {
            self.wake_at(self.started + SETTLE);
        }
        let met = self.has_met_all(peers, now);
        let free: Vec<Vip> = self.overview.free.iter().copied().collect();
        let (mut granted, mut taking) = (Vec::new(), 0);
        for vip in free {
            // Nobody else comes into question for what was its own, unless one took it while the store was away.
            let ready = if self.is_own(vip) { met && (settled || self.begun) } else { settled };
            if !ready {
                continue;
            }
            let Some(place) = self.places.get_mut(&vip) else { continue };
            if place.errand.is_some() {
                taking += 1;
                continue;
            }
            place.unclaimed.get_or_insert(now);
            match self.permission(vip, peers, now) {
                Permission::Later(at) => self.wake_at(at),
                Permission::Granted { why, .. } => granted.push((vip, why)),
            }
        }
        (granted, taking)
    }

    /// Of each of these VIPs whether it is this node's turn to take it.
    fn turns(&self, granted: Vec<(Vip, Why)>, taking: u64, peers: &Peers, now: Duration) -> Vec<(Vip, bool)> {
        let Some(standings) = self.overview.standings.as_ref().filter(|_| !granted.is_empty()) else {
            return Vec::new();
        };
        let standing = |contender: &Contender| self.standing(contender, peers);
        let mut placement = Placement::new(&self.wanted, &standing, standings, &self.overview.loads);
        // What it is about to take it leads soon.
        placement.add(&self.local, taking);
        let unable = self.unable(peers);
        let turn = |(vip, why)| {
            let since = self.places.get(&vip)?.open.unwrap_or(now);
            let turn = usize::try_from(now.saturating_sub(since).as_millis() / TURN.as_millis()).unwrap_or(usize::MAX);
            // Nobody else can come back to what is this node's own.
            let mine = if why == Why::Resumed {
                self.may_lead(vip) && !unable.includes(&self.local, vip)
            } else {
                placement.place(vip, turn, |node| !unable.includes(node, vip)) == Some(&self.local)
            };
            Some((vip, mine))
        };
        granted.into_iter().filter_map(turn).collect()
    }
}
