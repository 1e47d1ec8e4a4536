//! Whether a flow record still decides, and the programs mind VIPs at all, by their own rules (`ebpf/src/flow.rs`,
//! `neighbor.rs`).

use std::{fmt, time::Duration};

use serde::Serialize;
use vipmux_common::{
    abi::{
        BACKEND_READY, Backend, Config, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_RESET, Fence, FlowKey,
        FlowValue, Node, ReverseKey, ReverseValue, ServiceState,
    },
    hash,
};

use super::clock::Clock;
use crate::model::Protocol;

/// Why a flow record decides nothing (any more): the next packet is balanced anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stale {
    /// The element was given to another flow while it was read.
    Recycled,
    /// The backend went, or its index is another's now.
    BackendGone,
    /// The claim is another Service's now, or nobody's.
    OwnerChanged,
    /// No packet of the client for longer than the Service's idle timeout, or the protocol's.
    Idle,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Recycled => "recycled",
            Self::BackendGone => "backend gone",
            Self::OwnerChanged => "owner changed",
            Self::Idle => "idle",
        })
    }
}

/// Why a new connection (a SYN) does not keep a record's backend, though its other packets do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopened {
    /// The client sent FIN, or either side RST.
    Closed,
    /// The backend takes no new flows.
    Draining,
}

impl fmt::Display for Reopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Closed => "the connection is closed",
            Self::Draining => "its backend takes no new flows",
        })
    }
}

/// Whether the agent has been away for so long that the programs leave VIPs alone.
pub fn is_abandoned(fence: &Fence, config: &Config, clock: &Clock) -> bool {
    let patience = Duration::from_secs(config.abandon_after.into());
    clock.until(fence.deadline).is_err_and(|since| since >= patience)
}

/// `own`: the Service's idle timeout, 0 for the protocol's.
fn is_idle(config: &Config, protocol: u32, own: u32, seen: u64, clock: &Clock) -> bool {
    let tcp = protocol == u32::from(Protocol::Tcp.number());
    let life = match own {
        0 if tcp => config.tcp_idle,
        0 => config.udp_idle,
        own => own,
    };
    clock.ticks_since(seen) > u64::from(life)
}

/// Whether the epoch of the record's node vouches for its backend: the program does not ask further then.
pub fn is_vouched(flow: &FlowValue, node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.epoch != 0 && node.epoch == flow.epoch)
}

/// Why the record decides nothing; `None`: it decides. `vouched`: [`is_vouched`].
pub fn stale(
    (key, flow): (&FlowKey, &FlowValue),
    vouched: bool,
    backend: Option<&Backend>,
    state: Option<&ServiceState>,
    config: &Config,
    clock: &Clock,
) -> Option<Stale> {
    let Some(state) = state.filter(|state| state.generation == flow.slot_generation) else {
        return Some(Stale::OwnerChanged);
    };
    if !vouched && backend.is_none_or(|backend| backend.generation != flow.backend_generation) {
        Some(Stale::BackendGone)
    } else if flow.tag != hash::flow(key) {
        Some(Stale::Recycled)
    } else {
        is_idle(config, key.protocol, state.idle, clock.full(flow.seen), clock).then_some(Stale::Idle)
    }
}

/// Why a SYN would not keep the record's backend.
pub fn reopened(flow: &FlowValue, backend: &Backend) -> Option<Reopened> {
    if u32::from(flow.flags) & (FLOW_CLIENT_FIN | FLOW_RESET) != 0 {
        Some(Reopened::Closed)
    } else {
        (backend.flags & BACKEND_READY == 0).then_some(Reopened::Draining)
    }
}

/// Whether both sides, or an RST, closed the connection, or the client has turned to the backend itself since.
pub fn is_closed(reverse: &ReverseValue) -> bool {
    const BOTH: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
    reverse.flags & (FLOW_RESET | FLOW_DIRECT) != 0 || reverse.flags & BOTH == BOTH
}

/// Whether a reverse record is of its key, and still turns replies back into the VIP's.
pub fn translates((key, reverse): (&ReverseKey, &ReverseValue), config: &Config, clock: &Clock) -> bool {
    let lives = if is_closed(reverse) {
        clock.ticks_since(reverse.seen) <= u64::from(config.closed_linger)
    } else {
        !is_idle(config, key.protocol, reverse.idle, reverse.seen, clock)
    };
    lives && reverse.flags & FLOW_DIRECT == 0 && reverse.tag == hash::reverse(key)
}
