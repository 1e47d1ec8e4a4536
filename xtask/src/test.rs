//! `cargo xtask test`: runs the suites in order, the fastest first.

use std::{env, num::NonZero, path::PathBuf, process::Command, thread, time::Instant};

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    capabilities,
    failures::{self, Failures},
    image,
    program::Profile,
    setup, sim,
    summary::{self, Outcome},
    workspace,
};

/// Seeds of each of the simulation's scenarios: a run of some seconds.
const SEEDS: &str = "60";

/// The number of tests that a suite runs at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// All targets with tests. Without them cargo would also run rustdoc on each crate, to find doc
/// tests, which no crate has.
const TARGETS: [&str; 3] = ["--lib", "--bins", "--tests"];

/// A test suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Suite {
    /// Unit and property tests of the agent, the ABI and xtask (some need root), and some thousand
    /// simulated clusters
    Pure,
    /// One frame in, verdict and exact bytes out, through the kernel's BPF_PROG_TEST_RUN (needs
    /// root)
    Packet,
    /// Real agents, clients and servers in network namespaces (needs root)
    Network,
    /// The same with a real API server, etcd and kube-proxy, which are built once (needs root)
    Api,
}

/// Runs `suites` (all, if none is named). At the end it repeats what failed tests have printed. Fails
/// if a suite failed, and with `CI=true` also if one was skipped.
pub(crate) fn run(suites: &[Suite]) -> Result<()> {
    let mut suites = if suites.is_empty() { Suite::value_variants() } else { suites }.to_vec();
    suites.sort_unstable();
    suites.dedup();
    setup::bpf_toolchain()?;
    if suites == Suite::value_variants() {
        build_all();
    }
    let (mut rows, mut failures) = (Vec::new(), Failures::default());
    for suite in suites {
        let start = Instant::now();
        let outcome = suite.run(&mut failures);
        rows.push((suite.name().to_owned(), outcome, workspace::seconds(start.elapsed())));
    }
    failures.print();
    summary::print("test", &rows, workspace::in_ci())
}

/// Builds all suites at once, so that several crates compile at a time. If that fails, the suites
/// report the errors.
fn build_all() {
    let mut build = workspace::cargo(["test", "--no-run", "--workspace"]);
    workspace::progress("building the suites");
    let _ = workspace::run(build.args(TARGETS).args(workspace::locked()));
}

impl Suite {
    fn run(self, failures: &mut Failures) -> Outcome {
        let name = self.name();
        if let Some(remedy) = self.obstacle() {
            workspace::progress(&format!("suite {name}: skipped, {remedy}"));
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
            workspace::progress(&format!("suite {name}: {}", workspace::command_line(&command)));
            if let Err(error) = failures.run(&mut command) {
                workspace::progress(&format!("suite {name}: {error:#}"));
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
            // Without root, the unit tests that need these programs are skipped.
            Self::Pure if capabilities::missing().is_ok_and(|missing| missing.is_empty()) => setup::network_tests(),
            Self::Pure => Ok(()),
            Self::Packet => setup::packet_tests(),
            Self::Network => setup::network_tests(),
            Self::Api => setup::api_tests(),
        }
    }

    /// Returns the outcome of a suite whose preparation failed. The API server is not available
    /// everywhere, since it is built from sources of the Go module proxy. So the API suite is
    /// skipped, and the other suites still count.
    fn unprepared(self, error: anyhow::Error) -> Outcome {
        let name = self.name();
        if self != Self::Api {
            return Outcome::Failed(error);
        }
        let remedy = format!(
            "no API server ({error:#}): run `cargo xtask setup` with access to the Go module proxy, or set KUBEBUILDER_ASSETS to \
             a folder with kube-apiserver and etcd"
        );
        workspace::progress(&format!("suite {name}: skipped, {remedy}"));
        Outcome::Skipped(remedy)
    }

    /// Returns what prevents the suite from running here.
    fn obstacle(self) -> Option<String> {
        if self == Self::Pure {
            return None;
        }
        match capabilities::missing() {
            Ok(missing) if missing.is_empty() => None,
            Ok(missing) => {
                Some(format!("needs {}: run `cargo xtask test {}` as root", missing.join(", "), self.name()))
            }
            Err(error) => Some(format!("{error:#}")),
        }
    }

    fn commands(self) -> Result<Vec<Command>> {
        let test = |arguments: &[&str]| {
            // One run reports all failures.
            let mut command = workspace::cargo(["test", "--no-fail-fast"]);
            command.args(workspace::locked()).args(arguments).args(failures::colors());
            command
        };
        Ok(match self {
            Self::Pure => {
                let mut simulation = sim::command()?;
                simulation.args(["--seeds", SEEDS]);
                let crates = ["--workspace", "--exclude", "vipmux-tests"];
                vec![test(&[&crates[..], &TARGETS].concat()), sim::build(), simulation]
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

/// Returns the agent's build, then a suite that starts the agent.
///
/// Cargo builds the agent for its own integration tests, with the features that all tests have.
/// `cargo build` has fewer features, and would compile a third of the agent's crates again.
///
/// Tests mostly wait, for deadlines and API servers. So twice as many tests as CPUs run at a time.
fn with_agent(mut suite: Command) -> Result<Vec<Command>> {
    if env::var_os(THREADS).is_none() {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        suite.env(THREADS, (2 * cpus).to_string());
    }
    let mut agent = workspace::cargo(["test", "--no-run", "-p", "vipmux", "--test", "generated"]);
    agent.args(workspace::locked());
    suite.env("VIPMUX_BIN", workspace::target_folder()?.join("debug/vipmux"));
    Ok(vec![agent, suite])
}

/// Makes the container image's files, from which the network suite starts agents. If they cannot be
/// made, the image's tests are skipped; with `CI=true` that is a failure.
fn image_files() -> Result<Option<PathBuf>> {
    match image::context(Profile::Dev) {
        Ok(context) => Ok(Some(context.join("root"))),
        Err(error) if workspace::in_ci() => Err(error.context("cannot make the container image's files")),
        Err(error) => {
            workspace::progress(&format!("continuing without the container image: {error:#}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Returns the lines that begin a code block which rustdoc would compile, below `folder`.
    fn doc_tests(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                found.extend(doc_tests(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let comments = text.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
                let fences = comments.filter_map(|line| line.get(4..)?.strip_prefix("```"));
                let opening = fences.step_by(2).filter(|language| matches!(*language, "" | "rust" | "no_run"));
                found.extend(opening.map(|_| path.display().to_string()));
            }
        }
        found
    }

    #[test]
    fn no_crate_has_doc_tests() {
        let folders = ["agent", "common/src", "tests/src", "xtask/src"];
        let found: Vec<_> = folders.iter().flat_map(|folder| doc_tests(&workspace::root().join(folder))).collect();
        assert!(found.is_empty(), "tests that `cargo xtask test` does not run: {found:?}");
    }
}
