//! What a packet costs: nanoseconds over an empty program in the same run; how many a core forwards ([`forwarding`]), how
//! long a change takes ([`sync`]), what it costs to decide who gets which address ([`allocation`]), and how long an address is
//! away when its node fails ([`mod@failover`]).
//!
//! `BPF_PROG_TEST_RUN` repeats a small wrapper, which puts the packet back, picks the next flow and tail-calls the
//! program under test. Time is the thread's CPU time, so that what else runs on the machine counts for little; cases
//! are interleaved in a rotating order, and figures are medians. Even so they are of one machine: compare ratios.

pub mod allocation;
mod cases;
pub mod failover;
pub mod forwarding;
mod goals;
mod measure;
mod report;
pub mod sync;
mod workload;
mod wrapper;

use anyhow::Result;

pub use goals::Goal;
pub use report::{Failure, Figure, Measured, Ratio, Report};

/// What is measured how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Numbers of Services; each has as many figures of its own.
    pub services: Vec<u32>,
    /// Interleaved repetitions of each case.
    pub repetitions: usize,
    /// Packets of a repetition.
    pub packets: u32,
    /// Flows that the cases with many flows spread over the Services; a power of two.
    pub flows: u32,
    /// Entries of the flow and reverse-flow tables.
    pub capacity: u32,
    /// What of it to measure.
    pub part: Part,
    /// How long changes take.
    pub sync: sync::Plan,
    /// What allocations cost.
    pub allocation: allocation::Plan,
    /// How long an address is away.
    pub failover: failover::Plan,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Everything.
    #[default]
    All,
    /// What a packet costs.
    Packets,
    /// How many packets a core forwards, beside nftables rules as kube-proxy has them.
    Forwarding,
    /// How long a change takes from its file to the kernel.
    Sync,
    /// What it costs to decide who gets which address.
    Allocate,
    /// How long an address is away when its node fails, beside keepalived.
    Failover,
}

impl Part {
    /// Its name in output.
    const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Packets => "packets",
            Self::Forwarding => "forwarding",
            Self::Sync => "sync",
            Self::Allocate => "allocate",
            Self::Failover => "failover",
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            services: vec![10, 10_000],
            repetitions: 15,
            packets: 500_000,
            flows: 65_536,
            capacity: 1 << 20,
            part: Part::All,
            sync: sync::Plan::default(),
            allocation: allocation::Plan::default(),
            failover: failover::Plan::default(),
        }
    }
}

/// Loads everything, measures it and sums it up; a part that fails is told among the [`Report::failures`], and takes nothing from the
/// others. `progress` is told what is going on, and `outcome` what came of a part of it that takes long.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str), outcome: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut measured = Measured::default();
    let mut failures = Vec::new();
    let mut note = |part: Part, result: Result<()>| {
        failures.extend(result.err().map(|error| Failure { part: part.name(), error: format!("{error:#}") }));
    };
    let wanted = |part| plan.part == Part::All || plan.part == part;
    // Before this thread, and with it the agents, is kept on one CPU.
    if wanted(Part::Failover) {
        let result = failover::run(&plan.failover, progress, outcome);
        note(Part::Failover, result.map(|rows| measured.failover = rows));
    }
    if wanted(Part::Sync) {
        let result = sync::run(&plan.sync, progress);
        note(Part::Sync, result.map(|rows| measured.sync = rows));
    }
    measure::stay_on_one_cpu()?;
    if wanted(Part::Allocate) {
        let result = allocation::run(&plan.allocation, progress);
        note(Part::Allocate, result.map(|rows| measured.allocation = rows));
    }
    if wanted(Part::Packets) {
        let result = packets(plan, progress);
        note(Part::Packets, result.map(|rows| (measured.figures, measured.ratios) = rows));
    }
    if wanted(Part::Forwarding) {
        let result = forwarding::run(plan, progress);
        note(Part::Forwarding, result.map(|rows| measured.forwarding = rows));
    }
    Report::new(plan, measured, failures)
}

fn packets(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<(Vec<Figure>, Vec<Ratio>)> {
    let mut figures = Vec::new();
    let mut ratios = Vec::new();
    for (name, cases) in [("known flows", cases::known as cases::Phase), ("new flows", cases::new)] {
        progress(&format!("{name}: loading"));
        let cases = cases(plan)?;
        let samples = measure::interleaved(&cases, plan, &mut |repetition| {
            progress(&format!("{name}: repetition {repetition} of {}", plan.repetitions));
        })?;
        figures.extend(report::figures(&cases, &samples));
        ratios.extend(report::ratios(&cases, &samples));
    }
    Ok((figures, ratios))
}
