//! Mounts the file system in which BPF maps, programs and links are pinned.

use anyhow::{Context, Result};
use nix::{
    mount::{MsFlags, mount as mount_filesystem},
    sys::statfs::{BPF_FS_MAGIC, statfs},
    unistd::geteuid,
};

use crate::workspace;

const MOUNT_POINT: &str = "/sys/fs/bpf";

/// Mounts bpffs if it is not mounted. Without root it does nothing: commands that pin report the
/// missing root themselves.
pub(super) fn mount() -> Result<()> {
    let mounted = statfs(MOUNT_POINT).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    if mounted || !geteuid().is_root() {
        return Ok(());
    }
    workspace::progress(&format!("mounting bpffs on {MOUNT_POINT}: the agents pin their maps and programs there"));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_filesystem(Some("bpf"), MOUNT_POINT, Some("bpf"), flags, Some("mode=700"))
        .with_context(|| format!("cannot mount bpffs on {MOUNT_POINT} (it needs CAP_SYS_ADMIN and a kernel with BPF)"))
}
