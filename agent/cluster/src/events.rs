//! Publishes Events of `events.k8s.io/v1`. Repetitions are counted in one Event, and the rate is
//! limited per Service and in total.

mod aggregator;

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

use self::aggregator::{EventAction, EventAggregator};
use crate::clock::{boottime, wall};
use vipmux_allocate::status::{EventContent, EventType};
use vipmux_supervisor::Supervisor;

/// Events that wait to be published. More than that are dropped.
const QUEUE_CAPACITY: usize = 4096;
/// The time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The fields that name the reporter of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    /// `reportingController`.
    pub controller: &'static str,
    /// `action`.
    pub action: &'static str,
    /// `reportingInstance`.
    pub instance: String,
}

/// Publishes Events about Services, beside the caller.
#[derive(Clone, Debug)]
pub struct EventRecorder(mpsc::Sender<(Regarding, EventContent)>);

/// The Service that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Regarding {
    namespace: String,
    name: String,
    uid: String,
}

impl EventRecorder {
    /// Starts the task that publishes. Must be called within a tokio runtime.
    pub fn start(client: Client, source: EventSource, supervisor: &Supervisor) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE_CAPACITY);
        // Ends with the last recorder. An Event may be lost: a condition or the log says the same.
        supervisor.spawn("Events", publish(client, source, queue));
        Self(sender)
    }

    /// Queues an Event about the Service. Drops it if too many wait.
    pub fn record(&self, service: &Service, content: EventContent) {
        let metadata = &service.metadata;
        let regarding = Regarding {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        };
        if self.0.try_send((regarding, content)).is_err() {
            tracing::debug!("event dropped, too many wait");
        }
    }
}

async fn publish(client: Client, source: EventSource, mut queue: mpsc::Receiver<(Regarding, EventContent)>) {
    let mut aggregator = EventAggregator::default();
    while let Some((regarding, content)) = queue.recv().await {
        sleep(aggregator.wait(boottime())).await;
        let api: Api<Event> = Api::namespaced(client.clone(), &regarding.namespace);
        let action = aggregator.next_action((regarding.clone(), content.clone()), boottime());
        let result = match &action {
            EventAction::Drop => continue,
            EventAction::Create(suffix) => {
                let event = event(&regarding, &content, &source, suffix);
                timeout(REQUEST_TIMEOUT, api.create(&PostParams::default(), &event)).await.map(|made| made.map(drop))
            }
            EventAction::Count(suffix, count) => {
                let series = json!({"series": {"count": count, "lastObservedTime": MicroTime(wall())}});
                let name = name(&regarding, suffix);
                let patch = Patch::Merge(&series);
                timeout(REQUEST_TIMEOUT, api.patch(&name, &PatchParams::default(), &patch))
                    .await
                    .map(|made| made.map(drop))
            }
        };
        if let Ok(Err(error)) = &result {
            tracing::debug!(%error, "event not published");
        }
        if !matches!(result, Ok(Ok(()))) {
            aggregator.failed(&(regarding, content));
        }
    }
}

fn name(regarding: &Regarding, suffix: &str) -> String {
    format!("{}.{suffix}", regarding.name)
}

fn event(regarding: &Regarding, content: &EventContent, source: &EventSource, suffix: &str) -> Event {
    Event {
        metadata: ObjectMeta {
            namespace: Some(regarding.namespace.clone()),
            name: Some(name(regarding, suffix)),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(wall())),
        action: Some(source.action.to_owned()),
        reason: Some(content.reason.clone()),
        note: Some(content.note.clone()),
        type_: Some(match content.event_type {
            EventType::Normal => "Normal".to_owned(),
            EventType::Warning => "Warning".to_owned(),
        }),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(regarding.namespace.clone()),
            name: Some(regarding.name.clone()),
            uid: Some(regarding.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(source.controller.to_owned()),
        reporting_instance: Some(source.instance.clone()),
        ..Event::default()
    }
}
