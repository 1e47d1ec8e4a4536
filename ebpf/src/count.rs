//! Increments counters.

use aya_ebpf::maps::PerCpuArray;
use vipmux_common::abi::{Count, Stat};

use crate::maps::{DROPS, SERVICE_STATS, STATS};

#[inline(always)]
fn add(counters: &PerCpuArray<Count>, index: u32, bytes: u64, flows: u64) {
    if let Some(count) = counters.get_ptr_mut(index) {
        // SAFETY: a per-CPU value, and programs on one CPU do not interrupt each other here: NAPI
        // and qdisc contexts may interleave at worst, and then a count is lost.
        unsafe {
            (*count).packets += 1;
            (*count).bytes += bytes;
            (*count).flows += flows;
        }
    }
}

#[inline(always)]
pub(crate) fn stat(stat: Stat, bytes: u64) {
    add(&STATS, stat as u32, bytes, 0);
}

/// `reason`: a [`vipmux_common::abi::DropReason`], as a number.
#[inline(always)]
pub(crate) fn drop(reason: u32, bytes: u64) {
    add(&DROPS, reason, bytes, 0);
}

#[inline(always)]
pub(crate) fn service(slot: u32, bytes: u64, new: bool) {
    add(&SERVICE_STATS, slot, bytes, u64::from(new));
}

/// `stat`: one of the evictions.
#[inline(always)]
pub(crate) fn evicted(stat: u32) {
    add(&STATS, stat, 0, 0);
}
