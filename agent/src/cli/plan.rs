//! `vipmux plan`: a dry run over manifests.

mod comparison;
mod report;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::ValueEnum;
use serde::Serialize;

use self::{comparison::Comparison, report::Report};
use super::{
    planned::{self, InputError, Planned},
    table::{Colour, quiet_pipe},
};
use crate::{model::tag::ServiceTag, source::manifests};

/// Arguments of `vipmux plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 when all Services got what they asked for, 2 when some did not, 1 on unusable input.\n\
                  With --before: 0 when nothing that is served is disturbed, 2 when a Service loses an address or port on \
                  which it is served, or a VIP its leader, 1 on unusable input."
)]
pub struct Args {
    /// Kubernetes manifests: files, directories, or - for standard input (`kubectl get services,nodes -A -o yaml`)
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The manifests as they are in force now (repeat for several): show what those of PATH would change instead
    #[arg(long, value_name = "PATH")]
    before: Vec<PathBuf>,
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
    /// What is to be planned.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Standard input, for both of two inputs.
    #[error("standard input (-) can be one of --before and PATH only")]
    StdinTwice,
    /// Standard output.
    #[error("cannot write the plan")]
    Write(#[source] io::Error),
}

impl Planned {
    fn report(&self) -> Report<'_> {
        Report::new(&self.objects, &self.model, &self.allocation)
    }

    fn is_usable(&self) -> bool {
        self.objects.problems.is_empty()
    }
}

/// Plans, prints, and says by the exit status whether all got what they asked for; with `--before`, whether they keep what
/// they have.
pub fn run(args: &Args) -> Result<ExitCode, PlanError> {
    let stdin = Path::new(manifests::STDIN);
    if [&args.before, &args.paths].iter().all(|paths| paths.iter().any(|path| path == stdin)) {
        return Err(PlanError::StdinTwice);
    }
    let held = planned::holders(args.state.as_deref())?;
    let (usable, as_wished, written) = if args.before.is_empty() {
        let plan = Planned::read(&args.paths, held, &args.service_tags)?;
        let written = print(&plan.report(), args.output, &mut io::stdout().lock());
        (plan.is_usable(), plan.allocation.is_complete(), written)
    } else {
        let before = Planned::read(&args.before, held, &args.service_tags)?;
        let after = Planned::read(&args.paths, before.allocation.holders(), &args.service_tags)?;
        let reports = (before.report(), after.report());
        let comparison = Comparison::new((&reports.0, &before.allocation), (&reports.1, &after.allocation));
        let written = print(&comparison, args.output, &mut io::stdout().lock());
        (before.is_usable() && after.is_usable(), !comparison.disturbs(), written)
    };
    quiet_pipe(written).map_err(PlanError::Write)?;
    Ok(match (usable, as_wished) {
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// What can be printed.
trait Printed: Serialize {
    /// Tables on `out`, warnings and problems on `err`.
    fn print(&self, out: &mut impl Write, err: &mut impl Write, colour: Colour) -> io::Result<()>;
}

/// Writes the plan; as a table, what cannot be shown in it goes to standard error.
fn print(report: &impl Printed, output: Output, out: &mut impl Write) -> io::Result<()> {
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
