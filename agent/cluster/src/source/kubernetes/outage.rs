//! Finds the end of an outage of the API server, for all watches of a process together.
//!
//! While the API server does not answer, one of the watches tries it every second or two: the *prober*.
//! The others wait longer and longer, and follow as soon as anything is answered. So a process asks
//! as seldom as with watches that are on their own, and goes on within three seconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::{
    select,
    sync::{Mutex, OwnedMutexGuard, watch},
    time::sleep,
};

use super::retry_delay::delay;
use crate::access::with_jitter;

/// The prober tries this often, up to twice as long.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The others follow within this time, up to twice as long: an API server that comes back is busy.
const FOLLOWING: Duration = Duration::from_millis(250);

/// What the watches know together.
#[derive(Debug)]
pub(super) struct Outage {
    /// A watch failed without an answer, and nothing was answered since.
    lost: AtomicBool,
    /// The number of outages that ended.
    ended: watch::Sender<u64>,
    prober: Arc<Mutex<()>>,
}

impl Outage {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { lost: AtomicBool::new(false), ended: watch::Sender::new(0), prober: Arc::default() })
    }

    /// Notes that the API server answered something.
    pub(super) fn answered(&self) {
        if self.lost.swap(false, Ordering::Relaxed) {
            self.ended.send_modify(|ended| *ended += 1);
        }
    }
}

/// When one watch tries again.
pub(super) struct Retries {
    outage: Arc<Outage>,
    ended: watch::Receiver<u64>,
    /// Failures since the last success.
    failures: u32,
    /// There was a success since the last failure.
    succeeded: Arc<AtomicBool>,
    /// The last request was not answered.
    unanswered: bool,
    /// Held by the prober.
    probes: Option<OwnedMutexGuard<()>>,
}

impl Retries {
    pub(super) fn new(outage: Arc<Outage>) -> Self {
        let ended = outage.ended.subscribe();
        Self { outage, ended, failures: 0, succeeded: Arc::default(), unanswered: false, probes: None }
    }

    /// Returns what must be called with each response: whether it begins a watch, and its status.
    pub(super) fn observer(&self) -> impl Fn(bool, StatusCode) + Clone + Send + 'static {
        let (outage, succeeded) = (Arc::clone(&self.outage), Arc::clone(&self.succeeded));
        // The first page of a list is no success: the rest may fail each time.
        move |is_watch, status| {
            if is_watch && status.is_success() {
                succeeded.store(true, Ordering::Relaxed);
            }
            if !is_away(Some(status.as_u16())) {
                outage.answered();
            }
        }
    }

    /// Notes a success.
    pub(super) fn succeed(&self) {
        self.succeeded.store(true, Ordering::Relaxed);
    }

    /// Notes that this watch is answered, or asks no more for long: another one may become the prober.
    pub(super) fn end(&mut self) {
        (self.failures, self.unanswered, self.probes) = (0, false, None);
        self.ended.mark_unchanged();
    }

    /// Waits after a failure with this status of the response, if there was one. Cancel-safe.
    pub(super) async fn pause(&mut self, status: Option<u16>) {
        let answers = !is_away(status);
        // An API server that has just started refuses what it allows soon after.
        if self.succeeded.swap(false, Ordering::Relaxed) || answers && self.unanswered {
            self.end();
        }
        let delay = delay(self.failures);
        self.failures = self.failures.saturating_add(1);
        if answers {
            sleep(delay).await;
        } else if self.await_end(delay).await {
            self.failures = 0;
        }
    }

    /// Waits for the end of the outage, at most for `delay`. Returns whether it is over.
    async fn await_end(&mut self, delay: Duration) -> bool {
        self.outage.lost.store(true, Ordering::Relaxed);
        self.unanswered = true;
        if self.probes.is_none() {
            self.probes = Arc::clone(&self.outage.prober).try_lock_owned().ok();
        }
        let delay = if self.probes.is_some() { delay.min(with_jitter(PROBE_INTERVAL)) } else { delay };
        select! {
            () = sleep(delay) => false,
            Ok(()) = self.ended.changed() => {
                sleep(with_jitter(FOLLOWING)).await;
                true
            }
        }
    }
}

/// Returns whether a response with this status, or none, says that there is no API server now: a proxy says
/// 502 or 504, and an API server that starts or ends 503. A failure with 500 may be one of the kind alone.
fn is_away(status: Option<u16>) -> bool {
    matches!(status, None | Some(502..=504))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use vipmux_testing::pages::{CLUSTER, assert_says};

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn one_watch_probes_and_the_others_follow_when_anything_is_answered() {
        let outage = Outage::new();
        let (mut prober, mut other) = (Retries::new(Arc::clone(&outage)), Retries::new(Arc::clone(&outage)));
        for _ in 0..10 {
            let begin = Instant::now();
            assert!(!prober.await_end(LONG).await);
            assert!((PROBE_INTERVAL..=PROBE_INTERVAL * 2).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        }
        assert!(!prober.await_end(Duration::from_millis(10)).await, "the first attempts are quick");
        let begin = Instant::now();
        let ((), is_over) = tokio::join!(
            async {
                sleep(PROBE_INTERVAL * 10).await;
                outage.answered();
            },
            other.await_end(LONG)
        );
        assert!(is_over);
        assert!(begin.elapsed() <= PROBE_INTERVAL * 10 + FOLLOWING * 2, "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_a_watch_begins_or_an_api_server_that_was_away_refuses_something() {
        let mut retries = Retries::new(Outage::new());
        let observe = retries.observer();
        // The first page of a list changes nothing.
        for status in [None, Some(500), Some(429), Some(500)] {
            observe(false, StatusCode::OK);
            retries.pause(status).await;
        }
        assert_eq!(retries.failures, 3, "what is refused after no answer begins anew");
        observe(true, StatusCode::OK);
        retries.pause(Some(500)).await;
        assert_eq!(retries.failures, 1);
    }

    #[test]
    fn the_page_has_the_times_of_the_code() {
        let (least, most) = (PROBE_INTERVAL.as_secs(), (PROBE_INTERVAL * 2).as_secs());
        assert_says(CLUSTER, &format!("one watch of a process tries every {least} to {most} s"));
        assert_eq!(FOLLOWING * 2, Duration::from_millis(500));
        assert_says(CLUSTER, "the others follow within half a second");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_outage_is_no_end_of_the_next_one() {
        let outage = Outage::new();
        let (mut prober, mut other) = (Retries::new(Arc::clone(&outage)), Retries::new(Arc::clone(&outage)));
        assert!(!prober.await_end(LONG).await);
        outage.answered();
        prober.end();
        other.end();
        assert!(!other.await_end(LONG).await);
        assert!(other.probes.is_some(), "another one probes now");
        outage.answered();
        outage.answered();
        assert_eq!(*outage.ended.borrow(), 2);
    }
}
