//! `cargo xtask sim`.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{setup, workspace};

/// The profile that it is built with: it runs a hundred times as fast as without optimisations.
const PROFILE: &str = "simulation";

/// Builds the simulation and becomes it.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    // The agent's build script builds the BPF programs.
    setup::bpf_toolchain()?;
    workspace::say("building the simulation");
    workspace::prepare(&mut build())?;
    let mut simulation = command()?;
    let error = simulation.args(options).exec();
    Err(error).with_context(|| format!("cannot run {}", workspace::shown(&simulation)))
}

/// What builds it.
pub(crate) fn build() -> Command {
    let example = ["-p", "vipmux", "--features", "simulation", "--example", "simulate"];
    let mut build = workspace::cargo(["build", "--profile", PROFILE]);
    build.args(example).args(workspace::locked());
    build
}

/// The simulation, once it is built.
pub(crate) fn command() -> Result<Command> {
    Ok(Command::new(workspace::target_folder()?.join(PROFILE).join("examples/simulate")))
}
