//! Runs `vipmux agent`.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use super::{
    cluster::{AccessArgs, ScopeArgs},
    config::ConfigArgs,
    http::HttpArgs,
    log::LogArgs,
    service_runtime,
};
use vipmux_allocate::StatusAuthor;
use vipmux_datapath::bpf::{
    apply::Unclaimed,
    attach::{HandoverMac, TcAttachMode, XdpAttachMode},
    pins::DEFAULT_PIN_PATH,
};
use vipmux_election as election;
use vipmux_model as model;
use vipmux_model::{NodeName, desired::Unreachable, prefix::Prefix};
use vipmux_runtime::{ObjectSource, RuntimeOptions, control::DEFAULT_SOCKET};
use vipmux_supervisor::Supervisor;

/// [`Unreachable`] on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum UnreachableEndpoints {
    /// Leave packets to the node's own stack (kube-proxy, which hides the client's address)
    Kernel,
    /// Refuse packets, as for a Service without endpoints
    Refuse,
}

impl From<UnreachableEndpoints> for Unreachable {
    fn from(value: UnreachableEndpoints) -> Self {
        match value {
            UnreachableEndpoints::Kernel => Self::Kernel,
            UnreachableEndpoints::Refuse => Self::Refuse,
        }
    }
}

/// The arguments of `vipmux agent`.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Directory of Kubernetes manifests (Services, EndpointSlices, Nodes, pools and policies),
    /// watched for changes. Default: the API server.
    #[arg(long, value_name = "DIR", env = "VIPMUX_MANIFESTS")]
    manifests: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    /// The controller that assigns addresses in a cluster. `on`: `vipmux allocator`. `off`: another
    /// controller, whose statuses are used regardless of pools.
    #[arg(long, value_enum, env = "VIPMUX_ALLOCATOR", default_value_t)]
    allocator: AllocatorMode,
    #[command(flatten)]
    scope: ScopeArgs,
    /// The name of this Node (`metadata.name`).
    #[arg(long, value_name = "NAME", env = "VIPMUX_NODE_NAME", value_parser = node_name)]
    node_name: NodeName,
    /// Interface to announce VIPs on (a card, bond, VLAN or bridge, or one port of a bridge);
    /// repeat for several. Default: the interface whose subnet has the Node's InternalIP.
    #[arg(long = "interface", value_name = "IFACE", env = "VIPMUX_INTERFACE", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// Directory of the agent's state. With --manifests it also has assignments.yaml and the
    /// Leases: agents that share it agree on addresses.
    #[arg(long, value_name = "DIR", env = "VIPMUX_STATE_DIR", default_value = "/var/lib/vipmux")]
    state_dir: PathBuf,
    /// Directory of the pinned maps, programs and links, on a bpffs.
    #[arg(long, value_name = "DIR", env = "VIPMUX_PIN_PATH", default_value = DEFAULT_PIN_PATH)]
    pin_path: PathBuf,
    /// How XDP programs run.
    #[arg(long, value_enum, env = "VIPMUX_XDP_MODE", default_value_t)]
    xdp_mode: XdpAttachMode,
    /// The source MAC of frames that are handed over to another node. `own`: for networks that
    /// accept only one MAC per node (docs/interfaces.md).
    #[arg(long, value_enum, env = "VIPMUX_HANDOVER_MAC", default_value_t)]
    handover_mac: HandoverMac,
    /// How the program that translates replies is attached: a tcx link, or a filter in a clsact
    /// qdisc.
    #[arg(long, value_enum, env = "VIPMUX_TC", default_value_t, hide = true)]
    tc: TcAttachMode,
    /// How to treat packets to a VIP for which there is no Service or no backend.
    #[arg(long, value_enum, env = "VIPMUX_UNCLAIMED", default_value_t)]
    unclaimed: Unclaimed,
    /// How to treat packets to a Service port whose endpoints are all on unknown nodes, or on nodes
    /// off the segment. Default: `kernel` in a cluster, `refuse` with --manifests.
    #[arg(long, value_enum, env = "VIPMUX_UNREACHABLE_ENDPOINTS")]
    unreachable_endpoints: Option<UnreachableEndpoints>,
    /// Number of flows that the flow table has room for: 68 bytes each, rounded up to a power of
    /// two. Few flows find no record while three quarters of them are used. 0: reuse the pinned
    /// size, else derive it from RAM, between 16,384 and 1,048,576. If the size changes, the flows
    /// are copied.
    #[arg(long, value_name = "N", env = "VIPMUX_FLOWS", default_value_t = 0)]
    flows: u32,
    /// Interval of the self-check, which compares the kernel with the desired state and repairs it:
    /// seconds, or `5m`. 0: never.
    #[arg(long, value_name = "TIME", env = "VIPMUX_SELF_CHECK", default_value = "30s", value_parser = time)]
    self_check: Duration,
    /// Interval at which this node announces its VIPs again, for clients and switches that missed
    /// the burst of the first 15 seconds: seconds, or `5m`. 0: never.
    #[arg(long, value_name = "TIME", env = "VIPMUX_ANNOUNCE_EVERY", default_value = "0", value_parser = time)]
    announce_every: Duration,
    /// The most announcements on one interface: ARP and NDP frames per second, after a tenth of that
    /// at once. Two frames announce an IPv4 VIP. A switch that
    /// inspects ARP may shut the port at a higher rate: Cisco's default is 15.
    #[arg(long, value_name = "FRAMES", env = "VIPMUX_ANNOUNCE_RATE", default_value = "1000")]
    announce_rate: NonZeroU32,
    /// A range of pod addresses. Health probes go only to such addresses and to the node's own
    /// InternalIPs. Repeat for several. `spec.podCIDRs` of the Nodes count anyway.
    #[arg(long = "pod-range", value_name = "CIDR", env = "VIPMUX_POD_RANGES", value_delimiter = ',')]
    pod_ranges: Vec<Prefix>,
    /// The UDP port of the agents' gossip, the same on all nodes.
    #[arg(long, value_name = "PORT", env = "VIPMUX_GOSSIP_PORT", default_value_t = vipmux_gossip::DEFAULT_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    gossip_port: u16,
    /// File with the key that encrypts the agents' gossip, the same on all nodes: 32 bytes in
    /// base64 or hex. A second line can have another key that is accepted while one is replaced.
    /// The agent reads the file every five seconds. Default: gossip.key in the state directory,
    /// created if it is missing. Required in a cluster.
    #[arg(long, value_name = "FILE", env = "VIPMUX_GOSSIP_KEY")]
    gossip_key: Option<PathBuf>,
    /// How long a leader answers for its VIPs after the last evidence that it still leads them. An
    /// agent that is away for longer loses its VIPs. From 300ms to 30s. A failover takes a little
    /// longer than this.
    #[arg(long, value_name = "TIME", env = "VIPMUX_LEASE", default_value = "300ms", value_parser = lease)]
    lease: Duration,
    /// How long a new node waits before VIPs move to it. It takes VIPs without a leader at once.
    #[arg(long, value_name = "TIME", env = "VIPMUX_HOLD_DOWN", default_value = "60s", value_parser = time)]
    hold_down: Duration,
    /// Whether to probe for an address on the LAN before its first use. If another machine has it,
    /// it is not announced.
    #[arg(long, value_name = "BOOL", env = "VIPMUX_DUPLICATE_ADDRESS_DETECTION", default_value_t = true, action = clap::ArgAction::Set)]
    duplicate_address_detection: bool,
    /// The agent's socket for `vipmux inspect diff`, `vipmux explain` and `vipmux drain`.
    #[arg(long, value_name = "PATH", env = "VIPMUX_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    http: HttpArgs,
}

