//! Observes the kernel and this process's rights.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::CheckOptions;
use crate::findings::{
    Seen, Unseen,
    kernel::{Bpffs, KernelObservation, Memlock, PinPathObservation},
};
use vipmux_cluster::clock;
use vipmux_datapath::{
    bpf::{direction::Direction, dry_run::ProgramDryRun, tcx},
    capabilities::{self, SYS_ADMIN},
    error_chain,
    snat::IdentitySnat,
};

/// The usual mount point of the bpffs.
const USUAL: &str = "/sys/fs/bpf";
/// `CAP_SYS_RESOURCE`: the process may raise limits.
const SYS_RESOURCE: u32 = 24;
/// The index of the loopback interface: every network namespace has it.
const LOOPBACK: u32 = 1;

pub(super) fn observe(options: &CheckOptions) -> KernelObservation {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let held = capabilities::held();
    let has = |bit: u32| held.as_ref().is_ok_and(|held| held & 1 << bit != 0);
    let dry_run = ProgramDryRun::load();
    let tcx = tcx::programs(Direction::Egress, LOOPBACK).map(|programs| programs.is_some());
    let programs = dry_run.as_ref().map(drop).map_err(error_chain);
    let clsact = match (&tcx, dry_run) {
        (Ok(has_links), Ok(mut dry_run)) if !has_links || options.tc.is_clsact() => Some(clsact(&mut dry_run)),
        _ => None,
    };
    KernelObservation {
        mode: options.mode,
        tc: options.tc,
        version: version(&release),
        is_arm64: cfg!(target_arch = "aarch64"),
        is_realtime: number("/sys/kernel/realtime") == Some(1),
        release,
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        lacking: held
            .as_ref()
            .map(|held| capabilities::missing(*held))
            .map_err(|error| Unseen::without_rights(error_chain(error))),
        programs,
        tcx: tcx.map_err(Unseen::without_rights),
        clsact,
        nftables: nftables(),
        jit: number("/proc/sys/net/core/bpf_jit_enable"),
        memlock: memlock(has(SYS_RESOURCE)),
        clock_offset: clock::boottime_offset().map_err(Unseen::without_rights),
        pins: PinPathObservation {
            path: options.pin_path.display().to_string(),
            bpffs: bpffs(&options.pin_path, has(SYS_ADMIN)),
        },
    }
}

/// Returns the first line of an error with all its sources. The verifier's log has many lines.
pub(super) fn error_chain<E: std::error::Error>(error: &E) -> String {
    error_chain::error_chain(error).lines().next().unwrap_or_default().to_owned()
}

fn clsact(dry_run: &mut ProgramDryRun) -> Seen<Result<(), String>> {
    match dry_run.clsact() {
        Ok(tried) => Ok(tried.map_err(|error| error_chain(&error))),
        Err(error) => Err(Unseen::without_rights(format!("cannot create a network namespace for the test: {error}"))),
    }
}

fn nftables() -> Result<(), String> {
    let mut snat = match IdentitySnat::open() {
        Ok(snat) => snat,
        Err(error) => return Err(error_chain(&error)),
    };
    snat.check().map_err(|error| error_chain(&error))
}

/// Parses the first two numbers of a kernel's release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or_default());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

/// Reads a numeric sysctl.
pub(super) fn number(path: impl AsRef<Path>) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn memlock(may_raise: bool) -> Memlock {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    soft_memlock(&limits).map_or(Memlock::Unlimited, if may_raise { Memlock::Raisable } else { Memlock::Limited })
}

/// Returns the soft limit in bytes; `None`: there is none.
fn soft_memlock(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn bpffs(path: &Path, is_admin: bool) -> Bpffs {
    let is_bpffs = |path: &&Path| statfs(*path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    let Some(there) = path.ancestors().find(is_bpffs) else {
        return if path.starts_with(USUAL) && is_admin { Bpffs::Mountable } else { Bpffs::Absent };
    };
    // In the pin path itself if it exists: it may belong to another user.
    match touch(there) {
        Ok(()) => Bpffs::Writable,
        Err(error) => Bpffs::Refused(error.to_string()),
    }
}

/// Creates a folder and removes it.
fn touch(folder: &Path) -> io::Result<()> {
    // Names on a bpffs may not contain dots.
    let path: PathBuf = folder.join(format!("vipmux-check-{}", process::id()));
    fs::create_dir(&path)?;
    fs::remove_dir(&path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_datapath::fixture::mounted;

    #[test]
    fn a_release_has_a_version() {
        for (release, expected) in
            [("6.1.0-13-amd64", (6, 1)), ("5.15.0", (5, 15)), ("6.18.5+deb13", (6, 18)), ("", (0, 0)), ("7", (7, 0))]
        {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    #[test]
    fn the_soft_limit_is_read() {
        let limits = |soft: &str| {
            format!(
                "Max processes             1  1  processes\nMax locked memory         {soft}             8388608  bytes\n"
            )
        };
        assert_eq!(soft_memlock(&limits("65536")), Some(65_536));
        assert_eq!(soft_memlock(&limits("unlimited")), None);
        assert_eq!(soft_memlock(""), None);
    }

    #[test]
    fn a_folder_on_a_bpffs_differs_from_one_that_is_not_and_nothing_is_left_there() {
        let Some(pins) = mounted() else { return };
        assert_eq!(bpffs(pins.root(), true), Bpffs::Writable);
        let left: Vec<_> = fs::read_dir(USUAL).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("vipmux")), "{left:?}");
        let elsewhere = tempfile::tempdir().unwrap();
        assert_eq!(bpffs(elsewhere.path(), true), Bpffs::Absent);
    }

    /// In its own network namespace: agents may run on this machine.
    #[test]
    fn checking_the_nftables_table_creates_none() {
        let Some([node]) = vipmux_testing::netns::Namespace::new() else { return };
        node.enter(|| {
            assert_eq!(nftables(), Ok(()));
            assert!(!IdentitySnat::open().unwrap().exists().unwrap());
        });
    }
}
