//! `vipmux agent`.

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
};

use tracing_subscriber::EnvFilter;

use crate::{
    datapath::{
        apply::Unclaimed,
        attach::{Mode, Tc},
        pins::DEFAULT_PIN_PATH,
    },
    model::NodeName,
    runtime::{self, Options},
};

pub use crate::runtime::AgentError;

/// The arguments of `vipmux agent`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of Kubernetes manifests (Service, EndpointSlice, Node, IPAddressPool), watched for changes.
    #[arg(long, value_name = "DIR", env = "VIPMUX_MANIFESTS")]
    manifests: PathBuf,
    /// The Node that this is, by `metadata.name`.
    #[arg(long, value_name = "NAME", env = "VIPMUX_NODE_NAME")]
    node_name: String,
    /// Interface to announce VIPs on (a card, bond, VLAN or bridge, or one port of a bridge); repeat for several. Without
    /// it: the one whose subnet holds the Node's InternalIP.
    #[arg(long = "interface", value_name = "IFACE", env = "VIPMUX_INTERFACE", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// Where assignments.yaml is kept; agents that share it agree on addresses.
    #[arg(long, value_name = "DIR", env = "VIPMUX_STATE_DIR", default_value = "/var/lib/vipmux")]
    state_dir: PathBuf,
    /// Where maps, programs and links are pinned, on a bpffs.
    #[arg(long, value_name = "DIR", env = "VIPMUX_PIN_PATH", default_value = DEFAULT_PIN_PATH)]
    pin_path: PathBuf,
    /// How XDP programs run.
    #[arg(long, value_enum, env = "VIPMUX_XDP_MODE", default_value_t)]
    xdp_mode: Mode,
    /// How the program that translates replies is attached: a tcx link, or a filter in a clsact qdisc.
    #[arg(long, value_enum, env = "VIPMUX_TC", default_value_t, hide = true)]
    tc: Tc,
    /// What becomes of packets to a VIP that no Service or no backend takes.
    #[arg(long, value_enum, env = "VIPMUX_UNCLAIMED", default_value_t)]
    unclaimed: Unclaimed,
    /// Entries of each flow table (two of them, 128 and 144 bytes an entry); 0: by the machine's memory, between
    /// 16,384 and 1,048,576. Tables that are pinned already keep their size.
    #[arg(long, value_name = "N", env = "VIPMUX_FLOWS", default_value_t = 0)]
    flows: u32,
}

/// Runs the agent until it is told to stop.
pub fn run(args: Args) -> Result<(), AgentError> {
    log();
    let options = Options {
        manifests: args.manifests,
        node: NodeName(args.node_name),
        interfaces: args.interfaces,
        state_dir: args.state_dir,
        pin_path: args.pin_path,
        mode: args.xdp_mode,
        tc: args.tc,
        unclaimed: args.unclaimed,
        flows: args.flows,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(AgentError::Runtime)?;
    runtime.block_on(runtime::run(options))
}

/// Text on a terminal, JSON elsewhere; `RUST_LOG` chooses what is logged.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).init();
    }
}
