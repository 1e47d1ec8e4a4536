//! `cargo xtask setup`, and what the other commands install before they start.
//!
//! Everything is installed in the open: what, why, and the installer's own output. Nothing is done, and nothing said,
//! where all is there.

mod apt;
mod bpffs;
mod cluster;
mod go;
mod linker;
mod lint_tools;
mod static_target;

use std::{env, path::PathBuf};

use anyhow::{Result, bail};

pub(crate) use lint_tools::{LintTool, components, lint_tools};
pub(crate) use static_target::install as static_target;

use crate::{
    toolchain::{self, Toolchain},
    workspace,
};

/// Programs that the tests and the demo start, with the Debian package and the reason.
const TEST_PROGRAMS: [(&str, &str, &str); 2] = [
    ("nft", "nftables", "the network tests put rules like kube-proxy's and a CNI's on their nodes"),
    ("tc", "iproute2", "the network tests look at filters with it"),
];

/// Programs that the tests against a real API server need besides.
const API_PROGRAMS: [(&str, &str, &str); 1] =
    [("iptables-restore", "iptables", "kube-proxy writes its rules with it in one of its modes")];

/// Programs that `cargo xtask vm` needs besides.
const VM_PROGRAMS: [(&str, &str, &str); 4] = [
    ("qemu-system-x86_64", "qemu-system-x86", "other kernels run in it"),
    ("busybox", "busybox-static", "the shell of the guests"),
    ("cpio", "cpio", "the guests' files are packed with it"),
    ("depmod", "kmod", "the guests load their kernel's modules with it"),
];

/// What the bench compares vipmux with.
const COMPARED: [(&str, &str, &str); 1] = [("keepalived", "keepalived", "the bench compares failovers with it")];

/// Debian's compiler for BPF, with `core`'s sources.
const DEBIAN_RUST: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];

/// What to do where Debian's packages are not to be had.
const ALTERNATIVE: &str = "without Debian's packages, install a nightly (`rustup toolchain install nightly --component \
                           rust-src`) and a bpf-linker for its LLVM";

/// Installs all that building, the tests, the demo and the bench need.
pub(crate) fn run() -> Result<()> {
    network_tests()?;
    api_tests()?;
    workspace::say("all set: the BPF toolchain, the test programs, Kubernetes' own and bpffs are there");
    Ok(())
}

/// Makes sure that the BPF object can be built.
pub(crate) fn bpf_toolchain() -> Result<()> {
    if toolchain::detect().is_some() {
        return Ok(());
    }
    let toolchain = match Toolchain::installed().into_iter().find(|toolchain| linker::can_be_built(toolchain.llvm)) {
        Some(toolchain) => toolchain,
        None => debian_rust()?,
    };
    linker::install(toolchain.llvm)?;
    if toolchain::detect().is_none() {
        bail!(
            "the BPF toolchain is still not complete after installing a bpf-linker for LLVM {}; {ALTERNATIVE}",
            toolchain.llvm
        );
    }
    Ok(())
}

/// Makes sure that BPF programs can be loaded and pinned.
pub(crate) fn packet_tests() -> Result<()> {
    bpf_toolchain()?;
    bpffs::mount()
}

/// Makes sure that the network tests, the demo and the bench find the programs that they start.
pub(crate) fn network_tests() -> Result<()> {
    packet_tests()?;
    programs(&TEST_PROGRAMS)
}

/// Makes sure that the tests against a real API server find it, and all else that they start.
pub(crate) fn api_tests() -> Result<()> {
    network_tests()?;
    programs(&API_PROGRAMS)?;
    cluster::install()
}

/// Installs what the bench compares vipmux with. Without it all but the comparison can be measured.
pub(crate) fn comparison() {
    if let Err(error) = programs(&COMPARED) {
        workspace::say(&format!("{error:#}; going on without the comparison"));
    }
}

/// Makes sure that guests with other kernels can be made and started.
pub(crate) fn guests() -> Result<()> {
    bpf_toolchain()?;
    programs(&TEST_PROGRAMS)?;
    programs(&VM_PROGRAMS)
}

/// Makes sure that libFuzzer can be built.
pub(crate) fn cpp_compiler() -> Result<()> {
    programs(&[("c++", "g++", "libFuzzer is C++")])
}

fn programs(wanted: &[(&str, &str, &str)]) -> Result<()> {
    for (program, package, reason) in wanted {
        if !on_path(program) {
            apt::install(&[(*package).to_owned()], reason)?;
        }
    }
    Ok(())
}

fn debian_rust() -> Result<Toolchain> {
    let packages = DEBIAN_RUST.map(str::to_owned);
    let reason = "a rustc with core's sources, for the BPF programs";
    apt::install(&packages, reason).map_err(|error| error.context(ALTERNATIVE))?;
    let Some(toolchain) = Toolchain::installed().into_iter().find(|toolchain| toolchain.bootstrap) else {
        bail!("{} are installed, but /usr/bin/rustc has no sources of core; {ALTERNATIVE}", packages.join(", "));
    };
    if !linker::LLVM.contains(&toolchain.llvm) {
        let (least, most) = (linker::LLVM.start(), linker::LLVM.end());
        bail!(
            "the archive's {} is built on LLVM {}, and bpf-linker wants {least} to {most}: add the distribution's \
             updates and security suites to apt's sources, or, {ALTERNATIVE}",
            packages[0],
            toolchain.llvm
        );
    }
    Ok(toolchain)
}

fn on_path(program: &str) -> bool {
    find_program(program).is_some()
}

/// A program on the path, or where Debian keeps the administrator's.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}
