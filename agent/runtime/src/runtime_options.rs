//! The options of the agent.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use vipmux_datapath::bpf::{
    apply::Unclaimed,
    attach::{HandoverMac, TcAttachMode, XdpAttachMode},
};
use vipmux_election::ElectionSettings;
use vipmux_model::{AddressLimits, NodeName, desired::Unreachable, prefix::Prefix, tag::ServiceTags};
use vipmux_telemetry::http::Listen;

use crate::serving::object_source::ObjectSource;

/// The options of the agent.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// The source of the objects.
    pub origin: ObjectSource,
    /// This node.
    pub node: NodeName,
    /// Interfaces to announce on; empty: those whose subnet holds the Node's InternalIP.
    pub interfaces: Vec<String>,
    /// The directory of `assignments.yaml`.
    pub state_dir: PathBuf,
    /// The root of the pins.
    pub pin_path: PathBuf,
    /// The mode of the XDP programs.
    pub mode: XdpAttachMode,
    /// The source MAC of handed-over frames.
    pub handover_mac: HandoverMac,
    /// The way to attach the egress program.
    pub tc: TcAttachMode,
    /// The treatment of packets to unclaimed ports.
    pub unclaimed: Unclaimed,
    /// The treatment of Service ports whose endpoints cannot be reached.
    pub unreachable: Unreachable,
    /// Entries of each flow table; 0: reuse the pinned size, else derive it from the memory.
    pub flows: u32,
    /// The interval at which the kernel's state is checked and repaired; zero: never.
    pub self_check: Duration,
    /// The interval at which each VIP is announced after the burst; zero: never.
    pub announce_every: Duration,
    /// The most frames per second on one interface when VIPs are taken.
    pub announce_rate: NonZeroU32,
    /// Source ranges by the names that Services use.
    pub service_tags: ServiceTags,
    /// Ranges of pod addresses beside those of the Nodes.
    pub pod_ranges: Vec<Prefix>,
    /// How many addresses Services may get, without a cluster.
    pub limits: AddressLimits,
    /// Services with this `loadBalancerClass` are ours.
    pub load_balancer_class: String,
    /// Services without one are ours too.
    pub unset_class_is_ours: bool,
    /// The UDP port of the gossip.
    pub gossip_port: u16,
    /// The file of the gossip keys; `None`: a generated one in the state directory, which a cluster
    /// does not allow.
    pub gossip_key: Option<PathBuf>,
    /// The settings of the election.
    pub election: ElectionSettings,
    /// The socket for queries.
    pub socket: PathBuf,
    /// The address for metrics and probes.
    pub http: Listen,
}
