//! What becomes of a frame.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use vipmux_common::abi::{DropReason, Stat};

use crate::{count, forward};

/// What becomes of a frame: what, and above 32 bits the interface, or the reason. One number, since the verifier wants
/// every register to be defined that the compiler keeps, and a function of its own to the verifier gives back no more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict(pub(crate) u64);

/// A drop is an error, so that `?` ends the walk.
pub(crate) type Outcome = Result<Verdict, Verdict>;

impl Verdict {
    /// Not ours: to the stack, untouched.
    pub(crate) const PASS: Self = Self(0);
    /// Ours, and the stack's by configuration: untouched.
    pub(crate) const KERNEL: Self = Self(1);
    /// To the stack, with a local backend as its destination.
    pub(crate) const DELIVER: Self = Self(2);
    /// To the stack, for a local backend that takes it as it is.
    pub(crate) const DIRECT: Self = Self(3);
    /// An answer: out where it came in.
    pub(crate) const TRANSMIT: Self = Self(4);
    /// For the program for new flows.
    pub(crate) const NEW: Self = Self(5);
    /// For the program for all else.
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
    /// Counts it on a frame of that length, and gives it to the kernel.
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
