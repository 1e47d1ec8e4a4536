//! Places VIPs at nodes, by bounded-load weighted rendezvous hashing.
//!
//! The bounds follow Mirrokni, Thorup, Zadimoghaddam (2018), on the hashing of
//! [`rendezvous`].
//!
//! VIPs are placed in address order. Each goes to the first node by rendezvous that leads less than
//! its bound. The bound is the node's share of the VIPs that it is a candidate for, rounded up, and
//! one more. So no node leads much more than others, and a node that comes or goes moves few VIPs.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use super::rendezvous;
use vipmux_model::{Model, NodeName, Vip, advertisement::EligibleNodes, node::Node};

/// A candidate for some VIPs, as far as the cluster's objects say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// The node.
    pub node: NodeName,
    /// Its weight: how much more it should lead than others; at least 1.
    pub weight: u32,
    /// Its score: of candidates that are equal otherwise, those with the highest one lead.
    pub score: u32,
    /// A label excludes it from leading, unless no other node is left.
    pub excluded: bool,
    /// It is cordoned, so it comes last.
    pub cordoned: bool,
}

/// The candidates for VIPs of one pool, by name. They are shared, since there are few pools and
/// many VIPs. Comparing the allocations is a shortcut.
#[derive(Clone, Debug)]
pub struct Candidates(Arc<CandidatePool>);

#[derive(Debug)]
struct CandidatePool {
    list: Vec<Candidate>,
    /// The candidates with the highest bids, for VIPs that were asked about. They do not depend on
    /// which nodes are alive.
    first: Mutex<BTreeMap<Vip, Arc<[usize]>>>,
}

/// The number of highest bids that are remembered. Seldom are all of these nodes gone, or at their
/// bound.
const FIRST: usize = 16;

impl Candidates {
    /// Returns the indices of the candidates with the highest bids, best first.
    fn first(&self, vip: Vip) -> Arc<[usize]> {
        let mut known = self.0.first.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.entry(vip).or_insert_with(|| {
            let bids = self.iter().map(|candidate| (&candidate.node, candidate.weight));
            rendezvous::first(vip, bids, FIRST).into()
        });
        Arc::clone(first)
    }

    /// Returns a number that no other list has while this one exists. Clones have one number.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl Deref for Candidates {
    type Target = [Candidate];

    fn deref(&self) -> &[Candidate] {
        &self.0.list
    }
}

impl PartialEq for Candidates {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.list == other.0.list
    }
}

impl Eq for Candidates {}

impl FromIterator<Candidate> for Candidates {
    fn from_iter<I: IntoIterator<Item = Candidate>>(candidates: I) -> Self {
        let list = candidates.into_iter().collect();
        Self(Arc::new(CandidatePool { list, first: Mutex::default() }))
    }
}

/// Returns the candidates among `eligible`, without nodes whose network is unavailable.
pub fn candidates(nodes: &BTreeMap<NodeName, Node>, eligible: &EligibleNodes) -> Candidates {
    let known = eligible.iter().filter_map(|(name, node)| Some((nodes.get(name)?, node)));
    let reachable = known.filter(|(node, _)| !node.network_unavailable);
    reachable
        .map(|(node, eligible)| Candidate {
            node: node.name.clone(),
            weight: eligible.weight.max(1),
            score: eligible.score,
            excluded: node.excluded,
            cordoned: node.cordoned,
        })
        .collect()
}

/// Returns the candidates for each of these VIPs. Pools with equal candidates share one list.
pub fn candidates_of(model: &Model, vips: impl IntoIterator<Item = Vip>) -> BTreeMap<Vip, Candidates> {
    let (mut by_pool, mut by_list) = (BTreeMap::new(), BTreeMap::new());
    let of = |vip| {
        let pool = model.pool_of(vip);
        let shared = by_pool.entry(pool).or_insert_with(|| {
            let list = candidates(&model.nodes, model.advertisements.of(pool));
            by_list.entry(list.to_vec()).or_insert(list).clone()
        });
        (vip, shared.clone())
    };
    vips.into_iter().map(of).collect()
}

/// How far a node is ready to lead; the least value is the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// Its hold-down is over.
    #[default]
    Ready,
    /// Its deadline passes again and again.
    Unstable,
    /// Its hold-down is not over, or its state is not known yet.
    HoldDown,
}

/// The preference for a node now; the least value is the best. Excluded nodes lead only where no
/// other node may. Cordoned and draining nodes come last. A node that has just come waits, and comes
/// after unstable ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference {
    /// Excluded by label.
    pub excluded: bool,
    /// Cordoned, or draining.
    pub leaving: bool,
    /// How far it is ready.
    pub readiness: Readiness,
    /// Its score; a higher one is better.
    pub score: Reverse<u32>,
}

