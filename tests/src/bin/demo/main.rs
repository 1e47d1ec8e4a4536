//! The demo: many Services behind one address, with real packets.

mod screen;
mod show;

use std::{net::SocketAddr, process::ExitCode, thread, time::Duration};

use clap::{Parser, Subcommand};
use nix::unistd::geteuid;
use vipmux_tests::{
    agent, cleanup,
    client::{Kind, Request},
    cluster::Cluster,
    demo,
};

use crate::{screen::Screen, show::Show};

/// The time limit for a request that must be answered.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Demonstrates vipmux: five Services on one address, three nodes, a client, and real servers as
/// pods, each in a network namespace
#[derive(Parser)]
#[command(name = "demo")]
struct Arguments {
    /// Keep everything running afterwards, and print commands to try; Ctrl-C removes it
    #[arg(long)]
    hold: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Send one request and print the answer: for another terminal, in the client's network
    /// namespace
    Ask {
        /// http, echo, dns-udp, dns-tcp or udp-echo
        kind: Kind,
        /// ADDRESS:PORT
        server: SocketAddr,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Ask { kind, server }) = arguments.command {
        return ask(Request { kind, server });
    }
    if !geteuid().is_root() {
        eprintln!("the demo needs network namespaces: run it as root");
        return ExitCode::FAILURE;
    }
    let mut screen = Screen::new();
    let cluster = match run(&mut screen) {
        Ok(cluster) => cluster,
        Err(error) => {
            screen.failure(&format!("{error:#}"));
            return ExitCode::FAILURE;
        }
    };
    screen.summary();
    if arguments.hold {
        hold(&screen, &cluster);
    }
    ExitCode::SUCCESS
}

fn ask(request: Request) -> ExitCode {
    match request.send(TIMEOUT) {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(screen: &mut Screen) -> anyhow::Result<Cluster> {
    screen.heading("vipmux: five Services share one address");
    agent::binary()?;
    let mut cluster = screen.step("a switch, three nodes and a client", demo::cluster)?;
    screen.step("pods with real servers behind the nodes", || demo::start_pods(&mut cluster))?;
    let options = cluster.agent_options();
    screen.step("an agent on each node, ready", || cluster.start_agents(&options))?;
    if let Err(error) = Show::new(screen, &cluster).and_then(Show::all) {
        return Err(error.context(cluster.last_outputs()));
    }
    Ok(cluster)
}

/// Waits for Ctrl-C, which counts as success.
fn hold(screen: &Screen, cluster: &Cluster) -> ! {
    cleanup::exit_with_on_interrupt(0);
    if let Err(error) = show::commands_to_try(screen, cluster) {
        screen.failure(&format!("{error:#}"));
    }
    loop {
        thread::park();
    }
}
