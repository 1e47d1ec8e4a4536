//! Interleaved repetitions on one CPU.

use anyhow::{Context, Result, ensure};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use super::{Plan, cases::Case, wrapper::Sample};

/// Keeps this thread on the last CPU that it may run on: maps are touched from one cache, and interrupts tend to be
/// served by the first.
pub(super) fn stay_on_one_cpu() -> Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("asking for the CPUs of this thread")?;
    let last = (0..CpuSet::count()).rev().find(|&cpu| allowed.is_set(cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(last.context("this thread may run on no CPU")?)?;
    sched_setaffinity(Pid::from_raw(0), &one).context("staying on one CPU")
}

/// Each case's samples, one for each repetition; within a repetition cases follow each other, and each repetition begins
/// with another one. `progress` is told which repetition, from 1.
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
