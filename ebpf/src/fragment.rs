//! Fragments without ports follow the first one of their datagram, in both directions.

use core::ptr;

use vipmux_common::{
    abi::{Address, EgressFragmentValue, FRAGMENT_KERNEL, FragmentKey, FragmentValue, SERVICE_DIRECT},
    hash,
};

use crate::{
    flow::{self, Found, Target},
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
pub(crate) fn record(key: &FragmentKey, found: &Found, now: u64) -> bool {
    let value = FragmentValue {
        tag: hash::fragment(key),
        backend: found.target.index,
        backend_generation: found.target.generation,
        slot: found.slot,
        direct: u32::from(found.flags & SERVICE_DIRECT != 0),
        reserved: 0,
        seen: now,
    };
    FRAGMENTS.insert(key, value, 0).is_ok()
}

/// Records that a datagram's first fragment is left to the node's own stack; whether it succeeded.
#[inline(always)]
pub(crate) fn record_kernel(key: &FragmentKey, now: u64) -> bool {
    let tag = hash::fragment(key);
    let value = FragmentValue {
        tag,
        backend: FRAGMENT_KERNEL,
        backend_generation: 0,
        slot: 0,
        direct: 0,
        reserved: 0,
        seen: now,
    };
    FRAGMENTS.insert(key, value, 0).is_ok()
}

/// Where the first fragment went.
#[inline(always)]
pub(crate) fn find(key: &FragmentKey) -> Option<FragmentValue> {
    let record = FRAGMENTS.get_ptr(key)?;
    // SAFETY: a map value. It can be given to another key meanwhile, which the tag, read last, tells.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    (tag == hash::fragment(key) && is_alive(value.seen)).then_some(value)
}

/// The backend that the first fragment went to, if it is still there.
#[inline(always)]
pub(crate) fn target(value: &FragmentValue) -> Option<Target> {
    Target::get(value.backend).filter(|target| target.generation == value.backend_generation)
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
