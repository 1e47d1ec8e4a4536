//! Watches one kind of objects.

mod backoff;
mod duplicate_names;

use std::{
    error::Error,
    io,
    iter::successors,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream::BoxStream};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    runtime::watcher::{self, watcher},
};
use serde_json::Value;
use tokio::{select, sync::mpsc, time::sleep};

use self::{
    backoff::{absent_retry, with_backoff},
    duplicate_names::DuplicateNames,
};
use super::{
    Consumer,
    discovery::{Discovery, Presence},
    outage::{Outage, Retries},
    prune::prune,
};
use crate::{
    access::watch_config,
    rollback::{self, Rollbacks},
    watching::status,
};
use vipmux_model::objects::{
    Problem,
    object::{Identity, Kind, Object},
};

/// A watch that fails for the same reason is logged this often.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// An update from one of the watches.
#[derive(Debug)]
pub(super) struct WatchUpdate {
    /// The kind of the watch.
    pub(super) kind: Kind,
    /// The change.
    pub(super) change: ObjectChange,
}

#[derive(Debug)]
pub(super) enum ObjectChange {
    /// A list starts. Objects that are not in it are gone. None of it counts before it is complete.
    ListBegan,
    /// The object exists with this content, or cannot be used.
    Exists(Identity, Result<Object, Vec<Problem>>),
    /// The object was deleted, or is not selected any more.
    Gone(Identity),
    /// The list is complete.
    ListEnded,
}

/// The watch of one kind.
pub(super) struct KindWatch {
    client: Client,
    discovery: Discovery,
    kind: Kind,
    consumer: Consumer,
    events: mpsc::Sender<WatchUpdate>,
    rollbacks: Rollbacks,
    /// Lists are requested as a stream of events (Kubernetes 1.32 and later), which saves memory on
    /// both sides. That holds for the first list only: it may be of any age, and a later one must
    /// not be older than what was received.
    streaming: bool,
    /// Set for a kind whose objects are in namespaces although vipmux takes their names as
    /// cluster-wide.
    duplicate_names: Option<DuplicateNames>,
    retries: Retries,
    /// The failure that was logged last, and when.
    logged: Option<(String, Instant)>,
    /// The last log line says that the watch fails, or that the kind does not exist.
    failing: bool,
    /// The objects were listed once, or there are none.
    listed: bool,
}

type Events = BoxStream<'static, watcher::Result<watcher::Event<DynamicObject>>>;

impl KindWatch {
    /// Returns a watch that sends its updates to `events`.
    pub(super) fn new(
        client: Client,
        discovery: Discovery,
        kind: Kind,
        consumer: Consumer,
        events: mpsc::Sender<WatchUpdate>,
        rollbacks: Rollbacks,
        outage: Arc<Outage>,
    ) -> Self {
        let retries = Retries::new(outage);
        let client = with_backoff(client, retries.observer());
        let duplicate_names = kind.is_named_across_namespaces().then(DuplicateNames::default);
        Self {
            client,
            discovery,
            kind,
            consumer,
            events,
            rollbacks,
            streaming: true,
            duplicate_names,
            retries,
            logged: None,
            failing: false,
            listed: false,
        }
    }

    /// Runs until nobody listens. Cancel-safe.
    pub(super) async fn run(mut self) {
        let mut stream = self.watch();
        loop {
            let event = select! {
                event = stream.next() => event,
                () = rollback::next(&mut self.rollbacks) => {
                    stream = self.watch();
                    continue;
                }
            };
            let Some(event) = event else { return };
            let alive = match event {
                Ok(event) => self.handle(event).await,
                Err(error) if self.streaming && is_no_streaming(&error) => {
                    self.streaming = false;
                    stream = self.watch();
                    true
                }
                Err(error)
                    if self.kind.is_custom()
                        && status(&error) == Some(404)
                        && self.presence().await != Presence::Served =>
                {
                    self.retries.end();
                    let alive = self.await_presence().await;
                    // A kind that was created again has new objects, so it is listed again.
                    stream = self.watch();
                    alive
                }
                // The watcher continues where it was.
                Err(error) if is_silence(&error) => {
                    tracing::debug!(kind = self.kind.name(), "watch was silent for long, opening another connection");
                    true
                }
                Err(error) => {
                    if status(&error) == Some(410) {
                        // No failure: the watch was away for long. If the API server says so by the
                        // response's status, kube's watcher does not list again by itself.
                        tracing::debug!(kind = self.kind.name(), "watch is too old to continue, listing again");
                        stream = self.watch();
                    } else {
                        self.log_failure(&error);
                    }
                    self.retries.pause(status(&error)).await;
                    true
                }
            };
            if !alive {
                return;
            }
        }
    }

    fn watch(&self) -> Events {
        let config = match self.kind {
            // Headless Services are no load balancers, and their slices are as many as any.
            Kind::EndpointSlice => watch_config().labels("!service.kubernetes.io/headless"),
            Kind::Service => watch_config().fields("spec.type=LoadBalancer"),
            _ => watch_config(),
        };
        let config = if self.streaming { config.streaming_lists() } else { config };
        watcher(Api::all_with(self.client.clone(), &resource(self.kind)), config).boxed()
    }

