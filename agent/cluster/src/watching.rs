//! Follows the objects of one API by watches, one after the other.

use std::{fmt::Debug, time::Duration};

use futures_util::{
    StreamExt as _,
    stream::{BoxStream, unfold},
};
use http::StatusCode;
use kube::{
    Api, Resource,
    runtime::watcher::{self, Config, Event, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{select, time::sleep};

use crate::{
    access::with_jitter,
    rollback::{self, Rollbacks},
};

/// The shortest pause after a failure and the longest. It doubles with each failure.
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Returns the events, and failures of which each one is followed by a longer pause. After a rollback, and
/// where the API server does not have the version to continue from, all objects are listed again.
///
/// kube's own back-off starts anew with each list, also if all of them fail.
pub fn follow<K>(api: Api<K>, config: Config, rollbacks: Rollbacks) -> BoxStream<'static, watcher::Result<Event<K>>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let start = move || watcher(api.clone(), config.clone()).boxed();
    let state = (start(), rollbacks, Failures::default());
    let next = move |(mut events, mut rollbacks, mut failures): (BoxStream<'static, _>, _, Failures)| {
        let start = start.clone();
        async move {
            sleep(failures.pause()).await;
            let event = loop {
                select! {
                    event = events.next() => break event?,
                    () = rollback::next(&mut rollbacks) => events = start(),
                }
            };
            failures.note(&event);
            if event.as_ref().is_err_and(|error| status(error) == Some(StatusCode::GONE.as_u16())) {
                events = start();
            }
            Some((event, (events, rollbacks, failures)))
        }
    };
    unfold(state, next).boxed()
}

/// The failures since the last success.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    /// The last event was one.
    last: bool,
}

impl Failures {
    fn note<K>(&mut self, event: &watcher::Result<Event<K>>) {
        self.last = event.is_err();
        match event {
            Err(_) => self.count += 1,
            // The start of a list is no success: it may break off each time.
            Ok(Event::Init | Event::InitApply(_)) => {}
            Ok(_) => self.count = 0,
        }
    }

    /// Returns how long to wait before the next event.
    fn pause(&self) -> Duration {
        if !self.last {
            return Duration::ZERO;
        }
        let doublings = self.count.saturating_sub(1).min(16);
        with_jitter((MIN_PAUSE * 2_u32.saturating_pow(doublings)).min(MAX_PAUSE))
    }
}

/// Returns the status with which the API server refused a list or watch.
pub(crate) fn status(error: &watcher::Error) -> Option<u16> {
    let of = |error: &kube::Error| match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    };
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => of(error),
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::NoResourceVersion => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_list_is_whole() {
        let mut failures = Failures::default();
        assert_eq!(failures.pause(), Duration::ZERO);
        let mut before = Duration::ZERO;
        for _ in 0..6 {
            failures.note::<()>(&Err(watcher::Error::NoResourceVersion));
            let pause = failures.pause();
            assert!(pause >= before.min(MAX_PAUSE / 2) && pause <= MAX_PAUSE * 2, "{pause:?}");
            before = pause / 2;
            failures.note::<()>(&Ok(Event::Init));
            assert_eq!(failures.pause(), Duration::ZERO, "a list begins at once");
        }
        failures.note::<()>(&Err(watcher::Error::NoResourceVersion));
        assert!(failures.pause() >= MAX_PAUSE);
        failures.note::<()>(&Ok(Event::InitDone));
        failures.note::<()>(&Err(watcher::Error::NoResourceVersion));
        assert!(failures.pause() < MIN_PAUSE * 2, "and then they begin anew");
    }
}
