//! Packets per second of several cores, each with its own thread, compared with one core.
//!
//! A core's rate is the inverse of its CPU time per packet while all cores work. So waiting for
//! memory and for other cores counts, and other load on the machine hardly does.

use std::{
    net::Ipv4Addr,
    sync::Barrier,
    thread::{self, available_parallelism},
};

use anyhow::{Context, Result, anyhow, ensure};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use serde::Serialize;

use super::{
    Plan,
    statistics::median,
    workload::{self, LOCAL, REMOTE, TCP},
    wrapper::{Variation, Wrapper},
};
use crate::{
    frames::{ACK, SYN},
    program::Program,
};

/// The numbers of cores to measure, as far as the machine has them.
const CORES: [usize; 5] = [1, 2, 4, 8, 16];
/// Services: few, so that the table of flows is what is measured.
const SERVICES: u32 = 10;

/// The rate of a number of cores.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoreRate {
    /// The case.
    pub case: &'static str,
    /// The number of cores; of the case with a flood, those without the flood.
    pub cores: usize,
    /// Packets per second of all of them; none: the machine has too few.
    pub rate: Option<f64>,
    /// The rate over as many times that of one core; beside a flood: that of one core without it.
    pub linear: Option<f64>,
}

/// What each core does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Known flows, others on each core.
    Known,
    /// The same, while one more core sends new flows.
    BesideFlood,
    /// The same flow on all cores.
    Hot,
    /// New flows into a full table, others on each core.
    New,
}

/// The name of the case with a flood.
pub(super) const BESIDE_FLOOD: &str = "established, remote, beside a flood";

const CASES: [(&str, Load, Ipv4Addr); 7] = [
    ("established, remote, many", Load::Known, REMOTE),
    ("established, local, many", Load::Known, LOCAL),
    (BESIDE_FLOOD, Load::BesideFlood, REMOTE),
    ("established, remote, one flow", Load::Hot, REMOTE),
    ("established, local, one flow", Load::Hot, LOCAL),
    ("new flow, remote", Load::New, REMOTE),
    ("new flow, local", Load::New, LOCAL),
];

/// Measures all cases. Call it on a thread that may run on all CPUs.
pub(super) fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<CoreRate>> {
    let cpus = cpus()?;
    let mut rates: Vec<CoreRate> = Vec::new();
    for (case, load, to) in CASES {
        let program = Program::load(&workload::state(SERVICES, TCP)?, plan.capacity)?;
        let lanes = if load == Load::BesideFlood { cpus.len() - 1 } else { cpus.len() };
        // The first case is the same without the flood.
        let mut first = if load == Load::BesideFlood { rates.first().and_then(|rate| rate.rate) } else { None };
        for cores in CORES {
            let mut samples = Vec::new();
            for repetition in 1..=if cores <= lanes { plan.repetitions } else { 0 } {
                progress(&format!("cores: {case}, {cores}: repetition {repetition} of {}", plan.repetitions));
                samples.push(rate(plan, &program, load, to, &cpus[..cores + usize::from(lanes < cpus.len())])?);
            }
            let rate = (!samples.is_empty()).then(|| median(samples));
            first = first.or(rate);
            #[expect(clippy::cast_precision_loss, reason = "few cores")]
            let linear = rate.zip(first).map(|(rate, first)| rate / first / cores as f64);
            rates.push(CoreRate { case, cores, rate, linear });
        }
    }
    Ok(rates)
}

/// Returns the CPUs that this thread may run on.
fn cpus() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("asking for the CPUs of this thread")?;
    let cpus: Vec<_> = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect();
    ensure!(available_parallelism().is_ok_and(|cores| cores.get() <= cpus.len()), "asking for CPUs");
    Ok(cpus)
}

/// Returns the packets per second of these CPUs. The last one only sends the flood, if there is one.
fn rate(plan: &Plan, program: &Program, load: Load, to: Ipv4Addr, cpus: &[usize]) -> Result<f64> {
    let start = Barrier::new(cpus.len());
    let flood = if load == Load::BesideFlood { cpus.len() - 1 } else { cpus.len() };
    thread::scope(|scope| {
        let lane = |(number, &cpu): (usize, &usize)| {
            let start = &start;
            scope.spawn(move || {
                let load = if number == flood { Load::New } else { load };
                lane(plan, program, load, to, (number, cpu), start)
            })
        };
        let lanes: Vec<_> = cpus.iter().enumerate().map(lane).collect();
        let mut sum = 0.0;
        for (number, lane) in lanes.into_iter().enumerate() {
            let rate = lane.join().map_err(|_| anyhow!("a thread of the bench panicked"))??;
            sum += if number == flood { 0.0 } else { rate };
        }
        Ok(sum)
    })
}

/// Runs one core. Returns its packets per second.
fn lane(
    plan: &Plan,
    program: &Program,
    load: Load,
    to: Ipv4Addr,
    (number, cpu): (usize, usize),
    start: &Barrier,
) -> Result<f64> {
    let prepared = prepare(plan, program, load, to, number, cpu);
    // All threads come here, or the others would wait forever.
    start.wait();
    Ok(1e9 / prepared?.run(plan.packets)?.cpu)
}

fn prepare(plan: &Plan, program: &Program, load: Load, to: Ipv4Addr, number: usize, cpu: usize) -> Result<Wrapper> {
    let mut one = CpuSet::new();
    one.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &one)).context("staying on one CPU")?;
    let own = u8::try_from(number).context("a client for each core")?;
    let (client, flows) = match load {
        Load::Hot => (Ipv4Addr::new(20, 0, 0, 1), None),
        Load::Known | Load::BesideFlood => (Ipv4Addr::new(20, own, 0, 1), Some(plan.flows)),
        Load::New => (Ipv4Addr::new(40 + own, 0, 0, 1), Some(plan.capacity.saturating_mul(4).next_power_of_two())),
    };
    let flags = if load == Load::New { SYN } else { ACK };
    let variation = flows.map(|flows| Variation { flows, services: SERVICES / 2 });
    let mut wrapper = Wrapper::new(program.xdp()?.fd()?, &workload::segment(client, to, flags), variation)?;
    // Twice: a flow's second packet confirms it, and finds out its node's epoch.
    match load {
        Load::New => drop(wrapper.run(plan.capacity)?),
        _ => drop(wrapper.run(2 * flows.unwrap_or(1))?),
    }
    if matches!(load, Load::Known | Load::BesideFlood) {
        wrapper.visit_in_another_order()?;
    }
    Ok(wrapper)
}
