//! `cargo xtask generate`: writes the generated files.

use anyhow::Result;

use crate::{setup, workspace};

/// Writes the files that are generated from the code. The tests that compare these files write them
/// if `BLESS` is set.
pub(crate) fn run() -> Result<()> {
    setup::bpf_toolchain()?;
    let mut test =
        workspace::cargo(["test", "--quiet", "-p", "vipmux", "--test", "generated", "--test", "configuration"]);
    workspace::run(test.args(workspace::locked()).env("BLESS", "1"))
}
