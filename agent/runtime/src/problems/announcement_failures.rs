//! Logs announcements that were not sent: one line for an interface, until they are sent again.
//!
//! When a carrier comes back, all VIPs are announced at once. The queue of the interface may be full for
//! some rounds (ENOBUFS), and each round has failures and successes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// An interface works again if it sends a frame this long after its last failure.
const QUIET: Duration = Duration::from_secs(10);

/// The interfaces that did not send announcements lately.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementFailures(BTreeMap<u32, Failures>);

/// The failures of one interface.
#[derive(Debug)]
struct Failures {
    frames: u64,
    last: Instant,
}

impl AnnouncementFailures {
    /// Notes a frame that was not sent. Returns whether to log it: it is the first one.
    pub(crate) fn failed(&mut self, ifindex: u32, now: Instant) -> bool {
        let is_first = !self.0.contains_key(&ifindex);
        let failures = self.0.entry(ifindex).or_insert(Failures { frames: 0, last: now });
        failures.frames += 1;
        failures.last = now;
        is_first
    }

    /// Notes a frame that was sent. Returns how many were not, if the interface works again.
    pub(crate) fn sent(&mut self, ifindex: u32, now: Instant) -> Option<u64> {
        let is_over = self.0.get(&ifindex).is_some_and(|failures| now >= failures.last + QUIET);
        is_over.then(|| self.0.remove(&ifindex)).flatten().map(|failures| failures.frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_failures_of_an_interface_the_first_is_logged_and_the_end() {
        let (mut failures, start) = (AnnouncementFailures::default(), Instant::now());
        let logged = (0..500).filter(|_| {
            assert_eq!(failures.sent(2, start), None, "rounds with failures have successes too");
            failures.failed(2, start)
        });
        assert_eq!(logged.count(), 1);
        assert!(failures.failed(3, start), "each interface has its own line");
        assert_eq!(failures.sent(2, start + QUIET / 2), None);
        assert_eq!((failures.sent(2, start + QUIET), failures.sent(2, start + QUIET)), (Some(500), None));
        assert!(failures.failed(2, start + QUIET), "the next flap is logged again");
    }
}
