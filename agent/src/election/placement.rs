//! Who should lead which VIP: bounded-load weighted rendezvous hashing (Mirrokni, Thorup, Zadimoghaddam, 2018, on the hashing
//! of [`rendezvous`](super::rendezvous)).
//!
//! VIPs are placed in address order, each at the first node by rendezvous that leads less than its bound: its share of
//! what it is a contender for, rounded up, and one more. So no node leads much more than others, and a node that comes or
//! goes moves little.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use super::rendezvous::Bids;
use crate::model::{Model, NodeName, Vip, advertisement::Candidates, node::Node};

/// A node that may lead some VIPs, as far as the cluster's objects say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// The node.
    pub node: NodeName,
    /// How much more it should lead than others; at least 1.
    pub weight: u32,
    /// The label keeps it out of leading, unless no other node is left.
    pub excluded: bool,
    /// It is cordoned: it comes last.
    pub cordoned: bool,
}

/// The contenders for VIPs of one pool, by name; shared, since there are few pools and many VIPs.
#[derive(Clone, Debug)]
pub struct Contenders(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    contenders: Box<[Contender]>,
    /// Those whose bids are the highest, of the VIPs that were asked about; they are the same whoever is there.
    first: Mutex<BTreeMap<Vip, Arc<[usize]>>>,
}

/// So many of the highest bids are remembered: seldom do all of those go at once, or lead as much as they should.
const FIRST: usize = 16;

impl Contenders {
    /// Where those are whose bids are the highest, best first.
    fn first(&self, vip: Vip) -> Arc<[usize]> {
        let mut known = self.0.first.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.entry(vip).or_insert_with(|| {
            let bids = self.iter().map(|contender| (&contender.node, contender.weight));
            Bids::of(vip).first(bids, FIRST).into()
        });
        Arc::clone(first)
    }

    /// The same for all that share it, and of no others that live.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl Deref for Contenders {
    type Target = [Contender];

    fn deref(&self) -> &[Contender] {
        &self.0.contenders
    }
}

impl PartialEq for Contenders {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl Eq for Contenders {}

impl FromIterator<Contender> for Contenders {
    fn from_iter<I: IntoIterator<Item = Contender>>(contenders: I) -> Self {
        let contenders = contenders.into_iter().collect();
        Self(Arc::new(Pool { contenders, first: Mutex::default() }))
    }
}

/// Those who may lead what `candidates` may, but for nodes whose network is unavailable.
pub fn contenders(nodes: &BTreeMap<NodeName, Node>, candidates: &Candidates) -> Contenders {
    let known = candidates.iter().filter_map(|(name, candidate)| Some((nodes.get(name)?, candidate.weight)));
    let reachable = known.filter(|(node, _)| !node.network_unavailable);
    reachable
        .map(|(node, weight)| Contender {
            node: node.name.clone(),
            weight: weight.max(1),
            excluded: node.excluded,
            cordoned: node.cordoned,
        })
        .collect()
}

/// The contenders for each of these VIPs.
pub fn contenders_of(model: &Model, vips: impl IntoIterator<Item = Vip>) -> BTreeMap<Vip, Contenders> {
    let mut by_pool = BTreeMap::new();
    let of = |vip| {
        let pool = model.pool_of(vip);
        let shared = by_pool.entry(pool).or_insert_with(|| contenders(&model.nodes, model.advertisements.of(pool)));
        (vip, shared.clone())
    };
    vips.into_iter().map(of).collect()
}

/// How a node stands now; the less, the better. Excluded nodes lead only where no other may, cordoned and draining ones
/// come last, and one that has just come waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reluctance {
    /// Excluded by label.
    pub excluded: bool,
    /// Cordoned, or draining.
    pub leaving: bool,
    /// Its hold-down is not over.
    pub unready: bool,
}

impl Reluctance {
    /// Whether one who stands so is to have what another leads that stands like this. For being ready alone nothing is moved.
    pub(super) fn precedes(self, other: Self) -> bool {
        (self.excluded, self.leaving) < (other.excluded, other.leaving)
    }
}

