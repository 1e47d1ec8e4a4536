//! Reads the clocks: the time since boot, for decisions, and the wall clock, for people.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// Returns `CLOCK_BOOTTIME`. It never goes back, and it goes on while the machine sleeps.
///
/// # Errors
///
/// The kernel has no such clock. Every Linux that vipmux runs on has it.
pub fn try_boottime() -> nix::Result<Duration> {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from)
}

/// Returns `CLOCK_BOOTTIME`, or zero for the error that does not happen (see [`try_boottime`]).
pub fn boottime() -> Duration {
    try_boottime().unwrap_or_default()
}

/// Returns the wall clock's time. It is for people only: no decision depends on it.
pub fn wall() -> Timestamp {
    Timestamp::now()
}
