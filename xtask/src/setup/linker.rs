//! Installs `bpf-linker`, built against the LLVM of the rustc whose output it links.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::apt;
use crate::{toolchain, workspace};

/// The versions that are known to link the BPF programs.
const VERSION: &str = "~0.13";

/// The LLVM majors that this version has a feature for.
pub(super) const LLVM: RangeInclusive<u32> = 21..=23;

/// Returns whether a linker for this LLVM major can be built here, perhaps after LLVM is installed.
pub(super) fn can_be_built(llvm: u32) -> bool {
    LLVM.contains(&llvm) && (is_installed(llvm) || apt::is_known(&package(llvm)))
}

/// Installs a linker for this LLVM major into the tools' folder. The user's own linker stays.
pub(super) fn install(llvm: u32) -> Result<()> {
    if !is_installed(llvm) {
        apt::install(&[package(llvm)], "bpf-linker is built against the LLVM of the BPF programs' rustc")?;
    }
    workspace::progress(&format!(
        "installing bpf-linker ({VERSION}) for LLVM {llvm} with cargo: it links the BPF programs"
    ));
    let folder = toolchain::tools_folder().context("no folder for tools: set XDG_CACHE_HOME or HOME")?;
    let feature = format!("llvm-{llvm}");
    let mut cargo = workspace::cargo(["install", "bpf-linker", "--version", VERSION, "--locked", "--force"]);
    cargo.args(["--no-default-features", "--features", &feature, "--root"]).arg(folder);
    workspace::prepare(cargo.env("LLVM_PREFIX", prefix(llvm)))
}

fn package(llvm: u32) -> String {
    format!("llvm-{llvm}-dev")
}

fn prefix(llvm: u32) -> PathBuf {
    Path::new("/usr/lib").join(format!("llvm-{llvm}"))
}

fn is_installed(llvm: u32) -> bool {
    let prefix = prefix(llvm);
    prefix.join("bin/llvm-config").exists() && prefix.join("include/llvm-c").exists()
}
