//! `cargo xtask bench`: builds the bench and runs it.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result, bail};

use crate::{capabilities, cluster, setup, workspace};

/// Parts of the bench that need no other program to compare with.
const OTHER_PARTS: [&str; 8] = ["packets", "cores", "flood", "forwarding", "node", "sync", "allocate", "inspect"];
/// Parts that compare vipmux with other programs.
const COMPARING_PARTS: [&str; 2] = ["all", "failover"];

/// Builds the bench with optimizations, then executes it. Only the bench writes to stdout, for
/// `--json`.
pub(crate) fn run(options: &[OsString]) -> Result<()> {
    if options.first().is_some_and(|part| part == "cluster") {
        return cluster::bench(&options[1..]);
    }
    check_part(options)?;
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

/// Refuses a part that does not exist, before the bench is built, which takes minutes.
fn check_part(options: &[OsString]) -> Result<()> {
    let part = options.first().map(|option| option.to_string_lossy()).filter(|option| !option.starts_with('-'));
    let parts = [&COMPARING_PARTS[..], &OTHER_PARTS, &["cluster"]].concat();
    match part {
        Some(part) if !parts.contains(&part.as_ref()) => {
            bail!("the bench has no part {part}: choose one of {}", parts.join(", "))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_that_exist_are_built_for() {
        let check = |options: &[&str]| check_part(&options.iter().map(OsString::from).collect::<Vec<_>>());
        for options in [&[][..], &["--json"], &["flood"], &["all", "--json"], &["cluster"]] {
            assert!(check(options).is_ok(), "{options:?}");
        }
        let error = check(&["packet"]).unwrap_err().to_string();
        assert!(error.starts_with("the bench has no part packet: choose one of all, failover, packets,"), "{error}");
    }
}
