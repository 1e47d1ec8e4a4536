//! Loads the XDP programs: one for the interfaces, and those that it calls for rarer packets.

use aya::{
    Ebpf,
    maps::{MapError, ProgramArray},
    programs::{ProgramError, Xdp},
};
use vipmux_common::abi::{CALL_NEW, CALL_ODD, CALL_OTHER, CALLS};

use super::{kernel_version::kernel_is, uninterrupted::uninterrupted};

/// The largest MTU at which drivers run a program for packets in one buffer: a page, less its
/// headroom, the Ethernet header and `struct skb_shared_info`.
pub(super) const MTU_LIMIT: u32 = 3_498;

/// The buffer layout of an XDP program. The kernel allows tail calls only between programs of one
/// layout.
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
    /// The cause.
    pub source: XdpCause,
}

/// The cause of an [`XdpError`].
#[derive(Debug, thiserror::Error)]
pub enum XdpCause {
    /// The BPF object does not contain the program.
    #[error("the BPF object does not contain it")]
    Absent,
    /// The verifier or the loader refused the program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The file descriptor could not be duplicated.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// The program could not be written to the map of tail calls.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Buffers {
    /// Returns the layout that this kernel supports best.
    pub fn here() -> Self {
        if kernel_is(5, 18) { Self::Several } else { Self::One }
    }

    /// Returns the name of the program for the interfaces.
    pub const fn entry(self) -> &'static str {
        match self {
            Self::One => "vipmux_xdp",
            Self::Several => "vipmux_xdp_frags",
        }
    }

    /// Returns the map of tail calls, and the programs in it with their indices.
    const fn called(self) -> (&'static str, [(&'static str, u32); CALLS as usize]) {
        match self {
            Self::One => (
                "CALLS",
                [
                    ("vipmux_new_ipv4", CALL_NEW),
                    ("vipmux_new_ipv6", CALL_NEW + 1),
                    ("vipmux_odd_ipv4", CALL_ODD),
                    ("vipmux_odd_ipv6", CALL_ODD + 1),
                    ("vipmux_other", CALL_OTHER),
                ],
            ),
            Self::Several => (
                "CALLS_FRAGMENTED",
                [
                    ("vipmux_new_ipv4_frags", CALL_NEW),
                    ("vipmux_new_ipv6_frags", CALL_NEW + 1),
                    ("vipmux_odd_ipv4_frags", CALL_ODD),
                    ("vipmux_odd_ipv6_frags", CALL_ODD + 1),
                    ("vipmux_other_frags", CALL_OTHER),
                ],
            ),
        }
    }
}

/// Loads the XDP programs of one layout, and writes them to their map of tail calls.
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
    uninterrupted(|| xdp.load())?;
    Ok(xdp)
}
