//! Collects the warnings of a reconciliation, and logs each once.

use std::collections::BTreeSet;

use crate::AgentError;

/// Log lines of each kind at once.
const MOST_LINES: usize = 100;

/// The warnings of one reconciliation.
#[derive(Debug)]
pub(crate) struct Warnings {
    texts: BTreeSet<String>,
    /// The agent was ready before, so an error stops nothing.
    ready: bool,
}

impl Warnings {
    pub(crate) fn new(ready: bool) -> Self {
        Self { texts: BTreeSet::new(), ready }
    }

    /// Adds a warning.
    pub(crate) fn add(&mut self, text: String) {
        self.texts.insert(text);
    }

    /// Adds an error as a warning. Returns it instead if the agent was not ready yet: then it stops
    /// the agent.
    pub(crate) fn add_error(&mut self, error: AgentError) -> Result<(), AgentError> {
        if !self.ready {
            return Err(error);
        }
        self.add(format!("{:#}", anyhow::Error::from(error)));
        Ok(())
    }

    pub(crate) fn into_texts(self) -> BTreeSet<String> {
        self.texts
    }
}

/// Logs the warnings that are new and those that are gone: of thousands at once, the first.
pub(crate) fn log_changes(before: &BTreeSet<String>, after: &BTreeSet<String>) {
    let (new, gone) = (after.difference(before), before.difference(after));
    for warning in new.clone().take(MOST_LINES) {
        tracing::warn!(warning, "new warning");
    }
    for warning in gone.clone().take(MOST_LINES) {
        tracing::info!(warning, "warning resolved");
    }
    let omitted = new.count().saturating_sub(MOST_LINES) + gone.count().saturating_sub(MOST_LINES);
    if omitted > 0 {
        tracing::warn!(untold = omitted, "more warnings changed, `vipmux plan` shows all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_stops_an_agent_that_starts_and_is_a_warning_for_one_that_is_ready() {
        let error = || AgentError::TooManyInterfaces(33);
        let mut starting = Warnings::new(false);
        assert!(matches!(starting.add_error(error()), Err(AgentError::TooManyInterfaces(33))));
        assert!(starting.into_texts().is_empty());
        let mut ready = Warnings::new(true);
        ready.add_error(error()).unwrap();
        let expected = "33 interfaces are too many: VIPs can be announced on 32";
        assert_eq!(ready.into_texts(), BTreeSet::from([expected.to_owned()]));
    }
}
