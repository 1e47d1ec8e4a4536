//! CPU time, and the CPU that is measured on.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};

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
