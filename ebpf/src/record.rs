//! The flow table: writes records, and decides which ones make room.
//!
//! The verifier checks these functions on their own, since their comparisons would multiply with
//! all that leads here.

use core::ptr;

use vipmux_common::{
    abi::{
        Config, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_HALF_OPEN, FLOW_ISN, FLOW_NEW, FLOW_REPLIES,
        FLOW_RESET, FlowKey, FlowSet, SERVICE_DIRECT, Stat,
    },
    flow_table::{self, Place, RESERVE_EPOCH, WAYS},
};

use crate::{
    count,
    flow::{self, Flow, after, age_low, is_closed},
    known::{Found, Kept},
    maps::{BACKENDS, FLOWS, SERVICE_STATES, Workspace, config},
    nat,
    packet::UDP,
    position::{self, Position, Words},
    scratch::is_opening,
    segment::Segment,
    wire::add_atomically,
};

/// Records of lower ranks are given to another flow before those of higher ones. Of one rank, the
/// oldest one is.
const FREE: u64 = 0;
const CLOSED: u64 = 1;
const HALF_OPEN: u64 = 2;
const UNCONFIRMED: u64 = 3;
/// Its Service or its backend is gone. To find out, the program reads what is in no cache if there
/// are many Services. So it only asks this of flows that are none of the above.
const INVALID: u64 = 4;
const IDLE: u64 = 5;
/// A live flow to another node, which is a cache of what the Service's table says, or a live flow
/// of datagrams. It only makes room for a flow that could not do without a record, and has sent a second
/// packet.
const LIVE: u64 = 6;
/// An established connection to a local backend.
const ESTABLISHED: u64 = 7;

/// No record was written: there is no room.
const NO_ROOM: u32 = 8;
/// No record was written: the replies would be those of another live flow.
const COLLISION: u32 = 9;
/// No record was written yet: the second set matters too.
const BOTH_SETS: u32 = 10;
/// No record was written: the flow has one.
const KNOWN: u32 = 11;
/// No record was written yet: the reserve matters too.
const ALL_SETS: u32 = 12;

/// Records a packet's flow. `is_new`: this is its first packet. If nobody has looked for a record yet
/// ([`is_opening`]), one of the same flow stays as it is. If it is in the reserve, one in a set does: another
/// CPU has moved it.
#[inline(always)]
pub(crate) fn record(key: &FlowKey, place: Place, found: &Found, segment: &Segment, is_new: bool, now: u64) -> Kept {
    let Some(workspace) = Workspace::get() else { return Kept::NoRoom };
    workspace.place = place;
    workspace.keeps = u32::from(found.kept == Kept::Reserve || is_opening());
    let replies = found.target.local.is_some() && found.flags & SERVICE_DIRECT == 0;
    let is_syn = segment.is_syn();
    let mut flags = if !is_syn {
        after(0, segment.flags, FLOW_CLIENT_FIN)
    } else if found.kept == Kept::Renewed {
        // A forged SYN must not lower the rank of a record.
        0
    } else {
        FLOW_HALF_OPEN | FLOW_NEW
    };
    flags |= if is_new { FLOW_NEW } else { 0 };
    if replies {
        flags |= if is_syn { FLOW_REPLIES | FLOW_ISN } else { FLOW_REPLIES };
    }
    let Words { ports, high, low, protocol } = Words::of(key);
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let backend = pair(found.target.index, found.target.generation);
    let slot = pair(found.slot, found.slot_generation);
    let fixed = u64::from(found.target.node as u16) | u64::from(protocol as u8) << 16;
    let check = place.check([ports, backend, slot, fixed]);
    let Workspace { flow: new, .. } = workspace;
    // Not as a whole, which would be made on the stack first.
    (new[0], new[1], new[2], new[3]) = (u64::from(check) << 32, ports, high, low);
    (new[4], new[5], new[6]) = (backend, slot, fixed | u64::from(flags) << 24);
    new[7] = pair(if replies { segment.sequence } else { 0 }, now as u32);
    workspace.now = now as u32;
    let sets = position::sets(config(), place);
    let mut outcome = flow_record(sets as u32);
    if outcome == BOTH_SETS {
        // The replies of such a flow would not be translated, or the program that sends it to its backend
        // finds that by the record.
        let is_needed = found.target.local.is_some();
        let has_proven = flags & (FLOW_NEW | FLOW_CLIENT_FIN | FLOW_RESET) == 0;
        workspace.highest = if is_needed && has_proven { LIVE as u32 } else { IDLE as u32 };
        workspace.otherwise = if is_needed { ALL_SETS } else { NO_ROOM };
        workspace.collides = 0;
        outcome = flow_record_in_either(sets);
    }
    if outcome == ALL_SETS {
        outcome = record_in_all(sets);
    }
    match outcome {
        NO_ROOM | KNOWN if found.kept == Kept::Reserve => return Kept::Record,
        NO_ROOM | ALL_SETS => return Kept::NoRoom,
        COLLISION => return Kept::Collision,
        KNOWN => return Kept::Known,
        evicted if evicted > FREE as u32 => {
            count::evicted(Stat::EvictedClosed as u32 + evicted - CLOSED as u32);
        }
        _ => {}
    }
    Kept::Record
}

