//! `vipmux explain`.

use std::{
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use imbl::OrdMap;

use super::{
    config::SharedConfigArgs,
    planned::{self, InputError, Planned},
    table::Colour,
};
use crate::{
    control::{self, Answer, AskError, Command, DEFAULT_SOCKET},
    datapath::{
        maps::{Maps, MapsError},
        pins::{DEFAULT_PIN_PATH, LinkKind, Pins},
    },
    election::placement::{self, contenders_of},
    explain::{Account, Decided, Explanation, Held, Kernel, Target, Unknown},
    inspect::{
        Format, InspectError, backends::Backends, clock::Clock, objects::Programs, services::Services, vips::Vips,
        write,
    },
    model::{
        endpoints::desired_services,
        health::{Findings, Health},
        tag::ServiceTag,
    },
};

/// The exit status if something is broken.
const BROKEN: u8 = 2;

/// Arguments of `vipmux explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 when no link of the chain is broken, 2 when one is, 1 when there is no such Service \
                        or VIP, or the input cannot be used."
)]
pub struct Args {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// A Service, or a VIP: an IPv4 or IPv6 address
    #[arg(value_name = "NAMESPACE/SERVICE|VIP")]
    target: Target,
    /// Where the agent listens
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "VIPMUX_SOCKET")]
    socket: PathBuf,
    /// Where the maps are pinned
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_PATH, env = "VIPMUX_PIN_PATH")]
    pin_path: PathBuf,
    /// Manifests to go by if no agent answers (repeat for several)
    #[arg(long, value_name = "PATH")]
    manifests: Vec<PathBuf>,
    /// With --manifests: an agent's assignments.yaml, which says who holds which address
    #[arg(long, value_name = "FILE", requires = "manifests")]
    state: Option<PathBuf>,
    /// With --manifests: a named set of source ranges, as the agents have it; repeat for several
    #[arg(long = "service-tag", value_name = "NAME=CIDR,...", requires = "manifests")]
    service_tags: Vec<ServiceTag>,
    /// Print JSON (docs/explain.md), on one line
    #[arg(short, long)]
    json: bool,
    /// Print JSON, indented
    #[arg(short, long)]
    pretty: bool,
}

/// What made `vipmux explain` fail.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no such thing.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// What to go by without an agent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The kernel, or standard output.
    #[error(transparent)]
    Inspect(#[from] InspectError),
}

/// Explains, and says by the exit status whether anything is broken.
pub fn run(args: &Args) -> Result<ExitCode, ExplainError> {
    let account = args.account()?;
    let kernel = kernel(&args.pin_path)?;
    let explanation = Explanation::new(args.target.clone(), account, &kernel)?;
    let format = match (args.pretty, args.json) {
        (true, _) => Format::PrettyJson,
        (false, true) => Format::Json,
        (false, false) => Format::Table(Colour::of_stdout()),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&explanation, format, &mut out).and_then(|()| Ok(out.flush()?)) {
        Err(InspectError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }
    Ok(if explanation.broken.is_some() { ExitCode::from(BROKEN) } else { ExitCode::SUCCESS })
}

impl Args {
    /// The model's half: the agent's, else that of the manifests; else why there is none.
    fn account(&self) -> Result<Result<Account, String>, ExplainError> {
        let why = match control::ask(&self.socket, Command::Explain(self.target.clone())) {
            Ok(Answer::Account(account)) => return Ok(Ok(*account)),
            Ok(Answer::Unknown(unknown)) => return Err(unknown.into()),
            Ok(Answer::Error(error)) => AskError::Failed(error).to_string(),
            Ok(Answer::Diff(_) | Answer::Drain(_)) => AskError::Unasked { path: self.socket.clone() }.to_string(),
            Err(error) => error.to_string(),
        };
        if self.manifests.is_empty() {
            return Ok(Err(why));
        }
        Ok(Ok(self.computed()?))
    }

    /// The same from manifests.
    fn computed(&self) -> Result<Account, ExplainError> {
        let held = planned::holders(self.state.as_deref())?;
        let Planned { objects, model, allocation } = Planned::read(&self.manifests, held, &self.service_tags)?;
        let services = desired_services(&model, &allocation.claims(), &Health::default(), &OrdMap::new());
        let leaders = placement::leaders(&contenders_of(&model, allocation.vips().into_keys()));
        let decided = Decided {
            objects: &objects,
            model: &model,
            allocation: &allocation,
            services: &services,
            leaders: &leaders,
            findings: &Findings::new(),
            now: Duration::ZERO,
        };
        Ok(Account::of(decided, &self.target)?)
    }
}

/// The kernel's half; that there is none is no error.
fn kernel(pin_path: &Path) -> Result<Kernel, InspectError> {
    let pins = Pins::new(pin_path);
    let maps = match Maps::open(pins.root()) {
        Ok(maps) => maps,
        Err(error @ (MapsError::NotLoaded { .. } | MapsError::NoPermission { .. })) => {
            return Ok(Kernel::Absent(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    let clock = Clock::now(maps.read_config()?.hz)?;
    let Vips { fence, vips } = Vips::read(&maps, &clock)?;
    let programs = Programs::read(&pins, &maps)?.programs.into_iter();
    let xdp = programs.filter(|program| program.name == LinkKind::Xdp.program());
    Ok(Kernel::Held(Box::new(Held {
        fence,
        vips,
        services: Services::read(&maps, &clock)?.services,
        backends: Backends::read(&maps)?.backends,
        attached: xdp.flat_map(|program| program.attached).map(|attached| attached.interface).collect(),
    })))
}
