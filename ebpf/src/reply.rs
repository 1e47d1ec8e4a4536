//! The flow table: finds the records that translate local backends' replies.

use core::ptr;

use vipmux_common::{
    abi::{Address, Config, FLOW_DIRECT, FLOW_ISN, FLOW_REPLIES, FLOW_RESET, FlowRecord, ServiceState},
    flow_table::Place,
    hash,
};

use crate::{
    flow::{self, Flow, after_backend, is_closed, is_idle, refresh},
    maps::{BACKENDS, LOCAL_PORTS, config},
    nat,
    packet::TCP,
    position::{self, Position},
    segment::{ACK, SYN},
    vip::{halves, whole as whole_address},
};

/// What tells a backend's reply: its source and destination.
pub(crate) struct ReplyKey {
    pub(crate) backend: Address,
    pub(crate) client: Address,
    /// Wire, like the other one.
    pub(crate) backend_port: u16,
    pub(crate) client_port: u16,
    pub(crate) protocol: u32,
}

/// Where a reply comes from, in the client's eyes.
pub(crate) struct Origin {
    pub(crate) vip: Address,
    /// Wire.
    pub(crate) vip_port: u16,
}

/// The translation of a reply.
pub(crate) enum Reply {
    /// The reply belongs to no flow through a VIP.
    Foreign,
    /// A SYN-ACK of a direct connection from the client to the backend.
    Direct,
    /// The reply belongs to a flow of this origin.
    Of(Origin),
}

/// A record of replies, and its copy.
struct Record {
    at: *mut FlowRecord,
    flow: Flow,
    state: &'static ServiceState,
}

/// Returns whether an address and a port are those of a backend on this node.
#[inline(always)]
pub(crate) fn is_local(address: &Address, port: u16) -> bool {
    let is_set = |port| {
        let bit = hash::local_port(address, port);
        LOCAL_PORTS.get(bit / u64::BITS).is_some_and(|bits| bits >> (bit % u64::BITS) & 1 != 0)
    };
    is_set(port) || is_set(0)
}

#[inline(always)]
fn search(config: &Config, key: &ReplyKey) -> Option<Record> {
    let [(c0, c1), (b0, b1)] = [halves(&key.client), halves(&key.backend)];
    let ports = u64::from(key.client_port) | u64::from(key.backend_port) << 16;
    let at = position::at(flow_of_reply(c0, c1, b0, b1, ports | u64::from(key.protocol) << 32))?;
    // SAFETY: in the table.
    let flow = unsafe { Flow::whole(at, place(config, key)) }?;
    let state = flow::state(&flow)?;
    Some(Record { at, flow, state })
}

#[inline(always)]
fn place(config: &Config, key: &ReplyKey) -> Place {
    Place::new(&config.flow_secret, &key.client, key.client_port, key.protocol)
}

/// Returns the position of the record that translates a backend's replies to a client. `rest`: the
/// client's port, the backend's port, and the protocol. The verifier checks this function on its
/// own, since its comparisons would multiply with all that follows.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_of_reply(c0: u64, c1: u64, b0: u64, b1: u64, rest: u64) -> Position {
    let config = config();
    let key = ReplyKey {
        backend: whole_address(b0, b1),
        client: whole_address(c0, c1),
        backend_port: (rest >> 16) as u16,
        client_port: rest as u16,
        protocol: (rest >> 32) as u32,
    };
    let place = place(config, &key);
    let sets = position::sets(config, place);
    position::find_in_sets(sets, place.way(), |record| {
        // SAFETY: in the table. A torn copy is found out by the check.
        let (flags, ports, high, low) = unsafe {
            let words = record.cast::<u64>();
            let flags = ptr::read_volatile(&raw const (*record).flags);
            let word = |index| ptr::read_volatile(words.add(index));
            (flags, word(1), word(2), word(3))
        };
        let is_used = ports as u32 != 0;
        let is_client = is_used && (ports >> 32) as u16 == key.client_port && low == c1 && high == c0;
        is_client && u32::from(flags) & FLOW_REPLIES != 0 && is_of(record, &key)
    })
}