    async fn handle(&mut self, event: watcher::Event<DynamicObject>) -> bool {
        // The start of a list is no success: it may break off each time.
        if !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
            self.retries.succeed();
            if std::mem::take(&mut self.failing) {
                tracing::info!(kind = self.kind.name(), "watching the API server again");
            }
        }
        let change = match event {
            watcher::Event::Init => {
                self.duplicate_names.iter_mut().for_each(DuplicateNames::clear);
                ObjectChange::ListBegan
            }
            watcher::Event::InitDone => {
                (self.streaming, self.listed) = (false, true);
                ObjectChange::ListEnded
            }
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                let object = match &mut self.duplicate_names {
                    Some(duplicate_names) => duplicate_names.put(object),
                    None => object,
                };
                let Some((identity, object)) = self.read(object) else { return true };
                ObjectChange::Exists(identity, object)
            }
            watcher::Event::Delete(object) => {
                if let Some(next) =
                    self.duplicate_names.as_mut().and_then(|duplicate_names| duplicate_names.remove(&object))
                {
                    let Some((identity, object)) = self.read(next) else { return true };
                    ObjectChange::Exists(identity, object)
                } else {
                    let Some(identity) = Identity::of(self.kind, &value(object)) else { return true };
                    ObjectChange::Gone(identity)
                }
            }
        };
        self.events.send(WatchUpdate { kind: self.kind, change }).await.is_ok()
    }

    fn read(&self, object: DynamicObject) -> Option<(Identity, Result<Object, Vec<Problem>>)> {
        let value = value(object);
        let identity = Identity::of(self.kind, &value)?;
        let object = match Object::decode(self.kind, value) {
            Ok((_, object)) => Ok(prune(object, self.consumer)),
            Err(flaws) => Err(flaws.into_iter().map(|flaw| Problem::of_object(&identity, flaw)).collect()),
        };
        Some((identity, object))
    }

    /// Returns whether the API server has the kind.
    async fn presence(&self) -> Presence {
        self.discovery.presence(&resource(self.kind)).await
    }

    /// Reports that the kind is not served, and waits until that may have changed. Returns whether the receiver
    /// is there.
    async fn await_presence(&mut self) -> bool {
        let presence = self.presence().await;
        let alive = match &presence {
            Presence::Served => return true,
            Presence::Absent => self.report_absent().await,
            Presence::OtherVersion(served) => self.report_other_version(served).await,
        };
        for check in 0_u32.. {
            if !alive {
                break;
            }
            sleep(absent_retry(check)).await;
            if self.presence().await != presence {
                break;
            }
        }
        alive
    }

    /// Reports that there are no objects, since the API server does not have the kind.
    async fn report_absent(&mut self) -> bool {
        if self.kind.is_own() && !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(kind = self.kind.name(), "API server does not have this kind, its CRD is not installed");
        }
        self.report_none().await
    }

    /// Reports that the kind's objects cannot be read. Those that were listed stay in force. At the start, all
    /// else must not wait for them.
    async fn report_other_version(&mut self, served: &str) -> bool {
        if !std::mem::replace(&mut self.failing, true) {
            let (kind, read) = (self.kind.name(), self.kind.api_version());
            tracing::warn!(
                kind,
                served,
                read,
                "API server has this kind in another version only, its last state stays in force"
            );
        }
        self.listed || self.report_none().await
    }

    async fn report_none(&mut self) -> bool {
        self.listed = true;
        for change in [ObjectChange::ListBegan, ObjectChange::ListEnded] {
            if self.events.send(WatchUpdate { kind: self.kind, change }).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Logs a failure once in a while.
    fn log_failure(&mut self, error: &watcher::Error) {
        // The first text is the same for a refused connection, an unknown name and a wrong
        // certificate. So the last one is added.
        let mut causes =
            successors(Some::<&(dyn Error + 'static)>(error), |error| Error::source(*error)).map(ToString::to_string);
        let (first, last) = (causes.next().unwrap_or_default(), causes.last());
        let text = match last.filter(|last| !first.contains(last.as_str())) {
            Some(last) => format!("{first}: {last}"),
            None => first,
        };
        let again = self.logged.as_ref().is_none_or(|(before, at)| *before != text || at.elapsed() > LOG_INTERVAL);
        if again {
            tracing::warn!(
                kind = self.kind.name(),
                error = text,
                "cannot watch the API server, the last state stays in force"
            );
            self.logged = Some((text, Instant::now()));
            self.failing = true;
        }
    }
}

/// Returns the object as JSON, without `apiVersion` and `kind`.
fn value(object: DynamicObject) -> Value {
    // It came as JSON, so it can be written as JSON.
    serde_json::to_value(object).unwrap_or_default()
}

fn resource(kind: Kind) -> ApiResource {
    let api_version = kind.api_version();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: api_version.to_owned(),
        kind: kind.name().to_owned(),
        plural: kind.plural().to_owned(),
    }
}

/// Returns whether the API server knows the kind, but not `sendInitialEvents`: its validation says
/// "Forbidden" then, which is 422.
fn is_no_streaming(error: &watcher::Error) -> bool {
    matches!(status(error), Some(400 | 422))
}

/// Returns whether a watch that began well fell silent. That is no fault where nothing happens: of
/// a kind that nobody has written since the API server started, it sends no bookmarks.
fn is_silence(error: &watcher::Error) -> bool {
    let watcher::Error::WatchFailed(error) = error else { return false };
    let mut causes = successors(Some::<&(dyn Error + 'static)>(error), |error| Error::source(*error));
    causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut))
}

#[cfg(test)]
mod tests;
