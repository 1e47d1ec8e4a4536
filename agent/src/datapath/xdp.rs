//! The XDP programs: one on the interfaces, and those that it calls for the rarer packets.

use aya::{
    Ebpf,
    maps::{MapError, ProgramArray},
    programs::{ProgramError, Xdp},
};
use vipmux_common::abi::{CALL_NEW, CALL_ODD};

use super::load::kernel_is;

/// A kind of XDP programs; the kernel lets none call one of the other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// Frames in one buffer: an MTU of about 3,500 bytes at most.
    One,
    /// Frames in several buffers, so jumbo frames (`xdp.frags`, Linux 5.18).
    Several,
}

/// An XDP program cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("cannot load the program {program}")]
pub struct XdpError {
    /// The program's name.
    pub program: &'static str,
    /// What aya or the kernel said.
    pub source: XdpCause,
}

/// What aya or the kernel said.
#[derive(Debug, thiserror::Error)]
pub enum XdpCause {
    /// It is not in the object.
    #[error("it is not in the object")]
    Absent,
    /// The verifier or the loader refused it.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Its file descriptor could not be duplicated.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// It could not be put where it is called from.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Buffers {
    /// What this kernel can do.
    pub fn here() -> Self {
        if kernel_is(5, 18) { Self::Several } else { Self::One }
    }

    /// The program for the interfaces.
    pub const fn entry(self) -> &'static str {
        match self {
            Self::One => "vipmux_xdp",
            Self::Several => "vipmux_xdp_frags",
        }
    }

    /// The map of those that it calls, and each with its index there.
    const fn called(self) -> (&'static str, [(&'static str, u32); 4]) {
        match self {
            Self::One => (
                "CALLS",
                [
                    ("vipmux_new_ipv4", CALL_NEW),
                    ("vipmux_new_ipv6", CALL_NEW + 1),
                    ("vipmux_odd_ipv4", CALL_ODD),
                    ("vipmux_odd_ipv6", CALL_ODD + 1),
                ],
            ),
            Self::Several => (
                "CALLS_FRAGMENTED",
                [
                    ("vipmux_new_ipv4_frags", CALL_NEW),
                    ("vipmux_new_ipv6_frags", CALL_NEW + 1),
                    ("vipmux_odd_ipv4_frags", CALL_ODD),
                    ("vipmux_odd_ipv6_frags", CALL_ODD + 1),
                ],
            ),
        }
    }
}

/// Loads the XDP programs of that kind, and makes them able to call each other.
pub fn load_xdp(ebpf: &mut Ebpf, buffers: Buffers) -> Result<(), XdpError> {
    let (map, called) = buffers.called();
    let mut files = Vec::with_capacity(called.len());
    for (program, index) in called {
        let fail = |source: XdpCause| XdpError { program, source };
        let loaded = load(ebpf, program).map_err(fail)?;
        let file = loaded.fd().map_err(|error| fail(error.into()))?.try_clone();
        files.push((program, index, file.map_err(|error| fail(error.into()))?));
    }
    for (program, index, file) in files {
        let fail = |source: XdpCause| XdpError { program, source };
        let map = ebpf.map_mut(map).ok_or_else(|| fail(XdpCause::Absent))?;
        let mut array = ProgramArray::try_from(map).map_err(|error| fail(error.into()))?;
        array.set(index, &file, 0).map_err(|error| fail(error.into()))?;
    }
    let program = buffers.entry();
    load(ebpf, program).map(drop).map_err(|source| XdpError { program, source })
}

fn load<'a>(ebpf: &'a mut Ebpf, program: &str) -> Result<&'a Xdp, XdpCause> {
    let xdp: &mut Xdp = ebpf.program_mut(program).ok_or(XdpCause::Absent)?.try_into()?;
    xdp.load()?;
    Ok(xdp)
}
