//! One kind's watch.

mod namesakes;
mod pace;

use std::{
    error::Error,
    io,
    iter::successors,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream::BoxStream};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    runtime::watcher::{self, Config, watcher},
};
use serde_json::Value;
use tokio::{sync::mpsc, time::sleep};

use self::{
    namesakes::Namesakes,
    pace::{paced, pause},
};
use super::{Audience, trim::trimmed};
use crate::source::{
    Problem,
    object::{Identity, Kind, Object},
};

/// How often it is looked whether the API server has a kind by now that it did not have.
const ABSENT: Duration = Duration::from_secs(30);
/// How often a watch that fails for the same reason is told.
const TELL_AGAIN: Duration = Duration::from_mins(1);

/// What one of the watches told.
#[derive(Debug)]
pub(super) struct Event {
    /// Of which kind.
    pub(super) kind: Kind,
    /// What.
    pub(super) told: Told,
}

#[derive(Debug)]
pub(super) enum Told {
    /// All objects follow; those that do not are gone.
    Begun,
    /// It is like this, or cannot be understood.
    There(Identity, Result<Object, Vec<Problem>>),
    /// It was deleted, or is not selected any more.
    Gone(Identity),
    /// All objects were told.
    Done,
}

/// Follows one kind.
pub(super) struct Feed {
    client: Client,
    kind: Kind,
    audience: Audience,
    events: mpsc::Sender<Event>,
    /// Whether lists are asked for as a stream of events (Kubernetes 1.32 and later), which spares both sides memory. The first
    /// one alone is: it may be of any age, and a later one must not be older than what was heard.
    streaming: bool,
    /// Of a kind whose names are the cluster's though its objects are in namespaces.
    namesakes: Option<Namesakes>,
    /// The failures since it last went well.
    failures: u32,
    /// What was told of a failure, and when.
    told: Option<(String, Instant)>,
    /// What was told last is that it fails, or that there is no such kind.
    failing: bool,
}

type Events = BoxStream<'static, watcher::Result<watcher::Event<DynamicObject>>>;

impl Feed {
    /// Passes on what it hears to `events`.
    pub(super) fn new(client: Client, kind: Kind, audience: Audience, events: mpsc::Sender<Event>) -> Self {
        let client = paced(client);
        let namesakes = kind.is_named_across_namespaces().then(Namesakes::default);
        Self { client, kind, audience, events, streaming: true, namesakes, failures: 0, told: None, failing: false }
    }

    /// Runs until nobody listens. Cancel-safe.
    pub(super) async fn run(mut self) {
        let mut stream = self.watch();
        while let Some(heard) = stream.next().await {
            let alive = match heard {
                Ok(event) => self.pass(event).await,
                Err(error) if self.streaming && is_no_streaming(&error) => {
                    self.streaming = false;
                    stream = self.watch();
                    true
                }
                Err(error) if self.kind.is_custom() && status(&error) == Some(404) && self.is_absent().await => {
                    let alive = self.absent().await;
                    sleep(ABSENT).await;
                    // Objects of a kind that was made again are others.
                    stream = self.watch();
                    alive
                }
                // The watcher goes on from where it was.
                Err(error) if is_silence(&error) => {
                    tracing::debug!(
                        kind = self.kind.name(),
                        "nothing was heard for long: following by another connection"
                    );
                    true
                }
                Err(error) => {
                    if status(&error) == Some(410) {
                        // Nothing to complain of: it was away for long. The watcher itself does not list anew where the API
                        // server says it by the answer's status.
                        tracing::debug!(
                            kind = self.kind.name(),
                            "too old to be followed from there: all is listed anew"
                        );
                        stream = self.watch();
                    } else {
                        self.complain(&error);
                    }
                    sleep(pause(self.failures)).await;
                    self.failures += 1;
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
            // Headless Services are no load balancers, and have as many slices as anybody.
            Kind::EndpointSlice => Config::default().labels("!service.kubernetes.io/headless"),
            Kind::Service => Config::default().fields("spec.type=LoadBalancer"),
            _ => Config::default(),
        };
        let config = if self.streaming { config.streaming_lists() } else { config };
        watcher(Api::all_with(self.client.clone(), &resource(self.kind)), config).boxed()
    }

    async fn pass(&mut self, event: watcher::Event<DynamicObject>) -> bool {
        // That a list begins says nothing: it may break off each time.
        if !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
            self.failures = 0;
            if std::mem::take(&mut self.failing) {
                tracing::info!(kind = self.kind.name(), "the API server is followed again");
            }
        }
        let told = match event {
            watcher::Event::Init => {
                self.namesakes.iter_mut().for_each(Namesakes::clear);
                Told::Begun
            }
            watcher::Event::InitDone => {
                self.streaming = false;
                Told::Done
            }
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                let object = match &mut self.namesakes {
                    Some(namesakes) => namesakes.put(object),
                    None => object,
                };
                let Some((identity, object)) = self.read(object) else { return true };
                Told::There(identity, object)
            }
            watcher::Event::Delete(object) => {
                if let Some(next) = self.namesakes.as_mut().and_then(|namesakes| namesakes.remove(&object)) {
                    let Some((identity, object)) = self.read(next) else { return true };
                    Told::There(identity, object)
                } else {
                    let Some(identity) = Identity::of(self.kind, &value(object)) else { return true };
                    Told::Gone(identity)
                }
            }
        };
        self.events.send(Event { kind: self.kind, told }).await.is_ok()
    }

