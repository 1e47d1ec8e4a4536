//! The flow table: writes records.
//!
//! The verifier checks these functions on their own, since their comparisons would multiply with
//! all that leads here.

use core::ptr;

use vipmux_common::{
    abi::{
        FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_HALF_OPEN, FLOW_ISN, FLOW_NEW, FLOW_REPLIES, FLOW_UNPROVEN, FlowKey,
        SERVICE_DIRECT, Stat,
    },
    flow_table::{self, Place, RESERVE_EPOCH},
};

use crate::{
    count,
    destination::{Destination, EntryState},
    flow::{Flow, after_client},
    lock::{self, Lock, release_both, take_both},
    maps::{Workspace, config},
    occupancy::{ESTABLISHED, FREE, IDLE, INVALID, LIVE, Occupancy, UNPROVEN, flow_occupancy},
    position::{self, Position, Words},
    scratch::is_opening,
    segment::Segment,
};

/// No record was written: there is no room.
const NO_ROOM: u32 = 8;
/// No record was written: the replies would be those of another live flow.
const COLLISION: u32 = 9;
/// No record was written yet: the second set matters too.
const BOTH_SETS: u32 = 10;
/// No record was written: the flow has one.
const EXISTING: u32 = 11;
/// No record was written yet: the reserve matters too.
const ALL_SETS: u32 = 12;

/// Records a packet's flow. If nobody has looked for a record yet ([`is_opening`]), one of the same flow stays
/// as it is. If it is in the reserve, one in a set does: another CPU has moved it.
#[inline(always)]
pub(crate) fn record(
    key: &FlowKey,
    place: Place,
    destination: &Destination,
    segment: &Segment,
    now: u64,
) -> EntryState {
    let Some(workspace) = Workspace::get() else { return EntryState::NoRoom };
    workspace.place.set(place);
    workspace.keeps.set(u32::from(destination.entry == EntryState::Reserve || is_opening()));
    let replies = destination.target.local.is_some() && destination.flags & SERVICE_DIRECT == 0;
    let is_syn = segment.is_syn();
    let mut flags = match destination.entry {
        // Both sides have spoken. A forged SYN must not lower the rank of a record.
        EntryState::Renewed | EntryState::Reserve => 0,
        _ if segment.may_begin() => FLOW_UNPROVEN,
        _ => after_client(0, segment.flags) | FLOW_NEW,
    };
    if replies {
        flags |= if is_syn { FLOW_REPLIES | FLOW_ISN } else { FLOW_REPLIES };
    }
    let Words { ports, high, low, protocol } = Words::of(key);
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let backend = pair(destination.target.index, destination.target.generation);
    let slot = pair(destination.slot, destination.slot_generation);
    let fixed = u64::from(destination.target.node as u16) | u64::from(protocol as u8) << 16;
    let check = place.check([ports, backend, slot, fixed]);
    let Workspace { flow: new, .. } = workspace;
    // One after another: an array would be made on the stack first.
    new[0].set(u64::from(check) << 32);
    new[1].set(ports);
    new[2].set(high);
    new[3].set(low);
    new[4].set(backend);
    new[5].set(slot);
    new[6].set(fixed | u64::from(flags) << 24);
    new[7].set(pair(if replies { segment.sequence } else { 0 }, now as u32));
    workspace.now.set(now as u32);
    let sets = position::sets(config(), place);
    let mut outcome = flow_record(sets as u32);
    if outcome == BOTH_SETS {
        // The replies of such a flow would not be translated, or the program that sends it to its backend
        // finds that by the record.
        let is_needed = destination.target.local.is_some();
        // Read back, since the verifier would check the rest for each combination of flags.
        // SAFETY: a per-CPU value.
        let has_proven =
            unsafe { ptr::read_volatile(workspace.flow[6].as_ptr()) } & u64::from(FLOW_UNPROVEN) << 24 == 0;
        workspace.highest.set(if is_needed && has_proven { LIVE as u32 } else { IDLE as u32 });
        workspace.otherwise.set(if is_needed { ALL_SETS } else { NO_ROOM });
        workspace.collides.set(0);
        outcome = flow_record_in_either(sets);
    }
    if outcome == ALL_SETS {
        outcome = record_in_all(sets);
    }
    match outcome {
        NO_ROOM | EXISTING if destination.entry == EntryState::Reserve => return EntryState::Present,
        NO_ROOM | ALL_SETS => return EntryState::NoRoom,
        COLLISION => return EntryState::Collision,
        EXISTING => return EntryState::Existing,
        evicted if evicted > FREE as u32 => {
            count::evicted(Stat::EvictedInvalid as u32 + evicted - INVALID as u32);
        }
        _ => {}
    }
    EntryState::Present
}

/// Returns whether a record of the same flow stays as it is.
#[inline(always)]
fn keeps() -> bool {
    Workspace::get().is_none_or(|workspace| workspace.keeps.get() != 0)
}

/// Writes the record in the workspace into its first set, if that is all that matters. Returns the
/// rank of the record that it replaces, or [`NO_ROOM`], [`COLLISION`], [`BOTH_SETS`] or [`EXISTING`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_record(first: Position) -> u32 {
    let Some(lock) = Lock::take(first) else { return NO_ROOM };
    let one = Occupancy(flow_occupancy(first));
    let outcome = if one.has_flow() && keeps() {
        EXISTING
    } else if one.collides(first) {
        COLLISION
    } else if one.has_flow() || !position::has_overflowed(first) && one.offers_room() {
        write::<false>(first, one)
    } else {
        BOTH_SETS
    };
    lock.release();
    outcome
}

