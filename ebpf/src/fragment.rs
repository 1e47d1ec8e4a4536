//! Fragments without ports follow the first fragment of their datagram, in both directions.

use core::ptr;

use vipmux_common::{
    abi::{Address, DropReason, EgressFragmentValue, FRAGMENT_KERNEL, FragmentKey, FragmentValue, SERVICE_DIRECT},
    budget::Kind,
    hash,
};

use crate::{
    budget,
    destination::Destination,
    extensions::FIRST,
    flow::Target,
    maps::{BACKENDS, EGRESS_FRAGMENTS, FRAGMENTS, Workspace, config},
    packet::{Packet, Transport},
    time, vip,
};

/// Returns whether a first fragment seen at `seen` is recent enough for later ones.
#[inline(always)]
fn is_alive(seen: u64) -> bool {
    let life = config().fragment_life;
    time::age(seen, time::now()) <= u64::from(life)
}

/// Records a packet's destination, if it is a datagram's first fragment.
#[inline(always)]
pub(crate) fn record<const V6: bool>(
    packet: &Packet<V6>,
    transport: &Transport,
    destination: &Destination,
    now: u64,
) -> Result<(), DropReason> {
    let Destination { target, slot, flags, .. } = destination;
    if transport.fragment & FIRST == 0 {
        return Ok(());
    }
    let direct = u32::from(flags & SERVICE_DIRECT != 0);
    let generation = BACKENDS.get(target.index).map_or(0, |backend| backend.generation);
    write(packet, transport, (target.index, generation), (*slot, direct), now)
}

/// Records that a first fragment is left to the node's own stack.
#[inline(always)]
pub(crate) fn record_kernel<const V6: bool>(
    packet: &Packet<V6>,
    transport: &Transport,
    now: u64,
) -> Result<(), DropReason> {
    write(packet, transport, (FRAGMENT_KERNEL, 0), (0, 0), now)
}

#[inline(always)]
fn write<const V6: bool>(
    packet: &Packet<V6>,
    transport: &Transport,
    (backend, generation): (u32, u32),
    (slot, direct): (u32, u32),
    now: u64,
) -> Result<(), DropReason> {
    if transport.fragment & FIRST == 0 {
        return Ok(());
    }
    if !budget::take(Kind::Fragment, &packet.source) {
        return Err(DropReason::RecordLimited);
    }
    let workspace = Workspace::get().ok_or(DropReason::RecordFailed)?;
    // SAFETY: a per-CPU value, and nothing else here uses the two fields.
    let (key, value) = unsafe { (&mut *workspace.fragment_key.get(), &mut *workspace.fragment.get()) };
    packet.fragment_into(transport, key);
    value.tag = hash::fragment(key);
    value.backend = backend;
    value.backend_generation = generation;
    value.slot = slot;
    value.direct = direct;
    value.reserved = 0;
    value.seen = now;
    FRAGMENTS.insert(&*key, &*value, 0).map_err(|_| DropReason::RecordFailed)
}

/// Returns the destination of the first fragment.
#[inline(always)]
pub(crate) fn find(key: &FragmentKey) -> Option<FragmentValue> {
    let record = FRAGMENTS.get_ptr(key)?;
    // SAFETY: a map value. It can be given to another key meanwhile, which the tag, read last,
    // tells.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    (tag == hash::fragment(key) && is_alive(value.seen)).then_some(value)
}

/// Returns the backend of the first fragment, if it still exists.
#[inline(always)]
pub(crate) fn target(value: &FragmentValue, vip: vip::Flags) -> Option<Target> {
    Target::get(value.backend, vip).filter(|target| target.generation == value.backend_generation)
}

/// Records the new source of a reply's first fragment. Returns whether it succeeded.
#[inline(always)]
pub(crate) fn record_egress(key: &FragmentKey, vip: Address) -> bool {
    let value = EgressFragmentValue { tag: hash::fragment(key), reserved: 0, vip, seen: time::now() };
    budget::take(Kind::ReplyFragment, &key.destination) && EGRESS_FRAGMENTS.insert(key, value, 0).is_ok()
}

/// Returns the new source of the first fragment.
#[inline(always)]
pub(crate) fn find_egress(key: &FragmentKey) -> Option<Address> {
    let record = EGRESS_FRAGMENTS.get_ptr(key)?;
    // SAFETY: as in `find`.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    (tag == hash::fragment(key) && is_alive(value.seen)).then_some(value.vip)
}
