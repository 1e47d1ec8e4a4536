//! `cargo xtask bench`: what a packet costs, how many a core forwards, how long a change takes, what an allocation costs, and how long
//! an address is away when its node fails; see docs/benchmarks.md.

use std::io::{IsTerminal, Write, stderr};

use anyhow::{Result, bail, ensure};
use clap::Parser;
use vipmux_tests::bench::{self, Part, Plan, failover};

/// Measures what a packet costs in the BPF programs, over an empty program in the same run, how many packets a core
/// forwards beside nftables rules as kube-proxy has them, how long a change takes from its file to the kernel, what it costs to
/// decide who gets which address, and how long an address is away when its node fails. Needs root.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Arguments {
    /// What to measure.
    #[arg(value_enum, default_value_t = Part::All)]
    part: Part,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Numbers of Services to compare a packet's cost with; each even, ten endpoints each.
    #[arg(long, value_delimiter = ',', default_values_t = Plan::default().services)]
    services: Vec<u32>,
    /// Interleaved repetitions of each case.
    #[arg(long, default_value_t = Plan::default().repetitions)]
    repetitions: usize,
    /// Packets of a repetition.
    #[arg(long, default_value_t = Plan::default().packets, value_parser = clap::value_parser!(u32).range(1..))]
    packets: u32,
    /// Flows that the cases with many flows spread over the Services; a power of two.
    #[arg(long, default_value_t = Plan::default().flows)]
    flows: u32,
    /// Entries of the flow and reverse-flow tables.
    #[arg(long, default_value_t = Plan::default().capacity, value_parser = clap::value_parser!(u32).range(1024..=1 << 22))]
    capacity: u32,
    /// Runs of each case of a failover.
    #[arg(long, default_value_t = failover::Plan::default().runs)]
    runs: usize,
    /// Of what can happen to a node this alone, rather than all.
    #[arg(long)]
    case: Option<failover::Case>,
}

fn main() -> Result<()> {
    let Arguments { part, json, services, repetitions, packets, flows, capacity, runs, case } = Arguments::parse();
    ensure!(nix::unistd::geteuid().is_root(), "the kernel loads BPF programs for root alone: run it as root");
    ensure!(flows.is_power_of_two(), "{flows} flows are no power of two");
    ensure!(flows <= capacity / 4, "{flows} known flows need tables of at least {} entries", u64::from(flows) * 4);
    let failover = failover::Plan { runs, case };
    let plan = Plan { services, repetitions, packets, flows, capacity, part, failover, ..Plan::default() };
    let terminal = stderr().is_terminal();
    let report = bench::run(&plan, &mut |step| show(terminal, step), &mut |line| tell(terminal, line))?;
    show(terminal, "");
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    let failed: Vec<_> = report.failures.iter().map(|failure| failure.part).collect();
    if !failed.is_empty() {
        bail!("these could not be measured: {}", failed.join(", "));
    }
    Ok(())
}

/// One line on a terminal, over the last one; nothing elsewhere. Progress that cannot be shown is no failure.
fn show(terminal: bool, step: &str) {
    if terminal {
        let _ = write!(stderr(), "\r\x1b[K{step}");
    }
}

/// A line that stays.
fn tell(terminal: bool, line: &str) {
    show(terminal, "");
    let _ = writeln!(stderr(), "{line}");
}
