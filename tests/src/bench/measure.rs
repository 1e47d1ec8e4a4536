//! Interleaved repetitions on one CPU.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};

use super::{Plan, cases::Case, wrapper::Sample};

/// Pins this thread to its last CPU. So maps stay in one cache, and interrupts tend to be on the
/// first CPU.
pub(super) fn stay_on_one_cpu() -> Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("asking for the CPUs of this thread")?;
    let last = (0..CpuSet::count()).rev().find(|&cpu| allowed.is_set(cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(last.context("this thread may run on no CPU")?)?;
    sched_setaffinity(Pid::from_raw(0), &one).context("staying on one CPU")
}

/// Returns the CPU time of the calling thread.
pub(super) fn thread_time() -> Result<Duration> {
    cpu_time(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of a process.
pub(super) fn process_time(id: u32) -> Result<Duration> {
    let pid = Pid::from_raw(i32::try_from(id)?);
    cpu_time(ClockId::pid_cpu_clock_id(pid).context("finding a process's CPU clock")?)
}

fn cpu_time(clock: ClockId) -> Result<Duration> {
    Ok(clock_gettime(clock).context("reading a CPU clock")?.into())
}

/// Returns each case's samples, one per repetition. The cases of a repetition run in turn, and each
/// repetition begins with another case. `progress` gets the repetition's number, from 1.
pub(super) fn interleaved(cases: &[Case], plan: &Plan, progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::with_capacity(plan.repetitions); cases.len()];
    for repetition in 0..plan.repetitions {
        progress(repetition + 1);
        for turn in 0..cases.len() {
            let index = (turn + repetition) % cases.len();
            let case = &cases[index];
            if case.warm_up > 0 {
                case.wrapper.run(case.warm_up)?;
            }
            let sample = case.wrapper.run(plan.packets)?;
            let first = samples[index].first().map_or(sample.verdict, |first: &Sample| first.verdict);
            ensure!(sample.verdict == first, "{}: verdict {} after {first}", case.name, sample.verdict);
            samples[index].push(sample);
        }
    }
    Ok(samples)
}
