//! What the suite needs of the machine.

use std::{io::Write, thread};

/// Whether the kernel lets this process load programs. A test that may not is skipped.
pub(crate) fn root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip("the kernel loads BPF programs for root alone: run it as root");
    }
    root
}

/// Reports the running test as skipped, by its name and with the remedy; with `CI=true` that is a failure.
pub(crate) fn skip(remedy: &str) {
    // libtest names a test's thread after it.
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test} cannot run, and CI=true allows no skips: {remedy}");
    // Not by `eprintln!`: libtest would swallow it, since the test succeeds.
    let _ = writeln!(std::io::stderr(), "skipped: packet: {test}: {remedy}");
}
