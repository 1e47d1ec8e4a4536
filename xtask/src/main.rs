//! vipmux's build, test, demo and lint commands: `cargo xtask help`.
//!
//! This binary is what installs the BPF toolchain, so it depends on no crate that needs one.

mod bench;
mod build;
mod capabilities;
mod demo;
mod fuzz;
mod generate;
mod image;
mod lint;
mod setup;
mod sim;
mod summary;
mod test;
#[path = "../../agent/build/toolchain.rs"]
mod toolchain;
mod vm;
mod workspace;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

/// Builds, tests and shows vipmux. Each command first installs what it misses (as root), and says what.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_version_flag = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install the BPF toolchain and what the tests need, Kubernetes included, and mount bpffs; does nothing when all is there
    Setup,
    /// Build every crate and the BPF programs
    Build {
        /// Build with optimisations
        #[arg(long)]
        release: bool,
    },
    /// Run the test suites, all of them unless some are named
    Test {
        /// The suites to run
        #[arg(value_name = "SUITE")]
        suites: Vec<test::Suite>,
    },
    /// Run the main job in network namespaces: three nodes, one VIP, five Services; no cluster needed
    Demo {
        /// --hold leaves everything standing to play with; `-- --help` tells all
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Measure what a packet costs, how many a core forwards, how long a change takes, and a failover
    Bench {
        /// packets, forwarding, sync, allocate or failover measures a part; --json prints the figures for programs; `-- --help`
        /// tells all
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Run the packet suite and a part of the network suite on other kernels, in QEMU (no KVM needed)
    Vm {
        /// The kernels to run on; all of them unless some are named
        #[arg(value_name = "KERNEL")]
        kernels: Vec<vm::Kernel>,
        /// Look for newer packages of the kernels that are there already
        #[arg(long)]
        update: bool,
    },
    /// Give the BPF programs arbitrary frames, and the parsers arbitrary annotations, by libFuzzer
    Fuzz {
        /// What to fuzz; all of it unless some is named
        #[arg(value_name = "TARGET")]
        targets: Vec<fuzz::Target>,
        /// How long, each
        #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
        seconds: u32,
    },
    /// Simulate clusters in which things go wrong, many seeds of each scenario, and check what is promised of them
    Sim {
        /// --seeds N runs so many; --seed S --scenario NAME --trace tells what happens in one; `-- --help` tells all
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Write the files that follow from the code: custom resources and the configuration's schema in deploy/, docs/configuration.md
    Generate,
    /// Build the container image of one static binary, or its files where nothing makes images (target/image)
    Image,
    /// Check formatting, lints, docs, dependencies, spelling and the purity of the pure modules
    Lint {
        /// The checks to run; all of them unless some are named
        #[arg(value_name = "CHECK")]
        checks: Vec<lint::Check>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Setup => setup::run(),
        Command::Build { release } => build::run(release),
        Command::Test { suites } => test::run(&suites),
        Command::Demo { options } => demo::run(&options),
        Command::Bench { options } => bench::run(&options),
        Command::Vm { kernels, update } => vm::run(&kernels, update),
        Command::Fuzz { seconds, targets } => fuzz::run(seconds, &targets),
        Command::Sim { options } => sim::run(&options),
        Command::Generate => generate::run(),
        Command::Image => image::run(),
        Command::Lint { checks } => lint::run(&checks),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
