//! What becomes of each VIP as things are known now: who may take one over that nobody leads, whose turn it is, and what else
//! time brings.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

#[cfg(any(test, feature = "simulation"))]
use super::simulation::Mutation;
use super::{
    Command, Election, Role,
    handover::Leaver,
    placement::{Contender, Placement, Reluctance, Standings},
    tenure::{Errand, Lost},
};
use crate::{
    membership::{Peer, Peers, Standing, Why},
    model::{NodeName, Vip},
};

/// How long after the start a holder that is not heard of is left alone, and nothing is begun that depends on who else is there.
pub(super) const SETTLE: Duration = Duration::from_secs(3);
/// How long after the start a node waits for what others claim, before it comes back to what was its own.
const MEET: Duration = Duration::from_millis(500);
/// Added to that after which a silent peer's kernel answers no more.
const MARGIN: Duration = Duration::from_millis(15);
/// How long it takes until all have heard that one is down. Where members ask samples of each other nothing else tells.
const DISTANT: Duration = Duration::from_millis(100);
/// With more members than this they ask samples.
const ALL_ASKED: usize = 31;
/// How long a minority leaves to a majority, which may be elsewhere, what it cannot see any holder of.
const DETACHED: Duration = Duration::from_secs(30);
/// How long a living holder may not know of it yet.
const CLAIMLESS: Duration = Duration::from_secs(1);
/// How long the one whose turn it is has to act.
const TURN: Duration = Duration::from_millis(400);
/// No evaluation follows another before,
const SPACING: Duration = Duration::from_millis(5);
/// and this for each VIP that nobody leads: about five times what looking at one takes.
const SPACING_EACH: Duration = Duration::from_micros(2);

