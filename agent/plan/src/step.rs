//! Defines the writes that a plan consists of.

use std::sync::Arc;

use vipmux_common::abi::{self, Mac};

use crate::capacity::CapacityRefusal;
use vipmux_model::{PortClaim, ServiceName};

/// A write to the kernel. Steps are executed in order; each is atomic for a packet. Some also write a copy,
/// which packets of its key find first: `BACKEND_NODES`, `SERVICE_INDEX`, `VIP_INDEX`. Then that write decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// `CONFIG[0]`.
    Config(abi::Config),
    /// `NODE_NAMES[index]`; `None` frees the index. It is text, since another process may have
    /// written a text that is not a Node's name.
    NodeName(u32, Option<String>),
    /// `NODES[index]`.
    Node(u32, abi::Node),
    /// `PEERS[mac] = node index`; `None` removes the entry.
    Peer(Mac, Option<u32>),
    /// `BACKENDS[index]`.
    Backend(u32, abi::Backend),
    /// `TABLES[offset..]`: backend indices.
    Table(u32, Arc<[u32]>),
    /// `SERVICE_NAMES[slot]`; `None` frees the slot.
    ServiceName(u32, Option<ServiceName>),
    /// `SERVICE_STATES[slot]`.
    ServiceState(u32, abi::ServiceState),
    /// `SERVICES[key]`; `None` removes the entry.
    Service(abi::ServiceKey, Option<abi::ServiceValue>),
    /// The key of `SOURCE_RANGES`: the number of its bits that count, and the bits. `false` removes
    /// the entry.
    SourceRange((u32, abi::Range), bool),
    /// `VIPS[address]`; `None` removes the entry.
    Vip(abi::Address, Option<abi::VipValue>),
}

impl Step {
    /// Whether a Service port or a backend is gone after this step, so that flow records may be invalid.
    pub fn is_removal(&self) -> bool {
        match self {
            Self::Backend(_, backend) => backend.generation == 0,
            Self::ServiceState(_, state) => state.generation == 0,
            _ => false,
        }
    }

    /// Whether the state that was reached before is no longer known after this step.
    ///
    /// A VIP that stays keeps its id, and each plan looks at all VIPs. The configuration names no backend, and the
    /// agent writes the time of a removal into it, beside the plan. So neither changes anything here.
    pub(crate) fn leaves_reached_state(&self) -> bool {
        !matches!(self, Self::Vip(_, Some(_)) | Self::Config(_))
    }
}

/// The writes to the kernel, and the items that found no room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The writes, in the order in which they are safe.
    pub steps: Vec<Step>,
    /// Items that found no room.
    ///
    /// A port claim that the same owner already serves continues with its old endpoints. If there
    /// is any refusal, plan again after [`REST`](crate::REST): places that rest now may be free
    /// then.
    pub refused: Vec<CapacityRefusal>,
    /// Port claims that have endpoints, none of which can be reached
    /// ([`Desired::unreachable`](vipmux_model::desired::Desired::unreachable)).
    pub unreachable: Vec<PortClaim>,
}
