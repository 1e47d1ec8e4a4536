//! The command line. Each subcommand is a module here: its arguments, and a `run` that says how it ended.

pub mod agent;
pub mod allocator;
pub mod check;
pub mod cluster;
pub mod config;
pub mod drain;
pub mod explain;
pub mod http;
pub mod inspect;
pub mod log;
pub mod plan;
pub mod planned;
pub mod table;
pub mod unload;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

pub use self::config::CommandLineError;

/// Many LoadBalancer Services behind one IP address, on bare-metal Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "vipmux", version, propagate_version = true, arg_required_else_help = true, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: the DaemonSet's main process, or one per node by hand
    Agent(Box<agent::Args>),
    /// Run the allocator of a cluster: it gives Services their addresses, and is the one that writes their statuses
    Allocator(allocator::Args),
    /// Look at this node before the agent runs on it, or while it does: one line for each check, with the remedy
    Check(check::Args),
    /// Hand this node's VIPs over to other nodes, so that it can be stopped or restarted without an outage
    Drain(drain::Args),
    /// Show why a Service or VIP is served or is not: from manifest to packet, and the first broken link
    Explain(explain::Args),
    /// Show what the kernel holds, from the pinned maps alone; all but `diff` work while the agent is down
    Inspect(inspect::Inspect),
    /// Show who would get which address and port from manifests, and why; changes nothing
    Plan(plan::Args),
    /// Detach the programs and remove every trace of vipmux from this node
    Unload(unload::Unload),
}

/// What made a subcommand fail.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// `vipmux agent`.
    #[error(transparent)]
    Agent(#[from] agent::AgentError),
    /// `vipmux check`.
    #[error(transparent)]
    Check(#[from] check::CheckError),
    /// `vipmux allocator`.
    #[error(transparent)]
    Allocator(#[from] allocator::AllocatorError),
    /// `vipmux drain`.
    #[error(transparent)]
    Drain(#[from] drain::DrainError),
    /// `vipmux explain`.
    #[error(transparent)]
    Explain(#[from] explain::ExplainError),
    /// `vipmux inspect`.
    #[error(transparent)]
    Inspect(#[from] crate::inspect::InspectError),
    /// `vipmux plan`.
    #[error(transparent)]
    Plan(#[from] plan::PlanError),
    /// `vipmux unload`.
    #[error(transparent)]
    Unload(#[from] unload::UnloadCommandError),
}

impl Cli {
    /// From the process's arguments, its environment and the configuration file that these name.
    pub fn read() -> Result<Self, CommandLineError> {
        config::parse(&std::env::args_os().collect::<Vec<OsString>>())
    }

    /// Runs the subcommand.
    pub fn run(self) -> Result<ExitCode, CliError> {
        match self.command {
            Command::Agent(args) => agent::run(*args)?,
            Command::Allocator(args) => allocator::run(args)?,
            Command::Check(args) => return Ok(check::run(args)?),
            Command::Drain(args) => drain::run(&args)?,
            Command::Explain(args) => return Ok(explain::run(&args)?),
            Command::Inspect(inspect) => return Ok(inspect.run()?),
            Command::Plan(args) => return Ok(plan::run(&args)?),
            Command::Unload(unload) => unload.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
