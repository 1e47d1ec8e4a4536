//! Reverse records: how to translate a local backend's replies.

use core::ptr;

use vipmux_common::{
    abi::{
        Address, Config, DropReason, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_ISN, FLOW_RESET, ReverseKey,
        ReverseValue,
    },
    hash,
};

use crate::{
    flow::{after, age, is_idle},
    maps::{CONFIG, REVERSE, Workspace},
    packet::TCP,
    segment::{ACK, SYN, Segment},
};

/// Returns whether a reverse record's connection is over, by its flags.
#[inline(always)]
fn is_closed(flags: u32) -> bool {
    const BOTH: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
    flags & (FLOW_RESET | FLOW_DIRECT) != 0 || flags & BOTH == BOTH
}

/// Returns whether a reverse record still translates.
#[inline(always)]
fn is_live(config: &Config, protocol: u32, value: &ReverseValue, now: u64) -> bool {
    let age = age(value.seen, now);
    if is_closed(value.flags) {
        age <= u64::from(config.closed_linger)
    } else {
        !is_idle(config, protocol, value.idle, age)
    }
}

/// Returns whether a SYN-ACK answers the recorded SYN. It may acknowledge data too (RFC 7413): less
/// than a full packet. An SCTP INIT ACK has exactly that tag.
#[inline(always)]
fn accepts(protocol: u32, value: &ReverseValue, acknowledged: u32) -> bool {
    let most = if protocol == TCP { u32::from(u16::MAX) } else { 0 };
    value.flags & FLOW_ISN != 0 && acknowledged.wrapping_sub(value.isn).wrapping_sub(1) <= most
}

/// Makes or refreshes the reverse record for a backend's replies. `may_insert`: whether a new
/// record is allowed.
#[inline(always)]
pub(crate) fn remember(
    key: &ReverseKey,
    vip: &Address,
    segment: &Segment,
    idle: u32,
    may_insert: bool,
    now: u64,
) -> Result<(), DropReason> {
    let tag = hash::reverse(key);
    let config = CONFIG.get(0).ok_or(DropReason::RecordFailed)?;
    let syn = segment.is_syn();
    if let Some(record) = REVERSE.get_ptr_mut(key) {
        // SAFETY: a map value; as in `find`.
        let (value, current) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
        let same = value.vip == *vip && value.vip_port == segment.destination_port;
        if current == tag {
            if !same && !is_closed(value.flags) && is_live(config, key.protocol, &value, now) {
                return Err(DropReason::TupleCollision);
            }
            let direct = value.flags & FLOW_DIRECT != 0;
            // The packet was sent before the client turned to the backend itself.
            if direct && !syn && is_live(config, key.protocol, &value, now) {
                return Ok(());
            }
            if same && !syn && !direct {
                refresh(record, &value, segment.flags, FLOW_CLIENT_FIN, now);
                if idle != value.idle {
                    // SAFETY: as above.
                    unsafe { ptr::write_volatile(&raw mut (*record).idle, idle) };
                }
                return Ok(());
            }
            if same && syn {
                // SAFETY: as above.
                unsafe {
                    ptr::write_volatile(&raw mut (*record).isn, segment.sequence);
                    ptr::write_volatile(&raw mut (*record).flags, FLOW_ISN);
                    ptr::write_volatile(&raw mut (*record).seen, now);
                }
                return Ok(());
            }
        }
    }
    if !may_insert {
        return Err(DropReason::RecordLimited);
    }
    let Workspace { reverse: value, .. } = Workspace::get().ok_or(DropReason::RecordFailed)?;
    value.tag = tag;
    value.isn = segment.sequence;
    value.vip = *vip;
    value.vip_port = segment.destination_port;
    value.padding = 0;
    value.flags = if syn { FLOW_ISN } else { after(0, segment.flags, FLOW_CLIENT_FIN) };
    value.seen = now;
    value.idle = idle;
    value.reserved = 0;
    REVERSE.insert(key, &*value, 0).map_err(|_| DropReason::RecordFailed)
}

/// Updates the record for another segment. `seen` does not change once the connection is closed, so
/// that it ends.
#[inline(always)]
fn refresh(record: *mut ReverseValue, value: &ReverseValue, tcp: u8, fin: u32, now: u64) {
    let flags = after(value.flags, tcp, fin);
    // SAFETY: a map value; as in `find`.
    unsafe {
        if flags != value.flags {
            ptr::write_volatile(&raw mut (*record).flags, flags);
        }
        if now != value.seen && !(is_closed(value.flags) && is_closed(flags)) {
            ptr::write_volatile(&raw mut (*record).seen, now);
        }
    }
}

/// The translation of a reply.
pub(crate) enum Reply {
    /// The reply belongs to no flow through a VIP.
    Foreign,
    /// A SYN-ACK of a direct connection from the client to the backend.
    Direct,
    /// The reply belongs to this flow.
    Of(ReverseValue),
}

/// Returns a live record of replies, unchanged: this is for packets about the flow, not of it.
#[inline(always)]
pub(crate) fn look(key: &ReverseKey, now: u64) -> Option<ReverseValue> {
    let record = REVERSE.get_ptr(key)?;
    // SAFETY: as in `find`.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    let translates = value.flags & FLOW_DIRECT == 0 && is_live(CONFIG.get(0)?, key.protocol, &value, now);
    (tag == hash::reverse(key) && translates).then_some(value)
}

/// Finds a reply's record and refreshes it. `tcp` has TCP's flags, `acknowledged` its
/// acknowledgement number, host order.
#[inline(always)]
pub(crate) fn reply(key: &ReverseKey, tcp: u8, acknowledged: u32, now: u64) -> Reply {
    let Some(record) = REVERSE.get_ptr_mut(key) else { return Reply::Foreign };
    // SAFETY: a map value; as in `find`.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    let Some(config) = CONFIG.get(0) else { return Reply::Foreign };
    if tag != hash::reverse(key) {
        return Reply::Foreign;
    }
    if !is_live(config, key.protocol, &value, now) {
        let _ = REVERSE.remove(key);
        return Reply::Foreign;
    }
    if tcp & (SYN | ACK) == SYN | ACK && !accepts(key.protocol, &value, acknowledged) {
        // Without the client's SYN, it may be a late one of this connection, whose next packet
        // makes a new record. And an SCTP endpoint answers every INIT, whoever sent it (RFC 9260,
        // 5.2.2).
        if key.protocol != TCP || value.flags & FLOW_ISN == 0 && !is_closed(value.flags) {
            let _ = REVERSE.remove(key);
            return Reply::Direct;
        }
        // SAFETY: as above.
        unsafe {
            ptr::write_volatile(&raw mut (*record).seen, now);
            ptr::write_volatile(&raw mut (*record).flags, FLOW_DIRECT | FLOW_RESET);
        }
        return Reply::Direct;
    }
    if value.flags & FLOW_DIRECT != 0 {
        return Reply::Foreign;
    }
    refresh(record, &value, tcp, FLOW_BACKEND_FIN, now);
    Reply::Of(value)
}
