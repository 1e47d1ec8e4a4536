//! Calls bpf(2), for commands that aya lacks.

use std::io;

/// `bpf_cmd` of include/uapi/linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BpfCommand {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ObjectGet = 7,
    ObjectInfo = 15,
    ProgramQuery = 16,
    MapLookupBatch = 24,
    MapUpdateBatch = 26,
    LinkDetach = 34,
}

/// Runs `command` and returns its result, for instance a file descriptor.
///
/// # Safety
/// `attributes` is a prefix of the kernel's `union bpf_attr` as `command` uses it, without padding,
/// and each pointer in it is valid for what the command reads and writes there.
pub(super) unsafe fn bpf<T>(command: BpfCommand, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the attributes are live and writable for their whole size during the call. The caller
    // ensures the rest.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_int, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
