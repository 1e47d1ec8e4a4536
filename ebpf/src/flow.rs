//! Flow records: which backend a client's packets go to, and what its replies are turned back into.

use core::ptr;

use aya_ebpf::helpers::bpf_jiffies64;
use vipmux_common::{
    abi::{
        BACKEND_LOCAL, BACKEND_READY, Backend, Config, DropReason, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_ISN,
        FLOW_RESET, FlowKey, FlowValue, ReverseKey, ReverseValue, ServiceValue,
    },
    hash,
};

use crate::{
    maps::{BACKENDS, CONFIG, FLOWS, NODES, REVERSE, SERVICE_STATES},
    packet::{ACK, FIN, RST, SYN, Segment, TCP},
};

/// Now, in jiffies: far cheaper than any clock helper, and precise enough for timeouts.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_jiffies64() }
}

/// A backend that a packet may go to.
pub(crate) struct Target {
    pub(crate) index: u32,
    /// [`Backend::generation`] as it was when the backend was looked up: what a record made now must name, so that it is
    /// stale if the backend goes meanwhile. Never 0, which is what a free index has.
    pub(crate) generation: u32,
    /// Its node's index.
    pub(crate) node: u32,
    /// Its entry, if it is on this node.
    pub(crate) local: Option<&'static Backend>,
}

impl Target {
    /// `None` for a free index: a table that was replaced just now may still lead there.
    #[inline(always)]
    pub(crate) fn get(index: u32) -> Option<Self> {
        let backend = BACKENDS.get(index)?;
        // SAFETY: a map value, which stays in place for the whole run.
        let generation = unsafe { ptr::read_volatile(&raw const backend.generation) };
        (generation != 0).then(|| Self::new(index, generation, backend))
    }

    #[inline(always)]
    fn new(index: u32, generation: u32, backend: &'static Backend) -> Self {
        let local = (backend.flags & BACKEND_LOCAL != 0).then_some(backend);
        Self { index, generation, node: backend.node, local }
    }
}

/// Jiffies since `seen`; none where another CPU wrote it after this one had read the clock.
#[inline(always)]
pub(crate) fn age(seen: u64, now: u64) -> u64 {
    now.saturating_sub(seen)
}

/// The same by the clock's low half. What seems to be nearly a whole wrap ago is ahead.
#[inline(always)]
fn age_low(seen: u32, now: u32) -> u64 {
    const AHEAD: u32 = 1 << 16;
    let age = now.wrapping_sub(seen);
    if age > u32::MAX - AHEAD { 0 } else { u64::from(age) }
}

/// Whether a flow whose last packet is so many jiffies old has ended.
#[inline(always)]
fn is_idle(config: &Config, protocol: u32, age: u64) -> bool {
    let life = if protocol == TCP { config.tcp_idle } else { config.udp_idle };
    age > u64::from(life)
}

/// What a flow record leads to.
struct Recorded {
    target: Target,
    ready: bool,
    /// What the record's epoch is to be.
    epoch: u32,
}

/// The backend of a record, if it is still that of the record. Its node's epoch vouches for that, or the backend's own
/// entry, which then may give the record the node's epoch.
///
/// The epoch must be read before the entry: whoever changes an entry so that it matters first sets the epoch to zero
/// and then to one that never was, so that whatever was read before, an epoch that goes with it never comes again.
#[inline(always)]
fn recorded(flow: &FlowValue) -> Option<Recorded> {
    let node = u32::from(flow.node);
    // SAFETY: a map value.
    let epoch = unsafe { ptr::read_volatile(&raw const NODES.get(node)?.epoch) };
    if epoch != 0 && epoch == flow.epoch {
        let target = Target { index: flow.backend, generation: flow.backend_generation, node, local: None };
        return Some(Recorded { target, ready: true, epoch });
    }
    let backend = BACKENDS.get(flow.backend)?;
    // SAFETY: a map value.
    let flags = unsafe { ptr::read_volatile(&raw const backend.flags) };
    if backend.generation != flow.backend_generation {
        return None;
    }
    let ready = flags & BACKEND_READY != 0;
    let vouched = ready && flags & BACKEND_LOCAL == 0 && epoch != 0;
    let epoch = if vouched { epoch } else { flow.epoch };
    Some(Recorded { target: Target::new(flow.backend, flow.backend_generation, backend), ready, epoch })
}

/// The backend and service slot of a live record, which is refreshed.
#[inline(always)]
pub(crate) fn find(key: &FlowKey, tag: u32, segment: &Segment, now: u64) -> Option<(Target, u32)> {
    let record = FLOWS.get_ptr_mut(key)?;
    // SAFETY: a map value. It can be given to another key meanwhile, which the tag, read last, tells; the few words
    // written below do no harm to another flow: an epoch is one node's alone, so it vouches for no backend of another.
    unsafe {
        let flow: FlowValue = ptr::read_volatile(record);
        let state = SERVICE_STATES.get(flow.slot)?;
        if state.generation != flow.slot_generation {
            return None;
        }
        let Recorded { target, ready, epoch } = recorded(&flow)?;
        if ptr::read_volatile(&raw const (*record).tag) != tag {
            return None;
        }
        let config = CONFIG.get(0)?;
        let now = now as u32;
        let idle = is_idle(config, segment.protocol, age_low(flow.seen, now));
        let mut flags = u32::from(flow.flags);
        if segment.is_syn() {
            let closed = flags & (FLOW_CLIENT_FIN | FLOW_RESET) != 0;
            if closed || idle || !ready {
                return None;
            }
        } else {
            if idle {
                return None;
            }
            flags = after(flags, segment.flags, FLOW_CLIENT_FIN);
        }
        if flags != u32::from(flow.flags) {
            ptr::write_volatile(&raw mut (*record).flags, flags as u16);
        }
        if epoch != flow.epoch {
            ptr::write_volatile(&raw mut (*record).epoch, epoch);
        }
        if now != flow.seen {
            ptr::write_volatile(&raw mut (*record).seen, now);
        }
        Some((target, flow.slot))
    }
}

