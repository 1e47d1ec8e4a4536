//! Tables that differ little when an endpoint comes or goes.
//!
//! As in Maglev, each backend has its own order of the slots, a walk. In each round, each backend asks for
//! the next slot of its walk, and gets it if it is free. Unlike in Maglev, a backend whose slot is taken
//! waits for the next round. So a change of one backend does not delay the walks of the others, which would
//! change all that follows. (In other words: it is the stable matching of slots and backends, by the round in
//! which they meet.)
//!
//! Chance alone would give some backends twice their share. So a backend stops at its highest number of
//! slots. Before that, all get their lowest number. Both leave room: without it, each slot that a backend
//! loses would pass a long chain of other backends.
//!
//! Each length is twice the one before. A longer table is at first the shorter one with each slot doubled, as
//! a *pair* of slots: all walks are parts of one walk in the longest table. With each further endpoint, some
//! more of the pairs are split, and the odd slot of a split pair has its own place in the walks.

use twox_hash::XxHash64;

use super::Endpoint;

/// The most backends for each length but the longest. So each has 19 slots or more, as long as there is a longer
/// table, and no table is longer than that of the first hashing.
const MOST_BACKENDS: [u32; 8] = [12, 25, 51, 102, 204, 409, 819, 1638];
const SHORTEST: u32 = 250;
pub(super) const LONGEST: u32 = SHORTEST << MOST_BACKENDS.len();

/// Returns the length of the table of so many backends.
pub(super) fn length(backends: usize) -> u32 {
    SHORTEST << doublings(backends)
}

fn doublings(backends: usize) -> usize {
    MOST_BACKENDS.partition_point(|most| (*most as usize) < backends)
}

/// Returns the table of these backends, which are sorted: [`LONGEST`] at most.
pub(super) fn table(backends: &[(Endpoint, u32)]) -> Vec<u32> {
    let layout = Layout::new(backends.len());
    let length = layout.length;
    let mut walks: Vec<_> = backends.iter().map(|(endpoint, value)| (Walk::new(endpoint, length), *value)).collect();
    // Walks with equal first rounds keep the order of their endpoints.
    walks.sort_by_key(|(walk, _)| walk.first_round);
    let mut slots = Slots { owners: vec![None; length as usize], free: length };
    let mut shares = vec![0; walks.len()];
    // Only if chance rounds nearly all limits down, there is something left for the last turn.
    for limit in [Limit::Lowest, Limit::Highest, Limit::None] {
        slots.fill(&layout, &walks, &mut shares, limit);
    }
    slots.owners.into_iter().flatten().collect()
}

/// The order in which one backend asks for slots: a part of its walk in the longest table, in which it
/// visits slot `start`, then `start + skip`, and so on. A shorter table has the even slots of the next longer
/// one, which the walk visits every second time.
struct Walk {
    /// The round of the longest table in which it visits the first slot of this table.
    first_round: u32,
    start: u32,
    /// It has no factor in common with the lengths, so every slot is reached.
    skip: u32,
    /// Rounds the backend's limits up or down, in parts of 65,536.
    rounding: u64,
    /// When the backend's limits become exact, in parts of 65,536.
    precision: u64,
}

