//! `cargo xtask cluster`: builds what a cluster needs, and runs the command.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{capabilities, image, setup, workspace};

/// Builds the cluster's program, and vipmux's image for a new cluster, then executes it.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    capabilities::require("cluster")?;
    setup::cluster()?;
    workspace::progress("building the cluster's program");
    let package = ["build", "-p", "vipmux-tests", "--bin", "cluster"];
    workspace::prepare(workspace::cargo(package).args(workspace::locked()))?;
    let program = workspace::target_folder()?.join("debug/cluster");
    let mut command = Command::new(&program);
    if options.iter().any(|option| option == "up") {
        command.env("VIPMUX_IMAGE_ROOT", image::context(image::Profile::Release)?.join("root"));
    }
    let error = command.args(options).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
