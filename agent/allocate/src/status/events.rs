//! Finds changes that are worth an Event: outcomes that differ from those before. The condition
//! says what was reported before, so that a new allocator repeats nothing.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;

use super::{
    ConditionStatus, DesiredStatus,
    condition::cut,
    ingress::ingress,
    service::{NOTE, condition},
};
use vipmux_model::{
    api::{ALLOCATED, REQUEST},
    published_status::PublishedStatus,
};

/// The maximum number of bytes of a note that the API server allows.
const NOTE_MAX: usize = 1024;

/// The `type` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    /// Everything is well.
    Normal,
    /// Somebody should look.
    Warning,
}

/// The content of an Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventContent {
    /// The `type`.
    pub event_type: EventType,
    /// The reason, for programs: that of a condition.
    pub reason: String,
    /// The reason, for people.
    pub note: String,
}

impl EventContent {
    /// Creates the content. A note that is too long is cut.
    pub fn new(event_type: EventType, reason: impl Into<String>, note: impl Into<String>) -> Self {
        Self { event_type, reason: reason.into(), note: cut(note.into(), NOTE_MAX) }
    }

    /// Returns the Event for a Service whose status is to become `desired`; `None` if there is
    /// nothing new.
    pub fn of(service: &Service, desired: &DesiredStatus) -> Option<Self> {
        let allocated = &desired.allocated;
        if let Some(before) = condition(service, ALLOCATED) {
            let shown = PublishedStatus::of_ingress(ingress(service));
            let none = BTreeSet::new();
            let same_addresses =
                desired.ingress.as_ref().unwrap_or(&none) == &shown || allocated.status == ConditionStatus::False;
            let same_outcome =
                before.status == allocated.status.text() && before.reason == allocated.reason && same_addresses;
            // The owner of the port that a Service waits for may change every minute: no Event. A
            // change by the Service's owner gets an answer.
            let judged = condition(service, REQUEST).map(|request| &request.message);
            let is_edited = desired.request.as_ref().zip(judged).is_some_and(|(now, before)| now.message != *before);
            let answers = is_edited && before.message != allocated.message;
            if same_outcome && notes(&before.message) == notes(&allocated.message) && !answers {
                return None;
            }
        }
        let event_type = if desired.warning { EventType::Warning } else { EventType::Normal };
        Some(Self::new(event_type, allocated.reason.clone(), allocated.message.clone()))
    }
}

/// Returns the part of a message that has the notes for a Service's owner.
fn notes(message: &str) -> &str {
    message.find(NOTE).map_or("", |at| &message[at..])
}
