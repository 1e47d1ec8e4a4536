//! `cargo xtask setup`, and what the other commands install before they start.
//!
//! Every installation is visible: what, why, and the installer's own output. If everything is
//! there, nothing is done or printed.

mod apt;
mod bpffs;
mod cluster;
mod go;
mod linker;
mod lint_tools;
mod static_target;

use std::{env, path::PathBuf};

use anyhow::{Result, bail};

pub(crate) use cluster::{Need, install as cluster_programs, program as cluster_program};
pub(crate) use lint_tools::{LintTool, lint_tools};
pub(crate) use static_target::{PLATFORMS, Platform};

use crate::{
    toolchain::{self, Toolchain},
    workspace,
};

/// Programs that the tests and the demo start, each with its Debian package and the reason.
const TEST_PROGRAMS: [(&str, &str, &str); 2] = [
    ("nft", "nftables", "tests add rules like those of kube-proxy and CNIs to their nodes"),
    ("tc", "iproute2", "network tests list filters with it"),
];

/// Programs that only the tests with a real API server need.
const API_PROGRAMS: [(&str, &str, &str); 1] =
    [("iptables-restore", "iptables", "kube-proxy's iptables mode writes its rules with it")];

/// Programs that only `cargo xtask cluster` needs. The plugins are in no folder of the path.
const NODE_PROGRAMS: [(&str, &str, &str); 5] = [
    ("containerd", "containerd", "runs the containers of Pods"),
    ("runc", "runc", "starts containers"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins", "connects Pods"),
    ("/bin/busybox", "busybox-static", "is the shell in Pods"),
    ("curl", "curl", "asks Services"),
];

/// Programs that Kubernetes' own tests run in Pods.
const CONFORMANCE_PROGRAMS: [(&str, &str, &str); 2] = [
    ("/usr/bin/nc.openbsd", "netcat-openbsd", "asks Services in Kubernetes' own tests"),
    ("/usr/bin/wget", "wget", "asks Services in Kubernetes' own tests"),
];

/// Programs that only `cargo xtask vm` needs.
const VM_PROGRAMS: [(&str, &str, &str); 4] = [
    ("busybox", "busybox-static", "is the guests' shell"),
    ("cpio", "cpio", "packs the guests' files"),
    ("depmod", "kmod", "loads kernel modules in the guests"),
    ("teamnl", "libteam-utils", "gives a team its mode in the guests"),
];

/// Programs that the bench compares vipmux with.
const COMPARED: [(&str, &str, &str); 1] =
    [("keepalived", "keepalived", "the bench compares its failovers with vipmux's")];

/// Debian's compiler for BPF, with `core`'s sources.
const DEBIAN_RUST: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];

/// The alternative if Debian's packages are not available.
const ALTERNATIVE: &str = "without Debian's packages, install a nightly (`rustup toolchain install nightly --component \
                           rust-src`) and a bpf-linker for its LLVM";

/// Installs everything for building, tests, demo and bench.
pub(crate) fn run() -> Result<()> {
    network_tests()?;
    api_tests()?;
    workspace::progress("setup is complete: BPF toolchain, test programs, Kubernetes programs, bpffs");
    Ok(())
}

/// Ensures that the BPF object can be built.
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
            "the BPF toolchain is still incomplete after installing bpf-linker for LLVM {}; {ALTERNATIVE}",
            toolchain.llvm
        );
    }
    Ok(())
}

/// Ensures that BPF programs can be loaded and pinned.
pub(crate) fn packet_tests() -> Result<()> {
    bpf_toolchain()?;
    bpffs::mount()
}

/// Ensures that the programs which unit tests, network tests, demo and bench start are installed.
pub(crate) fn network_tests() -> Result<()> {
    packet_tests()?;
    programs(&TEST_PROGRAMS)
}

/// Ensures that the API server and the other programs which the API tests start are installed.
pub(crate) fn api_tests() -> Result<()> {
    network_tests()?;
    programs(&API_PROGRAMS)?;
    cluster::install(Need::Tests)
}

/// Ensures that programs for all platforms, manifests and charts can be made.
pub(crate) fn release() -> Result<()> {
    bpf_toolchain()?;
    PLATFORMS.into_iter().try_for_each(|platform| platform.install().and_then(|()| platform.install_emulator()))?;
    cluster::install(Need::Tests)
}

/// Ensures that everything for a cluster with real nodes is installed, and what else is needed there.
pub(crate) fn cluster(more: &[Need]) -> Result<()> {
    api_tests()?;
    programs(&NODE_PROGRAMS)?;
    if more.contains(&Need::Conformance) {
        programs(&CONFORMANCE_PROGRAMS)?;
    }
    [Need::Nodes].iter().chain(more).try_for_each(|need| cluster::install(*need))
}

/// Installs what the bench compares vipmux with. If that fails, everything except the comparison
/// can be measured.
pub(crate) fn comparison() {
    if let Err(error) = programs(&COMPARED) {
        workspace::progress(&format!("{error:#}; continuing without the comparison"));
    }
}

/// Ensures that guests with other kernels can be built, and started by these programs of these packages.
pub(crate) fn guests(emulators: &[(&'static str, &'static str)]) -> Result<()> {
    bpf_toolchain()?;
    programs(&TEST_PROGRAMS)?;
    programs(&VM_PROGRAMS)?;
    emulators.iter().try_for_each(|(program, package)| programs(&[(program, package, "runs other kernels")]))
}

/// Ensures that libFuzzer can be built.
pub(crate) fn cpp_compiler() -> Result<()> {
    programs(&[("c++", "g++", "libFuzzer is written in C++")])
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
        bail!("{} are installed, but /usr/bin/rustc lacks the sources of core; {ALTERNATIVE}", packages.join(", "));
    };
    if !linker::LLVM.contains(&toolchain.llvm) {
        let (least, most) = (linker::LLVM.start(), linker::LLVM.end());
        bail!(
            "the archive's {} uses LLVM {}, but bpf-linker needs {least} to {most}: add the distribution's \
             updates and security suites to apt's sources; {ALTERNATIVE}",
            packages[0],
            toolchain.llvm
        );
    }
    Ok(toolchain)
}

fn on_path(program: &str) -> bool {
    find_program(program).is_some()
}

/// Finds a program on the path or in the folders of system programs.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}
