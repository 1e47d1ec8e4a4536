//! Repeatable random decisions.

/// A splitmix64 generator (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
/// 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns true in `percent` of a hundred cases.
    pub(super) fn percent(&mut self, percent: u8) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % 100 < u64::from(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_is_a_third_and_all_is_all() {
        let mut random = Random::new(1);
        let mut count = |percent| (0..10_000).filter(|_| random.percent(percent)).count();
        assert_eq!((count(0), count(100)), (0, 10_000));
        assert!((2_800..3_200).contains(&count(30)));
    }
}
