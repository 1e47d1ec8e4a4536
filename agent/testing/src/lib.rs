//! Provides helpers for the tests of several crates.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a fixture that fails fails its test"
)]

pub mod annotations;
pub mod api_server;
pub mod bpffs;
pub mod names;
pub mod netns;
pub mod pages;

use std::{
    env,
    io::{self, Write as _},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::unistd::Uid;
use serde::de::DeserializeOwned;

/// The time limit of waits for what must come. It is far more than a slow machine takes: only a
/// test that fails waits this long.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Repeats an attempt while `again` returns true for its result, for `limit` at most. Returns the
/// last result.
pub fn again_while<T>(limit: Duration, again: impl Fn(&T) -> bool, mut attempt: impl FnMut() -> T) -> T {
    let begun = Instant::now();
    loop {
        let outcome = attempt();
        if !again(&outcome) || begun.elapsed() >= limit {
            return outcome;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns an object from JSON, in the type that [`Objects`](vipmux_model::objects::Objects) holds.
pub fn object<T: DeserializeOwned>(json: serde_json::Value) -> Arc<T> {
    Arc::new(serde_json::from_value(json).unwrap())
}

/// Whether the running test may create maps and namespaces. If not, the test is reported as
/// skipped, by its name. With `CI=true` it fails instead.
pub fn is_root() -> bool {
    let root = Uid::effective().is_root();
    if !root {
        // The test harness names its threads after the tests. It captures the output of `eprintln`.
        let thread = thread::current();
        let test = thread.name().unwrap_or("a test");
        assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "{test} needs root");
        let _ = writeln!(io::stderr(), "skipped: {test}: it makes maps or namespaces, run it as root");
    }
    root
}
