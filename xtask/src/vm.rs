//! `cargo xtask vm`: runs the packet suite and part of the network suite on Debian's kernels, in
//! QEMU.
//!
//! QEMU emulates the CPU, so no KVM is needed. A guest is a kernel, its network modules, and an
//! initramfs with this machine's test executables and their libraries. It boots in 2 to 3 s.

mod archive;
mod guest;
mod root;
mod suites;

use std::{path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{
    setup,
    summary::{self, Outcome},
    toolchain::cache,
    workspace,
};

/// A Debian kernel, by its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kernel {
    /// Debian 11's. The oldest supported kernel, 5.15, is between this one and the next
    #[value(name = "5.10")]
    Bullseye,
    /// Debian 12's, the newest one here without tcx
    #[value(name = "6.1")]
    Bookworm,
    /// Debian 13's
    #[value(name = "6.12")]
    Trixie,
    /// The kernel of Debian's development suite
    #[value(name = "newest")]
    Sid,
}

impl Kernel {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The suite of Debian's archive that has this kernel.
    const fn suite(self) -> &'static str {
        match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }
}

/// Runs the suites on `kernels` (all, if none is named), one after the other. Fails if they fail on
/// one. With `update`, cached kernels are replaced by newer packages.
pub(crate) fn run(kernels: &[Kernel], update: bool) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!(
            "`cargo xtask vm` only supports x86-64 guests, which run this machine's executables: use an x86-64 machine"
        );
    }
    let mut kernels = if kernels.is_empty() { Kernel::value_variants() } else { kernels }.to_vec();
    kernels.sort_unstable();
    kernels.dedup();
    setup::guests()?;
    let folder = workspace::target_folder()?.join("vm");
    let _lock = workspace::lock(&folder)?;
    let executables = suites::build()?;
    let files = root::pack(&folder, &executables)?;
    let mut rows = Vec::new();
    for kernel in kernels {
        let start = Instant::now();
        let outcome = match archive::kernel(&cache()?, kernel.suite(), update) {
            Ok(image) => {
                workspace::progress(&format!("kernel {}: {}", kernel.name(), image.release));
                guest::run(&folder, &image, &files)
            }
            Err(error) => {
                let error = error.context(format!("no kernel from Debian's suite {}", kernel.suite()));
                workspace::progress(&format!("kernel {}: skipped, {error:#}", kernel.name()));
                Ok(Outcome::Skipped(format!("{error:#}")))
            }
        };
        let outcome = outcome.unwrap_or_else(Outcome::Failed);
        rows.push((kernel.name(), outcome, workspace::seconds(start.elapsed())));
    }
    summary::print("vm", &rows, workspace::in_ci())
}

/// Returns the folder of the cached kernels, which all checkouts share.
fn cache() -> Result<PathBuf> {
    let cache = cache::folder().context("no cache folder for kernels: set XDG_CACHE_HOME or HOME")?;
    Ok(cache.join("vm"))
}
