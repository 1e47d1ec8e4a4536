//! `vipmux agent`.

use std::{path::PathBuf, time::Duration};

use super::{
    cluster::{AccessArgs, ScopeArgs},
    config::ConfigArgs,
    http::HttpArgs,
    log::LogArgs,
};
use crate::{
    allocate::Trust,
    control::DEFAULT_SOCKET,
    datapath::{
        apply::Unclaimed,
        attach::{HandoverMac, Mode, Tc},
        pins::DEFAULT_PIN_PATH,
    },
    election, gossip,
    model::{self, NodeName, name::is_subdomain},
    plan::Unreachable,
    runtime::{self, Options, Origin},
};

pub use crate::runtime::AgentError;

/// How long a stopping agent waits for what its threads have begun.
const LAST_WORK: Duration = Duration::from_secs(1);

/// The arguments of `vipmux agent`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Directory of Kubernetes manifests (Services, EndpointSlices, Nodes, pools and policies), watched for changes. Without
    /// it: the API server.
    #[arg(long, value_name = "DIR", env = "VIPMUX_MANIFESTS")]
    manifests: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    /// Who gives addresses in a cluster: `on` is `vipmux allocator`, and `off` another controller, whose statuses are taken
    /// whatever pools say.
    #[arg(long, value_enum, env = "VIPMUX_ALLOCATOR", default_value_t)]
    allocator: Allocator,
    #[command(flatten)]
    scope: ScopeArgs,
    /// The Node that this is, by `metadata.name`.
    #[arg(long, value_name = "NAME", env = "VIPMUX_NODE_NAME", value_parser = node_name)]
    node_name: NodeName,
    /// Interface to announce VIPs on (a card, bond, VLAN or bridge, or one port of a bridge); repeat for several. Without
    /// it: the one whose subnet holds the Node's InternalIP.
    #[arg(long = "interface", value_name = "IFACE", env = "VIPMUX_INTERFACE", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// Where the agent keeps what it must not forget. With --manifests also assignments.yaml and the Leases: agents that share
    /// it agree on addresses.
    #[arg(long, value_name = "DIR", env = "VIPMUX_STATE_DIR", default_value = "/var/lib/vipmux")]
    state_dir: PathBuf,
    /// Where maps, programs and links are pinned, on a bpffs.
    #[arg(long, value_name = "DIR", env = "VIPMUX_PIN_PATH", default_value = DEFAULT_PIN_PATH)]
    pin_path: PathBuf,
    /// How XDP programs run.
    #[arg(long, value_enum, env = "VIPMUX_XDP_MODE", default_value_t)]
    xdp_mode: Mode,
    /// The source MAC of frames that are handed over to another node; `own` where the network takes no second one from a
    /// node (docs/interfaces.md).
    #[arg(long, value_enum, env = "VIPMUX_HANDOVER_MAC", default_value_t)]
    handover_mac: HandoverMac,
    /// How the program that translates replies is attached: a tcx link, or a filter in a clsact qdisc.
    #[arg(long, value_enum, env = "VIPMUX_TC", default_value_t, hide = true)]
    tc: Tc,
    /// What becomes of packets to a VIP that no Service or no backend takes.
    #[arg(long, value_enum, env = "VIPMUX_UNCLAIMED", default_value_t)]
    unclaimed: Unclaimed,
    /// What becomes of a Service port all of whose endpoints are on no known node, or on nodes off the segment. Without it:
    /// `kernel` in a cluster, and `refuse` with --manifests.
    #[arg(long, value_enum, env = "VIPMUX_UNREACHABLE_ENDPOINTS")]
    unreachable_endpoints: Option<Unreachable>,
    /// Entries of each flow table (two of them, 128 and 152 bytes an entry); 0: as the pinned
    /// ones, or by the machine's memory, between 16,384 and 1,048,576. Pinned tables of another size are carried over.
    #[arg(long, value_name = "N", env = "VIPMUX_FLOWS", default_value_t = 0)]
    flows: u32,
    /// How often what the kernel holds is compared with what it should hold, and repaired: so many seconds, or `5m`; 0:
    /// never.
    #[arg(long, value_name = "TIME", env = "VIPMUX_SELF_CHECK", default_value = "30s", value_parser = time)]
    self_check: Duration,
    /// How often each VIP that this node leads is announced again after the burst of its first 15 seconds, for clients and
    /// switches that missed it: so many seconds, or `5m`; 0: never.
    #[arg(long, value_name = "TIME", env = "VIPMUX_ANNOUNCE_EVERY", default_value = "0", value_parser = time)]
    announce_every: Duration,
    /// The UDP port on which the agents of all nodes speak to each other.
    #[arg(long, value_name = "PORT", env = "VIPMUX_GOSSIP_PORT", default_value_t = gossip::DEFAULT_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    gossip_port: u16,
    /// A file with the key that seals what the agents say to each other, the same on all nodes: 32 bytes in base64 or hex. A
    /// second line has another key that opens, while one is replaced; the file is looked at every five seconds. Without it:
    /// gossip.key in the state directory, made if it is missing; in a cluster it is needed.
    #[arg(long, value_name = "FILE", env = "VIPMUX_GOSSIP_KEY")]
    gossip_key: Option<PathBuf>,
    /// How long a leader answers for its VIPs after the last evidence that they are its own: an agent that is away for longer
    /// loses them. From 300ms to 30s; failover takes that long, and a little more.
    #[arg(long, value_name = "TIME", env = "VIPMUX_LEASE", default_value = "300ms", value_parser = lease)]
    lease: Duration,
    /// How long a node that came waits before VIPs are moved to it; what nobody leads it takes at once.
    #[arg(long, value_name = "TIME", env = "VIPMUX_HOLD_DOWN", default_value = "60s", value_parser = time)]
    hold_down: Duration,
    /// Whether the LAN is asked, when an address is first put into service, if somebody else has it; then it is not
    /// announced.
    #[arg(long, value_name = "BOOL", env = "VIPMUX_DUPLICATE_ADDRESS_DETECTION", default_value_t = true, action = clap::ArgAction::Set)]
    duplicate_address_detection: bool,
    /// Where the agent listens for `vipmux inspect diff`, `vipmux explain` and `vipmux drain`.
    #[arg(long, value_name = "PATH", env = "VIPMUX_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    http: HttpArgs,
}

