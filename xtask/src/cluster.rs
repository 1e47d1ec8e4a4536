//! `cargo xtask cluster`: builds what a cluster needs, and runs the command or the tests.

use std::{ffi::OsString, iter, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};

use crate::{
    capabilities, image,
    program::Profile,
    setup::{self, Need},
    workspace,
};

/// The tests that start other load balancers: they run only if they are named.
const MIGRATION: &str = "migrating";

/// Builds the cluster's program, and vipmux's image for a new cluster, then executes it.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    prepare(options)?;
    match action(options) {
        Some("test") => test(&tests(options)),
        action => execute(options, matches!(action, Some("up" | "conformance"))),
    }
}

/// `cargo xtask bench cluster`: measures vipmux and other load balancers, each in a cluster of its own.
pub(crate) fn bench(options: &[OsString]) -> Result<()> {
    prepare(options)?;
    let mut systems = values(options, "--system").peekable();
    let measures_vipmux = systems.peek().is_none() || systems.any(|system| system == "vipmux");
    execute(&[&["bench".into()], options].concat(), measures_vipmux)
}

/// Installs what a cluster needs.
fn prepare(options: &[OsString]) -> Result<()> {
    if asks_for_help(options) {
        return Ok(());
    }
    capabilities::require("cluster")?;
    let mut more = Vec::new();
    let action = action(options);
    more.extend((action == Some("conformance")).then_some(Need::Conformance));
    let of_network = values(options, "--cni").any(|cni| cni == "flannel");
    more.extend((action == Some("test") || of_network).then_some(Need::Flannel));
    let migrates = action == Some("test") && names_migration(&tests(options));
    let measures = |system: &str| values(options, "--system").any(|named| named == system);
    more.extend((migrates || measures("metallb")).then_some(Need::MetalLb));
    more.extend((migrates || measures("kube-vip")).then_some(Need::KubeVip));
    setup::cluster(&more)
}

/// Returns whether the program only prints its options.
fn asks_for_help(options: &[OsString]) -> bool {
    options.iter().any(|option| option == "--help" || option == "-h")
}

/// Returns the words behind `test`: names of tests, and options of cargo's test programs.
fn tests(options: &[OsString]) -> Vec<&OsString> {
    options.iter().skip_while(|word| *word != "test").skip(1).collect()
}

/// Returns whether the tests that start other load balancers are asked for by their names.
fn names_migration(tests: &[&OsString]) -> bool {
    tests.iter().any(|word| word.to_str().is_some_and(|word| word.starts_with(MIGRATION)))
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

/// Returns the values of an option.
fn values<'a>(options: &'a [OsString], name: &'a str) -> impl Iterator<Item = &'a str> {
    let mut words = options.iter().filter_map(|word| word.to_str());
    iter::from_fn(move || {
        loop {
            match words.next()?.strip_prefix(name) {
                Some("") => return words.next(),
                Some(rest) if rest.starts_with('=') => return Some(&rest[1..]),
                _ => {}
            }
        }
    })
}

fn execute(options: &[OsString], needs_image: bool) -> Result<()> {
    workspace::progress("building the cluster's program");
    let package = ["build", "-p", "vipmux-tests", "--bin", "cluster"];
    workspace::prepare(workspace::cargo(package).args(workspace::locked()))?;
    let program = workspace::target_folder()?.join("debug/cluster");
    let mut command = Command::new(&program);
    if needs_image && !asks_for_help(options) {
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
    if !names_migration(options) {
        tests.args(["--skip", MIGRATION]);
    }
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
            assert_eq!((action(&words), values(&words, "--cni").next()), (expected, cni), "{line}");
        }
        let words = words("--system vipmux --runs 3 --system=metallb");
        assert_eq!(values(&words, "--system").collect::<Vec<_>>(), ["vipmux", "metallb"]);
    }

    #[test]
    fn migration_is_tested_only_if_it_is_named() {
        for (line, expected) in [
            ("test", false),
            ("test guides::", false),
            ("test migrating", true),
            ("--name migrating test", false),
            ("test --exact migrating::from_metallb", true),
        ] {
            assert_eq!(names_migration(&tests(&words(line))), expected, "{line}");
        }
    }
}
