//! Runs `vipmux migrate`.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Subcommand;
use k8s_openapi::jiff::Timestamp;

use super::{
    agent::time,
    check::{Checked, FAILS},
    cluster::AllocationArgs,
    config::SharedConfigArgs,
};
use vipmux_cluster::{
    access::ClusterAccess,
    clock,
    source::manifests::{self, ReadError},
};
use vipmux_datapath::link::LinkError;
use vipmux_inspect::output::{self, Format, OutputError, table::Color};
use vipmux_migrate::{
    commands::systems,
    convert::{Converted, YamlError},
    lan,
    live::{LiveCluster, LiveError},
    plan::MigrationPlan,
    ready,
    snapshot::{Snapshot, SnapshotError},
    verify,
};
use vipmux_model::{IngestOptions, objects::Problem};
use vipmux_preflight::findings::Finding;

/// The files of a migration.
const POOLS: &str = "pools.yaml";
const BEFORE: &str = "before.json";
const CILIUM: &str = "cilium.yaml";
/// The pause between two attempts of `--wait`.
const PAUSE: Duration = Duration::from_secs(1);

/// Move a live cluster from MetalLB, kube-vip or Cilium to vipmux (docs/migrating.md)
#[derive(Debug, clap::Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    _config: SharedConfigArgs,
    #[command(flatten)]
    allocation: AllocationArgs,
    #[command(subcommand)]
    command: MigrateCommand,
}

#[derive(Debug, Subcommand)]
enum MigrateCommand {
    /// Read the cluster, write pools and a record of all addresses into DIR, and show what changes;
    /// changes nothing in the cluster
    #[command(
        after_help = "Exit status: 0 if all Services keep their addresses, 2 if some do not, 1 if the cluster cannot be read."
    )]
    Plan(PlanArgs),
    /// Check before the cut-over that nobody else announces or assigns addresses
    #[command(after_help = EXIT_STATUS)]
    Ready(CheckArgs),
    /// Check after the cut-over that all addresses are as before, and who announces them
    #[command(after_help = EXIT_STATUS)]
    Verify(CheckArgs),
}

const EXIT_STATUS: &str = "Run it as root on a machine of the addresses' segment, so that it can ask by ARP and NDP who answers \
                           for them.\n\nExit status: 0 if no check fails (warnings do not count), 2 if one fails, 1 if the \
                           cluster or the files cannot be read.";

/// The arguments of all commands.
#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// The folder of the migration's files: pools.yaml and before.json
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The kubeconfig file; its current context is used
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Print JSON on one line
    #[arg(short, long)]
    json: bool,
    /// Print indented JSON
    #[arg(short, long)]
    pretty: bool,
}

/// The arguments of `vipmux migrate plan`.
#[derive(Debug, clap::Args)]
struct PlanArgs {
    #[command(flatten)]
    common: CommonArgs,
}

/// The arguments of `vipmux migrate ready` and `verify`.
#[derive(Debug, clap::Args)]
struct CheckArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Ask on this interface who answers for the addresses. Default: the interface whose subnet has
    /// the address
    #[arg(long, value_name = "IFACE")]
    interface: Option<String>,
    /// Check again for so long, until nothing fails (`90s`, `2m`)
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0")]
    wait: Duration,
}