impl Preference {
    /// Returns whether a node like this should get a VIP of a node like `other`. No VIP moves to a node in its
    /// hold-down for a score, or because the other one is unstable.
    pub(super) fn precedes(self, other: Self) -> bool {
        let is_ready = self.readiness == Readiness::Ready;
        let unstable = |of: Self| is_ready && of.readiness == Readiness::Unstable;
        let score = |of: Self| if is_ready { of.score } else { Reverse(0) };
        let rank = |of: Self| (of.excluded, of.leaving, unstable(of), score(of));
        rank(self) < rank(other)
    }
}

/// The preferences for all candidates, and the bounds that follow from them.
#[derive(Debug)]
pub struct Preferences {
    /// The pools by [`Candidates::id`], with one flag for each candidate: it has the best preference of them.
    pools: BTreeMap<usize, (Candidates, Vec<bool>)>,
    bounds: BTreeMap<NodeName, u64>,
}

/// Returns of each candidate whether it has the best preference of them.
fn are_best(candidates: &[Candidate], preference: &dyn Fn(&Candidate) -> Option<Preference>) -> Vec<bool> {
    let all: Vec<_> = candidates.iter().map(preference).collect();
    let best = all.iter().flatten().min();
    all.iter().map(|preference| best.is_some() && preference.as_ref() == best).collect()
}

impl Preferences {
    /// Computes the preferences for VIPs with these candidates. `preference` returns `None` for a
    /// node that cannot lead now.
    pub fn new<'a>(
        vips: impl IntoIterator<Item = &'a Candidates>,
        preference: &dyn Fn(&Candidate) -> Option<Preference>,
    ) -> Self {
        let mut counts: BTreeMap<usize, (&'a Candidates, u64)> = BTreeMap::new();
        for candidates in vips {
            counts.entry(candidates.id()).or_insert((candidates, 0)).1 += 1;
        }
        let mut pools = BTreeMap::new();
        // In units of 2^-32 of a VIP.
        let mut shares: BTreeMap<&'a NodeName, u64> = BTreeMap::new();
        for (id, (candidates, count)) in counts {
            let best = are_best(candidates, preference);
            let chosen = || candidates.iter().zip(&best).filter(|(_, is)| **is).map(|(candidate, _)| candidate);
            let total: u64 = chosen().map(|candidate| u64::from(candidate.weight)).sum();
            for candidate in chosen() {
                let share = (count << 32).saturating_mul(u64::from(candidate.weight)) / total.max(1);
                let sum = shares.entry(&candidate.node).or_default();
                *sum = sum.saturating_add(share);
            }
            pools.insert(id, (candidates.clone(), best));
        }
        // A share that is whole but for the roundings above is not rounded up.
        let rounded = |share: u64| share.saturating_sub(1 << 16).div_ceil(1 << 32);
        let bounds = shares.into_iter().map(|(node, share)| (node.clone(), rounded(share) + 1)).collect();
        Self { pools, bounds }
    }

    /// Returns the most VIPs that a node should lead.
    pub fn bound(&self, node: &NodeName) -> u64 {
        self.bounds.get(node).copied().unwrap_or_default()
    }
}

/// A placement of VIPs, by the view of all nodes at one moment.
pub struct LeaderPlacement<'a> {
    vips: &'a BTreeMap<Vip, Candidates>,
    preference: &'a dyn Fn(&Candidate) -> Option<Preference>,
    preferences: &'a Preferences,
    /// The VIPs that each node leads already,
    loads: &'a BTreeMap<NodeName, u64>,
    /// and those that this placement adds.
    placed: BTreeMap<&'a NodeName, u64>,
}

impl<'a> LeaderPlacement<'a> {
    /// Begins a placement. `preferences` must be those of `vips` by `preference`.
    pub const fn new(
        vips: &'a BTreeMap<Vip, Candidates>,
        preference: &'a dyn Fn(&Candidate) -> Option<Preference>,
        preferences: &'a Preferences,
        loads: &'a BTreeMap<NodeName, u64>,
    ) -> Self {
        Self { vips, preference, preferences, loads, placed: BTreeMap::new() }
    }

    /// Counts `more` VIPs as led by the node.
    pub fn add(&mut self, node: &'a NodeName, more: u64) {
        *self.placed.entry(node).or_default() += more;
    }

