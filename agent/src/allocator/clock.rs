//! The clock that mandates go by.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME`: never goes back, and goes on while the machine sleeps. Where there is none, no mandate is ever held.
pub(super) fn boottime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from)
}

/// For people: nothing goes by it.
pub(super) fn wall() -> Timestamp {
    Timestamp::now()
}
