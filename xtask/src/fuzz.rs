//! `cargo xtask fuzz`: builds and runs the fuzz targets.

use std::{ffi::OsString, fs, path::Path, process::Command};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::{capabilities, setup, workspace};

/// The fuzz targets' workspace.
pub(crate) const MANIFEST: &str = "tests/fuzz/Cargo.toml";

/// A fuzz target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Target {
    /// Frames, through the BPF programs in the kernel
    Frames,
    /// Annotations, through the dialects' parsers
    Annotations,
}

impl Target {
    /// The target's binary.
    const fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Annotations => "annotations",
        }
    }

    /// The longest useful input. Longer inputs only add payload to a frame, or more annotations.
    const fn longest(self) -> usize {
        match self {
            Self::Frames => 1_600,
            Self::Annotations => 4_096,
        }
    }

    /// Returns whether the target needs the kernel, and capabilities.
    const fn takes_the_kernel(self) -> bool {
        matches!(self, Self::Frames)
    }
}

/// Runs each target (all, if none is named) on arbitrary inputs for this many seconds. Interesting
/// inputs stay in `target/fuzz/TARGET`, so the next run continues from them. A failing input is
/// written to `target/fuzz`.
///
/// cargo-fuzz is not used: it needs a nightly. Nothing here is instrumented. The targets report
/// their coverage to libFuzzer themselves.
pub(crate) fn run(seconds: u32, targets: &[Target]) -> Result<()> {
    let targets = if targets.is_empty() { Target::value_variants() } else { targets };
    if targets.iter().any(|target| target.takes_the_kernel()) {
        capabilities::require("fuzz")?;
        setup::packet_tests()?;
    }
    // The datapath crate's build script builds the BPF programs for every target.
    setup::bpf_toolchain()?;
    setup::cpp_compiler()?;
    workspace::progress("building the fuzz targets");
    let folder = workspace::target_folder()?;
    let mut build = workspace::cargo(["build", "--manifest-path", MANIFEST, "--bins", "--target-dir"]);
    // The same target folder: most dependencies are built already.
    workspace::prepare(build.arg(&folder).args(workspace::locked()))?;
    targets.iter().try_for_each(|target| fuzz(*target, seconds, &folder))
}

fn fuzz(target: Target, seconds: u32, folder: &Path) -> Result<()> {
    let name = target.name();
    let (kept, corpus) = (folder.join("fuzz"), folder.join("fuzz").join(name));
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    workspace::run(Command::new(folder.join("debug/seeds")).arg(name).arg(&corpus))?;
    workspace::progress(&format!("fuzzing {name} for {seconds} s"));
    let mut fuzzer = Command::new(folder.join("debug").join(name));
    fuzzer.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={}", target.longest()));
    fuzzer.arg(format!("-artifact_prefix={}/", kept.display()));
    let words = corpus.with_extension("dict");
    if words.exists() {
        let mut dictionary = OsString::from("-dict=");
        dictionary.push(words);
        fuzzer.arg(dictionary);
    }
    let hint = format!("an input failed: libFuzzer names its file, and `target/debug/{name} FILE` runs it again");
    workspace::run(fuzzer.arg(&corpus)).context(hint)
}
