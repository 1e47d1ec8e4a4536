//! `vipmux plan`: a dry run over manifests.

mod report;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::ValueEnum;

use self::report::Report;
use crate::{
    allocate::{allocate, holders},
    assignments::{self, AssignmentsError},
    cli::table::{Colour, quiet_pipe},
    model::{Model, Options, tag::ServiceTag},
    source::manifests::{self, ReadError},
};

/// Arguments of `vipmux plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 when all Services got what they asked for, 2 when some did not, 1 on unusable input."
)]
pub struct Args {
    /// Kubernetes manifests: files, directories, or - for standard input (`kubectl get services,nodes -A -o yaml`)
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How to print the plan
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// An agent's assignments.yaml: who holds which address now; where it says nothing, the Services' statuses count
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// A named set of source ranges, as the agents have it (service.beta.kubernetes.io/azure-allowed-service-tags); repeat for
    /// several
    #[arg(long = "service-tag", value_name = "NAME=CIDR,...")]
    service_tags: Vec<ServiceTag>,
}

/// How to print the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Aligned columns, for people
    #[default]
    Table,
    /// For programs; has a version field
    Json,
    /// The same as YAML
    Yaml,
}

/// What made `vipmux plan` fail.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The manifests.
    #[error("cannot read the manifests")]
    Read(#[from] ReadError),
    /// The state file.
    #[error("cannot use --state")]
    State(#[from] AssignmentsError),
    /// The state file is not there.
    #[error("cannot use --state: {} does not exist", .0.display())]
    NoState(PathBuf),
    /// Standard output.
    #[error("cannot write the plan")]
    Write(#[source] io::Error),
}

/// Plans, prints, and says by the exit status whether all got what they asked for.
pub fn run(args: &Args) -> Result<ExitCode, PlanError> {
    let objects = manifests::read(&args.paths)?;
    let held = match &args.state {
        Some(path) => assignments::load(path)?.ok_or_else(|| PlanError::NoState(path.clone()))?,
        None => holders::Holders::new(),
    };
    let options = Options { service_tags: args.service_tags.iter().cloned().collect(), ..Options::default() };
    let model = Model::ingest(&objects, &options);
    let allocation = allocate(&model, &holders::with_statuses(held, &model));
    let report = Report::new(&objects, &model, &allocation);
    quiet_pipe(print(&report, args.output, &mut io::stdout().lock())).map_err(PlanError::Write)?;
    Ok(match (objects.problems.is_empty(), allocation.is_complete()) {
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// Writes the plan; as a table, what cannot be shown in it goes to standard error.
fn print(report: &Report<'_>, output: Output, out: &mut impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    match output {
        Output::Table => report.print(&mut out, &mut io::stderr().lock(), Colour::of_stdout())?,
        Output::Json => {
            serde_json::to_writer_pretty(&mut out, report)?;
            writeln!(out)?;
        }
        Output::Yaml => out.write_all(serde_saphyr::to_string(report).map_err(io::Error::other)?.as_bytes())?,
    }
    out.flush()
}
