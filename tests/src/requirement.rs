//! Checks whether this machine has what a test needs. If not, the test is reported as skipped, by
//! its name.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, bail};
use nix::unistd::geteuid;

use vipmux_datapath::bpf::object::kernel_has_results;

use crate::{
    cleanup, cluster_programs,
    kube_proxy::Mode,
    lan::{PodNetwork, Uplink, driver},
    netns::Namespace,
    real_cluster::System,
    sctp,
};

/// Returns whether the test may make network namespaces and load BPF programs. If not, that is an
/// error with `CI=true`: nothing may be skipped that the machine's owner can fix.
pub fn root() -> Result<bool> {
    if geteuid().is_root() {
        return Ok(true);
    }
    missing("it makes network namespaces or loads BPF programs, run it as root")
}

/// Returns the container image's files, which `cargo xtask test network` makes and names by
/// `VIPMUX_IMAGE_ROOT`. If they are missing, that is an error with `CI=true`.
pub fn image() -> Result<Option<PathBuf>> {
    if let Some(root) = std::env::var_os("VIPMUX_IMAGE_ROOT") {
        return Ok(Some(root.into()));
    }
    missing("it starts the container image, run it by `cargo xtask test network` or `cargo xtask cluster test`")
        .map(|_| None)
}

/// Returns the older program that `VIPMUX_OLD_BIN` names. Without one it is no error with `CI=true`: a
/// checkout has none.
pub fn older_program() -> Result<Option<PathBuf>> {
    match std::env::var_os("VIPMUX_OLD_BIN") {
        Some(path) => Ok(Some(path.into())),
        None => skip("it upgrades from an older program, name one by VIPMUX_OLD_BIN").map(|_| None),
    }
}

/// Skips the test for a reason that the machine's owner can fix: an error with `CI=true`.
fn missing(why: &str) -> Result<bool> {
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        bail!("a test cannot run, and CI=true allows no skipped tests: {why}");
    }
    skip(why)
}

/// Returns whether a real API server can be started. If not, that is an error with `CI=true`.
pub fn api_server() -> Result<bool> {
    if !root()? {
        return Ok(false);
    }
    match ["etcd", "kube-apiserver"].into_iter().try_for_each(|program| cluster_programs::find(program).map(drop)) {
        Ok(()) => Ok(true),
        Err(error) => missing(&format!("{error:#}")),
    }
}

/// Returns whether this load balancer can run in a real cluster. If not, that is an error with `CI=true`.
pub fn system(system: System) -> Result<bool> {
    match system.programs().try_for_each(|program| cluster_programs::find(program).map(drop)) {
        Ok(()) => Ok(true),
        Err(error) => missing(&format!("{error:#}; `cargo xtask cluster test migrating` builds it, too")),
    }
}

/// Returns whether kube-proxy can run in this mode, with a real API server. If not, that is an
/// error with `CI=true`.
pub fn kube_proxy(mode: Mode) -> Result<bool> {
    let (program, package) = match mode {
        Mode::Iptables => ("iptables-restore", "iptables"),
        Mode::Nftables => ("nft", "nftables"),
    };
    if !api_server()? {
        return Ok(false);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    if !folders.into_iter().any(|folder: PathBuf| folder.join(program).is_file()) {
        return missing(&format!("kube-proxy in mode {mode} wants {program}: install the package {package}"));
    }
    match cluster_programs::find("kube-proxy") {
        Ok(_) => Ok(true),
        Err(error) => missing(&format!("{error:#}")),
    }
}

/// Returns whether the kernel has this kind of interface. If not, that is no error with `CI=true`,
/// since only another kernel helps.
pub fn uplink(uplink: Uplink) -> Result<bool> {
    let option = match uplink {
        Uplink::Card | Uplink::Bridge => return Ok(true),
        Uplink::Vlan(_) => "CONFIG_VLAN_8021Q",
        Uplink::Bond => "CONFIG_BONDING",
        Uplink::Team => "CONFIG_NET_TEAM",
    };
    let namespace = Namespace::new(&format!("{}-probe", cleanup::number()))?;
    let made = namespace.links(|links| match uplink {
        Uplink::Bond => links.add_bond("bond1"),
        Uplink::Team => links.add_team("team1"),
        _ => {
            links.add_bridge("br0")?;
            links.add_vlan("vlan1", "br0", 1)
        }
    });
    match made {
        Ok(()) => Ok(true),
        Err(error) if is_unknown(&error) => {
            skip(&format!("this kernel is built without {option}, run it on one that has it"))
        }
        Err(error) => Err(error).context("cannot tell what the kernel has"),
    }
}

/// Returns whether pods can be connected this way. If not, that is an error with `CI=true`.
pub fn pods(network: PodNetwork) -> Result<bool> {
    match network {
        PodNetwork::Routed => Ok(true),
        PodNetwork::Bridged if Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists() => Ok(true),
        PodNetwork::Bridged => missing("bridged frames do not pass iptables here, load the module br_netfilter"),
    }
}

/// Returns whether the kernel has SCTP. If not, that is no error with `CI=true`, since only another
/// kernel helps. The packet suite covers SCTP everywhere.
pub fn sctp() -> Result<bool> {
    if sctp::is_supported()? { Ok(true) } else { skip("this kernel has no SCTP, run it on one with the module sctp") }
}

/// Returns whether the kernel has the locks of arm64, whose atomic additions have a result. If not,
/// that is no error with `CI=true`, since only another kernel helps.
pub fn atomic_results() -> Result<bool> {
    if kernel_has_results() {
        Ok(true)
    } else {
        skip("this kernel has no atomic additions with a result, run it on 5.18")
    }
}

/// Returns whether the nodes' cards are real ones. If not, that is no error with `CI=true`.
pub fn cards() -> Result<bool> {
    if driver().is_some() { Ok(true) } else { skip("the cards are veths, run it by `cargo xtask vm drivers`") }
}

fn skip(why: &str) -> Result<bool> {
    // The test harness names its threads after the tests.
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    // Not by `eprintln`, whose text the test harness keeps to itself where a test passes.
    writeln!(io::stderr(), "skipped: {test}: {why}")?;
    Ok(false)
}

fn is_unknown(error: &anyhow::Error) -> bool {
    let code = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(rtnetlink::Error::NetlinkError(error)) => Some(error.raw_code()),
        _ => None,
    });
    code == Some(-libc::EOPNOTSUPP)
}
