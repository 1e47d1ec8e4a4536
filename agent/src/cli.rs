//! Parses the command line and runs a subcommand. Each one is a module with its arguments and a
//! `run`.

pub mod agent;
pub mod allocator;
pub mod check;
pub mod cluster;
pub mod completion;
pub mod config;
pub mod drain;
pub mod explain;
pub mod http;
pub mod inspect;
pub mod log;
pub mod manual;
pub mod migrate;
pub mod plan;
mod service_runtime;
pub mod unload;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use self::config::CommandLineError;
use vipmux_supervisor::Supervisor;

/// Many LoadBalancer Services behind one IP address, on bare-metal Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "vipmux", version, propagate_version = true, arg_required_else_help = true, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the agent, the process on each node
    Agent(Box<agent::AgentArgs>),
    /// Run the allocator of a cluster, which assigns addresses and writes the statuses of Services
    Allocator(allocator::AllocatorArgs),
    /// Check whether this node is ready for vipmux; each finding comes with its remedy
    Check(check::CheckArgs),
    /// Print a script with which a shell completes vipmux's commands and options
    Completion(completion::CompletionArgs),
    /// Transfer this node's VIPs to other nodes, to stop or restart it without an outage
    Drain(drain::DrainArgs),
    /// Explain why a Service or VIP is served or not: each step from manifest to packet, and the
    /// first broken one
    Explain(explain::ExplainArgs),
    /// Show the kernel's state from the pinned maps; all views but `diff` work without the agent
    Inspect(inspect::Inspect),
    /// Write the man pages of all commands
    #[command(hide = true)]
    Manual(manual::ManualArgs),
    Migrate(migrate::MigrateArgs),
    /// Show which Service would get which address and port from manifests, and why; changes nothing
    Plan(plan::PlanArgs),
    /// Remove vipmux from this node: programs, maps, pins, nftables table
    Unload(unload::Unload),
}

/// Runs the command of these arguments, of the environment and of the configuration file that they name. Prints
/// its error. Returns the exit status. `supervisor`: of the tasks that live as long as the process.
pub fn run(arguments: &[OsString], supervisor: &Supervisor) -> ExitCode {
    let cli = match config::parse::<Cli>(arguments) {
        Ok(cli) => cli,
        Err(CommandLineError::File(error)) => return failed(error.into()),
        Err(CommandLineError::Usage(message)) => {
            // Help and version are no errors. A usage error has exit status 1, like any other
            // unusable input. Clap's 2 would mean that `vipmux plan` found a Service that does not
            // get what it asks for.
            let code = if message.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            // If this fails, there is nowhere to report it.
            let _ = message.print();
            return code;
        }
    };
    cli.run(supervisor).unwrap_or_else(failed)
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed to unwrap_or_else")]
fn failed(error: anyhow::Error) -> ExitCode {
    eprintln!("vipmux: {error:#}");
    ExitCode::FAILURE
}

/// Makes the runtime of a command that ends by itself.
fn current_thread_runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start the asynchronous runtime")
}

impl Cli {
    /// Runs the subcommand. Returns the exit status.
    fn run(self, supervisor: &Supervisor) -> anyhow::Result<ExitCode> {
        match self.command {
            CliCommand::Agent(args) => agent::run(*args, supervisor)?,
            CliCommand::Allocator(args) => allocator::run(args, supervisor)?,
            CliCommand::Check(args) => return check::run(args),
            CliCommand::Completion(args) => completion::run(args)?,
            CliCommand::Drain(args) => drain::run(&args)?,
            CliCommand::Explain(args) => return explain::run(&args),
            CliCommand::Inspect(inspect) => return inspect.run(),
            CliCommand::Manual(args) => manual::run(&args)?,
            CliCommand::Migrate(args) => return migrate::run(&args),
            CliCommand::Plan(args) => return plan::run(&args),
            CliCommand::Unload(unload) => unload.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
