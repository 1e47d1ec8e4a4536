//! Loads the XDP programs: one for the interfaces, and those that it calls for rarer packets.

use aya::Ebpf;
use vipmux_common::abi::{CALL_NEW, CALL_OTHER, CALL_SLOW, CALLS};

use super::{
    kernel_version::kernel_is,
    programs::{LoadError, load_all, make_callable},
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

    /// Returns the names of all programs of this layout.
    pub(super) fn programs(self) -> impl Iterator<Item = &'static str> {
        let (_, called) = self.called();
        called.into_iter().map(|(program, _)| program).chain([self.entry()])
    }

    /// Returns the map of tail calls, and the programs in it with their indices.
    const fn called(self) -> (&'static str, [(&'static str, u32); CALLS as usize]) {
        match self {
            Self::One => (
                "CALLS",
                [
                    ("vipmux_new_ipv4", CALL_NEW),
                    ("vipmux_new_ipv6", CALL_NEW + 1),
                    ("vipmux_slow_v4", CALL_SLOW),
                    ("vipmux_slow_v6", CALL_SLOW + 1),
                    ("vipmux_other", CALL_OTHER),
                ],
            ),
            Self::Several => (
                "CALLS_FRAGMENTED",
                [
                    ("vipmux_new_ipv4_frags", CALL_NEW),
                    ("vipmux_new_ipv6_frags", CALL_NEW + 1),
                    ("vipmux_slow_v4_frags", CALL_SLOW),
                    ("vipmux_slow_v6_frags", CALL_SLOW + 1),
                    ("vipmux_other_frags", CALL_OTHER),
                ],
            ),
        }
    }
}

/// Loads the XDP programs of one layout, and writes them to their map of tail calls.
pub fn load_xdp(ebpf: &mut Ebpf, buffers: Buffers) -> Result<(), LoadError> {
    load_all(ebpf, buffers.programs())?;
    connect_xdp(ebpf, buffers)
}

/// Writes the loaded programs that others call to their map of tail calls.
pub(super) fn connect_xdp(ebpf: &mut Ebpf, buffers: Buffers) -> Result<(), LoadError> {
    let (array, called) = buffers.called();
    called.into_iter().try_for_each(|(program, index)| make_callable(ebpf, array, program, index))
}
