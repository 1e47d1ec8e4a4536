//! Runs `vipmux explain`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use imbl::OrdMap;

use super::{cluster::AllocationArgs, config::SharedConfigArgs};
use vipmux_datapath::{
    bpf::{
        maps::{Maps, MapsError},
        pinned::PinnedObjects,
        pins::{DEFAULT_PIN_PATH, LinkKind, Pins},
    },
    link::interface_name,
};
use vipmux_election::placement::{self, candidates_of};
use vipmux_inspect::{
    InspectError,
    backends::Backends,
    clock::Clock,
    explain::{DetailsError, ExplainTarget, Explanation, KernelState, PipelineResults, TargetDetails},
    neighbors::NeighborList,
    output::{self, Format, table::Color},
    services::Services,
    vips::Vips,
};
use vipmux_model::{
    health::{Findings, Health},
    serving::desired_services,
};
use vipmux_preflight::dry_run::{self, ManifestAllocation};
use vipmux_runtime::control::{self, Answer, AskError, ControlCommand, DEFAULT_SOCKET};

/// The exit status if something is broken.
const BROKEN: u8 = 2;

/// Arguments of `vipmux explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 if no step is broken, 2 if one is, 1 if there is no such Service or VIP, or the \
                        input cannot be used."
)]
pub struct ExplainArgs {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// A Service, or a VIP: an IPv4 or IPv6 address
    #[arg(value_name = "NAMESPACE/SERVICE|VIP")]
    target: ExplainTarget,
    /// The agent's socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "VIPMUX_SOCKET")]
    socket: PathBuf,
    /// Directory of the pinned maps
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_PATH, env = "VIPMUX_PIN_PATH")]
    pin_path: PathBuf,
    /// Manifests to use if no agent answers; repeat for several
    #[arg(long, value_name = "PATH")]
    manifests: Vec<PathBuf>,
    /// With --manifests: an agent's assignments.yaml, which records who holds which address
    #[arg(long, value_name = "FILE", requires = "manifests")]
    state: Option<PathBuf>,
    #[command(flatten)]
    allocation: AllocationArgs,
    /// Print JSON on one line (docs/explain.md)
    #[arg(short, long)]
    json: bool,
    /// Print indented JSON
    #[arg(short, long)]
    pretty: bool,
}

/// Prints the explanation. Returns the exit status.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let details = args.details()?;
    let kernel = kernel(&args.pin_path)?;
    let explanation = Explanation::new(args.target.clone(), details, &kernel)?;
    let format = Format::chosen(args.json, args.pretty, Color::of_stdout());
    output::print(&explanation, format)?;
    Ok(if explanation.broken.is_some() { ExitCode::from(BROKEN) } else { ExitCode::SUCCESS })
}

impl ExplainArgs {
    /// Returns the details from the agent, else from the manifests.
    fn details(&self) -> anyhow::Result<Result<TargetDetails, DetailsError>> {
        let error = match control::ask(&self.socket, ControlCommand::Explain(self.target.clone())) {
            Ok(Answer::Details(details)) => return Ok(Ok(*details)),
            Ok(Answer::Unknown(unknown)) => return Err(unknown.into()),
            Ok(Answer::Error(error)) => AskError::Failed(error),
            Ok(Answer::Diff(_) | Answer::Drain(_)) => AskError::Unasked { path: self.socket.clone() },
            Err(error) => error,
        };
        if self.manifests.is_empty() {
            return Ok(Err(DetailsError::new(error)));
        }
        Ok(Ok(self.details_of_manifests()?))
    }

    /// Returns the details that the manifests lead to.
    fn details_of_manifests(&self) -> anyhow::Result<TargetDetails> {
        let held = dry_run::holders(self.state.as_deref())?;
        let ManifestAllocation { objects, model, allocation, .. } =
            ManifestAllocation::read(&self.manifests, &held, &self.allocation.clone().into())?;
        let services = desired_services(&model, &allocation.claims(), &Health::default(), &OrdMap::new());
        let leaders = placement::leaders(&candidates_of(&model, allocation.vips().into_keys()));
        let results = PipelineResults {
            objects: &objects,
            model: &model,
            allocation: &allocation,
            services: &services,
            leaders: &leaders,
            findings: &Findings::new(),
            now: Duration::ZERO,
        };
        Ok(TargetDetails::of(results, &self.target)?)
    }
}

/// Returns the kernel's state, or why there is none to explain.
fn kernel(pin_path: &Path) -> Result<Result<KernelState, MapsError>, InspectError> {
    let pins = Pins::new(pin_path);
    let maps = match Maps::open(pins.root()) {
        Ok(maps) => maps,
        Err(error @ (MapsError::NotLoaded { .. } | MapsError::NoPermission { .. })) => return Ok(Err(error)),
        Err(error) => return Err(error.into()),
    };
    let clock = Clock::now(maps.read_config()?.hz)?;
    let Vips { fence, vips } = Vips::read(&maps, &clock)?;
    let attached = attached(&pins, &maps)?;
    Ok(Ok(KernelState {
        fence,
        vips,
        services: Services::read(&maps, &clock)?.services,
        backends: Backends::read(&maps)?.backends,
        neighbors: NeighborList::read(&maps)?.neighbors,
        attached,
    }))
}

/// Returns the names of the interfaces of all ports where the XDP program is attached: to a bond or to its
/// cards.
fn attached(pins: &Pins, maps: &Maps) -> Result<BTreeSet<String>, InspectError> {
    let interfaces = maps.read_interfaces()?;
    let links = PinnedObjects::read_links(pins).unwrap_or_default();
    let places = links.keys().filter(|(kind, _)| *kind == LinkKind::Xdp);
    let bits = places.filter_map(|(_, ifindex)| interfaces.get(ifindex)).fold(0, |bits, place| bits | place.bit);
    let of_ports = interfaces.iter().filter(|(_, interface)| interface.bit & bits != 0);
    Ok(of_ports.map(|(ifindex, _)| interface_name(*ifindex)).collect())
}
