//! Answers the requests that come by the agent's socket.

use super::Agent;
use crate::{
    AgentError,
    control::{Answer, ControlCommand, Query},
    serving::pipeline::ExplainRequest,
};
use vipmux_inspect::explain::ExplainTarget;

impl Agent {
    /// Answers a query, or passes it on.
    pub(crate) fn answer(&mut self, query: Query) -> Result<(), AgentError> {
        match query.command.clone() {
            ControlCommand::Diff if self.serving.is_ready() => self.self_check.ask(query, &self.serving),
            ControlCommand::Diff => {
                query.answer(Answer::Error("it is not ready yet, its log says why: ask again".to_owned()));
            }
            ControlCommand::Explain(target) => self.explain(query, target),
            ControlCommand::Drain { cancel } => {
                self.set_drain(!cancel)?;
                query.answer(Answer::Drain(self.election.drain_progress()));
            }
            ControlCommand::Draining => query.answer(Answer::Drain(self.election.drain_progress())),
        }
        Ok(())
    }

    /// Passes the query on to the pipeline, which knows the objects.
    fn explain(&self, query: Query, target: ExplainTarget) {
        let conflicts = self.announcements.conflicts.texts();
        let refused = self.serving.warnings().iter().chain(conflicts).cloned().collect();
        let silence = self.election.elector.keys().silence();
        let request = ExplainRequest { query, target, node: self.node.clone(), refused, silence };
        if let Err(full) = self.explain_requests.try_send(request) {
            full.into_inner().query.answer(Answer::Error("the agent is busy: ask again".to_owned()));
        }
    }
}
