//! Waiting for a condition, never for a duration.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

/// How often a condition that cannot be waited on is looked at.
const INTERVAL: Duration = Duration::from_millis(10);

/// Looks at a condition until it yields something or `timeout` is over; the error says what was awaited and why the last
/// look failed.
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
