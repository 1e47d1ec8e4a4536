//! Tracks a drain: which VIPs this node gives up, to whom, and whether the agent stops afterwards.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::control::DrainProgress;
use vipmux_election::DRAIN_TIMEOUT;
use vipmux_model::{NodeName, Vip};

/// A drain that was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    /// The VIPs that this node led when the drain began.
    led: BTreeSet<Vip>,
    /// The time of the request to stop after the drain.
    stopping: Option<Instant>,
}

impl Drain {
    /// Begins a drain of these VIPs.
    pub(crate) fn new(led: BTreeSet<Vip>) -> Self {
        Self { led, stopping: None }
    }

    /// Notes that the agent is to stop. Returns whether that is new. A second call lets the agent
    /// stop at once.
    pub(crate) fn stop(&mut self, now: Instant) -> bool {
        if let Some(since) = &mut self.stopping {
            *since -= DRAIN_TIMEOUT;
            return false;
        }
        self.stopping = Some(now);
        true
    }

    /// Returns whether the agent stops after the drain.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Returns the time since the request to stop.
    pub(crate) fn stopping_for(&self) -> Option<Duration> {
        self.stopping.map(|since| since.elapsed())
    }

    /// Returns the progress. `held`: the VIPs that this node holds now. `has_other`: whether
    /// another node can lead a VIP.
    pub(crate) fn progress(
        &self,
        held: &BTreeSet<Vip>,
        has_other: impl Fn(Vip) -> bool,
        leader: impl Fn(Vip) -> Option<NodeName>,
    ) -> DrainProgress {
        let mut progress = DrainProgress { draining: true, ..DrainProgress::default() };
        for vip in held.iter().copied() {
            if has_other(vip) {
                progress.held.push(vip);
            } else {
                progress.kept.push((vip, "no other node can lead it now".to_owned()));
            }
        }
        let gone = self.led.difference(held);
        progress.handed = gone.filter_map(|vip| Some((*vip, leader(*vip)?))).collect();
        progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::names::{node_name, vip4};

    #[test]
    fn progress_tells_vips_that_went_from_those_that_wait_and_those_that_stay() {
        let drain = Drain::new([1, 2, 3, 4].map(vip4).into());
        let held = BTreeSet::from([vip4(1), vip4(2)]);
        // Nobody leads the fourth one any more.
        let leader = |led| (led == vip4(3)).then(|| node_name("n2"));
        let progress = drain.progress(&held, |held| held == vip4(1), leader);
        let expected = DrainProgress {
            draining: true,
            held: vec![vip4(1)],
            handed: vec![(vip4(3), node_name("n2"))],
            kept: vec![(vip4(2), "no other node can lead it now".to_owned())],
        };
        assert_eq!(progress, expected);
    }

    #[test]
    fn after_a_second_request_to_stop_the_agent_waits_no_longer() {
        let mut drain = Drain::new(BTreeSet::new());
        assert!(!drain.is_stopping() && drain.stopping_for().is_none());
        assert!(drain.stop(Instant::now()));
        assert!(drain.stopping_for().is_some_and(|waited| waited < DRAIN_TIMEOUT));
        assert!(!drain.stop(Instant::now()));
        assert!(drain.is_stopping() && drain.stopping_for().is_some_and(|waited| waited >= DRAIN_TIMEOUT));
    }
}
