//! `cargo xtask generate`.

use anyhow::Result;

use crate::{setup, workspace};

/// Writes the files that follow from the code: the tests that otherwise compare them do it.
pub(crate) fn run() -> Result<()> {
    setup::bpf_toolchain()?;
    let mut test =
        workspace::cargo(["test", "--quiet", "-p", "vipmux", "--test", "generated", "--test", "configuration"]);
    workspace::run(test.args(workspace::locked()).env("BLESS", "1"))
}
