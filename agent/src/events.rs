//! Events of `events.k8s.io/v1`, with measure: what repeats is counted in one, and neither an object nor all of them together
//! make more than so many.

mod measured;

use std::time::Duration;

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Service},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use self::measured::{Measured, Step};
use crate::{
    clock::{boottime, wall},
    status::{News, Weight},
};

/// Events that wait for their turn; more than that are left out.
const WAITING: usize = 4096;
/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Who tells, as Events have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// `reportingController`.
    pub controller: &'static str,
    /// `action`: what was being done.
    pub action: &'static str,
    /// `reportingInstance`.
    pub instance: String,
}

/// Tells what is new about Services.
#[derive(Clone, Debug)]
pub struct Teller(mpsc::Sender<(Regarding, News)>);

/// Whom an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Regarding {
    namespace: String,
    name: String,
    uid: String,
}

impl Teller {
    /// Begins to tell. Within a tokio runtime.
    pub fn start(client: Client, author: Author) -> Self {
        let (sender, news) = mpsc::channel(WAITING);
        // Ends with the last teller; an Event that is not made is made by nobody, and a condition or the log says it too.
        tokio::spawn(publish(client, author, news));
        Self(sender)
    }

    /// Tells this about the Service, some time.
    pub fn tell(&self, service: &Service, news: News) {
        let metadata = &service.metadata;
        let regarding = Regarding {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        };
        if self.0.try_send((regarding, news)).is_err() {
            tracing::debug!("too many Events wait: one is left out");
        }
    }
}

async fn publish(client: Client, author: Author, mut all: mpsc::Receiver<(Regarding, News)>) {
    let mut measured = Measured::default();
    while let Some((regarding, news)) = all.recv().await {
        sleep(measured.wait(boottime())).await;
        let api: Api<Event> = Api::namespaced(client.clone(), &regarding.namespace);
        let step = measured.step((regarding.clone(), news.clone()), boottime());
        let result = match &step {
            Step::LeaveOut => continue,
            Step::Make(suffix) => {
                let event = event(&regarding, &news, &author, suffix);
                timeout(LIMIT, api.create(&PostParams::default(), &event)).await.map(|made| made.map(drop))
            }
            Step::Count(suffix, count) => {
                let series = json!({"series": {"count": count, "lastObservedTime": MicroTime(wall())}});
                let name = name(&regarding, suffix);
                let patch = Patch::Merge(&series);
                timeout(LIMIT, api.patch(&name, &PatchParams::default(), &patch)).await.map(|made| made.map(drop))
            }
        };
        if let Ok(Err(error)) = &result {
            tracing::debug!(%error, "an Event was not made");
        }
        if !matches!(result, Ok(Ok(()))) {
            measured.failed(&(regarding, news));
        }
    }
}

fn name(regarding: &Regarding, suffix: &str) -> String {
    format!("{}.{suffix}", regarding.name)
}

fn event(regarding: &Regarding, news: &News, author: &Author, suffix: &str) -> Event {
    Event {
        metadata: ObjectMeta {
            namespace: Some(regarding.namespace.clone()),
            name: Some(name(regarding, suffix)),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(wall())),
        action: Some(author.action.to_owned()),
        reason: Some(news.reason.clone()),
        note: Some(news.note.clone()),
        type_: Some(match news.weight {
            Weight::Normal => "Normal".to_owned(),
            Weight::Warning => "Warning".to_owned(),
        }),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(regarding.namespace.clone()),
            name: Some(regarding.name.clone()),
            uid: Some(regarding.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(author.controller.to_owned()),
        reporting_instance: Some(author.instance.clone()),
        ..Event::default()
    }
}
