//! Installs the programs that `cargo xtask lint` runs, at pinned versions, so that checks change
//! only on purpose.

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
    /// Checks licenses, bans and sources of the dependencies.
    pub(crate) const DENY: Self = Self { name: "cargo-deny", version: "0.20.2", binary: "cargo-deny" };
    /// Finds unused dependencies.
    pub(crate) const MACHETE: Self = Self { name: "cargo-machete", version: "0.9.2", binary: "cargo-machete" };
    /// Checks and formats Markdown.
    pub(crate) const RUMDL: Self = Self { name: "rumdl", version: "0.3.2", binary: "rumdl" };
    /// Checks spelling.
    pub(crate) const TYPOS: Self = Self { name: "typos-cli", version: "1.52.0", binary: "typos" };

    /// Returns a command that runs it in the workspace's root.
    pub(crate) fn command(self) -> Result<Command> {
        let mut command = Command::new(folder()?.join("bin").join(self.binary));
        command.current_dir(workspace::root());
        Ok(command)
    }

    fn is_listed(self, installed: &str) -> bool {
        installed.contains(&format!("\"{} {} (", self.name, self.version))
    }
}

/// Installs the missing `tools`. They are not optimized: each runs for a second, and building all
/// four takes four minutes on two cores instead of twenty.
pub(crate) fn lint_tools(tools: &[LintTool]) -> Result<()> {
    let folder = folder()?;
    let installed = fs::read_to_string(folder.join(".crates.toml")).unwrap_or_default();
    let is_there = |tool: &LintTool| tool.is_listed(&installed) && folder.join("bin").join(tool.binary).exists();
    let missing: Vec<_> =
        tools.iter().filter(|tool| !is_there(tool)).map(|tool| format!("{}@{}", tool.name, tool.version)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    workspace::progress(&format!("installing {} with cargo, for the checks (once, some minutes)", missing.join(", ")));
    // One target folder, so that common dependencies are built once.
    let build = folder.join("build");
    let mut cargo = workspace::cargo(["install", "--locked", "--debug", "--force", "--root"]);
    cargo.arg(&folder).args(&missing).env("CARGO_TARGET_DIR", &build).env("CARGO_PROFILE_DEV_DEBUG", "none");
    workspace::prepare(&mut cargo)?;
    fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))
}

fn folder() -> Result<PathBuf> {
    toolchain::tools_folder().context("no folder for tools: set XDG_CACHE_HOME or HOME")
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
