//! Questions about what was decided, answered from what was settled last.

use super::stages::Stages;
use crate::{
    control::{Answer, Query},
    explain::{Account, Target},
    model::{NodeName, health::Findings},
    runtime::kernel::boottime,
};

/// A question.
#[derive(Debug)]
pub(in crate::runtime) struct Question {
    /// Who asks.
    pub(in crate::runtime) query: Query,
    /// About what.
    pub(in crate::runtime) target: Target,
    /// This node.
    pub(in crate::runtime) node: NodeName,
    /// What the agent cannot have as it is wanted.
    pub(in crate::runtime) refused: Vec<String>,
}

impl Question {
    pub(super) fn answer(self, stages: &Stages, findings: &Findings) {
        let now = boottime().unwrap_or_default();
        let answer = match stages.decided(findings, now).map(|decided| Account::of(decided, &self.target)) {
            Some(Ok(account)) => {
                Answer::Account(Box::new(Account { node: Some(self.node), refused: self.refused, ..account }))
            }
            Some(Err(unknown)) => Answer::Unknown(unknown),
            None => Answer::Error("it has not settled anything yet: ask again".to_owned()),
        };
        self.query.answer(answer);
    }
}
