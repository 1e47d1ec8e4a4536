//! Runs `vipmux plan`: a dry run over manifests.

mod comparison;
mod report;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use serde::Serialize;

use self::{comparison::Comparison, report::PlanReport};
use super::{cluster::AllocationArgs, config::SharedConfigArgs};
use vipmux_cluster::source::manifests;
use vipmux_inspect::output::table::{Color, ignore_broken_pipe, terminal_columns};
use vipmux_preflight::dry_run::{self, ManifestAllocation};

/// Arguments of `vipmux plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 if all Services get what they ask for, 2 if some do not, would lose an address that their\n\
                  statuses show, or have one that nobody may announce, 1 if the input cannot be used.\n\
                  With --before: 0 if nothing that is served is disturbed, 2 if a Service loses an address or port on \
                  which it is served or a VIP loses its leader, 1 if the input cannot be used."
)]
pub struct PlanArgs {
    /// Kubernetes manifests: files, directories, or - for standard input (`kubectl get
    /// services,nodes -A -o yaml`)
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The manifests that are in force now; show only what PATH would change. Repeat for several
    #[arg(long, value_name = "PATH")]
    before: Vec<PathBuf>,
    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
    /// An agent's assignments.yaml, which records who holds which address now. Services that it
    /// does not name keep the addresses in their statuses
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    #[command(flatten)]
    allocation: AllocationArgs,
    #[command(flatten)]
    _config: SharedConfigArgs,
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// Tables for people
    #[default]
    Table,
    /// JSON for programs, with a version field
    Json,
    /// The same data as YAML
    Yaml,
}

/// Prints the plan, or with `--before` the changes. Returns the exit status.
pub fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let stdin = Path::new(manifests::STDIN);
    let is_stdin_twice = [&args.before, &args.paths].iter().all(|paths| paths.iter().any(|path| path == stdin));
    ensure!(!is_stdin_twice, "standard input (-) can be one of --before and PATH only");
    let held = dry_run::holders(args.state.as_deref())?;
    let options = args.allocation.clone().into();
    let (usable, as_requested, written) = if args.before.is_empty() {
        let plan = ManifestAllocation::read(&args.paths, &held, &options)?;
        let report = PlanReport::new(&plan, &plan.lost);
        let written = print(&report, args.output, &mut io::stdout().lock());
        let as_requested = plan.allocation.is_complete() && plan.lost.is_empty() && report.is_announced();
        (plan.objects.problems.is_empty(), as_requested, written)
    } else {
        let before = ManifestAllocation::read(&args.before, &held, &options)?;
        let after = ManifestAllocation::read(&args.paths, &before.allocation.as_previous(), &options)?;
        // What is in force now is what the first manifests' statuses show.
        let (none, mut lost) = (BTreeMap::new(), before.lost.clone());
        lost.extend(after.lost.clone());
        let reports = (PlanReport::new(&before, &none), PlanReport::new(&after, &lost));
        let sides = ((&reports.0, &before.allocation), (&reports.1, &after.allocation));
        let comparison = Comparison::new(sides.0, sides.1, before.steps_to(&after));
        let written = print(&comparison, args.output, &mut io::stdout().lock());
        (before.objects.problems.is_empty() && after.objects.problems.is_empty(), !comparison.disturbs(), written)
    };
    ignore_broken_pipe(written).context("cannot write the plan")?;
    Ok(match (usable, as_requested) {
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// Something that `vipmux plan` prints.
trait PlanOutput: Serialize {
    /// Writes tables to `out`, warnings and problems to `err`. `columns`: the width of the terminal.
    fn print(&self, out: &mut impl Write, err: &mut impl Write, color: Color, columns: Option<usize>)
    -> io::Result<()>;
}

/// Writes the plan to `out`. With tables, warnings and problems go to standard error.
fn print(report: &impl PlanOutput, output: OutputFormat, out: &mut impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    match output {
        OutputFormat::Table => {
            report.print(&mut out, &mut io::stderr().lock(), Color::of_stdout(), terminal_columns())?;
        }
        OutputFormat::Json => {
            serde_json::to_writer_pretty(&mut out, report)?;
            writeln!(out)?;
        }
        OutputFormat::Yaml => out.write_all(serde_saphyr::to_string(report).map_err(io::Error::other)?.as_bytes())?,
    }
    out.flush()
}