/// `vipmux migrate` failed.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The cluster cannot be read.
    #[error("cannot read the cluster")]
    Live(#[from] LiveError),
    /// It has none of the systems.
    #[error("found no MetalLB, no kube-vip with Services, and no pools of Cilium in the cluster")]
    NothingFound,
    /// The folder has the record of an earlier plan, which must not be lost.
    #[error("{} exists: name another folder, or delete it if that migration has not begun", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The pools cannot be written as YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// The record cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The pools cannot be read.
    #[error("cannot read the pools (vipmux migrate plan writes them)")]
    Pools(#[from] ReadError),
    /// The pools were edited and cannot be used.
    #[error("cannot use the pools: {0}")]
    Problem(Problem),
    /// The interfaces cannot be listed.
    #[error("cannot list this machine's interfaces")]
    Links(#[from] LinkError),
    /// The asynchronous runtime cannot be started.
    #[error("cannot start the asynchronous runtime")]
    Runtime(#[source] io::Error),
    /// The output cannot be printed.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl CommonArgs {
    fn format(&self) -> Format {
        Format::chosen(self.json, self.pretty, Color::of_stdout())
    }

    async fn cluster(&self) -> Result<LiveCluster, LiveError> {
        let access =
            ClusterAccess { component: "vipmux-migrate", kubeconfig: self.kubeconfig.clone(), namespace: None };
        LiveCluster::read(&access).await
    }

    /// Returns the folder as commands name it.
    fn shown(&self) -> String {
        self.folder.display().to_string()
    }
}

/// Runs a command. Returns the exit status.
pub fn run(args: &MigrateArgs) -> Result<ExitCode, MigrateError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(MigrateError::Runtime)?;
    let options = args.allocation.clone().into();
    runtime.block_on(async {
        match &args.command {
            MigrateCommand::Plan(args) => plan(&args.common, &options).await,
            MigrateCommand::Ready(args) => check(args, is_ready).await,
            MigrateCommand::Verify(args) => check(args, async |args| is_migrated(args, &options).await).await,
        }
    })
}

async fn plan(args: &CommonArgs, options: &IngestOptions) -> Result<ExitCode, MigrateError> {
    let record = args.folder.join(BEFORE);
    if record.exists() {
        return Err(MigrateError::Exists(record));
    }
    let cluster = args.cluster().await?;
    if systems(&cluster).is_empty() {
        return Err(MigrateError::NothingFound);
    }
    let converted = Converted::of(&cluster.objects, &cluster.foreign);
    let snapshot = Snapshot::of(&cluster.services, now());
    let plan = MigrationPlan::new(&cluster, &converted, &snapshot, options, &args.shown());
    fs::create_dir_all(&args.folder).map_err(failed(&args.folder))?;
    write(&args.folder.join(POOLS), converted.yaml()?.as_bytes())?;
    if let Some(saved) = cluster.foreign.cilium_yaml()? {
        write(&args.folder.join(CILIUM), saved.as_bytes())?;
    }
    let text = serde_json::to_string_pretty(&snapshot).map_err(io::Error::from).map_err(OutputError::from)?;
    write(&record, (text + "\n").as_bytes())?;
    output::print(&plan, args.format())?;
    Ok(if plan.keeps_all() { ExitCode::SUCCESS } else { ExitCode::from(FAILS) })
}

/// Returns the time, in whole seconds.
fn now() -> Timestamp {
    let now = clock::wall();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn write(path: &Path, content: &[u8]) -> Result<(), MigrateError> {
    let written = File::create(path).and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()));
    written.map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> MigrateError {
    move |source| MigrateError::Write { path: path.to_owned(), source }
}

/// Prints the findings, at the latest when the time of `--wait` is over.
async fn check(
    args: &CheckArgs,
    assess: impl AsyncFn(&CheckArgs) -> Result<Vec<Finding>, MigrateError>,
) -> Result<ExitCode, MigrateError> {
    let checked = repeat(args.wait, PAUSE, async || assess(args).await).await?;
    output::print(&checked, args.common.format())?;
    Ok(if checked.passes() { ExitCode::SUCCESS } else { ExitCode::from(FAILS) })
}

/// Checks until all checks pass, or for so long. A cluster that cannot be read for the moment is read again.
async fn repeat(
    wait: Duration,
    pause: Duration,
    assess: impl AsyncFn() -> Result<Vec<Finding>, MigrateError>,
) -> Result<Checked, MigrateError> {
    let begun = Instant::now();
    loop {
        let is_over = begun.elapsed() >= wait;
        match assess().await.map(Checked::new) {
            Ok(checked) if checked.passes() || is_over => return Ok(checked),
            Err(MigrateError::Live(error)) if error.is_temporary() && !is_over => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        tokio::time::sleep(pause).await;
    }
}

async fn is_ready(args: &CheckArgs) -> Result<Vec<Finding>, MigrateError> {
    let before = Snapshot::read(&args.common.folder.join(BEFORE))?;
    let written = manifests::read(&[args.common.folder.join(POOLS)])?;
    if let Some(problem) = written.problems.first() {
        return Err(MigrateError::Problem(problem.clone()));
    }
    let cluster = args.common.cluster().await?;
    let lan = lan::ask(&before.addresses(), args.interface.as_deref()).await?;
    Ok(ready::assess(&before, &written, &cluster, &lan, &args.common.shown()))
}

async fn is_migrated(args: &CheckArgs, options: &IngestOptions) -> Result<Vec<Finding>, MigrateError> {
    let before = Snapshot::read(&args.common.folder.join(BEFORE))?;
    let cluster = args.common.cluster().await?;
    let lan = lan::ask(&before.addresses(), args.interface.as_deref()).await?;
    Ok(verify::assess(&before, &cluster, &lan, options, &args.common.shown()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use clap::Parser;

    use super::{super::config, *};

    #[derive(Debug, Parser)]
    struct Command {
        #[command(subcommand)]
        command: Sub,
    }

    #[derive(Debug, Subcommand)]
    enum Sub {
        Migrate(MigrateArgs),
        Allocator(super::super::allocator::AllocatorArgs),
    }

    #[test]
    fn the_configuration_of_the_allocator_counts_wherever_its_options_stand() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        fs::write(&file, "{loadBalancerClass: example.org/lb, reserve: [192.0.2.1], adopt: true}").unwrap();
        let file = file.to_str().unwrap();
        for arguments in [
            &["--config", file, "plan", "out"][..],
            &["plan", "out", "--config", file],
            &["verify", "--config", file, "out"],
            &["plan", "--load-balancer-class", "example.org/lb", "out", "--reserve", "192.0.2.1"],
        ] {
            let all: Vec<_> = ["vipmux", "migrate"].iter().chain(arguments).map(Into::into).collect();
            let Sub::Migrate(args) = config::parse::<Command>(&all).unwrap().command else { panic!() };
            let options = IngestOptions::from(args.allocation);
            assert_eq!(options.load_balancer_class, "example.org/lb", "{arguments:?}");
            assert_eq!(options.reserved.len(), 1, "{arguments:?}");
        }
    }

    fn refused(code: u16) -> MigrateError {
        let status = kube::core::Status::failure("storage is (re)initializing", "TooManyRequests").with_code(code);
        let source = Box::new(kube::Error::Api(status.boxed()));
        LiveError::List { kind: "VipPolicy".to_owned(), source }.into()
    }

    /// Returns the outcome and the number of attempts, of which the first ones fail.
    async fn attempts(wait: Duration, refusals: u32, code: u16) -> (Result<Checked, MigrateError>, u32) {
        let count = Cell::new(0);
        let outcome = repeat(wait, Duration::ZERO, async || {
            count.set(count.get() + 1);
            if count.get() <= refusals { Err(refused(code)) } else { Ok(vec![Finding::pass("lan", "silent")]) }
        });
        (outcome.await, count.get())
    }

    #[tokio::test]
    async fn a_cluster_that_cannot_be_read_for_the_moment_is_read_again() {
        let (outcome, count) = attempts(Duration::MAX, 2, 429).await;
        assert!(outcome.is_ok_and(|checked| checked.passes()));
        assert_eq!(count, 3);
    }

    #[tokio::test]
    async fn a_refusal_is_an_error_without_time_to_wait_or_if_it_is_no_temporary_one() {
        for (wait, code) in [(Duration::ZERO, 429), (Duration::MAX, 403)] {
            let (outcome, count) = attempts(wait, 1, code).await;
            assert!(matches!(outcome, Err(MigrateError::Live(_))), "{code}");
            assert_eq!(count, 1, "{code}");
        }
    }
}
