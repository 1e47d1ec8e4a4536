//! `cargo xtask cluster`: builds what a cluster needs, and runs the command or the tests.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{capabilities, image, program::Profile, setup, workspace};

/// Builds the cluster's program, and vipmux's image for a new cluster, then executes it.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    prepare()?;
    if options.first().is_some_and(|option| option == "test") {
        return test(&options[1..]);
    }
    execute(options, options.iter().any(|option| option == "up"))
}

/// `cargo xtask bench cluster`: measures vipmux in a cluster of its own.
pub(crate) fn bench(options: &[OsString]) -> Result<()> {
    prepare()?;
    execute(&[&["bench".into()], options].concat(), true)
}

fn prepare() -> Result<()> {
    capabilities::require("cluster")?;
    setup::cluster()
}

fn execute(options: &[OsString], needs_image: bool) -> Result<()> {
    workspace::progress("building the cluster's program");
    let package = ["build", "-p", "vipmux-tests", "--bin", "cluster"];
    workspace::prepare(workspace::cargo(package).args(workspace::locked()))?;
    let program = workspace::target_folder()?.join("debug/cluster");
    let mut command = Command::new(&program);
    if needs_image {
        command.env("VIPMUX_IMAGE_ROOT", image::context(Profile::Release)?.join("root"));
    }
    let error = command.args(options).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// Runs the tests that need a cluster. Each starts its own. `options` names some of them.
fn test(options: &[OsString]) -> Result<()> {
    let image = image::context(Profile::Release)?;
    let mut tests = workspace::cargo(["test", "-p", "vipmux-tests", "--test", "cluster"]);
    tests.args(workspace::locked()).args(["--", "--test-threads=1", "--nocapture"]).args(options);
    workspace::run(tests.env("VIPMUX_IMAGE_ROOT", image.join("root")))
}