/// Returns whether a record of the same flow stays as it is.
#[inline(always)]
fn keeps() -> bool {
    Workspace::get().is_none_or(|workspace| workspace.keeps != 0)
}

/// The lock of a set: a number of holders below, and a version above. It needs no more than an
/// atomic addition without a result, which every kernel has: a program that finds exactly its own
/// addition is the only holder.
struct Lock(*mut FlowSet);

impl Lock {
    const HOLDERS: u32 = 0xfff;
    const VERSION: u32 = 0x1000;
    /// A program holds a lock for some 100 ns, and an attempt takes a few.
    const ATTEMPTS: u32 = 200;

    #[inline(always)]
    fn take(set: Position) -> Option<Self> {
        let lock = Self(FLOWS.get_ptr_mut(set / WAYS)?);
        for _ in 0..Self::ATTEMPTS {
            let before = lock.read();
            if before & Self::HOLDERS != 0 {
                continue;
            }
            lock.add(1);
            if lock.read() == before.wrapping_add(1) {
                return Some(lock);
            }
            lock.add(u32::MAX);
        }
        None
    }

    #[inline(always)]
    fn release(self) {
        self.add(Self::VERSION - 1);
    }

    /// Releases the lock of a set without [`Self`], for which the stack may have no room.
    #[inline(always)]
    fn release_set(set: Position) {
        if let Some(set) = FLOWS.get_ptr_mut(set / WAYS) {
            Self(set).release();
        }
    }

    #[inline(always)]
    fn read(&self) -> u32 {
        // SAFETY: a map value, and the first field of its first record.
        unsafe { ptr::read_volatile(self.0.cast::<u32>()) }
    }

    #[inline(always)]
    fn add(&self, number: u32) {
        // SAFETY: as above.
        unsafe { add_atomically(self.0.cast(), number) };
    }
}

/// Writes the record in the workspace into its first set, if that is all that matters. Returns the
/// rank of the record that it replaces, or [`NO_ROOM`], [`COLLISION`], [`BOTH_SETS`] or [`KNOWN`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_record(first: Position) -> u32 {
    let Some(lock) = Lock::take(first) else { return NO_ROOM };
    let one = Survey(flow_survey(first));
    let outcome = if one.has_flow() && keeps() {
        KNOWN
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
    // One order for all programs.
    let (lower, upper) = (first.min(second), first.max(second));
    if Lock::take(lower).is_none() {
        return NO_ROOM;
    }
    if Lock::take(upper).is_none() {
        Lock::release_set(lower);
        return NO_ROOM;
    }
    let outcome = if position::uses_reserve(first) { ALL_SETS } else { place_record(first, second) };
    Lock::release_set(upper);
    Lock::release_set(lower);
    outcome
}