    fn read(&self, object: DynamicObject) -> Option<(Identity, Result<Object, Vec<Problem>>)> {
        let value = value(object);
        let identity = Identity::of(self.kind, &value)?;
        let object = match Object::decode(self.kind, value) {
            Ok((_, object)) => Ok(trimmed(object, self.audience)),
            Err(flaws) => Err(flaws.into_iter().map(|flaw| Problem::of_object(&identity, flaw)).collect()),
        };
        Some((identity, object))
    }

    /// Whether the API server says that it does not have the kind. Anything between may answer 404.
    async fn is_absent(&self) -> bool {
        let ApiResource { group, version, api_version, plural, .. } = resource(self.kind);
        let Ok(groups) = self.client.list_api_groups().await else { return false };
        let Some(found) = groups.groups.iter().find(|found| found.name == group) else { return true };
        if found.versions.iter().all(|served| served.version != version) {
            return true;
        }
        let served = self.client.list_api_group_resources(&api_version).await;
        served.is_ok_and(|list| list.resources.iter().all(|resource| resource.name != plural))
    }

    /// The API server has no such kind: then there are no objects of it.
    async fn absent(&mut self) -> bool {
        if self.kind.is_own() && !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(kind = self.kind.name(), "the API server does not have this kind: its CRD is not installed");
        }
        for told in [Told::Begun, Told::Done] {
            if self.events.send(Event { kind: self.kind, told }).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Tells a failure once in a while.
    fn complain(&mut self, error: &watcher::Error) {
        // What is said first is the same for a refused connection, an unknown name and a wrong certificate.
        let mut causes =
            successors(Some::<&(dyn Error + 'static)>(error), |error| Error::source(*error)).map(ToString::to_string);
        let (first, last) = (causes.next().unwrap_or_default(), causes.last());
        let text = match last.filter(|last| !first.contains(last.as_str())) {
            Some(last) => format!("{first}: {last}"),
            None => first,
        };
        let again = self.told.as_ref().is_none_or(|(before, at)| *before != text || at.elapsed() > TELL_AGAIN);
        if again {
            tracing::warn!(
                kind = self.kind.name(),
                error = text,
                "the API server cannot be followed; what is served stays"
            );
            self.told = Some((text, Instant::now()));
            self.failing = true;
        }
    }
}

/// As the API has it, `apiVersion` and `kind` aside.
fn value(object: DynamicObject) -> Value {
    // What came as JSON can be written as JSON.
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

fn status(error: &watcher::Error) -> Option<u16> {
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

/// The API server knows the kind, but not `sendInitialEvents`: "Forbidden" in its validation, which is 422.
fn is_no_streaming(error: &watcher::Error) -> bool {
    matches!(status(error), Some(400 | 422))
}

/// A watch that began well fell silent. That is no fault where nothing happens: of a kind that nobody has written since it
/// started, the API server sends no bookmarks.
fn is_silence(error: &watcher::Error) -> bool {
    let watcher::Error::WatchFailed(error) = error else { return false };
    let mut causes = successors(Some::<&(dyn Error + 'static)>(error), |error| Error::source(*error));
    causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut))
}
