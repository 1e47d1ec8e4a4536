//! What a packet costs: nanoseconds over an empty program in the same run.
//!
//! `BPF_PROG_TEST_RUN` repeats a small wrapper, which puts the packet back, picks the next flow and tail-calls the
//! program under test. Time is the thread's CPU time, so that what else runs on the machine counts for little; cases
//! are interleaved in a rotating order, and figures are medians. Even so they are of one machine: compare ratios.

mod cases;
mod measure;
mod report;
mod workload;
mod wrapper;

use anyhow::Result;

pub use report::{Figure, Ratio, Report};

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
}

impl Default for Plan {
    fn default() -> Self {
        Self { services: vec![10, 10_000], repetitions: 15, packets: 500_000, flows: 65_536, capacity: 1 << 20 }
    }
}

/// Loads everything, measures it and sums it up. `progress` is told what is going on.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    measure::stay_on_one_cpu()?;
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
    Report::new(plan, figures, ratios)
}