/// Whether vipmux's own allocator assigns addresses.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum AllocatorMode {
    #[default]
    On,
    Off,
}

impl From<AllocatorMode> for StatusAuthor {
    fn from(allocator: AllocatorMode) -> Self {
        match allocator {
            AllocatorMode::On => Self::Allocator,
            AllocatorMode::Off => Self::Anyone,
        }
    }
}

/// Parses whole seconds (`30`, `30s`) or minutes (`5m`).
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let seconds = number.parse::<u32>().map_err(|_| format!("{text:?} is not a time like 30s or 5m"))?;
    Ok(Duration::from_secs(u64::from(seconds) * unit))
}

/// Parses `--lease`: from the shortest lease that heartbeats can keep to the longest useful one.
fn lease(text: &str) -> Result<Duration, String> {
    let time = match text.strip_suffix("ms") {
        Some(milliseconds) => milliseconds.parse().map(Duration::from_millis).map_err(|error| error.to_string())?,
        None => time(text)?,
    };
    let range = election::LEASE..=election::membership::MOST_LEASE;
    if range.contains(&time) { Ok(time) } else { Err(format!("{text} is not between 300ms and 30s")) }
}

/// Parses a Node's name, as the API server accepts it (RFC 1123): Leases contain it too.
pub(super) fn node_name(text: &str) -> Result<NodeName, String> {
    let rule = "a Node's name has lowercase letters, digits, '-' and '.' (an RFC 1123 subdomain)";
    NodeName::new(text).map_err(|_| rule.to_owned())
}

