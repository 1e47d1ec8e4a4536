//! `cargo xtask fuzz`.

use std::{fs, process::Command};

use anyhow::{Context, Result};

use crate::{capabilities, setup, workspace};

/// The fuzz targets' workspace.
pub(crate) const MANIFEST: &str = "tests/fuzz/Cargo.toml";

/// Longer frames differ from these in nothing but their payload.
const LONGEST_FRAME: usize = 1_600;

/// Sends frames through the programs for so many seconds. What it finds interesting stays in `target/fuzz/frames`, so
/// that the next run goes on from there; a frame that fails is written to `target/fuzz`.
///
/// No cargo-fuzz, which wants a nightly: the code of interest runs in the kernel, so nothing here is instrumented.
pub(crate) fn run(seconds: u32) -> Result<()> {
    capabilities::require("fuzz")?;
    setup::packet_tests()?;
    setup::cpp_compiler()?;
    workspace::say("building the fuzz target");
    let target = workspace::target_folder()?;
    let mut build = workspace::cargo(["build", "--manifest-path", MANIFEST, "--bins", "--target-dir"]);
    // The same folder: most of what it depends on is built already.
    workspace::prepare(build.arg(&target).args(workspace::locked()))?;

    let (folder, corpus) = (target.join("fuzz"), target.join("fuzz/frames"));
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    workspace::run(Command::new(target.join("debug/seeds")).arg(&corpus))?;
    workspace::say(&format!("fuzzing for {seconds} s"));
    let mut fuzzer = Command::new(target.join("debug/frames"));
    fuzzer.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={LONGEST_FRAME}"));
    fuzzer.arg(format!("-artifact_prefix={}/", folder.display())).arg(&corpus);
    let hint =
        "a frame broke a rule: it is in the file that libFuzzer names, and `target/debug/frames FILE` runs it again";
    workspace::run(&mut fuzzer).context(hint)
}
