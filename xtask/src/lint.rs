//! `cargo xtask lint`: runs every check, even if one fails, and names the failed ones in a summary.

mod alerts;
mod circles;
mod layers;

use std::{process::Command, time::Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::{
    fuzz, generate,
    setup::{self, LintTool, Need},
    summary::{self, Outcome},
    workspace,
};

/// A check to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Check {
    /// rustfmt, for the workspace, the BPF crate and the fuzz target
    Fmt,
    /// Which crate depends on which; the pure ones reach no runtime, kernel or cluster
    Layers,
    /// Which files of a crate import each other
    Circles,
    /// Length of lines and relative links in Markdown files
    Markdown,
    /// Spelling
    Typos,
    /// Dependencies that nothing uses
    Machete,
    /// Licenses, duplicates and sources of the dependencies
    Deny,
    /// clippy for the workspace
    Clippy,
    /// clippy for the BPF crate
    ClippyBpf,
    /// clippy for the fuzz target
    ClippyFuzz,
    /// rustdoc, with warnings as errors
    Docs,
    /// The alerts for Prometheus, with promtool
    Alerts,
    /// The manifests of kustomize, which the chart makes, with helm
    Manifests,
}

/// Runs `checks` (all, if none is named). Fails if one of them failed.
pub(crate) fn run(checks: &[Check]) -> Result<()> {
    let mut checks = if checks.is_empty() { Check::value_variants() } else { checks }.to_vec();
    checks.sort_unstable();
    checks.dedup();
    prepare(&checks)?;
    let mut rows = Vec::new();
    for check in checks {
        workspace::progress(&format!("check {}", check.name()));
        let start = Instant::now();
        let outcome = check.run().map_or_else(Outcome::Failed, |()| Outcome::Passed);
        rows.push((check.name(), outcome, workspace::seconds(start.elapsed())));
    }
    summary::print("lint", &rows, workspace::in_ci())
}

/// Installs what the checks need.
fn prepare(checks: &[Check]) -> Result<()> {
    let tools: Vec<_> = checks.iter().filter_map(|check| check.tool()).collect();
    setup::lint_tools(&tools)?;
    // clippy and rustdoc run the datapath crate's build script, which builds the BPF programs.
    if [Check::Clippy, Check::ClippyFuzz, Check::Docs].iter().any(|check| checks.contains(check)) {
        setup::bpf_toolchain()?;
    }
    if checks.contains(&Check::ClippyFuzz) {
        setup::cpp_compiler()?;
    }
    for (check, need) in [(Check::Alerts, Need::Alerts), (Check::Manifests, Need::Tests)] {
        // Without the Go module proxy, the other checks can run.
        if checks.contains(&check)
            && let Err(error) = setup::cluster_programs(need)
        {
            workspace::progress(&format!("{error:#}; continuing without the programs of {}", check.name()));
        }
    }
    Ok(())
}

impl Check {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    const fn tool(self) -> Option<LintTool> {
        match self {
            Self::Deny => Some(LintTool::DENY),
            Self::Machete => Some(LintTool::MACHETE),
            Self::Typos => Some(LintTool::TYPOS),
            Self::Markdown => Some(LintTool::RUMDL),
            Self::Fmt
            | Self::Layers
            | Self::Circles
            | Self::Clippy
            | Self::ClippyBpf
            | Self::ClippyFuzz
            | Self::Docs
            | Self::Alerts
            | Self::Manifests => None,
        }
    }

    fn run(self) -> Result<()> {
        match self {
            Self::Fmt => all([
                workspace::cargo(["fmt", "--all", "--check"]),
                workspace::cargo(["fmt", "--manifest-path", "ebpf/Cargo.toml", "--check"]),
                workspace::cargo(["fmt", "--manifest-path", fuzz::MANIFEST, "--check"]),
            ]),
            Self::Layers => layers::check(),
            Self::Circles => circles::check(),
            Self::Markdown => markdown(),
            Self::Typos => all([LintTool::TYPOS.command()?]),
            Self::Machete => {
                let mut command = LintTool::MACHETE.command()?;
                command.arg("--skip-target-dir");
                all([command])
            }
            Self::Deny => all([
                deny(&[])?,
                deny(&["--manifest-path", "ebpf/Cargo.toml"])?,
                deny(&["--manifest-path", fuzz::MANIFEST])?,
            ]),
            Self::Clippy => {
                let mut command = workspace::cargo(["clippy", "--workspace", "--all-targets"]);
                command.args(workspace::locked()).args(["--", "-D", "warnings"]);
                all([command])
            }
            Self::ClippyFuzz => {
                let mut command = workspace::cargo(["clippy", "--manifest-path", fuzz::MANIFEST, "--bins"]);
                command.arg("--target-dir").arg(workspace::target_folder()?);
                command.args(workspace::locked()).args(["--", "-D", "warnings"]);
                all([command])
            }
            Self::ClippyBpf => all([clippy_bpf()?]),
            Self::Alerts => all(alerts::commands()?),
            Self::Manifests => generate::check(),
            Self::Docs => {
                let mut command = workspace::cargo(["doc", "--workspace", "--no-deps"]);
                command.args(workspace::locked()).env("RUSTDOCFLAGS", "-D warnings");
                all([command])
            }
        }
    }
}

/// Runs all commands. Fails if one failed.
fn all(commands: impl IntoIterator<Item = Command>) -> Result<()> {
    let results: Vec<_> = commands.into_iter().map(|mut command| workspace::run(&mut command)).collect();
    results.into_iter().collect()
}

/// Checks Markdown files by `.rumdl.toml`.
fn markdown() -> Result<()> {
    let mut command = LintTool::RUMDL.command()?;
    let program = command.get_program().display().to_string();
    command.args(["check", "--no-cache", "."]);
    all([command]).with_context(|| format!("`{program} fmt` mends lines"))
}

/// Returns a cargo-deny command without its advisories, whose database is not on crates.io.
fn deny(options: &[&str]) -> Result<Command> {
    let mut command = LintTool::DENY.command()?;
    command.args(["--locked", "--config", "deny.toml", "--log-level", "warn"]).args(options);
    command.args(["check", "--allow", "unmatched-skip", "bans", "licenses", "sources"]);
    Ok(command)
}

/// Returns the clippy command for the BPF crate. It checks for the host: clippy belongs to the
/// host's toolchain, which has no `core` for the BPF target, and aya-ebpf compiles for both. With
/// `panic = "abort"` the host needs no unwinder.
fn clippy_bpf() -> Result<Command> {
    let mut command = workspace::cargo(["clippy", "--manifest-path", "ebpf/Cargo.toml", "--bins"]);
    command.args(workspace::locked()).arg("--target-dir").arg(workspace::target_folder()?.join("ebpf-clippy"));
    command.args(["--", "-D", "warnings"]).env("CARGO_PROFILE_DEV_PANIC", "abort");
    // Inline assembly for BPF is behind a feature gate.
    command.env("RUSTC_BOOTSTRAP", "1");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_runs_though_the_first_fails() {
        let folder = std::env::temp_dir().join(format!("vipmux-xtask-{}", std::process::id()));
        let mut make = Command::new("mkdir");
        make.arg(&folder);
        assert!(all([Command::new("false"), make]).is_err());
        assert!(std::fs::remove_dir(&folder).is_ok());
    }
}
