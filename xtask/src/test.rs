//! `cargo xtask test`: the suites in order, from the fastest.

use std::{path::PathBuf, process::Command, time::Instant};

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    capabilities, image, setup, sim,
    summary::{self, Outcome},
    workspace,
};

/// Seeds of each of the simulation's scenarios: some seconds' worth.
const SEEDS: &str = "200";

/// A test suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Suite {
    /// The agent's, the ABI's and xtask's own unit and property tests (those that touch the kernel need root), and some
    /// thousand simulated clusters
    Pure,
    /// One frame in, verdict and exact bytes out, through the kernel's BPF_PROG_TEST_RUN (needs root)
    Packet,
    /// Real agents, clients and servers in network namespaces (needs root)
    Network,
    /// The same in a cluster with a real API server, etcd and kube-proxy, which are built first, once (needs root)
    Api,
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
        rows.push((suite.name().to_owned(), outcome, workspace::seconds(start.elapsed())));
    }
    summary::tell("test", &rows, workspace::in_ci())
}

impl Suite {
    fn run(self) -> Outcome {
        let name = self.name();
        if let Some(remedy) = self.obstacle() {
            workspace::say(&format!("suite {name}: skipped, {remedy}"));
            return Outcome::Skipped(remedy);
        }
        if let Err(error) = self.prepare() {
            return self.unprepared(error);
        }
        let commands = match self.commands() {
            Ok(commands) => commands,
            Err(error) => return Outcome::Failed(error),
        };
        for mut command in commands {
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
            Self::Api => "api",
        }
    }

    fn prepare(self) -> Result<()> {
        match self {
            Self::Pure => Ok(()),
            Self::Packet => setup::packet_tests(),
            Self::Network => setup::network_tests(),
            Self::Api => setup::api_tests(),
        }
    }

    /// What became of a suite that cannot be prepared. An API server is not to be had everywhere, since it is built from sources
    /// of the Go module proxy; the rest of the tests say as much without it.
    fn unprepared(self, error: anyhow::Error) -> Outcome {
        let name = self.name();
        if self != Self::Api {
            return Outcome::Failed(error);
        }
        let remedy = format!(
            "no API server is to be had ({error:#}): run `cargo xtask setup` where the Go module proxy is reached, or name a \
             folder with kube-apiserver and etcd by KUBEBUILDER_ASSETS"
        );
        workspace::say(&format!("suite {name}: skipped, {remedy}"));
        Outcome::Skipped(remedy)
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

    fn commands(self) -> Result<Vec<Command>> {
        let test = |arguments: &[&str]| {
            // One run tells it all.
            let mut command = workspace::cargo(["test", "--no-fail-fast"]);
            command.args(workspace::locked()).args(arguments);
            command
        };
        Ok(match self {
            Self::Pure => {
                let mut simulation = sim::command()?;
                simulation.args(["--seeds", SEEDS]);
                let crates = ["-p", "vipmux", "-p", "vipmux-common", "-p", "xtask", "--features", "vipmux-common/user"];
                vec![test(&crates), sim::build(), simulation]
            }
            Self::Packet => vec![test(&["-p", "vipmux-tests", "--test", "packet"])],
            Self::Network => {
                let mut suite = test(&["-p", "vipmux-tests", "--lib", "--bins", "--test", "network"]);
                if let Some(root) = image_files()? {
                    suite.env("VIPMUX_IMAGE_ROOT", root);
                }
                with_agent(suite)?
            }
            Self::Api => with_agent(test(&["-p", "vipmux-tests", "--test", "api"]))?,
        })
    }
}

/// The agent's build, and a suite that starts it.
fn with_agent(mut suite: Command) -> Result<Vec<Command>> {
    let mut agent = workspace::cargo(["build", "-p", "vipmux", "--bin", "vipmux"]);
    agent.args(workspace::locked());
    suite.env("VIPMUX_BIN", workspace::target_folder()?.join("debug/vipmux"));
    Ok(vec![agent, suite])
}

/// The container image's files, which the network suite starts agents from. Where they cannot be made, its tests of the image are
/// skipped; with `CI=true` that is a failure.
fn image_files() -> Result<Option<PathBuf>> {
    match image::context(image::Profile::Dev) {
        Ok(context) => Ok(Some(context.join("root"))),
        Err(error) if workspace::in_ci() => Err(error.context("the container image's files cannot be made")),
        Err(error) => {
            workspace::say(&format!("going on without the container image: {error:#}"));
            Ok(None)
        }
    }
}
