//! Compares the last quarter of the samples with the second one.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::Sample;

/// Private memory may grow by this part. Its pages are those of the C library's heap, which returns
/// free pages late and keeps some of them half full. A leak of one KiB per cycle is more than that
/// after an hour.
const MEMORY_PERCENT: u64 = 5;
/// Below so many samples the quarters are too short to compare memory and what fluctuates.
const LEAST_FOR_MOVING: usize = 12;

/// A value at two times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The value's name.
    pub what: String,
    /// The earlier median.
    pub before: u64,
    /// The later median.
    pub after: u64,
}

impl Change {
    /// Returns the medians of everything that one of these groups of samples has.
    pub(super) fn all<S: Borrow<Sample>>(
        earlier: &[S],
        later: &[S],
        of: impl Fn(&Sample) -> &BTreeMap<String, u64>,
    ) -> Vec<Self> {
        let names: BTreeSet<_> = earlier.iter().chain(later).flat_map(|sample| of(sample.borrow()).keys()).collect();
        let median = |samples: &[S], name: &str| {
            let value = |sample: &S| of(sample.borrow()).get(name).copied().unwrap_or(0);
            let mut values: Vec<_> = samples.iter().map(value).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        let change =
            |name: &String| Self { what: name.clone(), before: median(earlier, name), after: median(later, name) };
        names.into_iter().map(change).collect()
    }

    pub(super) fn differs(&self) -> bool {
        self.before != self.after
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.what, self.before, self.after)
    }
}

impl Sample {
    /// Returns the counts that differ from those of another sample.
    pub fn differences(&self, other: &Self) -> Vec<Change> {
        Change::all(&[other], &[self], |sample| &sample.counts).into_iter().filter(Change::differs).collect()
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Memory, in KiB.
    pub memory: Vec<Change>,
    /// Everything that is not as it was: counts that differ, and what fluctuates or is memory and
    /// has grown too much.
    pub not_flat: Vec<Change>,
}

impl Verdict {
    /// Compares samples that were taken in this order, at least two.
    pub fn of(samples: &[Sample]) -> Self {
        let quarter = samples.len() / 4;
        let earlier = &samples[quarter..(samples.len() / 2).max(quarter + 1)];
        let later = &samples[samples.len() - quarter.max(1)..];
        let memory = Change::all(earlier, later, |sample| &sample.memory);
        let mut not_flat = Change::all(earlier, later, |sample| &sample.counts);
        not_flat.retain(Change::differs);
        if samples.len() >= LEAST_FOR_MOVING {
            let most = |what: &String| earlier.iter().filter_map(|sample| sample.fluctuating.get(what)).max().copied();
            let fluctuating = Change::all(earlier, later, |sample| &sample.fluctuating);
            not_flat.extend(fluctuating.into_iter().filter(|change| Some(change.after) > most(&change.what)));
            let too_much = |change: &&Change| change.after * 100 > change.before * (100 + MEMORY_PERCENT);
            not_flat.extend(memory.iter().filter(too_much).cloned());
        }
        Self { memory, not_flat }
    }

    /// Returns whether everything stayed as it was.
    pub fn flat(&self) -> bool {
        self.not_flat.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = (u64, u64)>) -> Vec<Sample> {
        let sample = |(memory, count)| Sample {
            memory: [("agent".to_owned(), memory)].into(),
            counts: [("descriptors".to_owned(), count)].into(),
            ..Sample::default()
        };
        values.into_iter().map(sample).collect()
    }

    #[test]
    fn the_same_state_is_flat_whatever_single_samples_say() {
        let noisy = (0..40).map(|n| (10_000 + n % 3 * 100, if n % 7 == 0 { 31 } else { 30 }));
        assert!(Verdict::of(&samples(noisy)).flat());
        assert!(Verdict::of(&samples([(9, 30), (90, 30)])).flat(), "two samples say nothing about memory");
    }

    #[test]
    fn one_descriptor_more_is_found() {
        let leaking = Verdict::of(&samples((0..40).map(|n| (10_000, 30 + n / 30))));
        assert_eq!(leaking.not_flat.iter().map(Change::to_string).collect::<Vec<_>>(), ["descriptors: 30 -> 31"]);
        assert!(!Verdict::of(&samples([(1, 30), (1, 31)])).flat());
        assert!(!Verdict::of(&samples([(1, 30), (1, 30), (1, 29)])).flat());
    }

    #[test]
    fn memory_that_grows_all_the_time_is_found() {
        let leaking = Verdict::of(&samples((0..40).map(|n| (10_000 + n * 50, 30))));
        assert_eq!(leaking.not_flat.len(), 1, "{leaking:?}");
        assert!(Verdict::of(&samples((0..40).map(|n| (10_000 + n * 10, 30)))).flat());
    }

    #[test]
    fn what_fluctuates_may_do_so_within_its_bounds() {
        let fluctuating = |connections: fn(u64) -> u64| {
            let sample =
                |n| Sample { fluctuating: [("connections".to_owned(), connections(n))].into(), ..Sample::default() };
            Verdict::of(&(0..40).map(sample).collect::<Vec<_>>())
        };
        assert!(fluctuating(|n| 20 + n % 5).flat());
        assert!(!fluctuating(|n| 20 + n % 5 + n / 5).flat());
    }

    #[test]
    fn what_is_new_counts_as_grown() {
        let mut grown = samples([(1, 30); 8]);
        grown.iter_mut().skip(6).for_each(|sample| {
            sample.counts.insert("Leases".to_owned(), 1);
        });
        assert_eq!(Verdict::of(&grown).not_flat.len(), 1);
    }
}
