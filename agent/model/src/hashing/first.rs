//! Maglev tables (Eisenbud et al., *Maglev: A Fast and Reliable Software Network Load Balancer*, NSDI
//! 2016, section 3.4).
//!
//! In turn, each backend takes the next free slot in its own order. So all have the same share, to within
//! one slot. But one endpoint more moves seven times its share with a thousand endpoints, and nearly
//! everything where the length changes.

use twox_hash::XxHash64;

use super::Endpoint;

/// The lengths of tables: primes, ascending.
const LENGTHS: [u32; 5] = [251, 1021, 4093, 16_381, LONGEST];
pub(super) const LONGEST: u32 = 65_521;

/// The minimum number of slots per backend in a table, as long as there is a longer table.
const SLOTS_PER_BACKEND: usize = 20;

/// Returns the first of [`LENGTHS`] that is at least 20 times the number, or the last.
pub(super) fn length(backends: usize) -> u32 {
    let fits = |length: &u32| *length as usize >= backends.saturating_mul(SLOTS_PER_BACKEND);
    LENGTHS.into_iter().find(fits).unwrap_or(LONGEST)
}

/// The order in which one backend prefers the slots of a table.
struct SlotWalk {
    /// The slot that it wants next.
    slot: u32,
    /// The distance between two wanted slots. The length is prime, so every slot is reached.
    skip: u32,
}

impl SlotWalk {
    const OFFSET_SEED: u64 = 0;
    const SKIP_SEED: u64 = 1;

    fn new(endpoint: &Endpoint, length: u32) -> Self {
        let below = |seed, bound: u32| XxHash64::oneshot(seed, &endpoint.0) % u64::from(bound);
        let [slot, skip] = [below(Self::OFFSET_SEED, length), below(Self::SKIP_SEED, length - 1) + 1];
        #[expect(clippy::cast_possible_truncation, reason = "both are less than or equal to a bound of 32 bits")]
        Self { slot: slot as u32, skip: skip as u32 }
    }

    fn next(&mut self, length: u32) -> usize {
        let slot = self.slot;
        self.slot = (slot + self.skip) % length;
        slot as usize
    }
}

/// Returns the table of these backends, which are sorted.
pub(super) fn table(backends: &[(Endpoint, u32)]) -> Vec<u32> {
    let length = length(backends.len());
    let mut preferences: Vec<_> = backends.iter().map(|(endpoint, _)| SlotWalk::new(endpoint, length)).collect();
    let mut slots = vec![None; length as usize];
    let mut turns = (0..backends.len()).cycle();
    for _ in 0..length {
        let Some(turn) = turns.next() else { break };
        let free = loop {
            let slot = preferences[turn].next(length);
            if slots[slot].is_none() {
                break slot;
            }
        };
        slots[free] = Some(backends[turn].1);
    }
    slots.into_iter().flatten().collect()
}
