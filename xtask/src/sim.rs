//! `cargo xtask sim`: builds the simulation and runs it.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::workspace;

/// The simulation's profile: it runs a hundred times faster than without optimizations.
const PROFILE: &str = "simulation";

/// Builds the simulation, then executes it.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    workspace::progress("building the simulation");
    workspace::prepare(&mut build())?;
    let mut simulation = command()?;
    let error = simulation.args(options).exec();
    Err(error).with_context(|| format!("cannot run {}", workspace::command_line(&simulation)))
}

/// Returns the command that builds the simulation.
pub(crate) fn build() -> Command {
    let example = ["-p", "vipmux-election", "--features", "simulation", "--example", "simulate"];
    let mut build = workspace::cargo(["build", "--profile", PROFILE]);
    build.args(example).args(workspace::locked());
    build
}

/// Returns the command that runs the built simulation.
pub(crate) fn command() -> Result<Command> {
    Ok(Command::new(workspace::target_folder()?.join(PROFILE).join("examples/simulate")))
}
