//! Debian packages.

use std::{process::Command, sync::Once};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use crate::workspace;

/// Installs `packages`, telling the `reason`; an error tells what to run where this process may not.
pub(super) fn install(packages: &[String], reason: &str) -> Result<()> {
    if !workspace::succeeds(Command::new("apt-get").arg("--version")) {
        bail!("{} not installed ({reason}), and there is no apt-get to install with", packages.join(", "));
    }
    if !geteuid().is_root() {
        bail!("{reason}: run this as root first: {}", workspace::shown(&install_command(packages)));
    }
    workspace::say(&format!("installing {} with apt-get: {reason}", packages.join(", ")));
    update();
    workspace::prepare(&mut install_command(packages))
}

/// Whether apt's lists, as they are, have a version of `package` to install.
pub(super) fn is_known(package: &str) -> bool {
    let Ok(output) = Command::new("apt-cache").args(["policy", package]).env("LC_ALL", "C").output() else {
        return false;
    };
    has_candidate(&String::from_utf8_lossy(&output.stdout))
}

fn has_candidate(policy: &str) -> bool {
    policy.lines().filter_map(|line| line.trim().strip_prefix("Candidate: ")).any(|version| version != "(none)")
}

/// Lists that are months old still have a version of most packages, but perhaps one that is too old or gone; so they are
/// updated first, once. A machine without its archive may yet have what is needed.
fn update() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        workspace::say("updating apt's package lists");
        if let Err(error) = workspace::prepare(apt_get().arg("update")) {
            workspace::say(&format!("{error:#}; going on with the lists as they are"));
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
    // Wait for another apt that is at work rather than fail, and let no package ask anything.
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
        assert_eq!(workspace::shown(&command), expected);
    }
}