/// Whether vipmux's own allocator gives addresses.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Allocator {
    #[default]
    On,
    Off,
}

impl From<Allocator> for Trust {
    fn from(allocator: Allocator) -> Self {
        match allocator {
            Allocator::On => Self::Allocator,
            Allocator::Off => Self::Anybody,
        }
    }
}

/// Whole seconds, `s` or none behind, or minutes, `m` behind.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let seconds = number.parse::<u32>().map_err(|_| format!("{text:?} is no time like 30s or 5m"))?;
    Ok(Duration::from_secs(u64::from(seconds) * unit))
}

/// Between the shortest that heartbeats can keep up and the longest that is of use.
fn lease(text: &str) -> Result<Duration, String> {
    let time = match text.strip_suffix("ms") {
        Some(milliseconds) => milliseconds.parse().map(Duration::from_millis).map_err(|error| error.to_string())?,
        None => time(text)?,
    };
    let range = election::LEASE..=Duration::from_secs(30);
    if range.contains(&time) { Ok(time) } else { Err(format!("{text} is not between 300ms and 30s")) }
}

/// A Node's name, as the API server takes it (RFC 1123): it stands in Leases too.
pub(super) fn node_name(text: &str) -> Result<NodeName, String> {
    if is_subdomain(text) {
        return Ok(NodeName(text.to_owned()));
    }
    Err("a Node's name has lowercase letters, digits, '-' and '.' (an RFC 1123 subdomain)".to_owned())
}

/// Runs the agent until it is told to stop.
pub fn run(args: Args) -> Result<(), AgentError> {
    args.log.start();
    let origin = match args.manifests {
        Some(directory) => Origin::Manifests(directory),
        None => Origin::Cluster { access: args.access.into(), trust: args.allocator.into() },
    };
    let model::Options { load_balancer_class, unset_class_is_ours, service_tags, .. } = args.scope.into();
    let options = Options {
        unreachable: args.unreachable_endpoints.unwrap_or_else(|| origin.unreachable()),
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
        service_tags,
        load_balancer_class,
        unset_class_is_ours,
        gossip_port: args.gossip_port,
        gossip_key: args.gossip_key,
        election: election::Settings {
            lease: args.lease,
            hold_down: args.hold_down,
            detect: args.duplicate_address_detection,
        },
        socket: args.socket,
        http: args.http.http_listen,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(AgentError::Runtime)?;
    let result = runtime.block_on(runtime::run(options));
    // A thread that waits for another agent's lock, or for nftables, keeps nobody waiting: it leaves nothing half done.
    runtime.shutdown_timeout(LAST_WORK);
    result
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

    /// Each agent would get another one.
    #[test]
    fn gossip_has_a_port() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
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
