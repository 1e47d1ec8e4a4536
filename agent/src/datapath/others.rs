//! What others have attached to interfaces.

use std::{collections::BTreeMap, io};

use aya::programs::loaded_programs;

use super::syscall::{Command, bpf};

/// `BPF_TCX_EGRESS` of include/uapi/linux/bpf.h.
const TCX_EGRESS: u32 = 47;
/// The kernel's own limit of programs in one place (`BPF_MPROG_MAX`).
const MOST: usize = 64;

/// tcx programs on an interface's way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnTheWayOut {
    /// Their ids, in the order in which they run; `None`: the kernel has no tcx links.
    pub ids: Option<Vec<u32>>,
}

/// What `union bpf_attr` has for `BPF_PROG_QUERY`.
#[repr(C)]
struct Query {
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

impl OnTheWayOut {
    /// Asks the kernel, in the network namespace of the calling thread.
    pub fn of(ifindex: u32) -> io::Result<Self> {
        let mut ids = vec![0_u32; MOST];
        let mut query = Query {
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
        // SAFETY: the attributes have no padding of the compiler's, and the kernel writes at most `count` ids.
        match unsafe { bpf(Command::ProgramQuery, &mut query) } {
            Ok(_) => {
                ids.truncate(query.count as usize);
                Ok(Self { ids: Some(ids) })
            }
            // It knows no such place.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Self { ids: None }),
            Err(error) => Err(error),
        }
    }
}

/// The names of all loaded programs, by their ids; empty where this process may not ask (`CAP_SYS_ADMIN`).
pub fn names() -> BTreeMap<u32, String> {
    let programs = loaded_programs().filter_map(Result::ok);
    programs.map(|program| (program.id(), program.name_as_str().unwrap_or_default().to_owned())).collect()
}
