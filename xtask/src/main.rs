//! vipmux's build, test, demo and lint commands: `cargo xtask help`.
//!
//! This binary installs the BPF toolchain, so it depends on no crate that needs one.

mod bench;
mod build;
mod capabilities;
mod churn;
mod cluster;
mod demo;
mod failures;
mod fuzz;
mod generate;
mod image;
mod lint;
mod program;
mod release;
mod setup;
mod sim;
mod summary;
mod test;
mod vm;
mod workspace;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use vipmux_bpf_build::toolchain;
use xtask::{archive, cluster_programs, oci};

/// Builds, tests and demonstrates vipmux. Each command first installs what it needs (as root), and
/// says so.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_version_flag = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install the BPF toolchain and what the tests need, including Kubernetes, and mount bpffs.
    /// Does nothing if everything is there
    Setup,
    /// Build every crate and the BPF programs
    Build {
        /// Build with optimizations
        #[arg(long)]
        release: bool,
    },
    /// Run the test suites (all, if none is named)
    Test {
        /// The suites to run
        #[arg(value_name = "SUITE")]
        suites: Vec<test::Suite>,
    },
    /// Demonstrate vipmux in network namespaces: three nodes, one VIP, five Services. Needs no
    /// cluster
    Demo {
        /// --hold keeps everything running afterwards; `-- --help` lists all options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Measure the cost of a packet, the packets a core forwards, the time a change takes, and a
    /// failover
    Bench {
        /// packets, cores, flood, forwarding, sync, allocate, inspect, failover or cluster measures only
        /// this part; --json prints figures for programs; `-- --help` lists all options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Change a cluster in a loop for an hour, and check that memory, descriptors, maps and Leases
    /// do not grow
    Churn {
        /// --minutes N; `-- --help` lists all options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Run a real Kubernetes cluster on this machine: a control plane and nodes with kubelet and
    /// containerd, in namespaces
    Cluster {
        /// up, status, shell, test, conformance or down; `-- --help` lists all options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Run the packet suite and part of the network suite on other kernels, in QEMU (needs no KVM)
    #[command(args_conflicts_with_subcommands = true)]
    Vm {
        #[command(subcommand)]
        part: Option<VmPart>,
        /// The kernels to run on (all, if none is named)
        #[arg(value_name = "KERNEL")]
        kernels: Vec<vm::Kernel>,
        /// Run only this test of the network suite: its full name. May be repeated
        #[arg(long = "test", value_name = "NAME")]
        tests: Vec<String>,
        /// Download newer packages of kernels that are cached already
        #[arg(long)]
        update: bool,
    },
    /// Run the BPF programs on arbitrary frames and the parsers on arbitrary annotations, with
    /// libFuzzer
    Fuzz {
        /// The targets to fuzz (all, if none is named)
        #[arg(value_name = "TARGET")]
        targets: Vec<fuzz::Target>,
        /// Seconds for each target
        #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
        seconds: u32,
    },
    /// Simulate faulty clusters, many seeds of each scenario, and check the invariants
    Sim {
        /// --seeds N runs N seeds; --seed S --scenario NAME --trace shows one run in detail; `--
        /// --help` lists all options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Write the generated files: CRDs, manifests and the configuration's schema in deploy/, and
    /// docs/configuration.md
    Generate,
    /// Build the container image with one static binary: an archive in target/image, without a container
    /// engine
    Image,
    /// Make all files of a release in target/dist: programs and image for x86-64 and arm64, manifests,
    /// chart, SBOM and checksums
    Release {
        /// Accept uncommitted changes, and a changelog without a section for the version. The files are
        /// not for publication
        #[arg(long)]
        draft: bool,
    },
    /// Check formatting, lints, docs, dependencies, spelling, manifests and the layers of the crates
    Lint {
        /// The checks to run (all, if none is named)
        #[arg(value_name = "CHECK")]
        checks: Vec<lint::Check>,
    },
}

#[derive(Subcommand)]
enum VmPart {
    /// Run part of the network suite on drivers of real cards: virtio_net, igb, vmxnet3, e1000e, e1000,
    /// 8139cp and cdc_ether
    Drivers(vm::Drivers),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Setup => setup::run(),
        Command::Build { release } => build::run(release),
        Command::Test { suites } => test::run(&suites),
        Command::Demo { options } => demo::run(&options),
        Command::Bench { options } => bench::run(&options),
        Command::Churn { options } => churn::run(&options),
        Command::Cluster { options } => cluster::run(&options),
        Command::Vm { part: Some(VmPart::Drivers(options)), .. } => vm::run_drivers(&options),
        Command::Vm { kernels, tests, update, .. } => vm::run(&kernels, &tests, update),
        Command::Fuzz { seconds, targets } => fuzz::run(seconds, &targets),
        Command::Sim { options } => sim::run(&options),
        Command::Generate => generate::run(),
        Command::Image => image::run(),
        Command::Release { draft } => release::run(draft),
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