/// The backend of a record, which is left as it is: for what is about the flow, but not of it.
#[inline(always)]
pub(crate) fn look(key: &FlowKey, tag: u32) -> Option<Target> {
    let record = FLOWS.get_ptr(key)?;
    // SAFETY: as in `find`.
    unsafe {
        let flow: FlowValue = ptr::read_volatile(record);
        let state = SERVICE_STATES.get(flow.slot)?;
        let target = recorded(&flow)?.target;
        (state.generation == flow.slot_generation && ptr::read_volatile(&raw const (*record).tag) == tag)
            .then_some(target)
    }
}

/// A flow's flags after a segment with these TCP flags from the side whose FIN is `fin`. Only the client disproves an
/// RST: what a backend had under way when the client's came would keep the flow alive otherwise.
#[inline(always)]
fn after(flags: u32, tcp: u8, fin: u32) -> u32 {
    let flags = if tcp & FIN != 0 { flags | fin } else { flags };
    if tcp & RST != 0 {
        flags | FLOW_RESET
    } else if fin == FLOW_CLIENT_FIN {
        flags & !FLOW_RESET
    } else {
        flags
    }
}

/// Records a new flow; whether it succeeded. Without an epoch: the node's was not read before the backend's entry, so
/// the flow's next packet looks at both.
#[inline(always)]
pub(crate) fn record(key: &FlowKey, tag: u32, target: &Target, service: &ServiceValue, now: u64) -> bool {
    let value = FlowValue {
        tag,
        backend: target.index,
        backend_generation: target.generation,
        slot: service.slot,
        slot_generation: service.generation,
        epoch: 0,
        node: target.node as u16,
        flags: 0,
        seen: now as u32,
    };
    FLOWS.insert(key, value, 0).is_ok()
}

/// Whether a reverse record's connection is over, by its flags.
#[inline(always)]
fn is_closed(flags: u32) -> bool {
    const BOTH: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
    flags & FLOW_RESET != 0 || flags & BOTH == BOTH
}

/// Whether a reverse record still translates.
#[inline(always)]
fn is_live(config: &Config, protocol: u32, value: &ReverseValue, now: u64) -> bool {
    let age = age(value.seen, now);
    if is_closed(value.flags) { age <= u64::from(config.closed_linger) } else { !is_idle(config, protocol, age) }
}

/// Makes or refreshes the record by which the backend's replies find their way back to `flow`'s VIP.
#[inline(always)]
pub(crate) fn remember(
    key: &ReverseKey,
    vip: vipmux_common::abi::Address,
    segment: &Segment,
    now: u64,
) -> Result<(), DropReason> {
    let tag = hash::reverse(key);
    let config = CONFIG.get(0).ok_or(DropReason::RecordFailed)?;
    let syn = segment.is_syn();
    if let Some(record) = REVERSE.get_ptr_mut(key) {
        // SAFETY: a map value; as in `find`.
        let (value, current) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
        let same = value.vip == vip && value.vip_port == segment.destination_port;
        if current == tag {
            if !same && !is_closed(value.flags) && is_live(config, key.protocol, &value, now) {
                return Err(DropReason::TupleCollision);
            }
            if same && !syn {
                refresh(record, &value, segment.flags, FLOW_CLIENT_FIN, now);
                return Ok(());
            }
            if same {
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
    let value = ReverseValue {
        tag,
        isn: segment.sequence,
        vip,
        vip_port: segment.destination_port,
        padding: 0,
        flags: if syn { FLOW_ISN } else { after(0, segment.flags, FLOW_CLIENT_FIN) },
        seen: now,
        idle: 0,
        reserved: 0,
    };
    REVERSE.insert(key, value, 0).map_err(|_| DropReason::RecordFailed)
}

/// Takes one more segment into account. `seen` stands still once the connection is closed, so that it ends.
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

/// What a reply is to be turned into.
pub(crate) enum Reply {
    /// Not of a flow through a VIP.
    Foreign,
    /// A SYN-ACK of a connection that the client made to the backend itself.
    Direct,
    /// Of this flow.
    Of(ReverseValue),
}

/// A live record of replies, which is left as it is: for what is about the flow, but not of it.
#[inline(always)]
pub(crate) fn find_reply(key: &ReverseKey, now: u64) -> Option<ReverseValue> {
    let record = REVERSE.get_ptr(key)?;
    // SAFETY: as in `find`.
    let (value, tag) = unsafe { (ptr::read_volatile(record), ptr::read_volatile(&raw const (*record).tag)) };
    (tag == hash::reverse(key) && is_live(CONFIG.get(0)?, key.protocol, &value, now)).then_some(value)
}

/// Finds a reply's record and refreshes it. `tcp` is TCP's flags, `acknowledged` its acknowledgement number, host order.
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
    if tcp & (SYN | ACK) == SYN | ACK && (value.flags & FLOW_ISN == 0 || acknowledged != value.isn.wrapping_add(1)) {
        let _ = REVERSE.remove(key);
        return Reply::Direct;
    }
    refresh(record, &value, tcp, FLOW_BACKEND_FIN, now);
    Reply::Of(value)
}
