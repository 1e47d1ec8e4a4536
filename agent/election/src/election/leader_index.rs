//! An index of leaders: who claims which VIP, who leads it, and how many each node leads.
//!
//! It takes in changes only, since most of ten thousand VIPs and a thousand nodes do not change.

use std::collections::{BTreeMap, BTreeSet};

use imbl::OrdMap;

use crate::{
    lease::Lease,
    membership::{Claimed, Peer, Peers, State},
    placement::Preferences,
};
use vipmux_model::{NodeName, Vip};

/// The leaders of all VIPs, by the claims of peers and the leaderships of this node.
#[derive(Debug, Default)]
pub(super) struct LeaderIndex {
    /// The living peers, as last taken in.
    seen: BTreeMap<NodeName, Snapshot>,
    /// The peers that claim a VIP; seldom more than one.
    claimants: BTreeMap<Vip, Vec<NodeName>>,
    /// VIPs whose claims, or whose leadership by this node, may have changed.
    pub(super) touched: BTreeSet<Vip>,
    /// VIPs that are this node's own, whether or not it answers for them.
    pub(super) own: BTreeSet<Vip>,
    /// VIPs without a leader.
    pub(super) leaderless: BTreeSet<Vip>,
    /// The leaders of the others.
    leaders: BTreeMap<Vip, NodeName>,
    /// The number of VIPs that each node leads.
    pub(super) loads: BTreeMap<NodeName, u64>,
    /// The preferences of all candidates; `None`: they must be computed again.
    pub(super) preferences: Option<Preferences>,
}

/// The part of a peer's state that the index depends on.
#[derive(Clone, Debug)]
struct Snapshot {
    ready: bool,
    draining: bool,
    lapsed: bool,
    /// Without those of a peer that has lapsed.
    claims: OrdMap<Vip, Claimed>,
}

impl Snapshot {
    /// Returns the snapshot of a living peer.
    fn of(peer: &Peer) -> Option<Self> {
        let State { ready, draining, lapsed, ref claims, .. } = peer.state;
        let claims = if lapsed { OrdMap::new() } else { claims.clone() };
        peer.status.is_alive().then_some(Self { ready, draining, lapsed, claims })
    }

    fn is(&self, peer: &Peer) -> bool {
        let State { ready, draining, lapsed, ref claims, .. } = peer.state;
        let same = (self.ready, self.draining, self.lapsed) == (ready, draining, lapsed);
        same && peer.status.is_alive() && (lapsed || self.claims.ptr_eq(claims))
    }
}

impl LeaderIndex {
    /// Takes in the changes of the peers.
    pub(super) fn update(&mut self, peers: &Peers) {
        let mut changed: Vec<NodeName> = Vec::new();
        let mut seen = self.seen.iter().peekable();
        for (name, peer) in &peers.members {
            while let Some((gone, _)) = seen.next_if(|(seen, _)| *seen < name) {
                changed.push(gone.clone());
            }
            let before = seen.next_if(|(seen, _)| *seen == name);
            if before.map_or(peer.status.is_alive(), |(_, before)| !before.is(peer)) {
                changed.push(name.clone());
            }
        }
        changed.extend(seen.map(|(gone, _)| gone.clone()));
        for name in changed {
            let now = peers.members.get(&name).and_then(Snapshot::of);
            self.replace(&name, now);
        }
    }

    fn replace(&mut self, name: &NodeName, now: Option<Snapshot>) {
        let before = match now.clone() {
            Some(now) => self.seen.insert(name.clone(), now),
            None => self.seen.remove(name),
        };
        let flags = |seen: &Option<Snapshot>| seen.as_ref().map(|seen| (seen.ready, seen.draining, seen.lapsed));
        if flags(&before) != flags(&now) {
            self.preferences = None;
        }
        let claims = |seen: Option<Snapshot>| seen.map(|seen| seen.claims).unwrap_or_default();
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

    /// Returns the living peers' claim to a VIP with the highest epoch; of equal ones that of the
    /// first peer by name.
    pub(super) fn claim<'a>(&'a self, vip: Vip) -> Option<(&'a NodeName, &'a Claimed)> {
        let claimed = |name: &'a NodeName| Some((name, self.seen.get(name)?.claims.get(&vip)?));
        let all = self.claimants.get(&vip).into_iter().flatten().filter_map(claimed);
        let known = all.filter(|(_, claim)| claim.epoch <= Lease::MAX_EPOCH);
        known.max_by(|(one, a), (other, b)| a.epoch.cmp(&b.epoch).then_with(|| other.cmp(one)))
    }

    /// Records the leader of a wanted VIP.
    pub(super) fn set_leader(&mut self, vip: Vip, leader: Option<&NodeName>) {
        if self.leaders.get(&vip) != leader {
            self.remove_leader(vip);
            if let Some(leader) = leader {
                *self.loads.entry(leader.clone()).or_default() += 1;
                self.leaders.insert(vip, leader.clone());
            }
        }
        if leader.is_some() {
            self.leaderless.remove(&vip)
        } else {
            self.leaderless.insert(vip)
        };
    }

    /// Forgets a VIP that is no longer wanted.
    pub(super) fn forget(&mut self, vip: Vip) {
        self.remove_leader(vip);
        self.leaderless.remove(&vip);
    }

    fn remove_leader(&mut self, vip: Vip) {
        let Some(leader) = self.leaders.remove(&vip) else { return };
        if let Some(load) = self.loads.get_mut(&leader) {
            *load -= 1;
            if *load == 0 {
                self.loads.remove(&leader);
            }
        }
    }
}
