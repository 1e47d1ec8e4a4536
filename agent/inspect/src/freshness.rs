//! Decides whether a flow record is still valid, and whether the programs still serve VIPs, by the
//! programs' own rules (`ebpf/src/flow.rs`, `neighbor.rs`).

use std::{fmt, time::Duration};

use serde::Serialize;
use vipmux_common::abi::{
    BACKEND_FAILING, BACKEND_READY, BACKEND_STOPPING, Backend, Config, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT,
    FLOW_REPLIES, FLOW_RESET, Fence, FlowRecord, Node, ServiceState,
};

use super::clock::Clock;
use vipmux_model::Protocol;

/// Why a flow record is not valid: the next packet is balanced again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stale {
    /// The backend is gone, or its index belongs to another backend now.
    BackendGone,
    /// The port belongs to another Service now, or to none.
    OwnerChanged,
    /// The backend is not ready, and the flow is one of datagrams.
    BackendStopping,
    /// The Service does not have the backend any more, and the flow is one of datagrams.
    BackendLeft,
    /// The client sent no packet for longer than the idle timeout of the Service or the protocol.
    Idle,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BackendGone => "backend gone",
            Self::OwnerChanged => "owner changed",
            Self::BackendStopping => "backend not ready",
            Self::BackendLeft => "backend left the Service",
            Self::Idle => "idle",
        })
    }
}

/// Why a new connection (a SYN) does not keep a record's backend, although other packets do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopened {
    /// The client sent FIN, or either side RST, and the backend closed too, or its Service does not have it any
    /// more, or that is long ago.
    Over,
    /// The backend takes no new flows.
    Draining,
}

impl fmt::Display for Reopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Over => "the connection is over",
            Self::Draining => "its backend takes no new flows",
        })
    }
}

/// Returns whether the agent has been away for so long that the programs leave VIPs to the stack.
pub fn is_abandoned(fence: &Fence, config: &Config, clock: &Clock) -> bool {
    let patience = Duration::from_secs(config.abandon_after.into());
    clock.until(fence.deadline).is_err_and(|since| since >= patience)
}

/// Returns whether a record is idle. `own`: the Service's idle timeout; 0: the protocol's.
fn is_idle(config: &Config, flow: &FlowRecord, own: u32, clock: &Clock) -> bool {
    let life = match own {
        0 if flow.protocol == Protocol::Udp.number() => config.udp_idle,
        0 => config.tcp_idle,
        own => own,
    };
    clock.ticks_since(clock.full(flow.seen)) > u64::from(life)
}

/// Returns whether the epoch of the record's node proves that its backend is valid. Then the
/// program checks nothing else.
pub fn is_vouched(flow: &FlowRecord, node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.epoch != 0 && node.epoch == flow.epoch)
}

/// Returns why the record is not valid; `None`: it is valid. `vouched`: [`is_vouched`].
pub fn stale(
    flow: &FlowRecord,
    vouched: bool,
    backend: Option<&Backend>,
    state: Option<&ServiceState>,
    config: &Config,
    clock: &Clock,
) -> Option<Stale> {
    let Some(state) = state.filter(|state| state.generation == flow.slot_generation) else {
        return Some(Stale::OwnerChanged);
    };
    if !vouched && backend.is_none_or(|backend| !backend.is_of(flow.backend_generation)) {
        Some(Stale::BackendGone)
    } else if !vouched && flow.protocol == Protocol::Udp.number() && backend.is_some_and(is_stopping) {
        Some(Stale::BackendStopping)
    } else if flow.protocol == Protocol::Udp.number() && u32::from(flow.flags) & FLOW_RESET != 0 {
        Some(Stale::BackendLeft)
    } else {
        is_idle(config, flow, state.idle, clock).then_some(Stale::Idle)
    }
}

fn is_stopping(backend: &Backend) -> bool {
    backend.flags & BACKEND_READY == 0 && backend.flags & (BACKEND_STOPPING | BACKEND_FAILING) != 0
}

/// Returns why a SYN would not keep the record's backend.
pub fn reopened(flow: &FlowRecord, backend: &Backend, config: &Config, clock: &Clock) -> Option<Reopened> {
    const CLIENT: u32 = FLOW_CLIENT_FIN | FLOW_RESET | FLOW_DIRECT;
    let flags = u32::from(flow.flags);
    let is_long_ago = || clock.ticks_since(clock.full(flow.seen)) > u64::from(config.closed_linger);
    if flags & CLIENT != 0 && (flags & FLOW_BACKEND_FIN != 0 || is_long_ago()) {
        Some(Reopened::Over)
    } else {
        (backend.flags & BACKEND_READY == 0).then_some(Reopened::Draining)
    }
}

/// Returns whether both sides or an RST closed the connection, or the client has contacted the
/// backend directly since.
pub fn is_closed(flow: &FlowRecord) -> bool {
    const BOTH: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
    let flags = u32::from(flow.flags);
    flags & (FLOW_RESET | FLOW_DIRECT) != 0 || flags & BOTH == BOTH
}

/// Returns whether a record still translates replies. `state`: of its Service port.
pub fn translates(flow: &FlowRecord, state: Option<&ServiceState>, config: &Config, clock: &Clock) -> bool {
    let lives = if is_closed(flow) {
        clock.ticks_since(clock.full(flow.seen)) <= u64::from(config.closed_linger)
    } else {
        !is_idle(config, flow, state.map_or(0, |state| state.idle), clock)
    };
    lives && u32::from(flow.flags) & (FLOW_REPLIES | FLOW_DIRECT) == FLOW_REPLIES
}
