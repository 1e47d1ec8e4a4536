//! Waits for conditions, never for durations.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

/// The time limit for what takes milliseconds on an idle machine: an agent's start, a change.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The shortest pause between two checks of a condition.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Checks a condition until it returns a value or `timeout` has passed. The error names the
/// condition and the last check's failure.
///
/// A pause is as long as two checks. Many checks start a program, and the agents that are waited for need the
/// processors.
pub fn until<T>(what: &str, timeout: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let begin = Instant::now();
        match look() {
            Ok(seen) => return Ok(seen),
            Err(error) if start.elapsed() >= timeout => {
                return Err(error.context(anyhow!("waited {} s for this: {what}", timeout.as_secs_f32())));
            }
            Err(_) => thread::sleep((begin.elapsed() * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)),
        }
    }
}
