//! `cargo xtask churn`: changes a cluster in a loop, and checks that nothing grows.

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use clap::Parser;
use vipmux_tests::churn::{Churn, Plan, Sample, Verdict};

/// Adds and removes Services, moves leaders, and restarts agents and the API server in a loop.
/// Fails if memory, descriptors, maps, pins, programs, Leases or files grow.
/// Needs root.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask churn")]
struct Arguments {
    /// How long to run; the last cycle is completed.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Services that each cycle adds and removes; at most 1,000.
    #[arg(long, default_value_t = Plan::default().services, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    services: u16,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    let plan = Plan { time: Duration::from_secs(arguments.minutes * 60), services: arguments.services };
    let Some(mut churn) = Churn::start(&plan)? else { bail!("this machine lacks something, see above") };
    println!(
        "{:>6} {:>9} {:>9} {:>5} {:>8} {:>5} {:>8} {:>6}  the cycle, besides {} Services",
        "time", "agent", "allocator", "files", "entries", "pins", "programs", "Leases", plan.services
    );
    let mut last: Option<Sample> = None;
    let samples = churn.run(plan.time, &mut |sample, did| {
        print(sample, did);
        let differences = last.iter().flat_map(|last| sample.differences(last));
        differences.for_each(|difference| println!("         {difference}"));
        println!("         {:?}", sample.fluctuating);
        last = Some(sample.clone());
    })?;
    let verdict = Verdict::of(&samples);
    let tally = churn.stop()?;
    println!("\n{} cycles; the client: {} answers, {} lost", samples.len(), tally.answered, tally.lost);
    println!("medians of the second and of the last quarter:");
    for change in &verdict.memory {
        println!("  memory in KiB, {change}");
    }
    for change in &verdict.not_flat {
        println!("  NOT FLAT: {change}");
    }
    println!("{}", if verdict.flat() { "flat: nothing grew" } else { "not flat" });
    Ok(verdict.flat())
}

fn print(sample: &Sample, did: &str) {
    let memory = |name: &str| sample.memory.get(name).copied().unwrap_or(0) / 1024;
    println!(
        "{:>4} s {:>5} MiB {:>5} MiB {:>5} {:>8} {:>5} {:>8} {:>6}  {did}",
        sample.time.as_secs(),
        memory("node-1"),
        memory("allocator"),
        sample.sum(": descriptors of "),
        sample.sum(": entries of "),
        sample.sum(": pinned files"),
        sample.sum("programs that use the maps"),
        sample.sum("Leases"),
    );
}
