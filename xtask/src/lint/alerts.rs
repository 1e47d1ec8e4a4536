//! Checks and tests the alerts for Prometheus.

use std::process::Command;

use anyhow::Result;

use crate::{setup, workspace};

const RULES: &str = "deploy/helm/vipmux/files/alerts.yaml";
const TESTS: &str = "tests/alerts.yaml";

/// Returns the commands that check the rules, and then test them with made-up series. Installs promtool
/// only here: without the Go module proxy the other checks still run.
pub(super) fn commands() -> Result<[Command; 2]> {
    setup::alerts()?;
    let promtool = |arguments: &[&str]| -> Result<Command> {
        let mut command = Command::new(setup::cluster_program("promtool")?);
        command.args(arguments).current_dir(workspace::root());
        Ok(command)
    };
    Ok([promtool(&["check", "rules", "--lint-fatal", RULES])?, promtool(&["test", "rules", TESTS])?])
}