#[inline(always)]
fn place_record(first: Position, second: Position) -> u32 {
    let (one, other) = (Survey(flow_survey(first)), Survey(flow_survey(second)));
    if (one.has_flow() || other.has_flow()) && keeps() {
        return KNOWN;
    }
    if one.collides(first) || other.collides(second) || Workspace::get().is_none_or(|workspace| workspace.collides != 0)
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

/// Writes the record into a set, after its survey. `CHECK`: the best one to replace may be of any rank.
#[inline(always)]
fn write<const CHECK: bool>(set: Position, best: Survey) -> u32 {
    let Some(Workspace { flow: new, highest, otherwise, .. }) = Workspace::get() else { return NO_ROOM };
    let rank = if best.has_flow() { FREE } else { best.rank() };
    if CHECK && rank > u64::from(*highest) {
        return *otherwise;
    }
    let Some(record) = position::at(set + best.way()) else { return NO_ROOM };
    // SAFETY: in the table. The first word's lower half is the set's.
    unsafe {
        let words = record.cast::<u64>();
        for (index, word) in new.iter().enumerate().skip(1) {
            ptr::write_volatile(words.add(index), *word);
        }
        ptr::write_volatile(&raw mut (*record).check, (new[0] >> 32) as u32);
    }
    rank as u32
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
    let (first, second) = (sets as u32, (sets >> 32) as u32);
    let (lower, upper) = (first.min(second), first.max(second));
    if Lock::take(lower).is_none() {
        return 0;
    }
    if Lock::take(upper).is_none() {
        Lock::release_set(lower);
        return 0;
    }
    if Lock::take(position::reserve(first)).is_none() {
        Lock::release_set(upper);
        Lock::release_set(lower);
        return 0;
    }
    1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_unlock_all(sets: u64) -> u32 {
    let first = sets as u32;
    Lock::release_set(position::reserve(first));
    Lock::release_set((sets >> 32) as u32);
    Lock::release_set(first);
    0
}

/// Looks into the reserve. Returns [`KNOWN`], or [`ALL_SETS`] if the record may be written.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_in_reserve(first: Position) -> u32 {
    let reserve = position::reserve(first);
    let third = Survey(flow_survey(reserve));
    if third.has_flow() && is_opening() {
        return KNOWN;
    }
    let collides = third.collides(reserve);
    let (Some(record), Some(Workspace { flow: new, keeps, collides: noted, .. })) =
        (position::at(reserve + third.way()), Workspace::get())
    else {
        return NO_ROOM;
    };
    *noted = u32::from(collides);
    // Only a SYN has the number.
    if third.has_flow() && new[6] >> 24 & u64::from(FLOW_ISN) == 0 {
        // SAFETY: in the table.
        let waiting = unsafe { Flow::read(record) };
        const FIN: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
        new[6] |= u64::from(waiting.flags() & if *keeps != 0 { FLOW_ISN | FIN } else { FLOW_ISN }) << 24;
        new[7] = new[7] & !u64::from(u32::MAX) | u64::from(waiting.isn());
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
    let third = Survey(flow_survey(reserve));
    if placed == ALL_SETS {
        let Some(Workspace { flow: new, .. }) = Workspace::get() else { return NO_ROOM };
        new[6] |= u64::from(RESERVE_EPOCH) << 32;
        position::note_reserve(first);
        return write::<true>(reserve, third);
    }
    if (placed <= ESTABLISHED as u32 || placed == KNOWN)
        && third.has_flow()
        && let Some(record) = position::at(reserve + third.way())
    {
        // SAFETY: in the table.
        unsafe { ptr::write_volatile(&raw mut (*record).vip, 0) };
    }
    placed
}

/// What a set has for a new record, in one number: the best record to replace in bits 0 and 1, its
/// score from bit 8 on, the numbers of used and of half-open records from bits 48 and 52 on, a bit
/// for each record of the same client port from bit 56 on, and a flag.
#[derive(Clone, Copy)]
struct Survey(u64);

impl Survey {
    /// The set has a record of the same flow: bits 0 and 1.
    const HAS_FLOW: u64 = 1 << 62;
    /// The set cannot be read.
    const FAILED: Self = Self(7 << Self::RANK);
    const SCORE: u64 = 0xff_ffff_ffff << 8;
    const RANK: u32 = 40;
    const USED: u32 = 48;
    const HALF_OPEN: u32 = 52;
    const SAME_CLIENT: u32 = 56;

    /// Returns whether another live flow's record translates the same replies.
    #[inline(always)]
    fn collides(self, set: Position) -> bool {
        let ways = (self.0 >> Self::SAME_CLIENT) as u32 % (1 << WAYS);
        ways != 0 && (0..WAYS).any(|way| ways >> way & 1 != 0 && flow_collides(set + way) != 0)
    }

    #[inline(always)]
    fn has_flow(self) -> bool {
        self.0 & Self::HAS_FLOW != 0
    }

    #[inline(always)]
    fn way(self) -> u32 {
        self.0 as u32 % WAYS
    }

    #[inline(always)]
    fn score(self) -> u64 {
        self.0 & Self::SCORE
    }

    #[inline(always)]
    fn rank(self) -> u64 {
        self.score() >> Self::RANK
    }

    /// Returns whether a record may be made here without a look at the second set. Several
    /// half-open records in one set are a flood, which pays with its own.
    #[inline(always)]
    fn offers_room(self) -> bool {
        const SEVERAL: u32 = 3;
        let half_open = (self.0 >> Self::HALF_OPEN) as u32 & 7;
        match self.rank() {
            FREE => flow_table::has_ample_room(self.used()) || half_open >= SEVERAL,
            CLOSED => true,
            HALF_OPEN => half_open >= SEVERAL,
            _ => false,
        }
    }

    #[inline(always)]
    fn used(self) -> u32 {
        (self.0 >> Self::USED) as u32 & 7
    }
}

/// Looks at a set's records for the one in the workspace. Returns a [`Survey`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_survey(set: Position) -> u64 {
    const CLOSING: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN | FLOW_RESET | FLOW_DIRECT;
    let Some(Workspace { flow: new, place, now, .. }) = Workspace::get() else { return Survey::FAILED.0 };
    let Some(records) = position::records(set / WAYS) else { return Survey::FAILED.0 };
    let (mut best, mut found) = (u64::MAX, 0);
    for number in 0..WAYS {
        let way = Place::next_way(place.way(), number);
        // SAFETY: one of the set's records.
        let words = unsafe { records.add(way as usize) }.cast::<u64>();
        // SAFETY: in the table.
        let word = |index| unsafe { ptr::read_volatile(words.add(index)) };
        let ports = word(1);
        if ports as u32 == 0 {
            // The first one is the best. All others have scores.
            if best >= u64::from(WAYS) {
                best = u64::from(way);
            }
            continue;
        }
        found += 1 << Survey::USED;
        const PROTOCOL: u64 = 0xff << 16;
        let state = word(6);
        // What differs most comes first.
        let is_client = word(3) == new[3] && word(2) == new[2] && (state ^ new[6]) & PROTOCOL == 0;
        if is_client && ports == new[1] {
            found |= Survey::HAS_FLOW | u64::from(way);
            continue;
        }
        if is_client {
            found |= 1 << (Survey::SAME_CLIENT + way);
        }
        // In a flood nearly all are, and a call costs more than this.
        let is_half_open = (state >> 24) as u32 & (CLOSING | FLOW_HALF_OPEN) == FLOW_HALF_OPEN;
        let score =
            if is_half_open { score(HALF_OPEN, age_low((word(7) >> 32) as u32, *now)) } else { flow_score(set + way) };
        if score >> Survey::RANK == HALF_OPEN {
            found += 1 << Survey::HALF_OPEN;
        }
        // Of records of one age, the flow's hash decides: with the lowest way, a flood would always meet
        // the newest of them.
        best = best.min(score | u64::from(number << 2 | way));
    }
    if found & Survey::HAS_FLOW != 0 { found } else { best & (Survey::SCORE | 3) | found }
}

/// Returns the rank of a used record and its age, as a number: the lower, the sooner it makes room.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_score(position: Position) -> u64 {
    let (Some(record), Some(Workspace { now, .. })) = (position::at(position), Workspace::get()) else {
        return u64::MAX;
    };
    // SAFETY: in the table. A torn copy only ranks wrongly.
    let flow = unsafe { Flow::read(record) };
    let age = flow.age(*now);
    score(rank(config(), &flow, age), age)
}

