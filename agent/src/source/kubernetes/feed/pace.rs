//! How soon it is tried again.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use http::{Request, Uri};
use kube::{Client, client::Body};
use tokio::time::sleep;
use tower::service_fn;

/// Between attempts: the first one, doubled with each, and the longest; all of them with up to as much again, so that a
/// thousand agents do not come at once.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(8);
/// A watch that lived for so long has served its purpose, and the next one may come at once: whoever cuts them off more often
/// keeps us from hearing anything, and to wait longer would do the same.
const LASTED: Duration = Duration::from_secs(2);

/// How long to wait after so many failures.
pub(super) fn pause(failures: u32) -> Duration {
    let pause = (FIRST * 2_u32.saturating_pow(failures.min(16))).min(LONGEST);
    let mut jitter = [0; 1];
    // Without randomness they come at once, and the API server bears that.
    let _ = getrandom::fill(&mut jitter);
    pause + pause * u32::from(jitter[0]) / 256
}

/// The same client, where a watch that did not last long is asked for again after a while. A watch that ends is no error, and is
/// followed by the next one within kube's watcher: one that ends at once would be asked for all the time.
pub(super) fn paced(client: Client) -> Client {
    let pace = Arc::new(Mutex::new(Pace::default()));
    let namespace = client.default_namespace().to_owned();
    let send = move |request: Request<Body>| {
        let (client, pace) = (client.clone(), Arc::clone(&pace));
        async move {
            if is_watch(request.uri()) {
                let wait = pace.lock().unwrap_or_else(PoisonError::into_inner).wait(Instant::now());
                sleep(wait).await;
            }
            client.send(request).await
        }
    };
    Client::new(service_fn(send), namespace)
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// From the beginning of one watch to that of the next.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    /// How many in a row did not last.
    short: u32,
}

impl Pace {
    /// How long the next one has to wait, which is asked for now.
    fn wait(&mut self, now: Instant) -> Duration {
        let lasted = self.last.map(|last| now.saturating_duration_since(last));
        let wait = match lasted {
            Some(lasted) if lasted < LASTED => {
                let wait = pause(self.short).saturating_sub(lasted);
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
    use super::*;

    #[test]
    fn watches_that_end_at_once_come_less_and_less_often() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let mut now = begin;
        let mut count = 0;
        while now < begin + Duration::from_mins(1) {
            now += pace.wait(now);
            count += 1;
        }
        // Half a minute of doubling, if all of them take twice as long, and four or eight of the longest.
        assert!((8..=14).contains(&count), "{count}");
    }

    #[test]
    fn a_watch_that_lasted_is_followed_at_once() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.wait(now), Duration::ZERO);
        for _ in 0..10 {
            now += pace.wait(now);
        }
        now += LASTED;
        assert_eq!(pace.wait(now), Duration::ZERO);
        now += pace.wait(now);
        assert!(pace.wait(now) < FIRST * 4, "and begins from the start");
    }

    #[test]
    fn a_pause_is_bounded_and_is_never_short() {
        for failures in [0, 1, 5, 6, 100, u32::MAX] {
            let pause = pause(failures);
            assert!(pause >= FIRST && pause <= LONGEST * 2, "{failures}: {pause:?}");
        }
    }

    #[test]
    fn lists_are_no_watches() {
        assert!(is_watch(&"/api/v1/nodes?&watch=true&timeoutSeconds=290".parse().unwrap()));
        assert!(!is_watch(&"/api/v1/nodes?limit=500".parse().unwrap()));
    }
}
