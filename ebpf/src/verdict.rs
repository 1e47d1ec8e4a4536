//! The verdict on a frame.

use aya_ebpf::{
    bindings::{
        xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX},
        xdp_md,
    },
    helpers::bpf_redirect,
};
use vipmux_common::abi::{DropReason, Stat};

use crate::{count, merged};

/// An action on a frame.
#[derive(Clone, Copy)]
enum Action {
    /// Not for a VIP: to the stack, untouched.
    Pass = 0,
    /// For a VIP, but left to the stack by configuration: untouched.
    Kernel = 1,
    /// To the stack, with a local backend as its destination.
    Deliver = 2,
    /// To the stack, unchanged, for a local backend.
    Direct = 3,
    /// An answer: out of the ingress interface.
    Transmit = 4,
    /// Dropped, for this reason.
    Drop = 8,
}

/// The verdict on a frame: an action or the next program, and above 32 bits the interface or the
/// reason. It is one number: the verifier requires every register that the compiler keeps to be
/// defined, and a function that the verifier checks on its own returns no more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict(pub(crate) u64);

/// A drop is an error, so that `?` ends the parsing.
pub(crate) type Outcome = Result<Verdict, Verdict>;

impl Verdict {
    pub(crate) const PASS: Self = Self(Action::Pass as u64);
    pub(crate) const KERNEL: Self = Self(Action::Kernel as u64);
    pub(crate) const DELIVER: Self = Self(Action::Deliver as u64);
    pub(crate) const DIRECT: Self = Self(Action::Direct as u64);
    pub(crate) const TRANSMIT: Self = Self(Action::Transmit as u64);
    /// For the program for new flows.
    pub(crate) const NEW: Self = Self(5);
    /// For the program of the slow path: all other packets.
    pub(crate) const SLOW: Self = Self(6);

    pub(crate) const NO_SERVICE: Self = Self::drop(DropReason::NoService);
    pub(crate) const NO_BACKEND: Self = Self::drop(DropReason::NoBackend);

    /// To another node, through this interface: above [`Self::FORWARD`].
    #[inline(always)]
    pub(crate) const fn forward(ifindex: u32) -> Self {
        Self(Self::FORWARD | (ifindex as u64) << 32)
    }

    /// The most frequent verdict of all has a bit of its own, which is looked at first.
    const FORWARD: u64 = 1 << 63;

    #[inline(always)]
    pub(crate) const fn drop(reason: DropReason) -> Self {
        Self(Action::Drop as u64 | (reason as u64) << 32)
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
    /// Counts a frame of this length, and returns the kernel's action. The verdict is not for
    /// another program.
    #[inline(always)]
    pub(crate) fn act(self, context: *mut xdp_md, ifindex: u32, length: u64) -> u32 {
        let argument = (self.0 >> 32) as u32;
        if self.0 & Self::FORWARD != 0 {
            let outlet = argument & !(1 << 31);
            return if outlet == ifindex { XDP_TX } else { redirect(context, outlet) };
        }
        match self.action() {
            Action::Pass => {
                count::stat(Stat::Passed, length);
                XDP_PASS
            }
            Action::Kernel => {
                count::stat(Stat::Kernel, length);
                XDP_PASS
            }
            Action::Direct => {
                count::stat(Stat::Direct, length);
                XDP_PASS
            }
            Action::Deliver => XDP_PASS,
            Action::Transmit => XDP_TX,
            Action::Drop => {
                count::drop(argument, length);
                XDP_DROP
            }
        }
    }

    #[inline(always)]
    const fn action(self) -> Action {
        match self.0 & 0xff {
            0 => Action::Pass,
            1 => Action::Kernel,
            2 => Action::Deliver,
            3 => Action::Direct,
            4 => Action::Transmit,
            _ => Action::Drop,
        }
    }
}

/// Redirects to another interface than the ingress one, or leaves a merged frame to the tc program.
#[inline(always)]
fn redirect(context: *mut xdp_md, ifindex: u32) -> u32 {
    if ifindex & merged::OUTLET != 0 {
        return merged::mark(context, ifindex & !merged::OUTLET);
    }
    // SAFETY: a helper with plain arguments; its result is XDP_REDIRECT or XDP_ABORTED.
    let action = unsafe { bpf_redirect(ifindex, 0) };
    if action == i64::from(XDP_REDIRECT) { XDP_REDIRECT } else { XDP_ABORTED }
}