impl Walk {
    fn new(endpoint: &Endpoint, length: u32) -> Self {
        let [start, skip, rounding, precision] = quarters(XxHash64::oneshot(2, &endpoint.0));
        let below = |quarter: u16, bound: u32| (u32::from(quarter) * bound) >> 16;
        // The ends of the numbers without a factor in common with [`LONGEST`], which is a multiple of 10.
        let (tens, end) = (below(skip, LONGEST / 10), usize::from(skip % 4));
        let (mut start, skip) = (below(start, LONGEST), 10 * tens + [1, 3, 7, 9][end]);
        let (mut first_round, mut stride, mut size) = (0, 1, LONGEST);
        while size > length {
            if start % 2 == 1 {
                start = (start + skip) % size;
                first_round += stride;
            }
            (start, stride, size) = (start / 2, stride * 2, size / 2);
        }
        let [rounding, precision] = [rounding, precision].map(u64::from);
        Self { first_round, start, skip: skip % length, rounding, precision }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the quarters of the hash")]
fn quarters(hash: u64) -> [u16; 4] {
    [hash as u16, (hash >> 16) as u16, (hash >> 32) as u16, (hash >> 48) as u16]
}

/// The number of slots that a backend may have.
#[derive(Clone, Copy)]
enum Limit {
    Lowest,
    Highest,
    None,
}

/// What the number of backends decides.
struct Layout {
    backends: u32,
    length: u32,
    /// Pairs whose slots have different places in the walks.
    split: u32,
}

impl Layout {
    fn new(backends: usize) -> Self {
        let (doublings, length) = (doublings(backends), length(backends));
        let backends = u32::try_from(backends).unwrap_or(u32::MAX);
        // A length begins with nearly all pairs in one piece, and ends with all of them split. Each endpoint
        // splits about the same share of what one endpoint has: this is nearly the logarithm.
        let split = match doublings.checked_sub(1).map(|former| MOST_BACKENDS[former]) {
            None => length / 2,
            Some(former) => {
                let most = MOST_BACKENDS.get(doublings).copied().unwrap_or(2 * former);
                let (at, all) = (u64::from(backends.min(most) - former), u64::from(most - former));
                u32::try_from(u64::from(length) * at * (4 * all - at) / (6 * all * all)).unwrap_or(length / 2)
            }
        };
        Self { backends, length, split }
    }

    /// Returns whether the pair of this number is split. They are split evenly over the table: a multiple of the
    /// golden ratio, without its whole part, is below a bound.
    fn is_split(&self, pair: u32) -> bool {
        u64::from(pair.wrapping_mul(0x9e37_79b1)) * u64::from(self.length / 2) < u64::from(self.split) << 32
    }

    /// The more backends there are, the longer the chains are, and the more room they need: up to two fifths
    /// of a share upwards, and seven tenths downwards. Of that, 20 backends have a half.
    fn limit(&self, limit: Limit, walk: &Walk) -> u32 {
        let (backends, length) = (u64::from(self.backends), u64::from(self.length));
        let dividend = match limit {
            Limit::Lowest => 3 * backends + 200,
            Limit::Highest => 14 * backends + 200,
            Limit::None => return u32::MAX,
        };
        // In parts of 65,536 of a slot.
        let share = (length << 16) * dividend / (backends * (10 * backends + 200));
        let is_exact = walk.precision * (length / 2) < u64::from(self.split) << 16;
        let unit = if is_exact { 1 } else { 2 };
        let slots = ((share + walk.rounding * unit) >> 16) / unit * unit;
        u32::try_from(slots).unwrap_or(u32::MAX).max(1)
    }
}

struct Slots {
    owners: Vec<Option<u32>>,
    free: u32,
}

/// A backend that asks for slots.
struct Asking {
    index: usize,
    value: u32,
    slot: u32,
    skip: u32,
    /// The number of slots that it still asks for.
    wanted: u32,
}

impl Slots {
    /// Gives free slots to the backends, until all have their limit.
    fn fill(&mut self, layout: &Layout, walks: &[(Walk, u32)], shares: &mut [u32], limit: Limit) {
        let asking = walks.iter().zip(&*shares).enumerate().map(|(index, ((walk, value), share))| {
            let wanted = layout.limit(limit, walk).saturating_sub(*share);
            Asking { index, value: *value, slot: walk.start, skip: walk.skip, wanted }
        });
        let mut asking: Vec<_> = asking.filter(|asking| asking.wanted > 0).collect();
        for _ in 0..layout.length {
            if self.free == 0 {
                return;
            }
            asking.retain_mut(|asking| {
                for slot in visited(layout, asking.slot) {
                    if asking.wanted > 0 && self.take(slot, asking.value) {
                        asking.wanted -= 1;
                        shares[asking.index] += 1;
                    }
                }
                asking.slot = (asking.slot + asking.skip) % layout.length;
                asking.wanted > 0
            });
        }
    }

    fn take(&mut self, slot: u32, value: u32) -> bool {
        let owner = &mut self.owners[slot as usize];
        if owner.is_some() {
            return false;
        }
        *owner = Some(value);
        self.free -= 1;
        true
    }
}

/// Returns the slots that a walk gets to at this one: this one, or both of a pair in one piece at the even one.
fn visited(layout: &Layout, slot: u32) -> std::ops::Range<u32> {
    let is_even = slot.is_multiple_of(2);
    match (layout.is_split(slot / 2), is_even) {
        (true, _) => slot..slot + 1,
        (false, true) => slot..slot + 2,
        (false, false) => slot..slot,
    }
}
