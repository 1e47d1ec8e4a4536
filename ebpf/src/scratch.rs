//! The result of a program for the one that it calls for the same packet.

use core::ptr;

use vipmux_common::abi::{RESULT_NEW, RESULT_OPENING, RESULT_VIP, Scratch};

use crate::{
    maps::SCRATCH,
    verdict::{Outcome, Verdict},
};

/// Passes the result of this program to the program that is called next.
#[inline(always)]
pub(crate) fn pass_on(scratch: Scratch, next: Verdict) -> Outcome {
    let shared = SCRATCH.get_ptr_mut(0).ok_or(Verdict::PASS)?;
    // SAFETY: a per-CPU value, which is read by the program that this one calls, in the same run.
    unsafe { *shared = scratch };
    Ok(next)
}

/// Continues with another backend, after one that was tried in vain. If no program has looked for the
/// flow's record, that comes first: a record in the second set has a backend of its own.
#[inline(always)]
pub(crate) fn try_another_backend() -> Outcome {
    let shared = SCRATCH.get_ptr_mut(0).ok_or(Verdict::PASS)?;
    // SAFETY: as in `pass_on`.
    let shared = unsafe { &mut *shared };
    if shared.result == RESULT_OPENING {
        shared.result = RESULT_VIP;
    } else {
        (shared.result, shared.attempts) = (RESULT_NEW, shared.attempts + 1);
    }
    Ok(Verdict::NEW)
}

/// Continues with a look for the flow's record, after the flow was taken for new.
#[inline(always)]
pub(crate) fn look_for_record() -> Outcome {
    let shared = SCRATCH.get_ptr_mut(0).ok_or(Verdict::PASS)?;
    // SAFETY: as in `pass_on`.
    unsafe { (*shared).result = RESULT_VIP };
    Ok(Verdict::NEW)
}

/// Returns whether the packet's flow is taken for new, and no program has looked for its record.
#[inline(always)]
pub(crate) fn is_opening() -> bool {
    // SAFETY: a per-CPU value.
    SCRATCH.get(0).is_some_and(|shared| unsafe { ptr::read_volatile(&raw const shared.result) } == RESULT_OPENING)
}