#[inline(always)]
fn score(rank: u64, age: u32) -> u64 {
    rank << Survey::RANK | u64::from(!age) << 8
}

#[inline(always)]
fn rank(config: &Config, flow: &Flow, age: u32) -> u64 {
    let (flags, protocol) = (flow.flags(), flow.protocol());
    let has_replies = flags & FLOW_REPLIES != 0;
    // Of a flow to another node, only the client's FIN is known.
    let has_ended = !has_replies && flags & FLOW_CLIENT_FIN != 0 && !flow::is_late(config, age);
    if is_closed(flags) || has_ended {
        CLOSED
    } else if flags & FLOW_HALF_OPEN != 0 {
        HALF_OPEN
    } else if flags & FLOW_NEW != 0 {
        UNCONFIRMED
    } else if flow::is_invalid(flow) {
        INVALID
    } else if is_idle(config, flow, age) {
        IDLE
    } else if has_replies && protocol != UDP {
        ESTABLISHED
    } else {
        LIVE
    }
}

#[inline(always)]
fn is_idle(config: &Config, flow: &Flow, age: u32) -> bool {
    let idle = SERVICE_STATES.get(flow.slot()).map_or(0, |state| state.idle);
    flow::is_idle(config, flow.protocol(), idle, age)
}

/// Returns 1 if the record is of a live flow with the same client port, and its backend's replies
/// are the same as those of the record in the workspace. If that flow is over, its replies are no
/// longer translated.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_collides(position: Position) -> u32 {
    let (Some(record), Some(Workspace { flow: new, now, .. })) = (position::at(position), Workspace::get()) else {
        return 1;
    };
    // SAFETY: in the table.
    let flow = unsafe { Flow::read(record) };
    let both = flow.flags() & (new[6] >> 24) as u32 & FLOW_REPLIES;
    if both == 0 || !flow.has_client_port((new[1] >> 32) as u16) || flow_shares_backend(position) == 0 {
        return 0;
    }
    if !is_closed(flow.flags()) && !is_idle(config(), &flow, flow.age(*now)) {
        return 1;
    }
    // SAFETY: as above.
    unsafe { ptr::write_volatile(&raw mut (*record).flags, (flow.flags() & !FLOW_REPLIES) as u8) };
    0
}

/// Returns 1 if the record's flow ends at the same port of a backend as that of the workspace's.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_shares_backend(position: Position) -> u32 {
    let (Some(record), Some(Workspace { flow: new, .. })) = (position::at(position), Workspace::get()) else {
        return 0;
    };
    // SAFETY: in the table.
    let flow = unsafe { Flow::read(record) };
    let Some(one) = BACKENDS.get(flow.backend()) else { return 0 };
    if !one.is_of(flow.backend_generation()) {
        return 0;
    }
    let port = nat::port(one, flow.vip_port());
    let Some(other) = BACKENDS.get(new[4] as u32) else { return 0 };
    u32::from(one.address == other.address && nat::port(other, (new[1] >> 48) as u16) == port)
}