/// How all contenders stand, and what that makes of their shares.
#[derive(Debug)]
pub struct Standings {
    /// By [`Contenders::id`].
    pools: BTreeMap<usize, Best>,
    bounds: BTreeMap<NodeName, u64>,
}

/// Those of a pool who stand best.
#[derive(Debug)]
struct Best {
    /// How they stand; `None`: there is none.
    least: Option<Reluctance>,
    /// Whether each contender is one of them.
    are: Vec<bool>,
}

impl Best {
    fn of(contenders: &[Contender], standing: &dyn Fn(&Contender) -> Option<Reluctance>) -> Self {
        let all: Vec<_> = contenders.iter().map(standing).collect();
        let least = all.iter().flatten().min().copied();
        Self { least, are: all.into_iter().map(|standing| standing.is_some() && standing == least).collect() }
    }
}

impl Standings {
    /// Those for VIPs with these contenders. `standing`: how one stands; `None`: it cannot lead now.
    pub fn new<'a>(
        vips: impl IntoIterator<Item = &'a Contenders>,
        standing: &dyn Fn(&Contender) -> Option<Reluctance>,
    ) -> Self {
        let mut counts: BTreeMap<usize, (&'a Contenders, u64)> = BTreeMap::new();
        for contenders in vips {
            counts.entry(contenders.id()).or_insert((contenders, 0)).1 += 1;
        }
        let mut pools = BTreeMap::new();
        // In units of 2^-32 of a VIP.
        let mut shares: BTreeMap<&'a NodeName, u64> = BTreeMap::new();
        for (pool, (contenders, count)) in counts {
            let best = Best::of(contenders, standing);
            let chosen = || contenders.iter().zip(&best.are).filter(|(_, is)| **is).map(|(contender, _)| contender);
            let total: u64 = chosen().map(|contender| u64::from(contender.weight)).sum();
            for contender in chosen() {
                let share = (count << 32).saturating_mul(u64::from(contender.weight)) / total.max(1);
                let sum = shares.entry(&contender.node).or_default();
                *sum = sum.saturating_add(share);
            }
            pools.insert(pool, best);
        }
        // A share that is whole but for the roundings above is that, and no more.
        let rounded = |share: u64| share.saturating_sub(1 << 16).div_ceil(1 << 32);
        let bounds = shares.into_iter().map(|(node, share)| (node.clone(), rounded(share) + 1)).collect();
        Self { pools, bounds }
    }

    /// Most VIPs that a node should lead.
    pub fn bound(&self, node: &NodeName) -> u64 {
        self.bounds.get(node).copied().unwrap_or_default()
    }
}

/// Whom to place VIPs at: what is known of nodes at one moment.
pub struct Placement<'a> {
    vips: &'a BTreeMap<Vip, Contenders>,
    standing: &'a dyn Fn(&Contender) -> Option<Reluctance>,
    standings: &'a Standings,
    /// What each node leads already,
    loads: &'a BTreeMap<NodeName, u64>,
    /// and what was placed at it beside.
    placed: BTreeMap<&'a NodeName, u64>,
}

impl<'a> Placement<'a> {
    /// `standings` are those of `vips` by `standing`.
    pub const fn new(
        vips: &'a BTreeMap<Vip, Contenders>,
        standing: &'a dyn Fn(&Contender) -> Option<Reluctance>,
        standings: &'a Standings,
        loads: &'a BTreeMap<NodeName, u64>,
    ) -> Self {
        Self { vips, standing, standings, loads, placed: BTreeMap::new() }
    }

    /// The node leads so many more.
    pub fn add(&mut self, node: &'a NodeName, more: u64) {
        *self.placed.entry(node).or_default() += more;
    }

    fn load(&self, node: &NodeName) -> u64 {
        let of = |loads: Option<&u64>| loads.copied().unwrap_or_default();
        of(self.loads.get(node)) + of(self.placed.get(node))
    }

