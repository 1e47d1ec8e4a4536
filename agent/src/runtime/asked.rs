//! What comes by the agent's socket.

use super::{Agent, AgentError, check::Checks, settle::Question};
use crate::{
    control::{Answer, Command, Query},
    explain::Target,
};

impl Agent {
    /// Answers, or passes the question on to who will.
    pub(super) fn answer(&mut self, query: Query, checks: &mut Checks) -> Result<(), AgentError> {
        match query.command.clone() {
            Command::Diff if self.ready => checks.ask(query, &self.kernel),
            Command::Diff => {
                query.answer(Answer::Error("it is not ready yet, its log says why: ask again".to_owned()));
            }
            Command::Explain(target) => self.explain(query, target),
            Command::Drain { cancel } => {
                self.drain(!cancel)?;
                query.answer(Answer::Drain(self.progress()));
            }
            Command::Draining => query.answer(Answer::Drain(self.progress())),
        }
        Ok(())
    }

    /// Passes the question on to who knows what was decided.
    fn explain(&self, query: Query, target: Target) {
        let refused = self.refused.iter().chain(&self.conflicts).cloned().collect();
        let node = self.options.node.clone();
        if let Err(full) = self.questions.try_send(Question { query, target, node, refused }) {
            full.into_inner().query.answer(Answer::Error("the agent is busy: ask again".to_owned()));
        }
    }
}
