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
    match action(options) {
        Some("test") => test(&options.iter().skip_while(|word| *word != "test").skip(1).collect::<Vec<_>>()),
        action => execute(options, matches!(action, Some("up" | "conformance"))),
    }
}

/// `cargo xtask bench cluster`: measures vipmux in a cluster of its own.
pub(crate) fn bench(options: &[OsString]) -> Result<()> {
    prepare(options)?;
    execute(&[&["bench".into()], options].concat(), true)
}

fn prepare(options: &[OsString]) -> Result<()> {
    capabilities::require("cluster")?;
    let mut more = Vec::new();
    let action = action(options);
    more.extend((action == Some("conformance")).then_some(Need::Conformance));
    more.extend((action == Some("test") || value(options, "--cni") == Some("flannel")).then_some(Need::Flannel));
    setup::cluster(&more)
}

/// Returns the action: the first word that is no option, and no value of `--name`.
fn action(options: &[OsString]) -> Option<&str> {
    let mut words = options.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        match word {
            "--name" => drop(words.next()),
            word if !word.starts_with('-') => return Some(word),
            _ => {}
        }
    }
    None
}

/// Returns the value of an option.
fn value<'a>(options: &'a [OsString], name: &str) -> Option<&'a str> {
    let mut words = options.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        match word.strip_prefix(name) {
            Some("") => return words.next(),
            Some(rest) if rest.starts_with('=') => return Some(&rest[1..]),
            _ => {}
        }
    }
    None
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
fn test(options: &[&OsString]) -> Result<()> {
    let image = image::context(Profile::Release)?;
    let mut tests = workspace::cargo(["test", "-p", "vipmux-tests", "--test", "cluster"]);
    tests.args(workspace::locked()).args(["--", "--test-threads=1", "--nocapture"]).args(options);
    workspace::run(tests.env("VIPMUX_IMAGE_ROOT", image.join("root")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn names_are_no_actions_and_values_are_found() {
        for (line, expected, cni) in [
            ("", None, None),
            ("up --name test", Some("up"), None),
            ("--name conformance status", Some("status"), None),
            ("--name=up down", Some("down"), None),
            ("up --cni flannel", Some("up"), Some("flannel")),
            ("up --cni=bridge --nodes 3", Some("up"), Some("bridge")),
        ] {
            let words = words(line);
            assert_eq!((action(&words), value(&words, "--cni")), (expected, cni), "{line}");
        }
    }
}
