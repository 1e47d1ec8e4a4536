//! The time, and how long ago a packet came.

use aya_ebpf::helpers::bpf_jiffies64;

/// The current time in jiffies. It is far cheaper than any clock helper, and precise enough for
/// timeouts.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_jiffies64() }
}

/// Returns the jiffies since `seen`; 0 if another CPU wrote it after this one had read the clock.
#[inline(always)]
pub(crate) fn age(seen: u64, now: u64) -> u64 {
    now.saturating_sub(seen)
}

/// The same with the clock's low half. A time almost a whole wrap ago is in the future.
#[inline(always)]
pub(crate) fn age_low(seen: u32, now: u32) -> u32 {
    const AHEAD: u32 = 1 << 16;
    let age = now.wrapping_sub(seen);
    if age > u32::MAX - AHEAD { 0 } else { age }
}
