//! Records of flows, and backends.
//!
//! [`crate::flow_entry`] finds the records of clients' packets, [`crate::position`] says where they are, and
//! [`crate::record`] writes them.

use core::ptr;

use vipmux_common::{
    abi::{
        BACKEND_GONE, BACKEND_LOCAL, Backend, Config, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_HALF_OPEN,
        FLOW_NEW, FLOW_REPLIES, FLOW_RESET, FLOW_UNPROVEN, FlowRecord, LATE_SECONDS, Node, SERVICE_GONE, ServiceState,
    },
    backend_nodes,
    flow_table::Place,
};

use crate::{
    maps::{BACKEND_NODES, BACKENDS, NODES, SERVICE_STATES, config},
    packet::UDP,
    segment::{FIN, RST},
    time::age_low,
    vip,
};

/// A backend for a packet.
pub(crate) struct Target {
    pub(crate) index: u32,
    /// [`FlowRecord::backend_generation`] of a record that is made now, so that it is stale if the
    /// backend goes meanwhile. Never 0, which a free index has.
    pub(crate) generation: u32,
    /// Its node's index.
    pub(crate) node: u32,
    /// Its entry, if it is on this node.
    pub(crate) local: Option<&'static Backend>,
    /// The path to its node. It has no use if [`Self::local`] is there.
    pub(crate) remote: Option<&'static Node>,
}

impl Target {
    /// `None` for a free index: a table that was just replaced may still have it.
    #[inline(always)]
    pub(crate) fn get(index: u32, vip: vip::Flags) -> Option<Self> {
        let backend = BACKENDS.get(index)?;
        // SAFETY: a map value, which stays in place for the whole run.
        let generation = unsafe { ptr::read_volatile(&raw const backend.generation) };
        if generation == 0 || backend.flags & BACKEND_GONE != 0 {
            return None;
        }
        Some(Self::new(index, generation, backend, vip))
    }

    /// The same for an index that a Service's table has. `newest`: [`newest_generation`] before the
    /// table was read.
    #[inline(always)]
    pub(crate) fn of_table(index: u32, newest: u32, vip: vip::Flags) -> Option<Self> {
        let nodes = BACKEND_NODES.get(backend_nodes::element(index))?;
        // SAFETY: a map value, which stays in place for the whole run.
        match backend_nodes::get(unsafe { ptr::read_volatile(nodes) }, index) {
            Some(node) => Some(Self::elsewhere(index, newest, node, vip)),
            None => Self::get(index, vip),
        }
    }

    /// On another node.
    #[inline(always)]
    pub(crate) fn elsewhere(index: u32, generation: u32, node: u32, vip: vip::Flags) -> Self {
        Self { index, generation, node, local: None, remote: vip.path(node) }
    }

    #[inline(always)]
    fn new(index: u32, generation: u32, backend: &'static Backend, vip: vip::Flags) -> Self {
        let is_local = backend.flags & BACKEND_LOCAL != 0;
        Self {
            index,
            generation,
            node: backend.node,
            local: is_local.then_some(backend),
            remote: if is_local { None } else { vip.path(backend.node) },
        }
    }
}

/// Returns the newest generation of a backend. Backends that get their indices later have newer
/// ones.
#[inline(always)]
pub(crate) fn newest_generation() -> u32 {
    // SAFETY: a map value.
    let next = unsafe { ptr::read_volatile(&raw const config().next_generation) };
    next.wrapping_sub(1)
}

/// Returns whether a flow with this many jiffies since its last packet has ended. `idle`: the
/// Service's own limit, or zero.
#[inline(always)]
pub(crate) fn is_idle(config: &Config, protocol: u32, idle: u32, age: u32) -> bool {
    let common = if protocol == UDP { config.udp_idle } else { config.tcp_idle };
    age > if idle == 0 { common } else { idle }
}

/// Returns whether a packet with this many jiffies since a change of its flow may have been sent
/// before that.
#[inline(always)]
pub(crate) fn is_late(config: &Config, age: u32) -> bool {
    age <= LATE_SECONDS.wrapping_mul(config.hz)
}