/// Returns whether a record of the right client is of the right protocol and backend.
#[inline(always)]
fn is_of(record: *const FlowRecord, key: &ReplyKey) -> bool {
    // SAFETY: in the table.
    let flow = unsafe { Flow::read(record) };
    let Some(backend) = BACKENDS.get(flow.backend()) else { return false };
    flow.protocol() == key.protocol
        && backend.is_of(flow.backend_generation())
        && backend.address == key.backend
        && nat::port(backend, flow.vip_port()) == key.backend_port
}

/// Returns whether a record still translates.
#[inline(always)]
fn is_live(config: &Config, record: &Record, now: u32) -> bool {
    let Record { flow, state, .. } = record;
    let age = flow.age(now);
    if is_closed(flow.flags()) {
        age <= config.closed_linger
    } else {
        !is_idle(config, flow.protocol(), state.idle, age)
    }
}

/// Returns whether a SYN-ACK answers the recorded SYN. It may acknowledge data too (RFC 7413): less
/// than a full packet. An SCTP INIT ACK has exactly that tag.
#[inline(always)]
fn accepts(flow: &Flow, acknowledged: u32) -> bool {
    let most = if flow.protocol() == TCP { u32::from(u16::MAX) } else { 0 };
    flow.flags() & FLOW_ISN != 0 && acknowledged.wrapping_sub(flow.isn()).wrapping_sub(1) <= most
}

/// Returns the origin of replies, by a live record, which stays unchanged: this is for packets
/// about the flow, not of it.
#[inline(always)]
pub(crate) fn look(key: &ReplyKey, now: u64) -> Option<Origin> {
    if !is_local(&key.backend, key.backend_port) {
        return None;
    }
    let config = config();
    let record = search(config, key)?;
    let translates = record.flow.flags() & FLOW_DIRECT == 0 && is_live(config, &record, now as u32);
    translates.then(|| record.origin())
}

/// Finds the record of a local backend's reply, and refreshes it. `tcp` has TCP's flags, `acknowledged` its
/// acknowledgement number, host order.
#[inline(always)]
pub(crate) fn reply(key: &ReplyKey, tcp: u8, acknowledged: u32, now: u64) -> Reply {
    let config = config();
    let Some(record) = search(config, key) else { return Reply::Foreign };
    let now = now as u32;
    if !is_live(config, &record, now) {
        return Reply::Foreign;
    }
    let (flow, flags) = (&record.flow, record.flow.flags());
    if tcp & (SYN | ACK) == SYN | ACK && !accepts(flow, acknowledged) {
        // Without the client's SYN, it may be a late one of this connection, whose next packet
        // makes the record translate again. And an SCTP endpoint answers every INIT, whoever sent
        // it (RFC 9260, 5.2.2).
        let flags = if key.protocol != TCP || flags & FLOW_ISN == 0 && !is_closed(flags) {
            flags & !FLOW_REPLIES
        } else {
            flags & FLOW_REPLIES | FLOW_DIRECT | FLOW_RESET
        };
        // SAFETY: a map value. What is written here does no harm to another flow.
        unsafe {
            ptr::write_volatile(&raw mut (*record.at).seen, now);
            ptr::write_volatile(&raw mut (*record.at).flags, flags as u8);
        }
        return Reply::Direct;
    }
    if flags & FLOW_DIRECT != 0 {
        return Reply::Foreign;
    }
    refresh(record.at, flow, after_backend(flags, tcp), now, flow.is_fresh(config, now));
    Reply::Of(record.origin())
}

impl Record {
    #[inline(always)]
    fn origin(&self) -> Origin {
        Origin { vip: self.state.vip, vip_port: self.flow.vip_port() }
    }
}
