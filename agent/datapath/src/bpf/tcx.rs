//! Lists the tcx programs on an interface's egress, and the names of all loaded programs.
//!
//! aya's `SchedClassifier::query_tcx` needs `CAP_SYS_ADMIN`, since it opens each program. This
//! query does not.

use std::{collections::BTreeMap, io};

use aya::programs::loaded_programs;

use super::syscall::{BpfCommand, bpf};

/// `BPF_TCX_EGRESS` of include/uapi/linux/bpf.h.
const TCX_EGRESS: u32 = 47;
/// The kernel's limit of programs at one attachment point (`BPF_MPROG_MAX`).
const MAX_PROGRAMS: usize = 64;

/// The part of `union bpf_attr` for `BPF_PROG_QUERY`.
#[repr(C)]
struct ProgramQueryAttr {
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
    program_flags: u64,
    link_ids: u64,
    link_flags: u64,
    revision: u64,
}

/// Returns the ids of the tcx programs on the interface's egress, in the order in which they run.
/// `None`: the kernel has no tcx links. It asks in the network namespace of the calling thread.
pub fn egress_programs(ifindex: u32) -> io::Result<Option<Vec<u32>>> {
    let mut ids = vec![0_u32; MAX_PROGRAMS];
    let mut query = ProgramQueryAttr {
        ifindex,
        attach_type: TCX_EGRESS,
        flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: u32::try_from(ids.len()).map_err(io::Error::other)?,
        padding: 0,
        program_flags: 0,
        link_ids: 0,
        link_flags: 0,
        revision: 0,
    };
    // SAFETY: the attributes have no padding of the compiler's, and the kernel writes at most
    // `count` ids.
    match unsafe { bpf(BpfCommand::ProgramQuery, &mut query) } {
        Ok(_) => {
            ids.truncate(query.count as usize);
            Ok(Some(ids))
        }
        // The kernel does not know this attachment point.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the names of all loaded programs by id. Empty if the process may not list them
/// (`CAP_SYS_ADMIN`).
pub fn program_names() -> BTreeMap<u32, String> {
    let programs = loaded_programs().filter_map(Result::ok);
    programs.map(|program| (program.id(), program.name_as_str().unwrap_or_default().to_owned())).collect()
}
