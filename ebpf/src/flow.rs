//! Flow records: the backend of each client's flow.

use core::ptr;

use aya_ebpf::helpers::bpf_jiffies64;
use vipmux_common::abi::{
    BACKEND_LOCAL, BACKEND_READY, Backend, Config, FLOW_CLIENT_FIN, FLOW_RESET, FlowKey, FlowValue, ServiceValue,
};

use crate::{
    maps::{BACKENDS, CONFIG, FLOWS, NODES, SERVICE_STATES, Workspace},
    packet::UDP,
    segment::{FIN, RST, Segment},
};

/// The current time in jiffies. It is far cheaper than any clock helper, and precise enough for
/// timeouts.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_jiffies64() }
}

/// A backend for a packet.
pub(crate) struct Target {
    pub(crate) index: u32,
    /// [`Backend::generation`] at the lookup of the backend. A record made now must have it, so
    /// that it is stale if the backend goes meanwhile. Never 0, which a free index has.
    pub(crate) generation: u32,
    /// Its node's index.
    pub(crate) node: u32,
    /// Its entry, if it is on this node.
    pub(crate) local: Option<&'static Backend>,
}

impl Target {
    /// `None` for a free index: a table that was just replaced may still have it.
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

/// Returns the jiffies since `seen`; 0 if another CPU wrote it after this one had read the clock.
#[inline(always)]
pub(crate) fn age(seen: u64, now: u64) -> u64 {
    now.saturating_sub(seen)
}

/// The same with the clock's low half. A time almost a whole wrap ago is in the future.
#[inline(always)]
fn age_low(seen: u32, now: u32) -> u64 {
    const AHEAD: u32 = 1 << 16;
    let age = now.wrapping_sub(seen);
    if age > u32::MAX - AHEAD { 0 } else { u64::from(age) }
}

/// Returns whether a flow with this many jiffies since its last packet has ended. `idle`: the
/// Service's own limit, or zero.
#[inline(always)]
pub(crate) fn is_idle(config: &Config, protocol: u32, idle: u32, age: u64) -> bool {
    let common = if protocol == UDP { config.udp_idle } else { config.tcp_idle };
    age > u64::from(if idle == 0 { common } else { idle })
}

/// The destination of a flow record.
struct Recorded {
    target: Target,
    ready: bool,
    /// The record's new epoch.
    epoch: u32,
}

/// Returns a record's backend, if it is still the same. Either the epoch of its node confirms that,
/// or the backend's own entry, which then gives the record the node's epoch.
///
/// The epoch must be read before the entry. Before a change that matters, the agent sets the epoch
/// to zero, and then to a new value. So an epoch that fits an old entry never comes again.
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

/// The destination of a packet, with its Service's state.
pub(crate) struct Found {
    pub(crate) target: Target,
    pub(crate) slot: u32,
    /// [`vipmux_common::abi::ServiceState::flags`].
    pub(crate) flags: u32,
    /// [`vipmux_common::abi::ServiceState::idle`].
    pub(crate) idle: u32,
    /// [`vipmux_common::abi::ServiceState::ranges`].
    pub(crate) ranges: u32,
    /// True if the packet has a flow record.
    pub(crate) recorded: bool,
}

/// Returns the destination of a live record, and refreshes the record.
#[inline(always)]
pub(crate) fn find(key: &FlowKey, tag: u32, segment: &Segment, now: u64) -> Option<Found> {
    let record = FLOWS.get_ptr_mut(key)?;
    // SAFETY: a map value. It can be given to another key meanwhile, which the tag, read last,
    // tells; the few words written below do no harm to another flow: an epoch is one node's alone,
    // so it vouches for no backend of another.
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
        let idle = is_idle(config, segment.protocol, state.idle, age_low(flow.seen, now));
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
        let (flags, idle, ranges) = (state.flags, state.idle, state.ranges);
        Some(Found { target, slot: flow.slot, flags, idle, ranges, recorded: true })
    }
}

/// Returns a record's backend and its Service's flags. The record stays unchanged: this is for
/// packets about the flow, not of it.
#[inline(always)]
pub(crate) fn look(key: &FlowKey, tag: u32) -> Option<(Target, u32)> {
    let record = FLOWS.get_ptr(key)?;
    // SAFETY: as in `find`.
    unsafe {
        let flow: FlowValue = ptr::read_volatile(record);
        let state = SERVICE_STATES.get(flow.slot)?;
        let target = recorded(&flow)?.target;
        (state.generation == flow.slot_generation && ptr::read_volatile(&raw const (*record).tag) == tag)
            .then_some((target, state.flags))
    }
}

/// Returns a flow's flags after a segment with these TCP flags from the side whose FIN is `fin`.
/// Only the client can disprove an RST. Otherwise packets that the backend had sent before the
/// client's RST would keep the flow alive.
#[inline(always)]
pub(crate) fn after(flags: u32, tcp: u8, fin: u32) -> u32 {
    let flags = if tcp & FIN != 0 { flags | fin } else { flags };
    if tcp & RST != 0 {
        flags | FLOW_RESET
    } else if fin == FLOW_CLIENT_FIN {
        flags & !FLOW_RESET
    } else {
        flags
    }
}

/// Records a new flow. Returns whether it succeeded. The record has no epoch: the node's was not
/// read before the backend's entry, so the flow's next packet checks both.
#[inline(always)]
pub(crate) fn record(key: &FlowKey, tag: u32, target: &Target, service: &ServiceValue, now: u64) -> bool {
    let Some(Workspace { flow: value, .. }) = Workspace::get() else { return false };
    value.tag = tag;
    value.backend = target.index;
    value.backend_generation = target.generation;
    value.slot = service.slot;
    value.slot_generation = service.generation;
    value.epoch = 0;
    value.node = target.node as u16;
    value.flags = 0;
    value.seen = now as u32;
    FLOWS.insert(key, &*value, 0).is_ok()
}
