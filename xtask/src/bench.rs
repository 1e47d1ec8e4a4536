//! `cargo xtask bench`: builds the bench and runs it.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{capabilities, cluster, setup, workspace};

/// Parts of the bench that need no other program to compare with.
const OTHER_PARTS: [&str; 7] = ["packets", "cores", "flood", "forwarding", "sync", "allocate", "inspect"];

/// Builds the bench with optimizations, then executes it. Only the bench writes to stdout, for
/// `--json`.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    if options.first().is_some_and(|part| part == "cluster") {
        return cluster::bench(&options[1..]);
    }
    capabilities::require("bench")?;
    setup::network_tests()?;
    if !options.iter().any(|option| OTHER_PARTS.iter().any(|part| option == part)) {
        setup::comparison();
    }
    workspace::progress("building the bench");
    let package = ["build", "--release", "-p", "vipmux", "-p", "vipmux-tests", "--bins"];
    workspace::prepare(workspace::cargo(package).args(workspace::locked()))?;
    let bench = workspace::target_folder()?.join("release/bench");
    let error = Command::new(&bench).args(options).exec();
    Err(error).with_context(|| format!("cannot run {}", bench.display()))
}
