//! The flow table: where the records of a flow are. `vipmux_common::flow_table` has the layout.

use core::ptr;

use vipmux_common::{
    abi::{Config, FlowKey, FlowRecord, WAYS},
    flow_table::{self, LONGEST_IDLE_SECONDS, OVERFLOW_WAY, Place, RESERVE_WAY},
};

use crate::{
    maps::{FLOWS, config},
    time::{age_low, now},
    wire::after_load,
};

/// Returns the place of a flow in the table.
#[inline(always)]
pub(crate) fn place(config: &Config, key: &FlowKey) -> Place {
    Place::new(&config.flow_secret, &key.client, key.client_port, key.protocol)
}

/// A record's number, less than 4 times the number of sets, those of the reserve included; or [`NOWHERE`].
pub(crate) type Position = u32;
/// No record.
pub(crate) const NOWHERE: Position = u32::MAX;

/// Returns the records of a set, by the set's number: [`WAYS`] in a row.
#[inline(always)]
pub(crate) fn records(set: u32) -> Option<*mut FlowRecord> {
    FLOWS.get_ptr_mut(set).map(|set| set.cast())
}

/// Returns the record at a position.
#[inline(always)]
pub(crate) fn at(position: Position) -> Option<*mut FlowRecord> {
    // SAFETY: one of the set's records.
    Some(unsafe { records(position / WAYS)?.add((position % WAYS) as usize) })
}

/// Makes the CPU fetch all records of a set, which are soon needed. BPF has no prefetch, so these are
/// loads whose results nobody needs. Meanwhile, the CPU executes the next few hundred instructions.
#[inline(always)]
pub(crate) fn fetch(set: u32) {
    let Some(records) = records(set) else { return };
    for way in 0..WAYS {
        // SAFETY: one of the set's records.
        unsafe { ptr::read_volatile(&raw const (*records.add(way as usize)).of_set) };
    }
}

/// Whether flows that have a set as their first one use their second one, or the reserve.
#[derive(Clone, Copy)]
struct Overflow {
    time: u32,
    now: u32,
    hz: u32,
}

impl Overflow {
    /// `at`: what notes it in the first set ([`OVERFLOW_WAY`], [`RESERVE_WAY`]).
    #[inline(always)]
    fn noted(at: Position) -> Option<Self> {
        let record = self::at(at)?;
        // SAFETY: in the table.
        let time = unsafe { ptr::read_volatile(&raw const (*record).of_set) };
        (time != 0).then(|| Self { time, now: now() as u32, hz: config().hz })
    }

    /// Returns whether such a flow may be alive.
    #[inline(always)]
    fn is_recent(&self) -> bool {
        age_low(self.time, self.now) <= self.hz.wrapping_mul(LONGEST_IDLE_SECONDS)
    }

    /// Returns whether another use is to be noted: once a second.
    #[inline(always)]
    fn is_old(&self) -> bool {
        age_low(self.time, self.now) >= self.hz
    }
}

/// Notes that a flow that has this set as its first one uses its second one.
#[inline(always)]
pub(crate) fn note_overflow(set: Position) {
    note(set + OVERFLOW_WAY);
}

/// Returns whether flows that have this set as their first one use the second one.
#[inline(always)]
pub(crate) fn has_overflowed(set: Position) -> bool {
    Overflow::noted(set + OVERFLOW_WAY).is_some_and(|overflow| overflow.is_recent())
}

/// Returns whether such flows use the reserve.
#[inline(always)]
pub(crate) fn uses_reserve(set: Position) -> bool {
    Overflow::noted(set + RESERVE_WAY).is_some_and(|overflow| overflow.is_recent())
}

/// Notes that such a flow uses the reserve. Programs only look there if the second set is in use, too.
#[inline(always)]
pub(crate) fn note_reserve(set: Position) {
    note_overflow(set);
    note(set + RESERVE_WAY);
}

#[inline(always)]
fn note(at: Position) {
    if let Some(record) = self::at(at) {
        // SAFETY: in the table.
        unsafe { ptr::write_volatile(&raw mut (*record).of_set, flow_table::overflow(now() as u32)) };
    }
}

/// Returns the first record of the set of the reserve for flows that have this set as their first one.
#[inline(always)]
pub(crate) fn reserve(set: Position) -> Position {
    flow_table::reserve_set(set / WAYS, config().flow_mask) * WAYS
}

/// An address, and what else tells a flow from others, as a record has them.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    pub(crate) ports: u64,
    pub(crate) high: u64,
    pub(crate) low: u64,
    pub(crate) protocol: u32,
}

