//! The state of the allocator, for its metrics and health checks.

use std::time::Duration;

/// The state of the allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorHealth {
    /// Everything was listed once.
    pub synced: bool,
    /// The time when its loop ran last, `CLOCK_BOOTTIME`; zero: never.
    pub last_loop: Duration,
    /// It is the leader: the one that writes.
    pub leading: bool,
    /// It is the leader, has decided about everything, and all statuses are written.
    pub settled: bool,
    /// Statuses that wait to be written.
    pub waiting: usize,
    /// Statuses that were written since the start.
    pub written: u64,
    /// Writes that failed or were refused since the start.
    pub failed: u64,
    /// Services with addresses, and Services that wait for some. Zero unless it is the leader.
    pub services: (usize, usize),
}
