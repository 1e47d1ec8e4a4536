//! The times at which the election looks at its VIPs again.

use std::time::Duration;

use super::timing::{EVALUATION_SPACING, EVALUATION_SPACING_PER_VIP};

/// The schedule of evaluations.
#[derive(Debug, Default)]
pub(super) struct EvaluationSchedule {
    /// Something changed that leadership depends on.
    pub(super) dirty: bool,
    /// The next time at which the passage of time alone may change something.
    pub(super) wake: Option<Duration>,
    evaluated: Duration,
}

impl EvaluationSchedule {
    /// Asks for an evaluation at `at` or before.
    pub(super) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Returns whether an evaluation is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.dirty || self.wake.is_some_and(|wake| wake <= now)
    }

    /// Begins an evaluation, unless the last one was too recently for so many VIPs without a
    /// leader. Then it is put off.
    pub(super) fn begin(&mut self, leaderless: usize, now: Duration) -> bool {
        let next = self.evaluated
            + EVALUATION_SPACING
            + EVALUATION_SPACING_PER_VIP * u32::try_from(leaderless).unwrap_or(u32::MAX);
        if now < next && self.evaluated > Duration::ZERO {
            self.wake = Some(next);
            return false;
        }
        (self.evaluated, self.dirty, self.wake) = (now, false, None);
        true
    }
}
