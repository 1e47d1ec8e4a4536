//! The programs that `cargo xtask lint` runs, at pinned versions, so that a check does not change under one's feet.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{toolchain, workspace};

/// A program from crates.io.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LintTool {
    /// The crate.
    name: &'static str,
    /// Its version.
    version: &'static str,
    /// Its binary.
    binary: &'static str,
}

impl LintTool {
    /// Licences, bans and sources of the dependencies.
    pub(crate) const DENY: Self = Self { name: "cargo-deny", version: "0.20.2", binary: "cargo-deny" };
    /// Dependencies that nothing uses.
    pub(crate) const MACHETE: Self = Self { name: "cargo-machete", version: "0.9.2", binary: "cargo-machete" };
    /// Spelling.
    pub(crate) const TYPOS: Self = Self { name: "typos-cli", version: "1.52.0", binary: "typos" };

    /// A command that runs it in the workspace's root.
    pub(crate) fn command(self) -> Result<Command> {
        let mut command = Command::new(folder()?.join("bin").join(self.binary));
        command.current_dir(workspace::root());
        Ok(command)
    }

    fn is_listed(self, installed: &str) -> bool {
        installed.contains(&format!("\"{} {} (", self.name, self.version))
    }
}

/// Installs those of `tools` that are not there at their version. Unoptimised: they run for a second, and the whole
/// build of all three takes two minutes on two cores instead of ten.
pub(crate) fn lint_tools(tools: &[LintTool]) -> Result<()> {
    let folder = folder()?;
    let installed = fs::read_to_string(folder.join(".crates.toml")).unwrap_or_default();
    let is_there = |tool: &LintTool| tool.is_listed(&installed) && folder.join("bin").join(tool.binary).exists();
    let missing: Vec<_> =
        tools.iter().filter(|tool| !is_there(tool)).map(|tool| format!("{}@{}", tool.name, tool.version)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    workspace::say(&format!("installing {} with cargo, for the checks (some minutes, once)", missing.join(", ")));
    // One target folder, so that what they have in common is built once.
    let build = folder.join("build");
    let mut cargo = workspace::cargo(["install", "--locked", "--debug", "--force", "--root"]);
    cargo.arg(&folder).args(&missing).env("CARGO_TARGET_DIR", &build).env("CARGO_PROFILE_DEV_DEBUG", "none");
    workspace::prepare(&mut cargo)?;
    fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))
}

/// Makes sure that this toolchain has rustfmt and clippy.
pub(crate) fn components() -> Result<()> {
    let missing: Vec<_> = [("rustfmt", "fmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(_, command)| !workspace::succeeds(&mut workspace::cargo([command, "--version"])))
        .map(|(component, _)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    workspace::say(&format!("installing {} with rustup, for the checks", missing.join(", ")));
    let mut rustup = Command::new("rustup");
    workspace::prepare(rustup.args(["component", "add"]).args(&missing))
}

fn folder() -> Result<PathBuf> {
    toolchain::tools_folder().context("neither XDG_CACHE_HOME nor a home directory to install into")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_of_a_tool_is_not_taken_for_it() {
        let list = "[v1]\n\"typos-cli 1.52.0 (registry+https://example)\" = [\"typos\"]\n";
        assert!(LintTool::TYPOS.is_listed(list));
        assert!(!LintTool::TYPOS.is_listed(&list.replace("1.52.0", "1.52.01")));
        assert!(!LintTool::DENY.is_listed(list));
    }
}
