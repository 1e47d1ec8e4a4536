//! Measures vipmux. A packet's cost is in nanoseconds above an empty program in the same run. The
//! other parts are packets per second of several cores ([`cores`]), connections beside a flood
//! ([`mod@flood`]), packets per core beside nftables ([`forwarding`]), what a node's own traffic pays
//! ([`node`]), the duration of changes
//! ([`sync`]) and of views ([`inspect`]), the cost of allocations ([`allocation`]), and the outage of
//! a VIP when its node fails ([`mod@failover`]).
//!
//! `BPF_PROG_TEST_RUN` repeats a small wrapper. It restores the packet, picks the next flow and
//! tail-calls the program under test. Time is the thread's CPU time, so other load on the machine
//! hardly counts. Cases are interleaved in a rotating order, and figures are medians. Still, they
//! are from one machine: compare ratios.

pub mod allocation;
mod case;
mod cases;
pub mod cores;
mod cpu_time;
pub mod failover;
mod figures;
pub mod flood;
pub mod forwarding;
mod goals;
pub mod inspect;
pub mod katran;
mod katran_cases;
mod measure;
pub mod node;
mod report;
mod statistics;
pub mod sync;
mod workload;
mod wrapper;

use std::path::PathBuf;

use anyhow::Result;

pub use figures::{Figure, Measured, Ratio};
pub use goals::Goal;
pub use report::{Failure, Report};

/// The options of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Numbers of Services. Each has figures of its own.
    pub services: Vec<u32>,
    /// Interleaved repetitions of each case.
    pub repetitions: usize,
    /// Packets of a repetition.
    pub packets: u32,
    /// Flows that cases with many flows spread over the Services; a power of two.
    pub flows: u32,
    /// Records of the flow table.
    pub capacity: u32,
    /// Katran's object file, to measure it beside the data plane.
    pub katran: Option<PathBuf>,
    /// The parts to measure.
    pub part: Part,
    /// Options of the changes.
    pub sync: sync::Plan,
    /// Options of the allocations.
    pub allocation: allocation::Plan,
    /// Options of the views.
    pub inspect: inspect::Plan,
    /// Options of the failovers.
    pub failover: failover::Plan,
}

/// The parts that can be measured alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// All parts.
    #[default]
    All,
    /// The cost of a packet.
    Packets,
    /// Packets per second of several cores, compared with one.
    Cores,
    /// What a flood of SYNs does to other connections.
    Flood,
    /// Packets per core, compared with nftables rules like kube-proxy's.
    Forwarding,
    /// What a node's own traffic pays, compared with a node without vipmux.
    Node,
    /// The duration of a change, from its file to the kernel.
    Sync,
    /// The cost of an allocation.
    Allocate,
    /// The duration of `vipmux inspect flows` with a million flows.
    Inspect,
    /// The outage of a VIP when its node fails, compared with keepalived.
    Failover,
}

impl Part {
    /// Its name in output.
    const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Packets => "packets",
            Self::Cores => "cores",
            Self::Flood => "flood",
            Self::Forwarding => "forwarding",
            Self::Node => "node",
            Self::Sync => "sync",
            Self::Allocate => "allocate",
            Self::Inspect => "inspect",
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
            katran: None,
            part: Part::All,
            sync: sync::Plan::default(),
            allocation: allocation::Plan::default(),
            inspect: inspect::Plan::default(),
            failover: failover::Plan::default(),
        }
    }
}

/// Measures everything. A failed part is reported in [`Report::failures`], and the others continue.
/// `progress` gets the current activity, `outcome` gets the results of long parts.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str), outcome: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut measured = Measured::default();
    let mut failures = Vec::new();
    let mut note = |part: Part, result: Result<()>| {
        failures.extend(result.err().map(|error| Failure { part: part.name(), error: format!("{error:#}") }));
    };
    let wanted = |part| plan.part == Part::All || plan.part == part;
    // First, since this thread, and so the agents, is pinned to one CPU below.
    if wanted(Part::Failover) {
        let result = failover::run(&plan.failover, progress, outcome);
        note(Part::Failover, result.map(|rows| measured.failover = rows));
    }
    if wanted(Part::Sync) {
        let result = sync::run(&plan.sync, progress);
        note(Part::Sync, result.map(|rows| measured.sync = rows));
    }
    if wanted(Part::Inspect) {
        let result = inspect::run(&plan.inspect, progress);
        note(Part::Inspect, result.map(|rows| measured.inspect = rows));
    }
    if wanted(Part::Cores) {
        let result = cores::run(plan, progress);
        note(Part::Cores, result.map(|rows| measured.cores = rows));
    }
    cpu_time::stay_on_one_cpu()?;
    if wanted(Part::Allocate) {
        let result = allocation::run(&plan.allocation, progress);
        note(Part::Allocate, result.map(|rows| measured.allocation = rows));
    }
    if wanted(Part::Packets) {
        let result = packets(plan, &mut measured, progress);
        note(Part::Packets, result);
    }
    if wanted(Part::Flood) {
        let result = flood::run(progress);
        note(Part::Flood, result.map(|rows| measured.flood = rows));
    }
    if wanted(Part::Forwarding) {
        let result = forwarding::run(plan, progress);
        note(Part::Forwarding, result.map(|rows| measured.forwarding = rows));
    }
    if wanted(Part::Node) {
        let result = node::run(plan.repetitions, progress);
        note(
            Part::Node,
            result.map(|(traffic, times)| (measured.own_traffic, measured.program_times) = (traffic, times)),
        );
    }
    Report::new(plan, measured, failures)
}

/// Nothing is kept of a run that failed.
fn packets(plan: &Plan, measured: &mut Measured, progress: &mut dyn FnMut(&str)) -> Result<()> {
    let (mut figures, mut ratios, mut beside_katran) = (Vec::new(), Vec::new(), Vec::new());
    for (name, cases) in [("known flows", cases::known as cases::Phase), ("new flows", cases::new)] {
        progress(&format!("{name}: loading"));
        let cases = cases(plan)?;
        let samples = measure::interleaved(&cases, plan, &mut |repetition| {
            progress(&format!("{name}: repetition {repetition} of {}", plan.repetitions));
        })?;
        figures.extend(figures::figures(&cases, &samples));
        ratios.extend(figures::ratios(&cases, &samples));
        beside_katran.extend(katran_cases::compare(&cases, &samples));
    }
    (measured.figures, measured.ratios, measured.katran) = (figures, ratios, beside_katran);
    Ok(())
}
