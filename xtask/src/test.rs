//! `cargo xtask test`: the suites in order, from the fastest.

use std::{process::Command, time::Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::{capabilities, setup, workspace};

/// A test suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Suite {
    /// The agent's, the ABI's and xtask's own unit and property tests
    Pure,
    /// One frame in, verdict and exact bytes out, through the kernel's BPF_PROG_TEST_RUN (needs root)
    Packet,
    /// Real agents, clients and servers in network namespaces (needs root)
    Network,
}

/// How a suite ended.
enum Outcome {
    Passed,
    Failed(anyhow::Error),
    /// It cannot run here; what to do about it.
    Skipped(String),
}

/// Runs `suites` (all, if none is named) and fails if one failed; with `CI=true` also if one was skipped.
pub(crate) fn run(suites: &[Suite]) -> Result<()> {
    let mut suites = if suites.is_empty() { Suite::value_variants() } else { suites }.to_vec();
    suites.sort_unstable();
    suites.dedup();
    setup::bpf_toolchain()?;
    let mut rows = Vec::new();
    for suite in suites {
        let start = Instant::now();
        let outcome = suite.run();
        rows.push((suite, outcome, workspace::seconds(start.elapsed())));
    }
    summarise(&rows, workspace::in_ci())
}

impl Suite {
    fn run(self) -> Outcome {
        let name = self.name();
        if let Some(remedy) = self.obstacle() {
            workspace::say(&format!("suite {name}: skipped, {remedy}"));
            return Outcome::Skipped(remedy);
        }
        if let Err(error) = self.prepare() {
            return Outcome::Failed(error);
        }
        for mut command in self.commands() {
            workspace::say(&format!("suite {name}: {}", workspace::shown(&command)));
            if let Err(error) = workspace::run(&mut command) {
                workspace::say(&format!("suite {name}: {error:#}"));
                return Outcome::Failed(error);
            }
        }
        Outcome::Passed
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Packet => "packet",
            Self::Network => "network",
        }
    }

    fn prepare(self) -> Result<()> {
        match self {
            Self::Pure => Ok(()),
            Self::Packet => setup::packet_tests(),
            Self::Network => setup::network_tests(),
        }
    }

    /// What keeps the suite from running here.
    fn obstacle(self) -> Option<String> {
        if self == Self::Pure {
            return None;
        }
        match capabilities::missing() {
            Ok(missing) if missing.is_empty() => None,
            Ok(missing) => {
                Some(format!("it needs {}: run `cargo xtask test {}` as root", missing.join(", "), self.name()))
            }
            Err(error) => Some(format!("{error:#}")),
        }
    }

    fn commands(self) -> Vec<Command> {
        let test = |arguments: &[&str]| {
            let mut command = workspace::cargo(["test"]);
            command.args(workspace::locked()).args(arguments);
            command
        };
        match self {
            Self::Pure => {
                vec![test(&["-p", "vipmux", "-p", "vipmux-common", "-p", "xtask", "--features", "vipmux-common/user"])]
            }
            Self::Packet => vec![test(&["-p", "vipmux-tests", "--test", "packet"])],
            Self::Network => {
                let mut agent = workspace::cargo(["build", "-p", "vipmux", "--bin", "vipmux"]);
                agent.args(workspace::locked());
                let mut suite = test(&["-p", "vipmux-tests", "--lib", "--bins", "--test", "network"]);
                if let Ok(folder) = workspace::target_folder() {
                    suite.env("VIPMUX_BIN", folder.join("debug/vipmux"));
                }
                vec![agent, suite]
            }
        }
    }
}

/// Prints one line per suite; an error if the run as a whole did not pass.
fn summarise(rows: &[(Suite, Outcome, String)], ci: bool) -> Result<()> {
    workspace::say("test summary");
    let (mut failed, mut skipped) = (0, 0);
    for (suite, outcome, time) in rows {
        let text = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(error) => {
                failed += 1;
                format!("FAILED   {error:#}")
            }
            Outcome::Skipped(remedy) => {
                skipped += 1;
                format!("skipped  {remedy}")
            }
        };
        eprintln!("    {:<8} {time:>9}  {text}", suite.name());
    }
    if failed > 0 {
        bail!("{failed} of {} suites failed", rows.len());
    }
    if ci && skipped > 0 {
        bail!("{skipped} of {} suites could not run, and CI=true asks for all of them", rows.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_suite_fails_the_run_in_ci_alone() {
        let rows = [
            (Suite::Pure, Outcome::Passed, "1 s".to_owned()),
            (Suite::Network, Outcome::Skipped("no root".to_owned()), "0 s".to_owned()),
        ];
        assert!(summarise(&rows, false).is_ok());
        assert!(summarise(&rows, true).is_err());
    }

    #[test]
    fn a_failed_suite_fails_the_run() {
        let rows = [(Suite::Pure, Outcome::Failed(anyhow::anyhow!("it broke")), "1 s".to_owned())];
        assert!(summarise(&rows, false).is_err());
    }
}
