//! Fragments without ports follow the first one of their datagram, in both directions.

use core::ptr;

use vipmux_common::{
    abi::{Address, EgressFragmentValue, FragmentKey, FragmentValue},
    hash,
};

use crate::{
    flow::{self, Target},
    maps::{CONFIG, EGRESS_FRAGMENTS, FRAGMENTS},
};

/// Whether a first fragment seen at `seen` still leads the later ones.
#[inline(always)]
fn is_alive(seen: u64) -> bool {
    let life = CONFIG.get(0).map_or(0, |config| config.fragment_life);
    flow::age(seen, flow::now()) <= u64::from(life)
}

/// Records where a datagram's first fragment goes; whether it succeeded.
#[inline(always)]
pub(crate) fn record(key: &FragmentKey, target: &Target, slot: u32, now: u64) -> bool {
    let value = FragmentValue {
        tag: hash::fragment(key),
        backend: target.index,
        backend_generation: target.generation,
        slot,
        seen: now,
    };
    FRAGMENTS.insert(key, value, 0).is_ok()
}

/// Where the first fragment went, and its Service's slot.
#[inline(always)]
pub(crate) fn find(key: &FragmentKey) -> Option<(Target, u32)> {
    let record = FRAGMENTS.get_ptr(key)?;
    // SAFETY: a map value. It can be given to another key meanwhile, which the tag, read last, tells.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    let target = Target::get(value.backend)?;
    let fits = tag == hash::fragment(key) && target.generation == value.backend_generation && is_alive(value.seen);
    fits.then_some((target, value.slot))
}

/// Records what the source of a reply's first fragment becomes; whether it succeeded.
#[inline(always)]
pub(crate) fn record_egress(key: &FragmentKey, vip: Address) -> bool {
    let value = EgressFragmentValue { tag: hash::fragment(key), reserved: 0, vip, seen: flow::now() };
    EGRESS_FRAGMENTS.insert(key, value, 0).is_ok()
}

/// What the first fragment's source became.
#[inline(always)]
pub(crate) fn find_egress(key: &FragmentKey) -> Option<Address> {
    let record = EGRESS_FRAGMENTS.get_ptr(key)?;
    // SAFETY: as in `find`.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    (tag == hash::fragment(key) && is_alive(value.seen)).then_some(value.vip)
}
