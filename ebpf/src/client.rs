//! Services' rules for clients: source ranges and session affinity.
//!
//! The verifier checks these functions on their own, with separate stacks: few Services use them.

use core::ptr;

use aya_ebpf::maps::lpm_trie::Key;
use vipmux_common::{
    abi::{Address, AffinityKey, AffinityValue, BACKEND_READY, Range, ServiceValue},
    hash,
};

use crate::{
    destination::Destination,
    flow::Target,
    maps::{AFFINITY, BACKENDS, SOURCE_RANGES},
    time,
    vip::{self, halves, whole},
};

/// Returns whether a client's address is in one of the set's prefixes.
#[inline(always)]
pub(crate) fn is_allowed(set: u32, client: &Address) -> bool {
    let (high, low) = halves(client);
    client_in_set(set, high, low) != 0
}

/// The key in the kernel's layout: the length of the prefix, and the prefix.
#[repr(C, align(8))]
struct Longest {
    bits: u32,
    range: Range,
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn client_in_set(set: u32, high: u64, low: u64) -> u32 {
    let Address { w0, w1, w2, w3 } = whole(high, low);
    let key = Longest { bits: 32 + 128, range: Range { set, w0, w1, w2, w3 } };
    // SAFETY: aya's key has the same fields in the same order, without padding between them.
    u32::from(SOURCE_RANGES.get(unsafe { &*ptr::from_ref(&key).cast::<Key<Range>>() }).is_some())
}

/// Returns the backend of the client's last flow, if it takes new ones, and records its use.
#[inline(always)]
pub(crate) fn remembered(client: &Address, service: &ServiceValue, vip: vip::Flags) -> Option<Target> {
    let (high, low) = halves(client);
    let backend = client_remembered(high, low, of(service), service.affinity);
    // The generation is the record's. If the index was reused meanwhile, this is still a backend.
    if backend == NONE { None } else { Target::get(backend as u32, vip) }
}

/// Records the backend of a client's flow. Without room, the table decides the next time too.
#[inline(always)]
pub(crate) fn remember(client: &Address, destination: &Destination) {
    let (high, low) = halves(client);
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let generation = BACKENDS.get(destination.target.index).map_or(0, |backend| backend.generation);
    let backend = pair(destination.target.index, generation);
    client_remember(high, low, pair(destination.slot, destination.slot_generation), backend);
}

/// The value for no backend.
const NONE: u64 = u64::MAX;

#[inline(always)]
fn of(service: &ServiceValue) -> u64 {
    u64::from(service.slot) | u64::from(service.generation) << 32
}

#[inline(always)]
fn key(high: u64, low: u64, service: u64) -> AffinityKey {
    AffinityKey { client: whole(high, low), slot: service as u32, generation: (service >> 32) as u32 }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn client_remembered(high: u64, low: u64, service: u64, timeout: u32) -> u64 {
    let key = key(high, low, service);
    let Some(record) = AFFINITY.get_ptr_mut(&key) else { return NONE };
    // SAFETY: a map value. It can be given to another key meanwhile, which the tag, read last,
    // tells.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    let Some(backend) = BACKENDS.get(value.backend) else { return NONE };
    let now = time::now();
    let is_right = tag == hash::affinity(&key) && backend.generation == value.backend_generation;
    if !is_right || backend.flags & BACKEND_READY == 0 || time::age(value.seen, now) > u64::from(timeout) {
        return NONE;
    }
    // SAFETY: as above; a time does no harm to another client's record.
    unsafe { ptr::write_volatile(&raw mut (*record).seen, now) };
    u64::from(value.backend)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn client_remember(high: u64, low: u64, service: u64, backend: u64) -> u32 {
    let key = key(high, low, service);
    let value = AffinityValue {
        tag: hash::affinity(&key),
        backend: backend as u32,
        backend_generation: (backend >> 32) as u32,
        reserved: 0,
        seen: time::now(),
    };
    u32::from(AFFINITY.insert(&key, value, 0).is_ok())
}
