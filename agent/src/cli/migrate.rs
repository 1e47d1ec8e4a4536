//! Runs `vipmux migrate`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use clap::Subcommand;
use k8s_openapi::jiff::Timestamp;

use super::{
    agent::time,
    check::{Checked, FAILS},
    cluster::AllocationArgs,
    config::SharedConfigArgs,
    current_thread_runtime,
};
use vipmux_cluster::{access::ClusterAccess, clock, source::manifests};
use vipmux_inspect::output::{self, Format, table::Color};
use vipmux_migrate::{
    commands::systems,
    convert::Converted,
    lan::{self, LanAnswer},
    live::{LiveCluster, LiveError},
    plan::MigrationPlan,
    ready,
    snapshot::Snapshot,
    verify,
};
use vipmux_model::{IngestOptions, Vip};
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

impl CommonArgs {
    fn format(&self) -> Format {
        Format::chosen(self.json, self.pretty, Color::of_stdout())
    }

    async fn cluster(&self) -> anyhow::Result<LiveCluster> {
        let access =
            ClusterAccess { component: "vipmux-migrate", kubeconfig: self.kubeconfig.clone(), namespace: None };
        LiveCluster::read(&access).await.context("cannot read the cluster")
    }

    /// Returns the folder as commands name it.
    fn shown(&self) -> String {
        self.folder.display().to_string()
    }
}

/// Runs a command. Returns the exit status.
pub fn run(args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    let options = args.allocation.clone().into();
    current_thread_runtime()?.block_on(async {
        match &args.command {
            MigrateCommand::Plan(args) => plan(&args.common, &options).await,
            MigrateCommand::Ready(args) => check(args, is_ready).await,
            MigrateCommand::Verify(args) => check(args, async |args| is_migrated(args, &options).await).await,
        }
    })
}

async fn plan(args: &CommonArgs, options: &IngestOptions) -> anyhow::Result<ExitCode> {
    let record = args.folder.join(BEFORE);
    let earlier = "name another folder, or delete it if that migration has not begun";
    ensure!(!record.exists(), "{} exists: {earlier}", record.display());
    let cluster = args.cluster().await?;
    let has_systems = !systems(&cluster).is_empty();
    ensure!(has_systems, "found no MetalLB, no kube-vip with Services, and no pools of Cilium in the cluster");
    let converted = Converted::of(&cluster.objects, &cluster.foreign);
    let snapshot = Snapshot::of(&cluster.services, now());
    let plan = MigrationPlan::new(&cluster, &converted, &snapshot, options, &args.shown());
    fs::create_dir_all(&args.folder).with_context(failed(&args.folder))?;
    write(&args.folder.join(POOLS), converted.yaml().context("cannot write YAML")?.as_bytes())?;
    if let Some(saved) = cluster.foreign.cilium_yaml().context("cannot write YAML")? {
        write(&args.folder.join(CILIUM), saved.as_bytes())?;
    }
    let text = serde_json::to_string_pretty(&snapshot).context("cannot write the output")?;
    write(&record, (text + "\n").as_bytes())?;
    output::print(&plan, args.format())?;
    Ok(if plan.keeps_all() { ExitCode::SUCCESS } else { ExitCode::from(FAILS) })
}

/// Returns the time, in whole seconds.
fn now() -> Timestamp {
    let now = clock::wall();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let written = File::create(path).and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()));
    written.with_context(failed(path))
}

fn failed(path: &Path) -> impl FnOnce() -> String {
    move || format!("cannot write {}", path.display())
}

/// Prints the findings, at the latest when the time of `--wait` is over.
async fn check(
    args: &CheckArgs,
    assess: impl AsyncFn(&CheckArgs) -> anyhow::Result<Vec<Finding>>,
) -> anyhow::Result<ExitCode> {
    let checked = repeat(args.wait, PAUSE, async || assess(args).await).await?;
    output::print(&checked, args.common.format())?;
    Ok(if checked.passes() { ExitCode::SUCCESS } else { ExitCode::from(FAILS) })
}

/// Checks until all checks pass, or for so long. A cluster that cannot be read for the moment is read again.
async fn repeat(
    wait: Duration,
    pause: Duration,
    assess: impl AsyncFn() -> anyhow::Result<Vec<Finding>>,
) -> anyhow::Result<Checked> {
    let begun = Instant::now();
    loop {
        let is_over = begun.elapsed() >= wait;
        match assess().await.map(Checked::new) {
            Ok(checked) if checked.passes() || is_over => return Ok(checked),
            Err(error) if !is_over && error.downcast_ref().is_some_and(LiveError::is_temporary) => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        tokio::time::sleep(pause).await;
    }
}

async fn is_ready(args: &CheckArgs) -> anyhow::Result<Vec<Finding>> {
    let before = Snapshot::read(&args.common.folder.join(BEFORE))?;
    let written = manifests::read(&[args.common.folder.join(POOLS)]);
    let written = written.context("cannot read the pools (vipmux migrate plan writes them)")?;
    if let Some(problem) = written.problems.first() {
        bail!("cannot use the pools: {problem}");
    }
    let cluster = args.common.cluster().await?;
    let lan = ask_lan(args, &before).await?;
    Ok(ready::assess(&before, &written, &cluster, &lan, &args.common.shown()))
}

async fn is_migrated(args: &CheckArgs, options: &IngestOptions) -> anyhow::Result<Vec<Finding>> {
    let before = Snapshot::read(&args.common.folder.join(BEFORE))?;
    let cluster = args.common.cluster().await?;
    let lan = ask_lan(args, &before).await?;
    Ok(verify::assess(&before, &cluster, &lan, options, &args.common.shown()))
}

async fn ask_lan(args: &CheckArgs, before: &Snapshot) -> anyhow::Result<BTreeMap<Vip, LanAnswer>> {
    let answers = lan::ask(&before.addresses(), args.interface.as_deref()).await;
    answers.context("cannot list this machine's interfaces")
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

    fn refused(code: u16) -> anyhow::Error {
        let status = kube::core::Status::failure("storage is (re)initializing", "TooManyRequests").with_code(code);
        let source = Box::new(kube::Error::Api(status.boxed()));
        anyhow::Error::from(LiveError::List { kind: "VipPolicy".to_owned(), source }).context("cannot read the cluster")
    }

    /// Returns the outcome and the number of attempts, of which the first ones fail.
    async fn attempts(wait: Duration, refusals: u32, code: u16) -> (anyhow::Result<Checked>, u32) {
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
            assert!(outcome.is_err_and(|error| error.is::<LiveError>()), "{code}");
            assert_eq!(count, 1, "{code}");
        }
    }
}
