//! Reads the clocks: the time since boot, for decisions, and the wall clock, for people.

use std::{fs, io, time::Duration};

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

/// Returns the seconds that this process's `CLOCK_BOOTTIME` is ahead of the kernel's: those of its time
/// namespace (time_namespaces(7)). The BPF programs read the kernel's. Zero: both are the same, as in the
/// initial time namespace, and with a kernel that has no other one.
///
/// # Errors
///
/// `/proc` cannot be read.
pub fn boottime_offset() -> io::Result<f64> {
    match fs::read_to_string("/proc/self/timens_offsets") {
        Ok(offsets) => Ok(offset_in(&offsets)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0.0),
        Err(error) => Err(error),
    }
}

/// Parses a line of a clock's name, seconds and nanoseconds. The nanoseconds count forward.
fn offset_in(offsets: &str) -> f64 {
    let boottime = offsets.lines().find_map(|line| line.trim_start().strip_prefix("boottime"));
    let mut numbers =
        boottime.unwrap_or_default().split_ascii_whitespace().map_while(|number| number.parse::<f64>().ok());
    numbers.next().unwrap_or_default() + numbers.next().unwrap_or_default() / 1e9
}

/// Returns the wall clock's time. It is for people only: no decision depends on it.
pub fn wall() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "these values are exact")]
    fn offsets_of_a_time_namespace_are_read() {
        assert_eq!(offset_in("monotonic           0         0\nboottime            0         0\n"), 0.0);
        assert_eq!(offset_in("monotonic          50         0\nboottime       100000         0\n"), 100_000.0);
        assert_eq!(offset_in("monotonic           0         0\nboottime          -1 500000000\n"), -0.5);
        assert_eq!(offset_in(""), 0.0);
    }
}