    /// Whether a node leads less than it should at most, or just that.
    pub fn has_room(&self, node: &NodeName) -> bool {
        self.load(node) <= self.standings.bound(node)
    }

    /// How those stand who stand best of those who can announce a VIP.
    pub fn best(&self, vip: Vip, able: impl Fn(&NodeName) -> bool) -> Option<Reluctance> {
        let contenders = self.vips.get(&vip)?;
        let best = self.standings.pools.get(&contenders.id())?;
        if contenders.iter().zip(&best.are).any(|(contender, is)| *is && able(&contender.node)) {
            return best.least;
        }
        contenders.iter().filter(|contender| able(&contender.node)).filter_map(self.standing).min()
    }

    /// The node that a VIP should go to, which counts as led by it from now on. `turn`: how many that should have taken it before
    /// did not.
    pub fn place(&mut self, vip: Vip, turn: usize, able: impl Fn(&NodeName) -> bool) -> Option<&'a NodeName> {
        let contenders = self.vips.get(&vip)?;
        let best = self.standings.pools.get(&contenders.id())?;
        let room = |node: &NodeName| self.load(node) < self.standings.bound(node);
        let first = contenders.first(vip);
        let fits = |at: &&usize| best.are[**at] && able(&contenders[**at].node) && room(&contenders[**at].node);
        let chosen = match first.iter().filter(fits).nth(turn) {
            Some(at) => Some(&contenders[*at].node),
            None => self.place_among_all(contenders, best, vip, turn, able),
        };
        if let Some(node) = chosen {
            self.add(node, 1);
        }
        chosen
    }

    /// [`Self::place`], where those who come first do not come into question.
    fn place_among_all(
        &self,
        contenders: &'a [Contender],
        best: &Best,
        vip: Vip,
        turn: usize,
        able: impl Fn(&NodeName) -> bool,
    ) -> Option<&'a NodeName> {
        let able = |contender: &&Contender| able(&contender.node);
        let mut usable: Vec<&'a Contender> = contenders
            .iter()
            .zip(&best.are)
            .filter(|(_, is)| **is)
            .map(|(contender, _)| contender)
            .filter(able)
            .collect();
        if usable.is_empty() {
            // Those who stand best cannot announce this one.
            let next = |contender: &&Contender| able(contender) && (self.standing)(contender).is_some();
            usable = contenders.iter().filter(next).collect();
            let least = usable.iter().filter_map(|contender| (self.standing)(contender)).min();
            usable.retain(|contender| (self.standing)(contender) == least);
        }
        let bids = Bids::of(vip);
        bids.sort(&mut usable, |contender| (&contender.node, contender.weight));
        // Those with room first; the order among them stays.
        usable.sort_by_key(|contender| self.load(&contender.node) >= self.standings.bound(&contender.node));
        (!usable.is_empty()).then(|| &usable[turn % usable.len()].node)
    }
}

#[allow(clippy::unnecessary_wraps, reason = "it stands in for what is known of living nodes")]
fn as_the_objects_say(contender: &Contender) -> Option<Reluctance> {
    Some(Reluctance { excluded: contender.excluded, leaving: contender.cordoned, unready: false })
}

/// Those who come first if all nodes could lead.
pub fn foremost(contenders: &[Contender]) -> Vec<&Contender> {
    let best = Best::of(contenders, &as_the_objects_say);
    contenders.iter().zip(best.are).filter(|(_, is)| *is).map(|(contender, _)| contender).collect()
}

/// The node that should lead each VIP if all nodes could; `None`: there is none. What `vipmux plan` shows, and what comes
/// about where all agents start together.
pub fn leaders(vips: &BTreeMap<Vip, Contenders>) -> BTreeMap<Vip, Option<NodeName>> {
    let (standings, loads) = (Standings::new(vips.values(), &as_the_objects_say), BTreeMap::new());
    let mut placement = Placement::new(vips, &as_the_objects_say, &standings, &loads);
    vips.keys().map(|vip| (*vip, placement.place(*vip, 0, |_| true).cloned())).collect()
}

#[cfg(test)]
mod tests;