/// Returns whether both sides or an RST closed the connection, or the client has turned to the
/// backend itself.
#[inline(always)]
pub(crate) fn is_closed(flags: u32) -> bool {
    const BOTH: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
    flags & (FLOW_RESET | FLOW_DIRECT) != 0 || flags & BOTH == BOTH
}

/// Returns whether a SYN has nothing to do with the recorded connection, since that one is over. Anybody can forge
/// the client's FIN or RST, so neither is enough: the backend closed too, or both are long gone.
#[inline(always)]
pub(crate) fn is_over(config: &Config, flags: u32, age: u32) -> bool {
    const CLIENT: u32 = FLOW_CLIENT_FIN | FLOW_RESET | FLOW_DIRECT;
    flags & CLIENT != 0 && (flags & FLOW_BACKEND_FIN != 0 || age > config.closed_linger)
}

/// A record without the client, in words: fields would take more of the stack.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    ports: u64,
    backend: u64,
    slot: u64,
    /// The record's node, protocol, flags and epoch.
    pub(crate) state: u64,
    /// Its sequence number and time.
    pub(crate) time: u64,
}

impl Flow {
    /// Without ports, backend and Service.
    #[inline(always)]
    pub(crate) fn of_words(state: u64, time: u64) -> Self {
        Self { ports: 0, backend: 0, slot: 0, state, time }
    }

    /// Reads a record. It can be given to another flow meanwhile, so the copy may be torn.
    ///
    /// # Safety
    /// `record` is in the table.
    #[inline(always)]
    pub(crate) unsafe fn read(record: *const FlowRecord) -> Self {
        let words = record.cast::<u64>();
        // SAFETY: a map value.
        let word = |index| unsafe { ptr::read_volatile(words.add(index)) };
        Self { ports: word(1), backend: word(4), slot: word(5), state: word(6), time: word(7) }
    }

    /// Reads a record, if it is whole.
    ///
    /// # Safety
    /// As [`Self::read`].
    #[inline(always)]
    pub(crate) unsafe fn whole(record: *const FlowRecord, place: Place) -> Option<Self> {
        const FIXED: u64 = 0xff_ffff;
        // SAFETY: the caller's.
        let (flow, check) = unsafe { (Self::read(record), ptr::read_volatile(&raw const (*record).check)) };
        (check == place.check([flow.ports, flow.backend, flow.slot, flow.state & FIXED])).then_some(flow)
    }

    /// [`FlowRecord::vip_port`].
    #[inline(always)]
    pub(crate) fn vip_port(&self) -> u16 {
        (self.ports >> 48) as u16
    }

    /// Compares [`FlowRecord::client_port`].
    #[inline(always)]
    pub(crate) fn has_client_port(&self, port: u16) -> bool {
        (self.ports >> 32) as u16 == port
    }

    /// [`FlowRecord::backend`].
    #[inline(always)]
    pub(crate) fn backend(&self) -> u32 {
        self.backend as u32
    }

    /// [`FlowRecord::backend_generation`].
    #[inline(always)]
    pub(crate) fn backend_generation(&self) -> u32 {
        (self.backend >> 32) as u32
    }

    /// [`FlowRecord::slot`].
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.slot as u32
    }

    /// [`FlowRecord::slot_generation`].
    #[inline(always)]
    pub(crate) fn slot_generation(&self) -> u32 {
        (self.slot >> 32) as u32
    }

    /// [`FlowRecord::node`].
    #[inline(always)]
    pub(crate) fn node(&self) -> u32 {
        u32::from(self.state as u16)
    }

    /// [`FlowRecord::protocol`].
    #[inline(always)]
    pub(crate) fn protocol(&self) -> u32 {
        (self.state >> 16) as u32 & 0xff
    }

    /// [`FlowRecord::flags`].
    #[inline(always)]
    pub(crate) fn flags(&self) -> u32 {
        (self.state >> 24) as u32 & 0xff
    }

    /// [`FlowRecord::epoch`].
    #[inline(always)]
    pub(crate) fn epoch(&self) -> u32 {
        (self.state >> 32) as u32
    }

    /// [`FlowRecord::isn`].
    #[inline(always)]
    pub(crate) fn isn(&self) -> u32 {
        self.time as u32
    }

    /// Returns the jiffies since [`FlowRecord::seen`].
    #[inline(always)]
    pub(crate) fn age(&self, now: u32) -> u32 {
        age_low(self.seen(), now)
    }

    /// Returns whether the last packet came within the last second. No idle timeout is shorter.
    #[inline(always)]
    pub(crate) fn is_fresh(&self, config: &Config, now: u32) -> bool {
        now.wrapping_sub(self.seen()) < config.hz
    }

    #[inline(always)]
    fn seen(&self) -> u32 {
        (self.time >> 32) as u32
    }
}

