//! Token buckets that limit what other hosts can make this node do (`vipmux_common::budget`).

use core::ptr;

use vipmux_common::{
    abi::{Address, Budget},
    budget::{GROUPS, Kind},
};

use crate::{
    maps::{BUDGETS, config},
    time,
};

/// Takes one from the budget of the address's group, or from that for all, if there is one left.
#[inline(always)]
pub(crate) fn take(kind: Kind, address: &Address) -> bool {
    let config = config();
    let rate = u64::from(kind.per_second(config));
    let hz = u64::from(config.hz);
    budget_spend(kind.of_group(&config.flow_secret, address), rate * hz / u64::from(GROUPS), hz) != 0
        || budget_spend(kind.of_all(), rate * hz, hz) != 0
}

/// `second`: the tokens of a second. A bucket holds a sixteenth of them, and one at least. An empty
/// bucket is not written: in a flood, all CPUs only read it. Two CPUs may spend the same token. Returns 1 if there was
/// one. The verifier checks this function on its own, since its comparisons would multiply with all that follows.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn budget_spend(index: u32, second: u64, hz: u64) -> u32 {
    let Some(budget) = BUDGETS.get_ptr_mut(index) else { return 0 };
    let now = time::now();
    // SAFETY: a map value.
    let Budget { filled, left } = unsafe { ptr::read_volatile(budget) };
    let since = time::age(filled, now).min(hz);
    let per_jiffy = second.checked_div(hz).unwrap_or_default();
    let left = (left + since * per_jiffy).min((second / 16).max(hz));
    if left < hz {
        return 0;
    }
    // SAFETY: as above.
    unsafe { ptr::write_volatile(budget, Budget { filled: now, left: left - hz }) };
    1
}
