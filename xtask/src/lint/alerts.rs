//! Checks and tests the alerts for Prometheus.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{setup, workspace};

const RULES: &str = "deploy/helm/vipmux/files/alerts.yaml";
const TESTS: &str = "tests/alerts.yaml";

/// Returns the commands that check the rules, and then test them with made-up series. Fails without promtool.
pub(super) fn commands() -> Result<[Command; 2]> {
    // `cargo xtask setup`, which the error would name, does not install it.
    let program = setup::cluster_program("promtool").ok().context("promtool could not be installed; see above why")?;
    let promtool = |arguments: &[&str]| -> Result<Command> {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(workspace::root());
        Ok(command)
    };
    Ok([promtool(&["check", "rules", "--lint-fatal", RULES])?, promtool(&["test", "rules", TESTS])?])
}
