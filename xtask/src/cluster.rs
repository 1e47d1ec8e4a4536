//! `cargo xtask cluster`: builds what a cluster needs, and runs the command or the tests.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{
    capabilities, image,
    program::Profile,
    setup::{self, Need},
    workspace,
};

/// Builds the cluster's program, and vipmux's image for a new cluster, then executes it.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    prepare(options)?;
    match options.first().and_then(|action| action.to_str()) {
        Some("test") => test(&options[1..]),
        _ => execute(options, has(options, "up") || has(options, "conformance")),
    }
}

/// `cargo xtask bench cluster`: measures vipmux in a cluster of its own.
pub(crate) fn bench(options: &[OsString]) -> Result<()> {
    prepare(options)?;
    execute(&[&["bench".into()], options].concat(), true)
}

fn prepare(options: &[OsString]) -> Result<()> {
    capabilities::require("cluster")?;
    let more = [("flannel", Need::Flannel), ("test", Need::Flannel), ("conformance", Need::Conformance)];
    let more: Vec<_> = more.into_iter().filter(|(word, _)| has(options, word)).map(|(_, need)| need).collect();
    setup::cluster(&more)
}

/// Returns whether an option names something.
fn has(options: &[OsString], word: &str) -> bool {
    options.iter().filter_map(|option| option.to_str()).any(|option| option.rsplit('=').next() == Some(word))
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
