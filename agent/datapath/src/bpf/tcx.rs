//! Lists the tcx programs on an interface, and the names of all loaded programs.
//!
//! aya's `SchedClassifier::query_tcx` needs `CAP_SYS_ADMIN`, since it opens each program. This
//! query does not.

use std::{collections::BTreeMap, io};

use aya::programs::loaded_programs;

use super::{
    direction::Direction,
    syscall::{BpfCommand, bpf},
};

/// `BPF_TCX_INGRESS` of include/uapi/linux/bpf.h.
const TCX_INGRESS: u32 = 46;
/// `BPF_TCX_EGRESS`.
const TCX_EGRESS: u32 = 47;
/// The kernel's limit of programs at one attachment point (`BPF_MPROG_MAX`).
pub const MAX_PROGRAMS: usize = 64;

/// A tcx program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcxProgram {
    /// Its id.
    pub id: u32,
    /// The id of its link; 0: it is attached without one.
    pub link: u32,
}

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

/// Returns the tcx programs of one direction of an interface, in the order in which they run.
/// `None`: the kernel has no tcx links. It asks in the network namespace of the calling thread.
pub fn programs(direction: Direction, ifindex: u32) -> io::Result<Option<Vec<TcxProgram>>> {
    let (mut ids, mut links) = ([0_u32; MAX_PROGRAMS], [0_u32; MAX_PROGRAMS]);
    let mut query = ProgramQueryAttr {
        ifindex,
        attach_type: match direction {
            Direction::Egress => TCX_EGRESS,
            Direction::Ingress => TCX_INGRESS,
        },
        flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: u32::try_from(ids.len()).map_err(io::Error::other)?,
        padding: 0,
        program_flags: 0,
        link_ids: links.as_mut_ptr() as u64,
        link_flags: 0,
        revision: 0,
    };
    // SAFETY: the attributes have no padding of the compiler's, and the kernel writes at most
    // `count` ids of programs and of links.
    match unsafe { bpf(BpfCommand::ProgramQuery, &mut query) } {
        Ok(_) => {
            let found = ids.into_iter().zip(links).take(query.count as usize);
            Ok(Some(found.map(|(id, link)| TcxProgram { id, link }).collect()))
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
