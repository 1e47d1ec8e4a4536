//! The kernel's count of ticks, which the programs read instead of a clock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The kernel starts `jiffies` this long before its first 32-bit wrap: `INITIAL_JIFFIES` of
/// include/linux/jiffies.h.
const SECONDS_TO_WRAP: u64 = 300;

/// Returns `jiffies_64` at this time of `CLOCK_MONOTONIC`. `hz`: [`vipmux_common::abi::Config::hz`].
///
/// It counts the ticks of that clock, except those before the kernel's timer ran. So the value computed here
/// is some tenths of a second ahead of it.
pub fn at(monotonic: Duration, hz: u32) -> u64 {
    let hz = u64::from(hz);
    let ticks = monotonic.as_secs() * hz + u64::from(monotonic.subsec_nanos()) * hz / 1_000_000_000;
    let first = (1 << 32) - u64::from(u32::MAX).min(SECONDS_TO_WRAP * hz);
    first + ticks
}

/// Returns the current value, as [`at`].
///
/// # Errors
///
/// The kernel has no such clock. Every Linux that vipmux runs on has it.
pub fn now(hz: u32) -> nix::Result<u64> {
    Ok(at(clock_gettime(ClockId::CLOCK_MONOTONIC)?.into(), hz))
}

/// Returns the low half of the current value, as [`vipmux_common::abi::FlowRecord::seen`] has it.
///
/// # Errors
///
/// As [`now`].
pub fn now_low(hz: u32) -> nix::Result<u32> {
    let [low @ .., _, _, _, _] = now(hz)?.to_le_bytes();
    Ok(u32::from_le_bytes(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jiffies_start_five_minutes_before_they_wrap() {
        assert_eq!(at(Duration::from_millis(2_500), 250), 4_294_967_296 - 75_000 + 625);
        assert_eq!(at(Duration::from_secs(400), 250), (1 << 32) + 25_000);
        assert_eq!(at(Duration::ZERO, 0), 1 << 32, "no agent wrote HZ yet");
    }

    #[test]
    fn this_clock_is_ahead_of_the_kernels_by_less_than_two_seconds() {
        // Readable by root alone.
        let Ok(timers) = std::fs::read_to_string("/proc/timer_list") else { return };
        let jiffies =
            timers.lines().filter_map(|line| line.strip_prefix("jiffies: ")?.trim().parse::<u64>().ok()).max();
        let Some(jiffies) = jiffies else { return };
        let close = [100, 250, 300, 1000].into_iter().any(|hz| {
            let ahead = now(hz).unwrap().checked_sub(jiffies);
            ahead.is_some_and(|ahead| ahead < 2 * u64::from(hz))
        });
        assert!(close, "the kernel shows {jiffies}");
    }
}
