//! What the tests of several modules need.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Makes an attempt again while what comes of it is as `again` says, for `limit` at most. Says what came of the last
/// one.
pub(crate) fn again_while<T>(limit: Duration, again: impl Fn(&T) -> bool, mut attempt: impl FnMut() -> T) -> T {
    let begun = Instant::now();
    loop {
        let outcome = attempt();
        if !again(&outcome) || begun.elapsed() >= limit {
            return outcome;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