impl Words {
    #[inline(always)]
    pub(crate) fn of(key: &FlowKey) -> Self {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let ports = u32::from(key.client_port) | u32::from(key.vip_port) << 16;
        Self {
            ports: pair(key.vip, ports),
            high: pair(key.client.w0, key.client.w1),
            low: pair(key.client.w2, key.client.w3),
            protocol: key.protocol,
        }
    }

    /// Returns whether the record is this flow's, if it is whole.
    ///
    /// # Safety
    /// `record` is in the table.
    #[inline(always)]
    pub(crate) unsafe fn are_of(&self, record: *const FlowRecord) -> bool {
        let words = record.cast::<u64>();
        // SAFETY: a map value.
        unsafe {
            ptr::read_volatile(words.add(1)) == self.ports
                && ptr::read_volatile(words.add(3)) == self.low
                && ptr::read_volatile(words.add(2)) == self.high
                && u32::from(ptr::read_volatile(&raw const (*record).protocol)) == self.protocol
        }
    }
}

/// Returns the positions of the first and the second set's first records. The second one is above
/// 32 bits.
#[inline(always)]
pub(crate) fn sets(config: &Config, place: Place) -> u64 {
    let mask = config.flow_mask;
    u64::from(place.set(mask) * WAYS) | u64::from(place.other_set(mask) * WAYS) << 32
}

/// Returns the record of a flow.
#[inline(always)]
pub(crate) fn search(config: &Config, key: &FlowKey, place: Place) -> Option<*mut FlowRecord> {
    let words = Words::of(key);
    // SAFETY: one of the set's records.
    let first = unsafe { records(place.set(config.flow_mask))?.add(place.way() as usize) };
    // SAFETY: in the table.
    if unsafe { words.are_of(first) } {
        return Some(first);
    }
    let Words { ports, high, low, protocol } = words;
    at(flow_elsewhere(sets(config, place), ports, high, low, protocol | place.way() << 8))
}

/// The verifier checks this function on its own, since its comparisons would multiply with all that
/// follows. Returns the position of a flow's record. `rest`: the protocol, and the way.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_elsewhere(sets: u64, ports: u64, high: u64, low: u64, rest: u32) -> Position {
    let words = Words { ports, high, low, protocol: rest & 0xff };
    // SAFETY: in the table.
    find_in_sets(sets, rest >> 8, |record| unsafe { words.are_of(record) })
}

/// Returns the position of the first record that is wanted, or [`NOWHERE`].
#[inline(always)]
pub(crate) fn find_in_sets(sets: u64, way: u32, is_it: impl Fn(*mut FlowRecord) -> bool) -> Position {
    let (first, second) = (sets as u32, (sets >> 32) as u32);
    let position = find_in_set(first, way, &is_it);
    if position != NOWHERE {
        return position;
    }
    let Some(overflow) = Overflow::noted(first + OVERFLOW_WAY) else { return NOWHERE };
    if !overflow.is_recent() {
        return NOWHERE;
    }
    let position = find_in_set(second, way, &is_it);
    if position != NOWHERE {
        if overflow.is_old() {
            note_overflow(first);
        }
        return position;
    }
    if !uses_reserve(first) {
        return NOWHERE;
    }
    let position = find_in_set(reserve(first), way, &is_it);
    if position == NOWHERE {
        // It may have moved from the reserve to a set meanwhile. What is loaded now is loaded after the reserve.
        let zero = after_load(0, loaded_vips(reserve(first)));
        let position = find_in_set(first | zero, way, &is_it);
        return if position == NOWHERE { find_in_set(second | zero, way, &is_it) } else { position };
    }
    if Overflow::noted(first + RESERVE_WAY).is_some_and(|waiting| waiting.is_old()) {
        note_reserve(first);
    }
    position
}

/// Loads from all records of a set what [`find_in_set`] has compared.
#[inline(always)]
fn loaded_vips(set: Position) -> u32 {
    let Some(records) = records(set / WAYS) else { return 0 };
    // SAFETY: one of the set's records.
    (0..WAYS).fold(0, |all, way| all | unsafe { ptr::read_volatile(&raw const (*records.add(way as usize)).vip) })
}

#[inline(always)]
fn find_in_set(set: Position, way: u32, is_it: &impl Fn(*mut FlowRecord) -> bool) -> Position {
    let Some(records) = records(set / WAYS) else { return NOWHERE };
    for number in 0..WAYS {
        let way = Place::next_way(way, number);
        // SAFETY: one of the set's records.
        if is_it(unsafe { records.add(way as usize) }) {
            return set + way;
        }
    }
    NOWHERE
}
