//! Conditions, as `meta/v1` has them.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// Bytes of a message. The API server takes 32,768; who reads it wants fewer.
const MESSAGE_MAX: usize = 4096;

/// A condition's `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It is so.
    True,
    /// It is not.
    False,
    /// That cannot be told.
    Unknown,
}

impl Truth {
    /// As the API has it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What a condition is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether it is so.
    pub truth: Truth,
    /// Why, for machines.
    pub reason: String,
    /// Why, for people.
    pub message: String,
}

impl Told {
    /// Messages that are too long are cut.
    pub fn new(truth: Truth, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { truth, reason: reason.into(), message: cut(message.into(), MESSAGE_MAX) }
    }

    /// Whether the condition says this of this generation.
    pub(super) fn is_told_by(&self, condition: &Condition, generation: Option<i64>) -> bool {
        condition.status == self.truth.text()
            && condition.reason == self.reason
            && condition.message == self.message
            && condition.observed_generation == generation
    }

    /// The condition that says this. `before`: what it said so far; the time of its last transition only moves with
    /// `status`. The API has whole seconds.
    pub(super) fn condition(
        &self,
        kind: &str,
        generation: Option<i64>,
        before: Option<&Condition>,
        now: Timestamp,
    ) -> Condition {
        let same = before.filter(|condition| condition.status == self.truth.text());
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Condition {
            last_transition_time: same.map_or(Time(now), |condition| condition.last_transition_time.clone()),
            message: self.message.clone(),
            observed_generation: generation,
            reason: self.reason.clone(),
            status: self.truth.text().to_owned(),
            type_: kind.to_owned(),
        }
    }
}

/// At most so many bytes of the text.
pub(super) fn cut(mut text: String, most: usize) -> String {
    const MORE: &str = " ...";
    if text.len() > most {
        let end = (0..=most - MORE.len()).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(MORE);
    }
    text
}
