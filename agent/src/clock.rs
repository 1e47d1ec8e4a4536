//! The clocks of what runs beside an event loop.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME`: never goes back, and goes on while the machine sleeps. Every Linux that vipmux runs on has it; zero stands
/// for what does not happen.
pub(crate) fn boottime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// For people: nothing goes by it.
pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}
