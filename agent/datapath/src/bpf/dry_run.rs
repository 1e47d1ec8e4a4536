//! Checks whether the kernel accepts the programs, and leaves nothing behind.

use std::{io, thread};

use aya::{
    Ebpf,
    programs::{ProgramError, SchedClassifier},
};
use nix::sched::{CloneFlags, unshare};

use super::{
    clsact,
    direction::Direction,
    load::{check_kernel, load_programs},
    object::{loader, object},
    pins::EGRESS_PROGRAM,
    programs::{LoadError, program},
    xdp::Buffers,
};

/// Maps that may be small if no traffic is served, with the number of entries for that case.
pub const SMALL_MAPS: [(&str, u32); 13] = [
    ("INTERFACES", 16),
    ("TABLES", 8_192),
    ("BACKENDS", 10_000),
    ("BACKEND_NODES", 2_500),
    ("NODE_NAMES", 64),
    ("MEMBERS", 64),
    ("PEERS", 64),
    ("VIPS", 64),
    ("LEADERS", 64),
    ("SERVICES", 64),
    ("SERVICE_STATES", 64),
    ("SERVICE_NAMES", 64),
    ("SERVICE_STATS", 64),
];
/// Sets of the flow table. None is used.
const FEW_SETS: u32 = 16;

/// The loaded programs with their own maps. They are neither attached nor pinned, and go when this
/// value is dropped.
pub struct ProgramDryRun(Ebpf);

impl ProgramDryRun {
    /// Loads the programs as the agent does.
    pub fn load() -> Result<Self, LoadError> {
        check_kernel()?;
        let mut loader = loader();
        for (name, entries) in SMALL_MAPS.into_iter().chain([("FLOWS", FEW_SETS)]) {
            loader.map_max_entries(name, entries);
        }
        let mut ebpf = loader.load(&object())?;
        load_programs(&mut ebpf, Buffers::here())?;
        Ok(Self(ebpf))
    }

    /// Tries to attach a filter in a clsact qdisc, on the loopback interface of a temporary network
    /// namespace. The outer error: such a namespace cannot be made.
    pub fn clsact(&mut self) -> io::Result<Result<(), ProgramError>> {
        let egress = program::<SchedClassifier>(&mut self.0, EGRESS_PROGRAM).map_err(io::Error::other)?;
        // The namespace belongs to the thread and ends with it.
        let attempt = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(clsact::attach(egress, "lo", Direction::Egress).map(drop))
        };
        thread::scope(|scope| scope.spawn(attempt).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread of the attempt panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::tcx::{program_names, programs};
    use vipmux_testing::is_root;

    #[test]
    fn a_dry_run_loads_everything_and_leaves_nothing() {
        if !is_root() {
            return;
        }
        let mut dry_run = ProgramDryRun::load().unwrap();
        dry_run.clsact().unwrap().unwrap();
        let id = dry_run.0.program(EGRESS_PROGRAM).map(|program| program.info().unwrap().id()).unwrap();
        assert_eq!(program_names().get(&id).map(String::as_str), Some(EGRESS_PROGRAM));
        drop(dry_run);
        // The kernel frees programs a little later.
        let gone = || !program_names().contains_key(&id);
        assert!((0..500).any(|_| gone() || {
            thread::sleep(std::time::Duration::from_millis(10));
            false
        }));
        assert!(programs(Direction::Egress, 1).unwrap().is_none_or(|found| found.iter().all(|one| one.id != id)));
    }
}
