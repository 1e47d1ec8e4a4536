//! Mounts a bpffs that belongs to one test.

use std::path::{Path, PathBuf};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use crate::is_root;

const BPFFS: &str = "/sys/fs/bpf";

/// Returns a path to pin to, not created yet, below a fresh bpffs; `None` if the test is to be
/// skipped ([`is_root`]). The bpffs is in a mount namespace of the test's thread. So it goes away
/// with the test, however the test ends.
pub fn pin_path() -> Option<PathBuf> {
    if !is_root() {
        return None;
    }
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    // In a chroot, the root may not be a mount point.
    let private = |at| mount(None::<&str>, at, None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>);
    private("/").or_else(|_| private("/sys")).unwrap();
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
    Some(Path::new(BPFFS).join("vipmux"))
}