/// Whether a VIP that nobody leads may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// Now.
    Granted {
        why: Why,
        /// The holder's end was seen, by a majority. Otherwise the LAN is asked first.
        witnessed: bool,
    },
    /// Not before this time.
    Later(Duration),
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
    fn is_settled(&self, peers: &Peers, now: Duration) -> bool {
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

    /// Whether a VIP may be taken from who is known to have held it last.
    pub(super) fn permission(&self, vip: Vip, peers: &Peers, now: Duration) -> Permission {
        let place = self.places.get(&vip);
        let hold = place.and_then(|place| place.hold.as_ref());
        let Some(hold) = hold else { return Permission::Granted { why: Why::First, witnessed: true } };
        if self.is_own(vip) {
            return Permission::Granted { why: Why::Resumed, witnessed: true };
        }
        let node = || hold.node.clone();
        let Some(peer) = peers.members.get(&hold.node) else {
            let at = self.started + SETTLE;
            let silent = Permission::Granted { why: Why::Silent(node()), witnessed: false };
            return if now < at { Permission::Later(at) } else { silent };
        };
        match peer.standing {
            Standing::Left => {
                // What it could not hand over it answers for until its deadline. It has asked nobody since it said so.
                let at = self.past(peer.since);
                #[cfg(any(test, feature = "simulation"))]
                let at = if self.is_broken(Mutation::WaitsForNoSilence) { Duration::ZERO } else { at };
                let granted = Permission::Granted { why: Why::Down(node()), witnessed: true };
                if now < at { Permission::Later(at) } else { granted }
            }
            Standing::Down => {
                let at = self.silent_from(peer, peers);
                #[cfg(any(test, feature = "simulation"))]
                let at = if self.is_broken(Mutation::WaitsForNoSilence) { Duration::ZERO } else { at };
                if now < at {
                    return Permission::Later(at);
                }
                // One that took it after this node lost touch with it is there, whatever gossip says.
                let same = peer.state.claims.get(&vip).is_some_and(|claim| claim.epoch >= hold.epoch);
                let known = hold.why.is_some() || same;
                // A minority leaves it to a majority that may be elsewhere. And perhaps this node was cut off and reached no
                // more than the store, and has yet to hear what happened. Of two nodes neither is a majority.
                let detached = if peers.majority { hold.since + CLAIMLESS } else { peer.since + DETACHED };
                if peers.members.len() > 1 && !(known && peers.majority) && now < detached {
                    return Permission::Later(detached);
                }
                Permission::Granted { why: Why::Down(node()), witnessed: peers.majority && known }
            }
            Standing::Alive | Standing::Suspected => {
                // While it was down nobody could know what it claims.
                let at = place.and_then(|place| place.unclaimed).unwrap_or(now).max(peer.since) + CLAIMLESS;
                let silent = Permission::Granted { why: Why::Silent(node()), witnessed: false };
                if now < at { Permission::Later(at) } else { silent }
            }
        }
    }

    /// When the kernel of a peer that is down answers no more.
    fn silent_from(&self, peer: &Peer, peers: &Peers) -> Duration {
        // Who was cut off itself knows nothing of what happened until it was back.
        if peers.members.len() >= ALL_ASKED {
            // What it heard of us last may have extended its deadline once more.
            let heard = peer.heard.map_or(Duration::ZERO, |heard| self.past(heard.max(self.back)));
            return heard.max(peer.since + DISTANT);
        }
        // Where too few say so, all have heard by then that it is down.
        self.past(peer.silent.unwrap_or_else(|| peer.since.max(self.back) + DISTANT))
    }

    /// When a deadline has passed that rests on what was asked for then, on whatever node; clocks differ.
    fn past(&self, asked: Duration) -> Duration {
        let lease = self.settings.lease;
        asked + lease + lease / 50 + MARGIN
    }

    /// Whether this node is known to have led it last.
    fn is_own(&self, vip: Vip) -> bool {
        let hold = self.places.get(&vip).and_then(|place| place.hold.as_ref());
        hold.is_some_and(|hold| hold.node == self.local)
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

    /// What each node that is there cannot announce, of those for whom that is anything.
    fn unable<'a>(&'a self, peers: &'a Peers) -> BTreeMap<&'a NodeName, &'a BTreeSet<Vip>> {
        let others = peers.members.iter().map(|(name, peer)| (name, &peer.state.unable));
        others.chain([(&self.local, &self.unable)]).filter(|(_, unable)| !unable.is_empty()).collect()
    }

    /// Begins to take over what is this node's turn to take.
    fn take_turns(&mut self, peers: &Peers, now: Duration) {
        if self.overview.free.is_empty() {
            return;
        }
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
        let wanted = self.wanted.clone();
        let mut due = Vec::new();
        if let Some(standings) = self.overview.standings.as_ref().filter(|_| !granted.is_empty()) {
            let standing = |contender: &Contender| self.standing(contender, peers);
            let mut placement = Placement::new(&wanted, &standing, standings, &self.overview.loads);
            // What it is about to take it leads soon.
            placement.add(&self.local, taking);
            let unable = self.unable(peers);
            let able = |node: &NodeName, vip| unable.get(node).is_none_or(|unable| !unable.contains(&vip));
            for (vip, why) in granted {
                let Some(place) = self.places.get(&vip) else { continue };
                let since = place.open.unwrap_or(now);
                let turn =
                    usize::try_from(now.saturating_sub(since).as_millis() / TURN.as_millis()).unwrap_or(usize::MAX);
                // Nobody else can come back to what is this node's own.
                let mine = if why == Why::Resumed {
                    self.may_lead(vip) && able(&self.local, vip)
                } else {
                    placement.place(vip, turn, |node| able(node, vip)) == Some(&self.local)
                };
                due.push((vip, mine));
            }
        }
        let open = self.is_open(now);
        for (vip, mine) in due {
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

    /// Hands over what another should lead.
    fn leave(&mut self, peers: &Peers, now: Duration) {
        let led: Vec<Vip> = self.leading().collect();
        if led.is_empty() {
            return;
        }
        if !self.is_settled(peers, now) {
            self.wake_at(self.started + SETTLE);
            return;
        }
        let wanted = self.wanted.clone();
        let (mut leavers, mut rests, mut forbidden) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(standings) = &self.overview.standings {
            let standing = |contender: &Contender| self.standing(contender, peers);
            let mut placement = Placement::new(&wanted, &standing, standings, &self.overview.loads);
            let unable = self.unable(peers);
            let able = |node: &NodeName, vip| unable.get(node).is_none_or(|unable| !unable.contains(&vip));
            let mut spare = u64::try_from(led.len()).unwrap_or(u64::MAX).saturating_sub(standings.bound(&self.local));
            for vip in led {
                let Some(place) = self.places.get(&vip).filter(|place| place.errand.is_none()) else { continue };
                let rest = place.rest.max(place.kept);
                if rest > now {
                    rests.push(rest);
                    continue;
                }
                let own = wanted.get(&vip).and_then(|all| all.iter().find(|contender| contender.node == self.local));
                let mine = own.filter(|_| able(&self.local, vip)).and_then(standing);
                let Some(best) = placement.best(vip, |node| able(node, vip)) else {
                    forbidden.extend(own.is_none().then_some(vip));
                    continue;
                };
                let must = mine.is_none_or(|mine| best.precedes(mine));
                if !must && spare == 0 {
                    continue;
                }
                let other = |node: &NodeName| *node != self.local && able(node, vip);
                match placement.place(vip, 0, other) {
                    Some(heir) if must => leavers.push(Leaver { vip, heir: heir.clone(), must }),
                    Some(heir) if placement.has_room(heir) => {
                        spare -= 1;
                        leavers.push(Leaver { vip, heir: heir.clone(), must });
                    }
                    _ => {}
                }
            }
        }
        if let Some(rest) = rests.into_iter().min() {
            self.wake_at(rest);
        }
        for vip in forbidden {
            self.give_up(vip, Lost::Forbidden, now);
        }
        self.hand_over(leavers, now);
    }
}
