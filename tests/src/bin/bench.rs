//! `cargo xtask bench`: measures vipmux; see docs/benchmarks.md.

use std::{
    io::{IsTerminal, Write, stderr},
    path::PathBuf,
};

use anyhow::{Result, bail, ensure};
use clap::Parser;
use vipmux_tests::bench::{self, Part, Plan, failover, katran::SERVICES};

/// Measures the cost of a packet in the BPF programs above an empty program in the same run;
/// packets per second of several cores; packets per core, compared with nftables rules like
/// kube-proxy's; what a node's own traffic pays; the duration of a change from its file to the kernel; the cost of an allocation;
/// the duration of `vipmux inspect flows` with a million flows; and the outage of a VIP when its
/// node fails. Needs root.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Arguments {
    /// The part to measure.
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
    /// Records of the flow table; a power of two.
    #[arg(long, default_value_t = Plan::default().capacity, value_parser = clap::value_parser!(u32).range(1024..=1 << 22))]
    capacity: u32,
    /// Measure a packet's cost in Katran too: the object file of its XDP program.
    #[arg(long, value_name = "OBJECT")]
    katran: Option<PathBuf>,
    /// Runs of each case of a failover.
    #[arg(long, default_value_t = failover::Plan::default().runs)]
    runs: usize,
    /// Only this event, instead of all.
    #[arg(long)]
    case: Option<failover::Case>,
}

fn main() -> Result<()> {
    let Arguments { part, json, services, repetitions, packets, flows, capacity, katran, runs, case } =
        Arguments::parse();
    ensure!(nix::unistd::geteuid().is_root(), "only root may load BPF programs: run it as root");
    ensure!(flows.is_power_of_two(), "the number of flows must be a power of two, not {flows}");
    ensure!(capacity.is_power_of_two(), "the flow table's records must be a power of two, not {capacity}");
    ensure!(flows <= capacity / 4, "{flows} known flows need a table of at least {} records", u64::from(flows) * 4);
    if katran.is_some() {
        ensure!(matches!(part, Part::All | Part::Packets), "--katran is for the part `packets`");
        ensure!(services.contains(&SERVICES), "beside Katran, --services must contain {SERVICES}");
    }
    let failover = failover::Plan { runs, case };
    let plan = Plan { services, repetitions, packets, flows, capacity, katran, part, failover, ..Plan::default() };
    let terminal = stderr().is_terminal();
    let report = bench::run(&plan, &mut |step| show(terminal, step), &mut |line| print_line(terminal, line))?;
    show(terminal, "");
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    let failed: Vec<_> = report.failures.iter().map(|failure| failure.part).collect();
    if !failed.is_empty() {
        bail!("some parts failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Prints a progress line. On a terminal it replaces the last one; elsewhere nothing is printed.
/// Write errors are ignored.
fn show(terminal: bool, step: &str) {
    if terminal {
        let _ = write!(stderr(), "\r\x1b[K{step}");
    }
}

/// Prints a line that stays.
fn print_line(terminal: bool, line: &str) {
    show(terminal, "");
    let _ = writeln!(stderr(), "{line}");
}
