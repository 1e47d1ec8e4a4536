//! Counts the frames that the kernel refuses after the XDP program's verdict. No return value tells a
//! program of them, but the kernel reports them at tracepoints (include/trace/events/xdp.h).

use std::io;

use aya::{
    Ebpf,
    maps::{Array, MapError},
    programs::{ProgramError, RawTracePoint},
};
use nix::errno::Errno;
use vipmux_common::abi::{RefusalKey, Traced};

use super::{btf::Btf, uninterrupted::uninterrupted};

/// The programs, with their tracepoints.
const PROGRAMS: [(&str, &str); 2] =
    [("vipmux_redirect_err", "xdp_redirect_err"), ("vipmux_exception", "xdp_exception")];

/// Refused frames cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum RefusalError {
    /// The kernel has no BTF, or not these fields.
    #[error("cannot find fields of the kernel's structures")]
    Btf(#[from] io::Error),
    /// A program could not be loaded or attached.
    #[error("cannot attach a program to a tracepoint")]
    Program(#[from] ProgramError),
    /// What the programs need to know could not be written.
    #[error("cannot write the map TRACED")]
    Map(#[from] MapError),
}

/// Counts the refused frames of this loaded XDP program, as long as `ebpf` lives.
pub fn count(ebpf: &mut Ebpf, xdp: &str) -> Result<(), RefusalError> {
    let absent = || MapError::InvalidName { name: xdp.to_owned() };
    let fields = [("net_device", "ifindex"), ("bpf_prog", "aux"), ("bpf_prog_aux", "id")];
    let [ifindex_offset, aux_offset, id_offset] = Btf::of_kernel()?.offsets(fields)?;
    let program = ebpf.program(xdp).ok_or_else(absent)?.info()?.id();
    let traced = Traced { program, ifindex_offset, aux_offset, id_offset };
    Array::try_from(ebpf.map_mut("TRACED").ok_or_else(absent)?)?.set(0, traced, 0)?;
    for (name, tracepoint) in PROGRAMS {
        let program: &mut RawTracePoint = ebpf.program_mut(name).ok_or_else(absent)?.try_into()?;
        uninterrupted(|| program.load())?;
        program.attach(tracepoint)?;
    }
    Ok(())
}

/// The reason of refused frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub RefusalKey);

impl Refusal {
    /// Returns the verdict on the frames.
    pub fn action(self) -> &'static str {
        match self.0.action {
            0 => "aborted",
            3 => "tx",
            4 => "redirect",
            _ => "other",
        }
    }

    /// Returns the kernel's error, as errno(3) has it: `EMSGSIZE`. Empty: it names none.
    pub fn error(self) -> String {
        match (self.0.errno, Errno::from_raw(self.0.errno.into())) {
            (0, _) => String::new(),
            (number, Errno::UnknownErrno) => number.to_string(),
            (_, errno) => format!("{errno:?}"),
        }
    }
}
