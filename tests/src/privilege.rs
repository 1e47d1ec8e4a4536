//! Who may make network namespaces.

use std::thread;

use anyhow::{Result, bail};
use nix::unistd::geteuid;

/// Whether the running test may make network namespaces. Where not, it says so by the test's name with the remedy; with
/// `CI=true`, where nothing may be skipped, that is an error.
pub fn is_root() -> Result<bool> {
    if geteuid().is_root() {
        return Ok(true);
    }
    // The test harness names its threads after the tests.
    let thread = thread::current();
    let test = thread.name().unwrap_or("a network test");
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        bail!("{test} needs root, and CI=true lets no test be skipped: run it as root");
    }
    eprintln!("skipped: {test}: it makes network namespaces, run it as root");
    Ok(false)
}
