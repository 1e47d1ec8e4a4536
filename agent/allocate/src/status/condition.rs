//! Defines conditions as in `meta/v1`.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use crate::{request_record::encode, request_snapshot::RequestSnapshot};

/// The maximum number of bytes of a message. The API server allows 32,768, but readers want fewer.
const MESSAGE_MAX: usize = 4096;

/// The `status` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// `True`.
    True,
    /// `False`.
    False,
    /// `Unknown`.
    Unknown,
}

impl ConditionStatus {
    /// Returns the text in the API.
    pub const fn text(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The desired content of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCondition {
    /// Its `status`.
    pub status: ConditionStatus,
    /// The reason, for programs.
    pub reason: String,
    /// The reason, for people.
    pub message: String,
}

impl DesiredCondition {
    /// Creates the content. A message that is too long is cut.
    pub fn new(status: ConditionStatus, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), message: cut(message.into(), MESSAGE_MAX) }
    }

    /// Returns the content of the condition that has the request for the next allocator.
    pub(crate) fn judged(request: &RequestSnapshot) -> Self {
        Self::new(ConditionStatus::True, "Judged", encode(request))
    }

    /// Whether the condition has this content, for this generation.
    pub(super) fn matches(&self, condition: &Condition, generation: Option<i64>) -> bool {
        condition.status == self.status.text()
            && condition.reason == self.reason
            && condition.message == self.message
            && condition.observed_generation == generation
    }

    /// Returns the condition with this content.
    ///
    /// `before` is the present condition. The time of the last transition changes only with
    /// `status`. The API has whole seconds.
    pub(crate) fn condition(
        &self,
        kind: &str,
        generation: Option<i64>,
        before: Option<&Condition>,
        now: Timestamp,
    ) -> Condition {
        let same = before.filter(|condition| condition.status == self.status.text());
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Condition {
            last_transition_time: same.map_or(Time(now), |condition| condition.last_transition_time.clone()),
            message: self.message.clone(),
            observed_generation: generation,
            reason: self.reason.clone(),
            status: self.status.text().to_owned(),
            type_: kind.to_owned(),
        }
    }
}

/// Cuts the text to at most `most` bytes.
pub(super) fn cut(mut text: String, most: usize) -> String {
    const MORE: &str = " ...";
    if text.len() > most {
        let end = (0..=most - MORE.len()).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(MORE);
    }
    text
}
