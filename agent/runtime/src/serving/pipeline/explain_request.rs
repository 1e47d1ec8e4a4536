//! Answers `vipmux explain` from the last serving state.

use super::stages::Stages;
use crate::{
    control::{Answer, Query},
    serving::kernel::boottime,
};
use vipmux_inspect::explain::{ExplainTarget, TargetDetails};
use vipmux_model::{NodeName, health::Findings};

/// A request to explain a target.
#[derive(Debug)]
pub(crate) struct ExplainRequest {
    /// The query to answer.
    pub(crate) query: Query,
    /// The Service or VIP to explain.
    pub(crate) target: ExplainTarget,
    /// This node.
    pub(crate) node: NodeName,
    /// The agent's warnings.
    pub(crate) refused: Vec<String>,
    /// Why this node leads nothing.
    pub(crate) silence: Option<String>,
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
