//! A token bucket that limits, per CPU, what other hosts can make this node do.

use vipmux_common::abi::{BUDGET_ANSWERS, Budget};

use crate::{
    flow,
    maps::{BUDGET, CONFIG},
};

/// The burst of an idle CPU, in seconds' worth.
const BURST: u64 = 1;

/// Takes one answer in a VIP's name from the budget, if there is one left.
#[inline(always)]
pub(crate) fn answer() -> bool {
    CONFIG.get(0).is_some_and(|config| take(BUDGET_ANSWERS, config.answers_per_second, config.hz, flow::now()))
}

#[inline(always)]
fn take(index: u32, rate: u32, hz: u32, now: u64) -> bool {
    let Some(budget) = BUDGET.get_ptr_mut(index) else { return false };
    let (rate, hz) = (u64::from(rate), u64::from(hz));
    // SAFETY: a per-CPU value; an interleaved run on this CPU costs at most one.
    unsafe {
        let Budget { filled, left } = *budget;
        // Bounded, so that the product cannot overflow.
        let since = flow::age(filled, now).min(hz * BURST);
        let left = (left + since * rate).min(rate * hz * BURST);
        let enough = left >= hz;
        (*budget).filled = now;
        (*budget).left = if enough { left - hz } else { left };
        enough
    }
}
