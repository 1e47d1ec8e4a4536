//! Loads the XDP programs: one for the interfaces, and those that it calls for rarer packets.

use aya::{Ebpf, programs::Xdp};
use vipmux_common::abi::{CALL_NEW, CALL_ODD, CALL_OTHER, CALLS};

use super::{
    kernel_version::kernel_is,
    programs::{LoadError, make_callable, program},
    uninterrupted::uninterrupted,
};

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
pub fn load_xdp(ebpf: &mut Ebpf, buffers: Buffers) -> Result<(), LoadError> {
    let (map, called) = buffers.called();
    for (name, _) in called {
        load(ebpf, name)?;
    }
    for (name, index) in called {
        make_callable(ebpf, map, name, index)?;
    }
    load(ebpf, buffers.entry())
}

fn load(ebpf: &mut Ebpf, name: &'static str) -> Result<(), LoadError> {
    let xdp: &mut Xdp = program(ebpf, name)?;
    uninterrupted(|| xdp.load()).map_err(|source| LoadError::Program { program: name, source })
}
