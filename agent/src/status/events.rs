//! What is worth an Event: an outcome that is another one than before. What was said before stands in the condition, so that
//! a new allocator repeats nothing.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;

use super::{
    Statement, Truth,
    condition::cut,
    ingress::ingress,
    service::{NOTE, condition},
};
use crate::{api::ALLOCATED, model::shown::Shown};

/// Bytes of a note that the API server takes.
const NOTE_MAX: usize = 1024;

/// An Event's `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

/// What an Event says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct News {
    /// Whether somebody should look.
    pub weight: Weight,
    /// Why, for machines: a condition's reason.
    pub reason: String,
    /// Why, for people.
    pub note: String,
}

impl News {
    /// Notes that are too long are cut.
    pub fn new(weight: Weight, reason: impl Into<String>, note: impl Into<String>) -> Self {
        Self { weight, reason: reason.into(), note: cut(note.into(), NOTE_MAX) }
    }

    /// What is new about a Service, once its status says this.
    pub fn of(service: &Service, statement: &Statement) -> Option<Self> {
        let told = &statement.allocated;
        if let Some(before) = condition(service, ALLOCATED) {
            let shown = Shown::of_ingress(ingress(service));
            let none = BTreeSet::new();
            let same_addresses = statement.ingress.as_ref().unwrap_or(&none) == &shown || told.truth == Truth::False;
            let same_outcome = before.status == told.truth.text() && before.reason == told.reason && same_addresses;
            // Who has the port that a Service waits for may change every minute; what its owner changed is answered.
            let answers = before.observed_generation != service.metadata.generation && before.message != told.message;
            if same_outcome && notes(&before.message) == notes(&told.message) && !answers {
                return None;
            }
        }
        let weight = if statement.warning { Weight::Warning } else { Weight::Normal };
        Some(Self::new(weight, told.reason.clone(), told.message.clone()))
    }
}

/// The part of a message that tells what a Service's owner should know.
fn notes(message: &str) -> &str {
    message.find(NOTE).map_or("", |at| &message[at..])
}
