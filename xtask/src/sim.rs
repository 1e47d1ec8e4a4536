//! `cargo xtask sim`.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{setup, workspace};

/// Builds the simulation with optimisations and becomes it.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    // The agent's build script builds the BPF programs.
    setup::bpf_toolchain()?;
    workspace::say("building the simulation");
    let example = ["build", "--release", "-p", "vipmux", "--features", "simulation", "--example", "simulate"];
    workspace::prepare(workspace::cargo(example).args(workspace::locked()))?;
    let simulation = workspace::target_folder()?.join("release/examples/simulate");
    let error = Command::new(&simulation).args(options).exec();
    Err(error).with_context(|| format!("cannot run {}", simulation.display()))
}