/// Runs the agent until it is asked to stop.
pub fn run(args: AgentArgs, supervisor: &Supervisor) -> anyhow::Result<()> {
    args.log.start();
    let origin = match args.manifests {
        Some(directory) => ObjectSource::Manifests(directory),
        None => ObjectSource::Cluster { access: args.access.of("vipmux-agent"), trust: args.allocator.into() },
    };
    let model::IngestOptions { load_balancer_class, unset_class_is_ours, service_tags, limits, .. } = args.scope.into();
    let options = RuntimeOptions {
        unreachable: args.unreachable_endpoints.map_or_else(|| origin.unreachable(), Unreachable::from),
        origin,
        node: args.node_name,
        interfaces: args.interfaces,
        state_dir: args.state_dir,
        pin_path: args.pin_path,
        mode: args.xdp_mode,
        handover_mac: args.handover_mac,
        tc: args.tc,
        unclaimed: args.unclaimed,
        flows: args.flows,
        self_check: args.self_check,
        announce_every: args.announce_every,
        announce_rate: args.announce_rate,
        service_tags,
        pod_ranges: args.pod_ranges,
        limits,
        load_balancer_class,
        unset_class_is_ours,
        gossip_port: args.gossip_port,
        gossip_key: args.gossip_key,
        election: election::ElectionSettings {
            lease: args.lease,
            hold_down: args.hold_down,
            detect: args.duplicate_address_detection,
        },
        socket: args.socket,
        http: args.http.http_listen,
    };
    Ok(service_runtime::run(vipmux_runtime::run(options, supervisor))??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_neither_too_short_nor_too_long() {
        for (text, milliseconds) in [("300ms", 300), ("1s", 1000), ("1500ms", 1500), ("30", 30_000)] {
            assert_eq!(lease(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["299ms", "0", "31s", "1m", "ms", "1.5s"] {
            assert!(lease(text).is_err(), "{text}");
        }
    }

    /// With port 0 each agent would get another port.
    #[test]
    fn gossip_has_a_port() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: AgentArgs,
        }
        let parse = |port| {
            let command = ["agent", "--manifests", "m", "--node-name", "n", "--gossip-port", port];
            <Command as clap::Parser>::try_parse_from(command).map(|command| command.args.gossip_port)
        };
        assert_eq!(parse("1").unwrap(), 1);
        assert!(parse("0").unwrap_err().to_string().contains("1..=65535"));
    }

    #[test]
    fn times_are_seconds_or_minutes() {
        for (text, seconds) in [("0", 0), ("30", 30), ("30s", 30), ("5m", 300)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "s", "-1", "1h", "1.5s", "5000000000"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
