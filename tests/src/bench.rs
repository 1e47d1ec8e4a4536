//! What a packet costs: nanoseconds over an empty program in the same run; how many a core forwards ([`forwarding`]), how
//! long a change takes ([`sync`]), and what it costs to decide who gets which address ([`allocation`]).
//!
//! `BPF_PROG_TEST_RUN` repeats a small wrapper, which puts the packet back, picks the next flow and tail-calls the
//! program under test. Time is the thread's CPU time, so that what else runs on the machine counts for little; cases
//! are interleaved in a rotating order, and figures are medians. Even so they are of one machine: compare ratios.

pub mod allocation;
mod cases;
pub mod forwarding;
mod goals;
mod measure;
mod report;
pub mod sync;
mod workload;
mod wrapper;

use anyhow::Result;

pub use goals::Goal;
pub use report::{Figure, Measured, Ratio, Report};

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
        }
    }
}

/// Loads everything, measures it and sums it up. `progress` is told what is going on.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let wanted = |part| plan.part == Part::All || plan.part == part;
    let mut measured = Measured::default();
    // Before this thread, and with it the agents, is kept on one CPU.
    if wanted(Part::Sync) {
        measured.sync = sync::run(&plan.sync, progress)?;
    }
    measure::stay_on_one_cpu()?;
    if wanted(Part::Allocate) {
        measured.allocation = allocation::run(&plan.allocation, progress)?;
    }
    if wanted(Part::Packets) {
        (measured.figures, measured.ratios) = packets(plan, progress)?;
    }
    if wanted(Part::Forwarding) {
        measured.forwarding = forwarding::run(plan, progress)?;
    }
    Report::new(plan, measured)
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
