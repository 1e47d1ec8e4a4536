//! Which record of a set makes room for a new one.
//!
//! The verifier checks these functions on their own, since their comparisons would multiply with all that
//! leads here.

use core::ptr;

use vipmux_common::{
    abi::{Config, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_REPLIES, FLOW_RESET, FLOW_UNPROVEN, WAYS},
    flow_table::{self, Place},
};

use crate::{
    flow::{self, Flow, is_closed},
    maps::{BACKENDS, SERVICE_STATES, Workspace, config},
    nat,
    packet::UDP,
    position::{self, Position},
    time::age_low,
};

/// Records of lower ranks are given to another flow before those of higher ones. Of one rank, the
/// oldest one is.
pub(crate) const FREE: u64 = 0;
/// Its Service or its backend is gone.
pub(crate) const INVALID: u64 = 1;
pub(crate) const CLOSED: u64 = 2;
/// Not both sides have spoken. Half-open and unconfirmed records are worth the same, so that each kind of flood
/// pays with its own. The next number counts evictions of unconfirmed ones.
pub(crate) const UNPROVEN: u64 = 3;
pub(crate) const IDLE: u64 = 5;
/// A live flow to another node, which is a cache of what the Service's table says, or a live flow
/// of datagrams. It only makes room for a flow that could not do without a record, and has sent a second
/// packet.
pub(crate) const LIVE: u64 = 6;
/// An established connection to a local backend.
pub(crate) const ESTABLISHED: u64 = 7;

/// What a set has for a new record, in one number: the best record to replace in bits 0 and 1, its
/// score from bit 8 on, the numbers of used and of unproven records from bits 48 and 52 on, a bit
/// for each record of the same client port from bit 56 on, and a flag.
#[derive(Clone, Copy)]
pub(crate) struct Occupancy(pub(crate) u64);

impl Occupancy {
    /// The set has a record of the same flow: bits 0 and 1.
    const HAS_FLOW: u64 = 1 << 62;
    /// The set cannot be read.
    const FAILED: Self = Self(7 << Self::RANK);
    const SCORE: u64 = 0xff_ffff_ffff << 8;
    const RANK: u32 = 40;
    const USED: u32 = 48;
    const UNPROVEN_COUNT: u32 = 52;
    const SAME_CLIENT: u32 = 56;

    /// Returns whether another live flow's record translates the same replies.
    #[inline(always)]
    pub(crate) fn collides(self, set: Position) -> bool {
        let ways = (self.0 >> Self::SAME_CLIENT) as u32 % (1 << WAYS);
        ways != 0 && (0..WAYS).any(|way| ways >> way & 1 != 0 && flow_collides(set + way) != 0)
    }

    #[inline(always)]
    pub(crate) fn has_flow(self) -> bool {
        self.0 & Self::HAS_FLOW != 0
    }

    #[inline(always)]
    pub(crate) fn way(self) -> u32 {
        self.0 as u32 % WAYS
    }

    #[inline(always)]
    pub(crate) fn score(self) -> u64 {
        self.0 & Self::SCORE
    }

    #[inline(always)]
    pub(crate) fn rank(self) -> u64 {
        self.score() >> Self::RANK
    }

    /// Returns whether a record may be made here without a look at the second set. Several
    /// unproven records in one set are a flood, which pays with its own.
    #[inline(always)]
    pub(crate) fn offers_room(self) -> bool {
        const SEVERAL: u32 = 3;
        let unproven = (self.0 >> Self::UNPROVEN_COUNT) as u32 & 7;
        match self.rank() {
            FREE => flow_table::has_ample_room(self.used()) || unproven >= SEVERAL,
            INVALID | CLOSED => true,
            UNPROVEN => unproven >= SEVERAL,
            _ => false,
        }
    }

    #[inline(always)]
    pub(crate) fn used(self) -> u32 {
        (self.0 >> Self::USED) as u32 & 7
    }
}

