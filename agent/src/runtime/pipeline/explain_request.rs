//! Answers `vipmux explain` from the last serving state.

use super::stages::Stages;
use crate::{
    control::{Answer, Query},
    explain::{ExplainTarget, TargetDetails},
    runtime::kernel::boottime,
};
use vipmux_model::{NodeName, health::Findings};

/// A request to explain a target.
#[derive(Debug)]
pub(in crate::runtime) struct ExplainRequest {
    /// The query to answer.
    pub(in crate::runtime) query: Query,
    /// The Service or VIP to explain.
    pub(in crate::runtime) target: ExplainTarget,
    /// This node.
    pub(in crate::runtime) node: NodeName,
    /// The agent's warnings.
    pub(in crate::runtime) refused: Vec<String>,
    /// Why this node leads nothing.
    pub(in crate::runtime) silence: Option<String>,
}

impl ExplainRequest {
    pub(super) fn answer(self, stages: &Stages, findings: &Findings) {
        let now = boottime().unwrap_or_default();
        let answer = match stages.decided(findings, now).map(|decided| TargetDetails::of(decided, &self.target)) {
            Some(Ok(details)) => {
                let (node, refused, silence) = (Some(self.node), self.refused, self.silence);
                Answer::Details(Box::new(TargetDetails { node, refused, silence, ..details }))
            }
            Some(Err(unknown)) => Answer::Unknown(unknown),
            None => Answer::Error("it has not read the objects yet: ask again".to_owned()),
        };
        self.query.answer(answer);
    }
}
