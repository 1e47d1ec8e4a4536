//! What a program tells the one that it calls for the same packet.

use core::ptr;

use vipmux_common::abi::{KNOWN_NEW, KNOWN_OPENING, KNOWN_VIP, Scratch};

use crate::{
    maps::SCRATCH,
    verdict::{Outcome, Verdict},
};

/// Passes what is known to the program that is called next.
#[inline(always)]
pub(crate) fn tell(scratch: Scratch, next: Verdict) -> Outcome {
    let told = SCRATCH.get_ptr_mut(0).ok_or(Verdict::PASS)?;
    // SAFETY: a per-CPU value, which is read by the program that this one calls, in the same run.
    unsafe { *told = scratch };
    Ok(next)
}

/// Continues with another backend, after one that was tried in vain. The VIP and its flags are known. If nobody
/// has looked for the flow's record, that comes first: one in the second set has a backend of its own.
#[inline(always)]
pub(crate) fn try_another_backend() -> Outcome {
    let told = SCRATCH.get_ptr_mut(0).ok_or(Verdict::PASS)?;
    // SAFETY: as in `tell`.
    let told = unsafe { &mut *told };
    if told.known == KNOWN_OPENING {
        told.known = KNOWN_VIP;
    } else {
        (told.known, told.attempts) = (KNOWN_NEW, told.attempts + 1);
    }
    Ok(Verdict::NEW)
}

/// The same with a look for the flow's record, after it was taken for new.
#[inline(always)]
pub(crate) fn look_for_record() -> Outcome {
    let told = SCRATCH.get_ptr_mut(0).ok_or(Verdict::PASS)?;
    // SAFETY: as in `tell`.
    unsafe { (*told).known = KNOWN_VIP };
    Ok(Verdict::NEW)
}

/// Returns whether the packet's flow is taken for new, and nobody has looked for its record.
#[inline(always)]
pub(crate) fn is_opening() -> bool {
    // SAFETY: a per-CPU value.
    SCRATCH.get(0).is_some_and(|told| unsafe { ptr::read_volatile(&raw const told.known) } == KNOWN_OPENING)
}
