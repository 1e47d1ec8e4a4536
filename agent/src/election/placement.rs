//! Who should lead which VIP: bounded-load weighted rendezvous hashing (Mirrokni, Thorup, Zadimoghaddam, 2018, on the hashing
//! of [`rendezvous`](super::rendezvous)).
//!
//! VIPs are placed in address order, each at the first node by rendezvous that leads less than its bound: its share of
//! what it is a contender for, rounded up, and one more. So no node leads much more than others, and a node that comes or
//! goes moves little.

use std::{collections::BTreeMap, sync::Arc};

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
pub type Contenders = Arc<[Contender]>;

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
        (vip, Arc::clone(shared))
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

/// Whom to place VIPs at: what is known of nodes at one moment.
pub struct Placement<'a> {
    vips: &'a BTreeMap<Vip, Contenders>,
    /// How a contender stands; `None`: it cannot lead now.
    standing: &'a dyn Fn(&Contender) -> Option<Reluctance>,
    /// Those of each pool who stand best, with their weights.
    pools: BTreeMap<*const Contender, Vec<&'a Contender>>,
    bounds: BTreeMap<&'a NodeName, u64>,
    loads: BTreeMap<&'a NodeName, u64>,
}

impl<'a> Placement<'a> {
    /// `held`: who leads what already.
    pub fn new(
        vips: &'a BTreeMap<Vip, Contenders>,
        standing: &'a dyn Fn(&Contender) -> Option<Reluctance>,
        held: impl IntoIterator<Item = &'a NodeName>,
    ) -> Self {
        let mut counts: BTreeMap<*const Contender, (&'a Contenders, u64)> = BTreeMap::new();
        for contenders in vips.values() {
            counts.entry(contenders.as_ptr()).or_insert((contenders, 0)).1 += 1;
        }
        let mut pools = BTreeMap::new();
        // In units of 2^-32 of a VIP.
        let mut shares: BTreeMap<&'a NodeName, u64> = BTreeMap::new();
        for (pool, (contenders, count)) in counts {
            let chosen = Self::best_of(contenders, standing);
            let total: u64 = chosen.iter().map(|contender| u64::from(contender.weight)).sum();
            for contender in &chosen {
                let share = (count << 32).saturating_mul(u64::from(contender.weight)) / total.max(1);
                let sum = shares.entry(&contender.node).or_default();
                *sum = sum.saturating_add(share);
            }
            pools.insert(pool, chosen);
        }
        // A share that is whole but for the roundings above is that, and no more.
        let rounded = |share: u64| share.saturating_sub(1 << 16).div_ceil(1 << 32);
        let bounds = shares.into_iter().map(|(node, share)| (node, rounded(share) + 1)).collect();
        let mut loads: BTreeMap<&'a NodeName, u64> = BTreeMap::new();
        for node in held {
            *loads.entry(node).or_default() += 1;
        }
        Self { vips, standing, pools, bounds, loads }
    }

    fn best_of(contenders: &'a [Contender], standing: &dyn Fn(&Contender) -> Option<Reluctance>) -> Vec<&'a Contender> {
        let Some(least) = contenders.iter().filter_map(standing).min() else { return Vec::new() };
        contenders.iter().filter(|contender| standing(contender) == Some(least)).collect()
    }

    /// Most VIPs that a node should lead.
    pub fn bound(&self, node: &NodeName) -> u64 {
        self.bounds.get(node).copied().unwrap_or_default()
    }

    /// Whether a node leads less than it should at most, or just that.
    pub fn has_room(&self, node: &NodeName) -> bool {
        self.loads.get(node).copied().unwrap_or_default() <= self.bound(node)
    }

    /// How those stand who stand best of those who can announce a VIP.
    pub fn best(&self, vip: Vip, able: impl Fn(&NodeName) -> bool) -> Option<Reluctance> {
        let contenders = self.vips.get(&vip)?;
        contenders.iter().filter(|contender| able(&contender.node)).filter_map(self.standing).min()
    }

    /// The node that a VIP should go to, which counts as led by it from now on. `turn`: how many that should have taken it before
    /// did not.
    pub fn place(&mut self, vip: Vip, turn: usize, able: impl Fn(&NodeName) -> bool) -> Option<&'a NodeName> {
        let contenders = self.vips.get(&vip)?;
        let best = self.pools.get(&contenders.as_ptr())?;
        let able = |contender: &&&Contender| able(&contender.node);
        let mut usable: Vec<&'a Contender> = best.iter().filter(able).copied().collect();
        if usable.is_empty() {
            // Those who stand best cannot announce this one.
            let next = |contender: &&Contender| able(&contender) && (self.standing)(contender).is_some();
            usable = contenders.iter().filter(next).collect();
            let least = usable.iter().filter_map(|contender| (self.standing)(contender)).min();
            usable.retain(|contender| (self.standing)(contender) == least);
        }
        let room = |node: &NodeName| self.loads.get(node).copied().unwrap_or_default() < self.bound(node);
        let bids = Bids::of(vip);
        let bid = |contender: &&'a Contender| -> (&'a NodeName, u32) { (&contender.node, contender.weight) };
        let chosen = if turn == 0 {
            let first = bids.best(usable.iter().map(bid));
            // Mostly the first one has room, and looking that up for each costs more than their bids.
            if first.is_some_and(room) {
                first
            } else {
                bids.best(usable.iter().map(bid).filter(|(node, _)| room(node))).or(first)
            }
        } else {
            bids.sort(&mut usable, |contender| (&contender.node, contender.weight));
            // Those with room first; the order among them stays.
            usable.sort_by_key(|contender| !room(&contender.node));
            (!usable.is_empty()).then(|| &usable[turn % usable.len()].node)
        };
        if let Some(node) = chosen {
            *self.loads.entry(node).or_default() += 1;
        }
        chosen
    }
}

#[allow(clippy::unnecessary_wraps, reason = "it stands in for what is known of living nodes")]
fn as_the_objects_say(contender: &Contender) -> Option<Reluctance> {
    Some(Reluctance { excluded: contender.excluded, leaving: contender.cordoned, unready: false })
}

/// Those who come first if all nodes could lead.
pub fn foremost(contenders: &[Contender]) -> Vec<&Contender> {
    Placement::best_of(contenders, &as_the_objects_say)
}

/// The node that should lead each VIP if all nodes could; `None`: there is none. What `vipmux plan` shows, and what comes
/// about where all agents start together.
pub fn leaders(vips: &BTreeMap<Vip, Contenders>) -> BTreeMap<Vip, Option<NodeName>> {
    let mut placement = Placement::new(vips, &as_the_objects_say, []);
    vips.keys().map(|vip| (*vip, placement.place(*vip, 0, |_| true).cloned())).collect()
}

#[cfg(test)]
mod tests;
