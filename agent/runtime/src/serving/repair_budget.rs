//! Limits how often the agent repairs what another component may change back each time. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Repairs of one thing within [`WINDOW`].
const MOST: usize = 5;
const WINDOW: Duration = Duration::from_hours(1);

/// The repairs of each thing within the last hour.
#[derive(Clone, Debug)]
pub(crate) struct RepairBudget<K>(BTreeMap<K, Vec<Instant>>);

impl<K> Default for RepairBudget<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> RepairBudget<K> {
    /// Takes a repair from the budget, if there is one left.
    pub(crate) fn take(&mut self, thing: K, now: Instant) -> bool {
        let recent = self.0.entry(thing).or_default();
        recent.retain(|at| now.duration_since(*at) < WINDOW);
        let is_left = recent.len() < MOST;
        if is_left {
            recent.push(now);
        }
        is_left
    }

    /// Returns whether there is a repair left.
    pub(crate) fn has(&self, thing: &K, now: Instant) -> bool {
        let recent = self.0.get(thing).into_iter().flatten();
        recent.filter(|at| now.duration_since(**at) < WINDOW).count() < MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contest_ends_after_five_repairs_and_goes_on_an_hour_later() {
        let (mut budget, start) = (RepairBudget::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!((0..5).all(|check| budget.has(&2, at(30 * check)) && budget.take(2, at(30 * check))));
        assert!(!budget.has(&2, at(150)) && !budget.take(2, at(150)) && !budget.take(2, at(3_599)));
        assert!(budget.has(&3, at(150)) && budget.take(3, at(150)), "each has its own");
        assert!(budget.has(&2, at(3_600)) && budget.take(2, at(3_600)) && !budget.take(2, at(3_601)));
    }
}
