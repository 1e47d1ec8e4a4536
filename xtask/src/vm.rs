//! `cargo xtask vm`: runs the packet suite and part of the network suite on Debian's kernels, in
//! QEMU. `cargo xtask vm drivers` runs it on drivers of real cards.
//!
//! QEMU emulates the CPU, so no KVM is needed. A guest is a kernel, its network modules, and an
//! initramfs with this machine's test executables and their libraries. It boots in 2 to 3 s. A guest
//! for arm64 has static executables, and Debian's programs.

mod archive;
mod drivers;
mod guest;
mod machine;
mod root;
mod suites;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use vipmux_bpf_build::cache;

pub(crate) use self::drivers::{Drivers, run as run_drivers};
use self::{archive::Flavor, machine::Machine};
use crate::{
    setup,
    summary::{self, Outcome},
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
    /// Debian 12's for arm64, with two CPUs
    #[value(name = "6.1-arm64")]
    BookwormArm64,
}

impl Kernel {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The suite of Debian's archive that has this kernel.
    const fn suite(self) -> &'static str {
        match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm | Self::BookwormArm64 => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    /// The architecture, as Debian and images name it.
    const fn architecture(self) -> &'static str {
        match self {
            Self::BookwormArm64 => "arm64",
            Self::Bullseye | Self::Bookworm | Self::Trixie | Self::Sid => "amd64",
        }
    }
}

/// Runs the suites on `kernels` (all, if none is named), one after the other. Fails if they fail on
/// one. With `tests`, runs only these of the network suite. With `update`, cached kernels are replaced by
/// newer packages.
pub(crate) fn run(kernels: &[Kernel], tests: &[String], update: bool) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("`cargo xtask vm` runs this machine's executables in x86-64 guests: use an x86-64 machine");
    }
    let mut kernels = if kernels.is_empty() { Kernel::value_variants() } else { kernels }.to_vec();
    kernels.sort_unstable();
    kernels.dedup();
    let machines = kernels.iter().map(|kernel| kernel.architecture()).collect::<BTreeSet<_>>();
    let machines = machines.into_iter().map(Machine::of).collect::<Result<Vec<_>>>()?;
    setup::guests(&machines.iter().map(|machine| machine.qemu).collect::<Vec<_>>())?;
    let folder = workspace::target_folder()?.join("vm");
    let _lock = workspace::lock(&folder)?;
    let mut files = BTreeMap::new();
    for machine in machines {
        let executables = suites::build(&machine)?;
        suites::check(&executables, tests.iter().map(String::as_str))?;
        let packed = root::pack(&machine, &folder, &executables)?;
        files.insert(machine.platform.architecture, (machine, packed));
    }
    let script = suites::commands(tests);
    let mut rows = Vec::new();
    for kernel in kernels {
        let start = Instant::now();
        let (machine, files) = &files[kernel.architecture()];
        let outcome = match archive::kernel(machine, &cache()?, (kernel.suite(), Flavor::Cloud), update) {
            Ok(image) => {
                workspace::progress(&format!("kernel {}: {}", kernel.name(), image.release));
                guest::run(machine.command(), &folder, &image, files, &script)
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
