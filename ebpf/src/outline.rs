//! Parts of the walk that are functions of their own to the verifier: it verifies each alone, each has a stack of its own,
//! and all that one gives back is a number. Calling one costs some nanoseconds, so they are the rarer parts.
//!
//! Each exists twice, since the helper that knows the length of a frame in several buffers is not there on kernels that
//! have no such frames.

use aya_ebpf::bindings::xdp_md;
use vipmux_common::abi::{DropReason, Interface};

use crate::{
    demux,
    frame::Frame,
    maps::INTERFACES,
    ndp, reject,
    verdict::{Outcome, Verdict},
};

macro_rules! outline {
    ($($plain:ident, $fragmented:ident($($argument:ident)?) => $part:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $plain(context: *mut xdp_md $(, $argument: u32)?) -> u64 {
                let Some((frame, interface)) = enter(context, false) else { return Verdict::PASS.0 };
                $part(&frame, interface $(, $argument)?)
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $fragmented(context: *mut xdp_md $(, $argument: u32)?) -> u64 {
                let Some((frame, interface)) = enter(context, true) else { return Verdict::PASS.0 };
                $part(&frame, interface $(, $argument)?)
            }
        )*
    };
}

outline! {
    walk_ipv6, walk_ipv6_fragmented() => walk_ipv6_here;
    unclaimed_ipv4, unclaimed_ipv4_fragmented(no_backend) => unclaimed_here::<false>;
    unclaimed_ipv6, unclaimed_ipv6_fragmented(no_backend) => unclaimed_here::<true>;
}

#[inline(always)]
fn enter(context: *mut xdp_md, fragmented: bool) -> Option<(Frame, &'static Interface)> {
    let frame = Frame::parse(context, fragmented)?;
    // SAFETY: the context is valid for the whole run.
    let ifindex = unsafe { (*context).ingress_ifindex };
    Some((frame, INTERFACES.get(ifindex)?))
}

/// The walk of an IPv6 packet: Neighbor Discovery also where it is flooded, all else only if it is for this interface.
#[inline(always)]
pub(crate) fn ipv6(frame: &Frame) -> Verdict {
    Verdict(if frame.fragmented { walk_ipv6_fragmented(frame.context) } else { walk_ipv6(frame.context) })
}

#[inline(always)]
fn walk_ipv6_here(frame: &Frame, interface: &Interface) -> u64 {
    let verdict = if ndp::is_about_neighbors(frame) {
        Verdict::of(ndp::receive(frame, interface))
    } else if frame.destination == interface.mac {
        claimed::<true>(frame, demux::receive::<true>(frame, interface))
    } else {
        Verdict::PASS
    };
    verdict.0
}

/// A verdict, or what becomes of a packet that no Service or no backend takes.
#[inline(always)]
pub(crate) fn claimed<const V6: bool>(frame: &Frame, outcome: Outcome) -> Verdict {
    let verdict = Verdict::of(outcome);
    let no_backend = verdict == Verdict::drop(DropReason::NoBackend);
    if !no_backend && verdict != Verdict::drop(DropReason::NoService) {
        return verdict;
    }
    let no_backend = u32::from(no_backend);
    Verdict(match (V6, frame.fragmented) {
        (false, false) => unclaimed_ipv4(frame.context, no_backend),
        (false, true) => unclaimed_ipv4_fragmented(frame.context, no_backend),
        (true, false) => unclaimed_ipv6(frame.context, no_backend),
        (true, true) => unclaimed_ipv6_fragmented(frame.context, no_backend),
    })
}

#[inline(always)]
fn unclaimed_here<const V6: bool>(frame: &Frame, interface: &Interface, no_backend: u32) -> u64 {
    let reason = if no_backend == 0 { DropReason::NoService } else { DropReason::NoBackend };
    Verdict::of(reject::unclaimed::<V6>(frame, interface, reason)).0
}
