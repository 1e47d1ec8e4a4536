//! The clocks of what runs beside an event loop.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME`: never goes back, and goes on while the machine sleeps. Where there is none it is over: no mandate is ever held.
pub(crate) fn boottime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from)
}

/// For people: nothing goes by it.
pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}
