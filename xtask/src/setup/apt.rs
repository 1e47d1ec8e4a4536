//! Installs Debian packages.

use std::{process::Command, sync::Once};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use crate::workspace;

/// Installs `packages` and prints the `reason`. If this process may not, the error names the
/// command to run.
pub(super) fn install(packages: &[String], reason: &str) -> Result<()> {
    if !workspace::succeeds(Command::new("apt-get").arg("--version")) {
        bail!("{} not installed ({reason}), and apt-get is missing", packages.join(", "));
    }
    if !geteuid().is_root() {
        bail!("{reason}: run this as root first: {}", workspace::command_line(&install_command(packages)));
    }
    workspace::progress(&format!("installing {} with apt-get: {reason}", packages.join(", ")));
    update();
    workspace::prepare(&mut install_command(packages))
}

/// Returns whether apt's current lists have a version of `package` to install.
pub(super) fn is_known(package: &str) -> bool {
    let Ok(output) = Command::new("apt-cache").args(["policy", package]).env("LC_ALL", "C").output() else {
        return false;
    };
    has_candidate(&String::from_utf8_lossy(&output.stdout))
}

fn has_candidate(policy: &str) -> bool {
    policy.lines().filter_map(|line| line.trim().strip_prefix("Candidate: ")).any(|version| version != "(none)")
}

/// Updates apt's lists, once per process. Old lists may name versions that are too old or gone. If
/// the archive cannot be reached, the old lists may still do.
fn update() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        workspace::progress("updating apt's package lists");
        if let Err(error) = workspace::prepare(apt_get().arg("update")) {
            workspace::progress(&format!("{error:#}; continuing with the old lists"));
        }
    });
}

fn install_command(packages: &[String]) -> Command {
    let mut command = apt_get();
    command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    command
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    // Wait for another running apt instead of failing, and let no package ask questions.
    command.args(["-o", "DPkg::Lock::Timeout=300"]).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_a_candidate_is_not_known() {
        assert!(has_candidate("nftables:\n  Installed: (none)\n  Candidate: 1.0.6-2\n"));
        assert!(!has_candidate("nftables:\n  Installed: (none)\n  Candidate: (none)\n"));
        assert!(!has_candidate(""));
    }

    #[test]
    fn the_command_for_root_can_be_typed() {
        let command = install_command(&["nftables".to_owned()]);
        let expected = "apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends nftables";
        assert_eq!(workspace::command_line(&command), expected);
    }
}
