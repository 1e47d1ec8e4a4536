//! Who may make network namespaces.

use anyhow::{Result, bail};
use nix::unistd::geteuid;

/// Whether a test that needs root may run. Where not, it says so by name with the remedy; with `CI=true` that is an error.
pub fn root(test: &str) -> Result<bool> {
    if geteuid().is_root() {
        return Ok(true);
    }
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        bail!("{test} needs root, and CI=true lets no test be skipped: run it as root");
    }
    eprintln!("skipped: {test}: it makes network namespaces, run it as root");
    Ok(false)
}
