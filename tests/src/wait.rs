//! Waits for conditions, never for durations.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

/// The time limit for what takes milliseconds on an idle machine: an agent's start, a change.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The interval between checks of a condition.
const INTERVAL: Duration = Duration::from_millis(10);

/// Checks a condition until it returns a value or `timeout` has passed. The error names the
/// condition and the last check's failure.
pub fn until<T>(what: &str, timeout: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match look() {
            Ok(seen) => return Ok(seen),
            Err(error) if start.elapsed() >= timeout => {
                return Err(error.context(anyhow!("waited {} s for this: {what}", timeout.as_secs_f32())));
            }
            Err(_) => thread::sleep(INTERVAL),
        }
    }
}
