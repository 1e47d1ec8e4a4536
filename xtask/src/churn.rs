//! `cargo xtask churn`: builds the agent and the churn, and runs it.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{capabilities, setup, workspace};

/// Builds with optimizations, as users run the agent, then executes the churn.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    capabilities::require("churn")?;
    setup::api_tests()?;
    workspace::progress("building the agent and the churn");
    let package = ["build", "--release", "-p", "vipmux", "-p", "vipmux-tests", "--bins"];
    workspace::prepare(workspace::cargo(package).args(workspace::locked()))?;
    let folder = workspace::target_folder()?.join("release");
    let churn = folder.join("churn");
    let error = Command::new(&churn).args(options).env("VIPMUX_BIN", folder.join("vipmux")).exec();
    Err(error).with_context(|| format!("cannot run {}", churn.display()))
}
