//! Random numbers that repeat with the seed.

use std::time::Duration;

use rand_core::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;

/// The source of all random numbers of a run.
#[derive(Debug)]
pub(super) struct Dice(XorShiftRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        // Seeds that are next to each other would give similar first numbers.
        let mut dice = Self(XorShiftRng::seed_from_u64(seed ^ 0x9e37_79b9_7f4a_7c15));
        (0..8).for_each(|_| {
            dice.number();
        });
        dice
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(u64::try_from(length).unwrap_or(1))).unwrap_or(0)
    }

    /// Returns true with this probability, in thousandths.
    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns a time between the two, in microseconds.
    pub(super) fn micros(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least + self.below(most.saturating_sub(least) + 1))
    }

    /// Returns a time between the two, in milliseconds.
    pub(super) fn millis(&mut self, least: u64, most: u64) -> Duration {
        self.micros(least * 1000, most * 1000)
    }

    /// Returns `count` of the numbers `0..of`, in no order.
    pub(super) fn some(&mut self, count: usize, of: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        (0..count.min(of)).map(|_| all.swap_remove(self.index(all.len()))).collect()
    }
}
