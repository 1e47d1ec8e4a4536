//! Starts containers as a cluster's runtime starts the DaemonSet's: only the image's files and the
//! volumes, read-only except for the volumes, with a few capabilities and no way to gain more.

use std::{
    env::temp_dir,
    ffi::{CStr, CString},
    io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::prctl,
    unistd::{chdir, chroot},
};
use vipmux_datapath::capabilities::CAPABILITIES;

use crate::netns::Namespace;

/// `_LINUX_CAPABILITY_VERSION_3` (include/uapi/linux/capability.h).
const VERSION: u32 = 0x2008_0522;
const NONE: Option<&CStr> = None;

/// `struct __user_cap_header_struct`; the process is the calling one.
#[repr(C)]
struct Header {
    version: u32,
    process: i32,
}

/// `struct __user_cap_data_struct`, of 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Returns a command that runs `vipmux` from the image's files below `root`, in a container in this
/// network namespace. Like the DaemonSet's Pods it has the node's BPF file system. Its one volume
/// is /tmp, which has the tests' folders.
pub fn command(root: &Path, namespace: &Namespace) -> Result<Command> {
    ensure!(temp_dir().starts_with("/tmp"), "containers have /tmp, and TMPDIR is {}", temp_dir().display());
    let root = CString::new(root.as_os_str().as_bytes()).with_context(|| format!("{} is no path", root.display()))?;
    let mut command = namespace.command("/usr/bin/vipmux")?;
    command.env_clear().env("PATH", "/usr/bin");
    let enter = move || {
        enter(&root)?;
        give_up_capabilities()
    };
    // SAFETY: between fork and exec, `enter` makes system calls with what it owns or has on the
    // stack; it does not allocate, lock or touch memory that another thread may have left in an odd
    // state.
    unsafe { command.pre_exec(enter) };
    Ok(command)
}

fn enter(root: &CStr) -> io::Result<()> {
    let everything = MsFlags::MS_BIND | MsFlags::MS_REC;
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, c"/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    mount(Some(root), root, NONE, MsFlags::MS_BIND, NONE)?;
    chdir(root)?;
    mount(Some(c"/tmp"), c"tmp", NONE, everything, NONE)?;
    mount(Some(c"/dev"), c"dev", NONE, everything, NONE)?;
    mount(Some(c"proc"), c"proc", Some(c"proc"), MsFlags::empty(), NONE)?;
    mount(Some(c"proc/sys"), c"proc/sys", NONE, MsFlags::MS_BIND, NONE)?;
    mount(NONE, c"proc/sys", NONE, read_only, NONE)?;
    // With the mounted bpffs, which stays writable.
    mount(Some(c"/sys"), c"sys", NONE, everything, NONE)?;
    mount(NONE, c"sys", NONE, read_only, NONE)?;
    mount(NONE, c".", NONE, read_only, NONE)?;
    chroot(c".")?;
    Ok(chdir(c"/")?)
}

/// Limits the process, and what it executes, to the DaemonSet's capabilities.
fn give_up_capabilities() -> io::Result<()> {
    let mask = CAPABILITIES.iter().fold(0_u64, |mask, (bit, _)| mask | 1 << bit);
    for bit in 0..u64::BITS {
        // SAFETY: the arguments are plain numbers.
        let dropped = mask >> bit & 1 == 1 || unsafe { libc::prctl(libc::PR_CAPBSET_DROP, bit, 0, 0, 0) } == 0;
        // Beyond the kernel's last capability.
        if !dropped && io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return Err(io::Error::last_os_error());
        }
    }
    let header = Header { version: VERSION, process: 0 };
    let half = |shift: u32| {
        #[allow(clippy::cast_possible_truncation, reason = "a set comes in halves")]
        let part = (mask >> shift) as u32;
        Sets { effective: part, permitted: part, inheritable: 0 }
    };
    let sets = [half(0), half(32)];
    // SAFETY: both pointers are to values that live on, of the layout that the version says.
    if unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(prctl::set_no_new_privs()?)
}
