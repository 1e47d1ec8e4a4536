//! Orders nodes for a VIP by weighted rendezvous (highest-random-weight) hashing, equally on every
//! node.
//!
//! The hashing is by Thaler and Ravishankar (1998), the weights by Schindelhauer and Schomaker
//! (2005).

use std::{cmp::Ordering, hash::Hasher};

use twox_hash::XxHash64;

use vipmux_model::{NodeName, Vip};

/// Returns the indices of the nodes that should lead a VIP first, at most `most`, best first. Nodes come
/// with their weights.
///
/// Each node's share of all VIPs is as large as its share of the weight. When a node goes, only the
/// VIPs that it led move. When a node comes or gains weight, VIPs move only to it.
pub fn first<'a>(vip: Vip, nodes: impl IntoIterator<Item = (&'a NodeName, u32)>, most: usize) -> Vec<usize> {
    let bid = |(name, weight): (&'a NodeName, u32)| Bid { hash: hash(vip, name), weight: weight.max(1), name };
    let mut bids: Vec<_> = nodes.into_iter().map(bid).enumerate().collect();
    let order = |(_, a): &(usize, Bid<'_>), (_, b): &(usize, Bid<'_>)| b.order(a);
    if bids.len() > most && most > 0 {
        bids.select_nth_unstable_by(most - 1, order);
    }
    bids.truncate(most);
    bids.sort_unstable_by(order);
    bids.into_iter().map(|(at, _)| at).collect()
}

/// A node's bid for a VIP.
struct Bid<'a> {
    hash: u64,
    weight: u32,
    name: &'a NodeName,
}

impl Bid<'_> {
    /// Compares by weight / -ln(hash / 2^64). Of equal bids the higher hash wins, then the first
    /// name. There are no fractions, since agents on different processors must agree to the last
    /// bit: a / b > c / d where a * d > c * b.
    fn order(&self, other: &Self) -> Ordering {
        if self.weight == other.weight {
            return self.order_by_hash(other);
        }
        let mine = u128::from(rarity(self.hash)) * u128::from(other.weight);
        let theirs = u128::from(rarity(other.hash)) * u128::from(self.weight);
        theirs.cmp(&mine).then_with(|| self.order_by_hash(other))
    }

    fn order_by_hash(&self, other: &Self) -> Ordering {
        self.hash.cmp(&other.hash).then_with(|| other.name.cmp(self.name))
    }
}

/// The number of bits of [`rarity`] behind the point.
const FRACTION: u32 = 56;

/// Returns -log2((hash + 1) / 2^64), rounded to [`FRACTION`] bits: how rarely a hash is as high as
/// this one. It never rises with the hash.
fn rarity(hash: u64) -> u64 {
    let Some(number) = hash.checked_add(1) else { return 0 };
    let whole = number.ilog2();
    // From 1 to 2, 63 bits behind the point. Squaring it doubles its logarithm, of which each carry
    // is the next bit.
    let mut mantissa = number << (63 - whole);
    let mut log = u64::from(whole);
    for _ in 0..FRACTION {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let carry = square >> 127;
        // Below 2^64: one bit is left in front of the point.
        mantissa = u64::try_from(square >> (63 + carry)).unwrap_or(u64::MAX);
        log = log << 1 | u64::try_from(carry).unwrap_or(1);
    }
    (64 << FRACTION) - log
}

/// Returns XxHash64, seed 0, of the VIP's 16 bytes (IPv4 in its mapped form) and the node's name.
/// Another hash would move nearly every VIP, and agents with different hashes disagree.
fn hash(vip: Vip, node: &NodeName) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    hasher.write(&vip.number().to_be_bytes());
    hasher.write(node.as_str().as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests;
