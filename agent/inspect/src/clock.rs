//! Converts the time stamps of the programs, which use two clocks.

use std::time::Duration;

use vipmux_datapath::bpf::jiffies;

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    boottime: Duration,
    jiffies: u64,
    hz: u32,
}

impl Clock {
    /// Reads the current time. `hz`: [`vipmux_common::abi::Config::hz`].
    pub fn now(hz: u32) -> nix::Result<Self> {
        let boottime = vipmux_cluster::clock::try_boottime()?;
        Ok(Self { boottime, jiffies: jiffies::now(hz)?, hz })
    }

    /// Returns the moment at which the clocks show these times.
    pub fn at(boottime: Duration, monotonic: Duration, hz: u32) -> Self {
        Self { boottime, jiffies: jiffies::at(monotonic, hz), hz }
    }

    /// Returns the last value of `jiffies_64` whose low half was `seen`. It may be up to two
    /// seconds ahead of this clock.
    pub fn full(&self, seen: u32) -> u64 {
        const WRAP: u64 = 1 << 32;
        let (low, seen) = (self.jiffies % WRAP, u64::from(seen));
        let ahead = (WRAP + seen - low) % WRAP;
        let tolerance = 2 * u64::from(self.hz);
        if ahead <= tolerance { self.jiffies + ahead } else { (self.jiffies + ahead).saturating_sub(WRAP) }
    }

    /// Returns the ticks since `seen`, a value of `jiffies_64`; 0 if it is ahead of this clock.
    pub fn ticks_since(&self, seen: u64) -> u64 {
        self.jiffies.saturating_sub(seen)
    }

    /// Returns the time since `seen`, a value of `jiffies_64`; zero if the tick's length is not
    /// known.
    pub fn since(&self, seen: u64) -> Duration {
        self.duration(self.ticks_since(seen))
    }

    /// Returns the duration of `ticks`; zero if the tick's length is not known.
    pub fn duration(&self, ticks: u64) -> Duration {
        ticks.saturating_mul(1000).checked_div(u64::from(self.hz)).map_or(Duration::ZERO, Duration::from_millis)
    }

    /// Returns the time until `deadline`, nanoseconds of `CLOCK_BOOTTIME`; `Err`: the time since it
    /// passed.
    pub fn until(&self, deadline: u64) -> Result<Duration, Duration> {
        let deadline = Duration::from_nanos(deadline);
        let left = deadline.saturating_sub(self.boottime);
        if left.is_zero() { Err(self.boottime.saturating_sub(deadline)) } else { Ok(left) }
    }

    /// Returns the time since `moment`, nanoseconds of `CLOCK_BOOTTIME`; zero if it is ahead of
    /// this clock.
    pub fn passed(&self, moment: u64) -> Duration {
        self.boottime.saturating_sub(Duration::from_nanos(moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_of_the_past() {
        let clock = Clock::at(Duration::ZERO, Duration::from_millis(2_500), 250);
        assert_eq!(clock.since(clock.jiffies - 500), Duration::from_secs(2));
        assert_eq!(clock.since(clock.jiffies + 60), Duration::ZERO, "a stamp of this very moment");
        assert_eq!(Clock::at(Duration::ZERO, Duration::ZERO, 0).since(0), Duration::ZERO, "no agent wrote HZ yet");
    }

    #[test]
    fn a_low_half_is_of_the_last_wrap() {
        let clock = Clock::at(Duration::ZERO, Duration::from_secs(400), 250);
        assert_eq!(clock.jiffies, (1 << 32) + 25_000);
        for age in [0, 1, 25_000, 25_001, 1 << 31, (1 << 32) - 1_000] {
            let seen = clock.jiffies - age;
            let low = u32::try_from(seen % (1 << 32)).unwrap();
            assert_eq!(clock.full(low), seen, "{age} ticks ago");
        }
        assert_eq!(clock.full(25_060), clock.jiffies + 60, "a stamp of this very moment");
    }

    #[test]
    fn a_deadline_is_ahead_or_behind() {
        let clock = Clock::at(Duration::from_secs(10), Duration::ZERO, 100);
        assert_eq!(clock.until(10_200_000_000), Ok(Duration::from_millis(200)));
        assert_eq!(clock.until(10_000_000_000), Err(Duration::ZERO));
        assert_eq!(clock.until(7_000_000_000), Err(Duration::from_secs(3)));
    }
}
