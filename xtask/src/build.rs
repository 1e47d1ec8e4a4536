//! `cargo xtask build`: builds the workspace.

use anyhow::Result;

use crate::{setup, workspace};

/// Builds the workspace. The datapath crate's build script builds and embeds the BPF programs.
pub(crate) fn run(release: bool) -> Result<()> {
    setup::bpf_toolchain()?;
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    workspace::run(workspace::cargo(["build", "--workspace"]).args(workspace::locked()).args(profile))
}
