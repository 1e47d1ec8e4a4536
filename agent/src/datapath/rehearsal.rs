//! Trying out whether the kernel takes the programs, without leaving anything there.

use std::{io, thread};

use aya::{
    Ebpf, EbpfLoader,
    programs::{ProgramError, SchedClassifier, TcAttachType},
};
use nix::sched::{CloneFlags, unshare};

use super::{
    OBJECT, clsact,
    load::{FLOW_TABLES, LoadError, program},
    pins::{EGRESS_PROGRAM, INGRESS_PROGRAM},
    xdp::{Buffers, load_xdp},
};

/// Maps that may be small where nothing is served, with how many entries they have then.
pub(crate) const SMALL: [(&str, u32); 13] = [
    ("INTERFACES", 16),
    ("TABLES", 8_192),
    ("BACKENDS", 10_000),
    ("NODES", 64),
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
/// Entries of each flow table: none is used.
const FEW_FLOWS: u32 = 64;

/// The programs, loaded onto maps of their own, attached nowhere and pinned nowhere: they go with this value.
pub struct Rehearsal(Ebpf);

impl Rehearsal {
    /// Loads them as the agent does.
    pub fn load() -> Result<Self, LoadError> {
        let mut loader = EbpfLoader::new();
        for (name, entries) in SMALL.into_iter().chain(FLOW_TABLES.map(|name| (name, FEW_FLOWS))) {
            loader.map_max_entries(name, entries);
        }
        let mut ebpf = loader.load(OBJECT).map_err(LoadError::Object)?;
        load_xdp(&mut ebpf, Buffers::here())?;
        for name in [EGRESS_PROGRAM, INGRESS_PROGRAM] {
            let classifier: &mut SchedClassifier = program(&mut ebpf, name)?;
            classifier.load().map_err(|source| LoadError::Program { program: name, source })?;
        }
        Ok(Self(ebpf))
    }

    /// Tries a filter in a clsact qdisc, on the loopback interface of a network namespace that goes with the attempt. The
    /// outer error: there can be no such namespace here.
    pub fn clsact(&mut self) -> io::Result<Result<(), ProgramError>> {
        let egress = program::<SchedClassifier>(&mut self.0, EGRESS_PROGRAM).map_err(io::Error::other)?;
        // The namespace is a property of the thread, and ends with it.
        let attempt = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(clsact::attach(egress, "lo", TcAttachType::Egress).map(drop))
        };
        thread::scope(|scope| scope.spawn(attempt).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread that tried it panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::{
        maps::fixture::is_root,
        others::{OnTheWayOut, names},
    };

    #[test]
    fn a_rehearsal_loads_everything_and_leaves_nothing() {
        if !is_root() {
            return;
        }
        let mut rehearsal = Rehearsal::load().unwrap();
        rehearsal.clsact().unwrap().unwrap();
        let id = rehearsal.0.program(EGRESS_PROGRAM).map(|program| program.info().unwrap().id()).unwrap();
        assert_eq!(names().get(&id).map(String::as_str), Some(EGRESS_PROGRAM));
        drop(rehearsal);
        // The kernel frees programs a little later.
        let gone = || !names().contains_key(&id);
        assert!((0..500).any(|_| gone() || {
            thread::sleep(std::time::Duration::from_millis(10));
            false
        }));
        assert!(OnTheWayOut::of(1).unwrap().ids.is_none_or(|ids| !ids.contains(&id)));
    }
}