/// The same for both sets. Also returns [`ALL_SETS`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_record_in_either(sets: u64) -> u32 {
    let (first, second) = (sets as u32, (sets >> 32) as u32);
    if !take_both(sets) {
        return NO_ROOM;
    }
    let outcome = if position::uses_reserve(first) { ALL_SETS } else { place_record(first, second) };
    release_both(sets);
    outcome
}

#[inline(always)]
fn place_record(first: Position, second: Position) -> u32 {
    let (one, other) = (Occupancy(flow_occupancy(first)), Occupancy(flow_occupancy(second)));
    if (one.has_flow() || other.has_flow()) && keeps() {
        return EXISTING;
    }
    if one.collides(first)
        || other.collides(second)
        || Workspace::get().is_none_or(|workspace| workspace.collides.get() != 0)
    {
        return COLLISION;
    }
    let is_first = match (one.rank(), other.rank()) {
        _ if one.has_flow() => true,
        _ if other.has_flow() => false,
        (FREE, FREE) => flow_table::is_first_set(one.used(), other.used()),
        _ => one.score() <= other.score(),
    };
    if !is_first {
        position::note_overflow(first);
    }
    let (set, best) = if is_first { (first, one) } else { (second, other) };
    write::<true>(set, best)
}

/// Writes the record into a set, after a look at its occupancy. `CHECK`: the best one to replace may be of any rank.
#[inline(always)]
fn write<const CHECK: bool>(set: Position, best: Occupancy) -> u32 {
    let Some(Workspace { flow: new, highest, otherwise, .. }) = Workspace::get() else { return NO_ROOM };
    let rank = if best.has_flow() { FREE } else { best.rank() };
    if CHECK && rank > u64::from(highest.get()) {
        return otherwise.get();
    }
    let Some(record) = position::at(set + best.way()) else { return NO_ROOM };
    // SAFETY: in the table.
    let flags = unsafe { ptr::read_volatile(&raw const (*record).flags) };
    // SAFETY: as above. The first word's lower half is the set's.
    unsafe {
        let words = record.cast::<u64>();
        for (index, word) in new.iter().enumerate().skip(1) {
            ptr::write_volatile(words.add(index), word.get());
        }
        ptr::write_volatile(&raw mut (*record).check, (new[0].get() >> 32) as u32);
    }
    let is_unconfirmed = rank == UNPROVEN && u32::from(flags) & FLOW_HALF_OPEN == 0;
    rank as u32 + u32::from(is_unconfirmed)
}

/// The same with the reserve. The functions are called one after another, since the stack has no room for
/// more of them in each other.
#[inline(always)]
fn record_in_all(sets: u64) -> u32 {
    if flow_lock_all(sets) == 0 {
        return NO_ROOM;
    }
    let mut outcome = flow_in_reserve(sets as u32);
    if outcome == ALL_SETS {
        outcome = flow_leave_reserve(sets as u32, flow_place(sets));
    }
    flow_unlock_all(sets);
    outcome
}

/// Takes the locks of both sets, and of the reserve, which comes after all sets. Returns 0 if one of them
/// cannot be taken.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_lock_all(sets: u64) -> u32 {
    if !take_both(sets) {
        return 0;
    }
    if !lock::take(position::reserve(sets as u32)) {
        release_both(sets);
        return 0;
    }
    1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_unlock_all(sets: u64) -> u32 {
    Lock::release_set(position::reserve(sets as u32));
    release_both(sets);
    0
}

/// Looks into the reserve. Returns [`EXISTING`], or [`ALL_SETS`] if the record may be written.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_in_reserve(first: Position) -> u32 {
    let reserve = position::reserve(first);
    let third = Occupancy(flow_occupancy(reserve));
    if third.has_flow() && is_opening() {
        return EXISTING;
    }
    let collides = third.collides(reserve);
    let (Some(record), Some(Workspace { flow: new, keeps, collides: noted, .. })) =
        (position::at(reserve + third.way()), Workspace::get())
    else {
        return NO_ROOM;
    };
    noted.set(u32::from(collides));
    let (state, time) = (&new[6], &new[7]);
    // Only a SYN has the number.
    if third.has_flow() && state.get() >> 24 & u64::from(FLOW_ISN) == 0 {
        // SAFETY: in the table.
        let waiting = unsafe { Flow::read(record) };
        const FIN: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
        let kept_flags = if keeps.get() != 0 { FLOW_ISN | FIN } else { FLOW_ISN };
        state.set(state.get() | u64::from(waiting.flags() & kept_flags) << 24);
        time.set(time.get() & !u64::from(u32::MAX) | u64::from(waiting.isn()));
    }
    ALL_SETS
}

/// [`place_record`] by a caller that has the locks.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_place(sets: u64) -> u32 {
    place_record(sets as u32, (sets >> 32) as u32)
}

/// Writes a record into the reserve for which no set has room, or removes it there if a set has it. Returns
/// the outcome. `placed`: that of the sets.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_leave_reserve(first: Position, placed: u32) -> u32 {
    let reserve = position::reserve(first);
    let third = Occupancy(flow_occupancy(reserve));
    if placed == ALL_SETS {
        let Some(Workspace { flow: new, .. }) = Workspace::get() else { return NO_ROOM };
        new[6].set(new[6].get() | u64::from(RESERVE_EPOCH) << 32);
        position::note_reserve(first);
        return write::<true>(reserve, third);
    }
    if (placed <= ESTABLISHED as u32 || placed == EXISTING)
        && third.has_flow()
        && let Some(record) = position::at(reserve + third.way())
    {
        // Who does not find it here any more finds it in its set.
        Lock::order(first);
        // SAFETY: in the table.
        unsafe { ptr::write_volatile(&raw mut (*record).vip, 0) };
    }
    placed
}
