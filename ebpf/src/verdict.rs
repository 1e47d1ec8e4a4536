//! The verdict on a frame.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use vipmux_common::abi::{DropReason, Stat};

use crate::{count, forward};

/// The verdict on a frame: the kind, and above 32 bits the interface or the reason. It is one
/// number: the verifier requires every register that the compiler keeps to be defined, and a
/// function that the verifier checks on its own returns no more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict(pub(crate) u64);

/// A drop is an error, so that `?` ends the parsing.
pub(crate) type Outcome = Result<Verdict, Verdict>;

impl Verdict {
    /// Not for a VIP: to the stack, untouched.
    pub(crate) const PASS: Self = Self(0);
    /// For a VIP, but left to the stack by configuration: untouched.
    pub(crate) const KERNEL: Self = Self(1);
    /// To the stack, with a local backend as its destination.
    pub(crate) const DELIVER: Self = Self(2);
    /// To the stack, unchanged, for a local backend.
    pub(crate) const DIRECT: Self = Self(3);
    /// An answer: out of the ingress interface.
    pub(crate) const TRANSMIT: Self = Self(4);
    /// For the program for new flows.
    pub(crate) const NEW: Self = Self(5);
    /// For the program for all other packets.
    pub(crate) const ODD: Self = Self(6);
    const FORWARD: u64 = 7;
    const DROP: u64 = 8;

    pub(crate) const NO_SERVICE: Self = Self::drop(DropReason::NoService);
    pub(crate) const NO_BACKEND: Self = Self::drop(DropReason::NoBackend);

    /// To another node, through this interface.
    #[inline(always)]
    pub(crate) const fn forward(ifindex: u32) -> Self {
        Self(Self::FORWARD | (ifindex as u64) << 32)
    }

    #[inline(always)]
    pub(crate) const fn drop(reason: DropReason) -> Self {
        Self(Self::DROP | (reason as u64) << 32)
    }

    #[inline(always)]
    pub(crate) fn of(outcome: Outcome) -> Self {
        match outcome {
            Ok(verdict) | Err(verdict) => verdict,
        }
    }
}

impl From<DropReason> for Verdict {
    #[inline(always)]
    fn from(reason: DropReason) -> Self {
        Self::drop(reason)
    }
}

impl Verdict {
    /// Counts a frame of this length, and returns the kernel's action.
    #[inline(always)]
    pub(crate) fn act(self, ifindex: u32, length: u64) -> u32 {
        let argument = (self.0 >> 32) as u32;
        match Self(self.0 & 0xff) {
            Self::PASS => {
                count::stat(Stat::Passed, length);
                XDP_PASS
            }
            Self::KERNEL => {
                count::stat(Stat::Kernel, length);
                XDP_PASS
            }
            Self::DIRECT => {
                count::stat(Stat::Direct, length);
                XDP_PASS
            }
            Self::DELIVER => XDP_PASS,
            Self::TRANSMIT => XDP_TX,
            Self(Self::FORWARD) if argument == ifindex => XDP_TX,
            Self(Self::FORWARD) => forward::redirect(argument),
            _ => {
                count::drop(argument, length);
                XDP_DROP
            }
        }
    }
}
