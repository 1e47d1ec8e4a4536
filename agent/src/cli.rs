//! The command line. Each subcommand is a module here: its arguments, and a `run` that says how it ended.

pub mod plan;
pub mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Many LoadBalancer Services behind one IP address, on bare-metal Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "vipmux", version, propagate_version = true, arg_required_else_help = true, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show who would get which address and port from manifests, and why; changes nothing
    Plan(plan::Args),
}

/// What made a subcommand fail.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// `vipmux plan`.
    #[error(transparent)]
    Plan(#[from] plan::PlanError),
}

impl Cli {
    /// Runs the subcommand.
    pub fn run(self) -> Result<ExitCode, CliError> {
        match self.command {
            Command::Plan(args) => Ok(plan::run(&args)?),
        }
    }
}
