//! `cargo xtask generate`.

use anyhow::Result;

use crate::{setup, workspace};

/// Writes the files that follow from the code: the test that otherwise compares them does it.
pub(crate) fn run() -> Result<()> {
    setup::bpf_toolchain()?;
    let mut test = workspace::cargo(["test", "--quiet", "-p", "vipmux", "--test", "generated"]);
    workspace::run(test.args(workspace::locked()).env("VIPMUX_GENERATE", "1"))
}
