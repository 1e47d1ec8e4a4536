//! Delays retries of lists and watches.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use http::{Request, StatusCode, Uri};
use kube::{Client, client::Body};
use tokio::time::sleep;
use tower::service_fn;

use super::super::retry_delay::delay;

/// A watch that lived for this long is followed by the next one at once. If a proxy cuts off
/// watches more often, waiting longer would only delay updates more.
const HEALTHY_WATCH: Duration = Duration::from_secs(2);

/// The time between checks whether the API server has a missing kind by now,
const ABSENT_RETRY: Duration = Duration::from_secs(30);
/// and after this number of them: who installs something does it soon.
const SOON: u32 = 20;
const LATE_RETRY: Duration = Duration::from_mins(5);

/// Returns how long to wait after this many checks whether the API server has a missing kind by now.
pub(super) const fn absent_retry(checks: u32) -> Duration {
    if checks < SOON { ABSENT_RETRY } else { LATE_RETRY }
}

/// Returns a client that delays a watch if the one before did not last long, and that reports of each
/// response whether it begins a watch, and the status.
///
/// A watch that ends is no error, and kube's watcher requests the next one at once. Without the
/// delay, a watch that ends at once would be requested all the time.
pub(super) fn with_backoff(client: Client, answered: impl Fn(bool, StatusCode) + Clone + Send + 'static) -> Client {
    let backoff = Arc::new(Mutex::new(WatchBackoff::default()));
    let namespace = client.default_namespace().to_owned();
    let send = move |request: Request<Body>| {
        let (client, backoff, answered) = (client.clone(), Arc::clone(&backoff), answered.clone());
        async move {
            let is_watch = is_watch(request.uri());
            if is_watch {
                let wait = backoff.lock().unwrap_or_else(PoisonError::into_inner).wait(Instant::now());
                sleep(wait).await;
            }
            let response = client.send(request).await?;
            answered(is_watch, response.status());
            Ok::<_, kube::Error>(response)
        }
    };
    Client::new(service_fn(send), namespace)
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// The time from the start of one watch to that of the next.
#[derive(Debug, Default)]
struct WatchBackoff {
    last: Option<Instant>,
    /// The number of short watches in a row.
    short: u32,
}

impl WatchBackoff {
    /// Returns how long the watch that is requested at `now` has to wait.
    fn wait(&mut self, now: Instant) -> Duration {
        let lasted = self.last.map(|last| now.saturating_duration_since(last));
        let wait = match lasted {
            Some(lasted) if lasted < HEALTHY_WATCH => {
                let wait = delay(self.short).saturating_sub(lasted);
                self.short += 1;
                wait
            }
            _ => {
                self.short = 0;
                Duration::ZERO
            }
        };
        self.last = Some(now + wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::retry_delay::MIN_DELAY, *};

    #[test]
    fn watches_that_end_at_once_come_less_and_less_often() {
        let (mut backoff, begin) = (WatchBackoff::default(), Instant::now());
        let mut now = begin;
        let mut count = 0;
        while now < begin + Duration::from_mins(1) {
            now += backoff.wait(now);
            count += 1;
        }
        // Half a minute of doubling, if all of them take twice as long, and four or eight of the
        // longest.
        assert!((8..=14).contains(&count), "{count}");
    }

    #[test]
    fn a_watch_that_lasted_is_followed_at_once() {
        let (mut backoff, mut now) = (WatchBackoff::default(), Instant::now());
        assert_eq!(backoff.wait(now), Duration::ZERO);
        for _ in 0..10 {
            now += backoff.wait(now);
        }
        now += HEALTHY_WATCH;
        assert_eq!(backoff.wait(now), Duration::ZERO);
        now += backoff.wait(now);
        assert!(backoff.wait(now) < MIN_DELAY * 4, "and begins from the start");
    }

    #[test]
    fn missing_kinds_are_looked_for_less_often_after_a_while_as_the_page_says() {
        let waited: Duration = (0..SOON).map(absent_retry).sum();
        assert_eq!((waited, absent_retry(SOON)), (Duration::from_mins(10), LATE_RETRY));
        let words = format!(
            "every {} s in the first ten minutes, and then every {} minutes",
            ABSENT_RETRY.as_secs(),
            LATE_RETRY.as_secs() / 60
        );
        vipmux_testing::pages::assert_says(vipmux_testing::pages::CLUSTER, &words);
    }

    #[test]
    fn lists_are_no_watches() {
        assert!(is_watch(&"/api/v1/nodes?&watch=true&timeoutSeconds=290".parse().unwrap()));
        assert!(!is_watch(&"/api/v1/nodes?limit=500".parse().unwrap()));
    }
}