/// Looks at a set's records for the one in the workspace. Returns an [`Occupancy`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn flow_occupancy(set: Position) -> u64 {
    const CLOSING: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN | FLOW_RESET | FLOW_DIRECT;
    let Some(Workspace { flow: new, place, now, .. }) = Workspace::get() else { return Occupancy::FAILED.0 };
    let Some(records) = position::records(set / WAYS) else { return Occupancy::FAILED.0 };
    let (mut best, mut occupancy) = (u64::MAX, 0);
    let since = since_removal(config(), now.get());
    for number in 0..WAYS {
        let way = Place::next_way(place.get().way(), number);
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
        occupancy += 1 << Occupancy::USED;
        const PROTOCOL: u64 = 0xff << 16;
        let state = word(6);
        // What differs most comes first.
        let is_client = word(3) == new[3].get() && word(2) == new[2].get() && (state ^ new[6].get()) & PROTOCOL == 0;
        if is_client && ports == new[1].get() {
            occupancy |= Occupancy::HAS_FLOW | u64::from(way);
            continue;
        }
        if is_client {
            occupancy |= 1 << (Occupancy::SAME_CLIENT + way);
        }
        // In a flood nearly all are, and a call costs more than this.
        let flags = (state >> 24) as u32 & (CLOSING | FLOW_UNPROVEN);
        let is_unproven = flags != 0 && flags & CLOSING == 0;
        let age = age_low((word(7) >> 32) as u32, now.get());
        let score = if is_unproven && age < since { score(UNPROVEN, age) } else { flow_score(set + way, now.get()) };
        if score >> Occupancy::RANK == UNPROVEN {
            occupancy += 1 << Occupancy::UNPROVEN_COUNT;
        }
        // Of records of one age, the flow's hash decides: with the lowest way, a flood would always meet
        // the newest of them.
        best = best.min(score | u64::from(number << 2 | way));
    }
    if occupancy & Occupancy::HAS_FLOW != 0 { occupancy } else { best & (Occupancy::SCORE | 3) | occupancy }
}

/// Returns the rank of a used record and its age, as a number: the lower, the sooner it makes room.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_score(position: Position, now: u32) -> u64 {
    let Some(record) = position::at(position) else { return u64::MAX };
    // SAFETY: in the table. A torn copy only ranks wrongly.
    let flow = unsafe { Flow::read(record) };
    let age = flow.age(now);
    score(rank(config(), &flow, age, since_removal(config(), now)), age)
}

#[inline(always)]
fn score(rank: u64, age: u32) -> u64 {
    rank << Occupancy::RANK | u64::from(!age) << 8
}

/// Returns the jiffies since the last removal of a Service port or a backend, less a second for packets that
/// were under way. Whatever has sent a packet since is of none that is gone.
#[inline(always)]
fn since_removal(config: &Config, now: u32) -> u32 {
    age_low(config.removed, now).saturating_sub(config.hz)
}

#[inline(always)]
fn rank(config: &Config, flow: &Flow, age: u32, since_removal: u32) -> u64 {
    let (flags, protocol) = (flow.flags(), flow.protocol());
    let has_replies = flags & FLOW_REPLIES != 0;
    // Of a flow to another node, only the client's FIN is known.
    let has_ended = !has_replies && flags & FLOW_CLIENT_FIN != 0 && !flow::is_late(config, age);
    let is_closed = is_closed(flags) || has_ended;
    // Its own backend's packets keep a record young, too, after that backend has gone.
    let is_unproven = flags & FLOW_UNPROVEN != 0;
    let is_established = has_replies && !is_closed && !is_unproven;
    // With many Services, what tells this is in no cache.
    if (is_established || age >= since_removal) && flow::is_invalid(flow) {
        INVALID
    } else if is_closed {
        CLOSED
    } else if is_unproven {
        UNPROVEN
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
    let both = flow.flags() & (new[6].get() >> 24) as u32 & FLOW_REPLIES;
    if both == 0 || !flow.has_client_port((new[1].get() >> 32) as u16) || flow_shares_backend(position) == 0 {
        return 0;
    }
    if !is_closed(flow.flags()) && !is_idle(config(), &flow, flow.age(now.get())) {
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
    let Some(other) = BACKENDS.get(new[4].get() as u32) else { return 0 };
    u32::from(one.address == other.address && nat::port(other, (new[1].get() >> 48) as u16) == port)
}
