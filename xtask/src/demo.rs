//! `cargo xtask demo`: builds the demo and runs it.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{capabilities, setup, workspace};

/// Builds the agent and the demo, then executes the demo. So the demo itself gets Ctrl-C, and
/// removes what it made.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    capabilities::require("demo")?;
    setup::network_tests()?;
    workspace::progress("building the agent and the demo");
    let packages = ["build", "-p", "vipmux", "-p", "vipmux-tests"];
    let programs = ["--bin", "vipmux", "--bin", "demo", "--bin", "pod"];
    workspace::prepare(workspace::cargo(packages).args(programs).args(workspace::locked()))?;
    let folder = workspace::target_folder()?.join("debug");
    let demo = folder.join("demo");
    let error = Command::new(&demo).args(options).env("VIPMUX_BIN", folder.join("vipmux")).exec();
    Err(error).with_context(|| format!("cannot run {}", demo.display()))
}