/// Returns the state of a record's Service port, if it is still the same one.
#[inline(always)]
pub(crate) fn state(flow: &Flow) -> Option<&'static ServiceState> {
    SERVICE_STATES.get(flow.slot()).filter(|state| state.generation == flow.slot_generation())
}

/// Returns whether a record is of no use to its flow: its Service port or its backend is gone.
#[inline(always)]
pub(crate) fn is_invalid(flow: &Flow) -> bool {
    let is_gone = |backend: &Backend| !backend.is_of(flow.backend_generation()) || backend.flags & BACKEND_GONE != 0;
    let is_vouched = |node: &Node| node.epoch != 0 && node.epoch == flow.epoch();
    state(flow).is_none_or(|state| state.flags & SERVICE_GONE != 0)
        || !NODES.get(flow.node()).is_some_and(is_vouched) && BACKENDS.get(flow.backend()).is_none_or(is_gone)
}

/// Updates a record after a packet: at a change of its flags, or once a second. The time does not
/// change after an RST, after which nothing is sent again. `is_fresh`: [`Flow::is_fresh`].
#[inline(always)]
pub(crate) fn refresh(record: *mut FlowRecord, flow: &Flow, flags: u32, now: u32, is_fresh: bool) {
    let before = flow.flags();
    if flags == before && is_fresh {
        return;
    }
    // SAFETY: a map value. What is written here does no harm to another flow.
    unsafe {
        if flags != before {
            ptr::write_volatile(&raw mut (*record).flags, flags as u8);
        }
        if before & flags & FLOW_RESET == 0 {
            ptr::write_volatile(&raw mut (*record).seen, now);
        }
    }
}

/// Returns a flow's flags after a client's packet with these TCP flags, which opens nothing. Only the client
/// can disprove an RST. Otherwise packets that the backend had sent before the client's RST would keep the
/// flow alive.
#[inline(always)]
pub(crate) fn after_client(flags: u32, tcp: u8) -> u32 {
    // Nobody sees the replies of a backend on another node.
    let proven = if flags & FLOW_REPLIES == 0 { FLOW_UNPROVEN } else { FLOW_HALF_OPEN };
    closing(flags & !(proven | FLOW_RESET), tcp, FLOW_CLIENT_FIN)
}

/// The same after a SYN, if the record stays. On another node, it begins a connection after a closed one.
#[inline(always)]
pub(crate) fn after_syn(flags: u32) -> u32 {
    if flags & FLOW_REPLIES == 0 { flags & !(FLOW_CLIENT_FIN | FLOW_RESET) } else { flags }
}

/// The same after a backend's packet. Its RST may be a firewall's, or the answer to a forged segment.
#[inline(always)]
pub(crate) fn after_backend(flags: u32, tcp: u8) -> u32 {
    let proven = if tcp & RST == 0 { FLOW_NEW } else { 0 };
    closing(flags & !proven, tcp, FLOW_BACKEND_FIN)
}

#[inline(always)]
fn closing(flags: u32, tcp: u8, fin: u32) -> u32 {
    let flags = if tcp & FIN != 0 { flags | fin } else { flags };
    if tcp & RST != 0 { flags | FLOW_RESET } else { flags }
}
