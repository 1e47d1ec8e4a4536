//! Who leads what, as peers claim it and this node knows it: kept up to date by what has changed, since most of ten
//! thousand VIPs and a thousand nodes has not.

use std::collections::{BTreeMap, BTreeSet};

use imbl::OrdMap;

use super::{lease::Lease, placement::Standings};
use crate::{
    membership::{Claimed, Peer, Peers},
    model::{NodeName, Vip},
};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Overview {
    /// Of each peer that is there, as last taken in.
    seen: BTreeMap<NodeName, Seen>,
    /// Who claims a VIP; seldom more than one.
    claimants: BTreeMap<Vip, Vec<NodeName>>,
    /// VIPs of which the claims, or what this node holds of them, may have changed.
    pub(super) touched: BTreeSet<Vip>,
    /// VIPs that are this node's, whether or not it answers for them.
    pub(super) held: BTreeSet<Vip>,
    /// VIPs that nobody leads.
    pub(super) free: BTreeSet<Vip>,
    /// Who leads the others,
    leaders: BTreeMap<Vip, NodeName>,
    /// and how many each does.
    pub(super) loads: BTreeMap<NodeName, u64>,
    /// `None`: to be found anew.
    pub(super) standings: Option<Standings>,
}

/// What matters of a peer.
#[derive(Clone, Debug)]
struct Seen {
    ready: bool,
    draining: bool,
    claims: OrdMap<Vip, Claimed>,
}

impl Seen {
    fn of(peer: &Peer) -> Option<Self> {
        let (ready, draining) = (peer.state.ready, peer.state.draining);
        peer.standing.lives().then(|| Self { ready, draining, claims: peer.state.claims.clone() })
    }

    fn is(&self, peer: &Peer) -> bool {
        let same = (self.ready, self.draining) == (peer.state.ready, peer.state.draining);
        same && peer.standing.lives() && self.claims.ptr_eq(&peer.state.claims)
    }
}

impl Overview {
    /// Takes in what has changed of the peers.
    pub(super) fn update(&mut self, peers: &Peers) {
        let mut changed: Vec<NodeName> = Vec::new();
        let mut seen = self.seen.iter().peekable();
        for (name, peer) in &peers.members {
            while let Some((gone, _)) = seen.next_if(|(seen, _)| *seen < name) {
                changed.push(gone.clone());
            }
            let before = seen.next_if(|(seen, _)| *seen == name);
            if before.map_or(peer.standing.lives(), |(_, before)| !before.is(peer)) {
                changed.push(name.clone());
            }
        }
        changed.extend(seen.map(|(gone, _)| gone.clone()));
        for name in changed {
            let now = peers.members.get(&name).and_then(Seen::of);
            self.replace(&name, now);
        }
    }

    fn replace(&mut self, name: &NodeName, now: Option<Seen>) {
        let before = match now.clone() {
            Some(now) => self.seen.insert(name.clone(), now),
            None => self.seen.remove(name),
        };
        let standing = |seen: &Option<Seen>| seen.as_ref().map(|seen| (seen.ready, seen.draining));
        if standing(&before) != standing(&now) {
            self.standings = None;
        }
        let claims = |seen: Option<Seen>| seen.map(|seen| seen.claims).unwrap_or_default();
        let (before, now) = (claims(before), claims(now));
        for change in before.diff(&now) {
            let (vip, claims) = match change {
                imbl::ordmap::DiffItem::Add(vip, _) => (*vip, true),
                imbl::ordmap::DiffItem::Update { new: (vip, _), .. } => {
                    self.touched.insert(*vip);
                    continue;
                }
                imbl::ordmap::DiffItem::Remove(vip, _) => (*vip, false),
            };
            self.touched.insert(vip);
            let claimants = self.claimants.entry(vip).or_default();
            if claims {
                claimants.push(name.clone());
            } else {
                claimants.retain(|claimant| claimant != name);
                if claimants.is_empty() {
                    self.claimants.remove(&vip);
                }
            }
        }
    }

    /// What peers that are there claim of a VIP: the highest epoch; of equals the first by name.
    pub(super) fn claim<'a>(&'a self, vip: Vip) -> Option<(&'a NodeName, &'a Claimed)> {
        let claimed = |name: &'a NodeName| Some((name, self.seen.get(name)?.claims.get(&vip)?));
        let all = self.claimants.get(&vip).into_iter().flatten().filter_map(claimed);
        let known = all.filter(|(_, claim)| claim.epoch <= Lease::MAX_EPOCH);
        known.max_by(|(one, a), (other, b)| a.epoch.cmp(&b.epoch).then_with(|| other.cmp(one)))
    }

    /// Notes who leads a VIP that is wanted.
    pub(super) fn settle(&mut self, vip: Vip, leader: Option<&NodeName>) {
        if self.leaders.get(&vip) != leader {
            self.unsettle(vip);
            if let Some(leader) = leader {
                *self.loads.entry(leader.clone()).or_default() += 1;
                self.leaders.insert(vip, leader.clone());
            }
        }
        if leader.is_some() {
            self.free.remove(&vip)
        } else {
            self.free.insert(vip)
        };
    }

    /// Forgets a VIP that is no longer wanted.
    pub(super) fn forget(&mut self, vip: Vip) {
        self.unsettle(vip);
        self.free.remove(&vip);
    }

    fn unsettle(&mut self, vip: Vip) {
        let Some(leader) = self.leaders.remove(&vip) else { return };
        if let Some(load) = self.loads.get_mut(&leader) {
            *load -= 1;
            if *load == 0 {
                self.loads.remove(&leader);
            }
        }
    }
}
