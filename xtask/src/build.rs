//! `cargo xtask build`.

use anyhow::Result;

use crate::{setup, workspace};

/// Builds the workspace; the BPF programs are built and embedded by the agent's build script.
pub(crate) fn run(release: bool) -> Result<()> {
    setup::bpf_toolchain()?;
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    workspace::run(workspace::cargo(["build", "--workspace"]).args(workspace::locked()).args(profile))
}