    fn load(&self, node: &NodeName) -> u64 {
        let of = |loads: Option<&u64>| loads.copied().unwrap_or_default();
        of(self.loads.get(node)) + of(self.placed.get(node))
    }

    /// Returns whether a node leads no more than its bound.
    pub fn has_room(&self, node: &NodeName) -> bool {
        self.load(node) <= self.preferences.bound(node)
    }

    /// Returns the best preference among the candidates that can announce a VIP.
    pub fn best(&self, vip: Vip, able: impl Fn(&NodeName) -> bool) -> Option<Preference> {
        let candidates = self.vips.get(&vip)?;
        let (_, best) = self.preferences.pools.get(&candidates.id())?;
        if let Some((best, _)) = candidates.iter().zip(best).find(|(candidate, is)| **is && able(&candidate.node)) {
            return (self.preference)(best);
        }
        candidates.iter().filter(|candidate| able(&candidate.node)).filter_map(self.preference).min()
    }

    /// Returns the node that should take a VIP, and counts the VIP as led by it. `turn`: the number
    /// of nodes that should have taken it before, and did not.
    pub fn place(&mut self, vip: Vip, turn: usize, able: impl Fn(&NodeName) -> bool) -> Option<&'a NodeName> {
        let candidates = self.vips.get(&vip)?;
        let (_, best) = self.preferences.pools.get(&candidates.id())?;
        let room = |node: &NodeName| self.load(node) < self.preferences.bound(node);
        let first = candidates.first(vip);
        let fits = |at: &&usize| best[**at] && able(&candidates[**at].node) && room(&candidates[**at].node);
        let chosen = match first.iter().filter(fits).nth(turn) {
            Some(at) => Some(&candidates[*at].node),
            None => self.place_among_all(candidates, vip, turn, able),
        };
        if let Some(node) = chosen {
            self.add(node, 1);
        }
        chosen
    }

    /// Places a VIP as [`Self::place`] does, if none of the first candidates can take it. Those with a
    /// worse preference have their turns after the best ones, but none that are excluded, or leave.
    fn place_among_all(
        &self,
        candidates: &'a [Candidate],
        vip: Vip,
        turn: usize,
        able: impl Fn(&NodeName) -> bool,
    ) -> Option<&'a NodeName> {
        let able = candidates.iter().filter(|candidate| able(&candidate.node));
        let mut usable: Vec<(Preference, &'a Candidate)> =
            able.filter_map(|candidate| Some(((self.preference)(candidate)?, candidate))).collect();
        let least = usable.iter().map(|(preference, _)| (preference.excluded, preference.leaving)).min();
        usable.retain(|(preference, _)| Some((preference.excluded, preference.leaving)) == least);
        let bids = usable.iter().map(|(_, candidate)| (&candidate.node, candidate.weight));
        let order = rendezvous::first(vip, bids, usable.len());
        let mut usable: Vec<_> = order.into_iter().map(|at| usable[at]).collect();
        // Candidates with room come first. The order among them stays.
        let has_no_room = |node: &NodeName| self.load(node) >= self.preferences.bound(node);
        usable.sort_by_key(|(preference, candidate)| (*preference, has_no_room(&candidate.node)));
        (!usable.is_empty()).then(|| &usable[turn % usable.len()].1.node)
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the signature of a preference for living nodes")]
fn as_the_objects_say(candidate: &Candidate) -> Option<Preference> {
    let Candidate { excluded, cordoned, score, .. } = *candidate;
    Some(Preference { excluded, leaving: cordoned, readiness: Readiness::Ready, score: Reverse(score) })
}

/// Returns the candidates with the best preference if all nodes could lead.
pub fn foremost(candidates: &[Candidate]) -> Vec<&Candidate> {
    let best = are_best(candidates, &as_the_objects_say);
    candidates.iter().zip(best).filter(|(_, is)| *is).map(|(candidate, _)| candidate).collect()
}

/// Returns the node that should lead each VIP if all nodes could; `None`: there is none. `vipmux
/// plan` shows this. It also comes about where all agents start together.
pub fn leaders(vips: &BTreeMap<Vip, Candidates>) -> BTreeMap<Vip, Option<NodeName>> {
    let (preferences, loads) = (Preferences::new(vips.values(), &as_the_objects_say), BTreeMap::new());
    let mut placement = LeaderPlacement::new(vips, &as_the_objects_say, &preferences, &loads);
    vips.keys().map(|vip| (*vip, placement.place(*vip, 0, |_| true).cloned())).collect()
}

#[cfg(test)]
mod tests;
