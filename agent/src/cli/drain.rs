//! Runs `vipmux drain`.

use std::{
    collections::BTreeSet,
    fmt::Display,
    io::{self, Write},
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use super::{agent::time, config::SharedConfigArgs};
use vipmux_inspect::output::table::ignore_broken_pipe;
use vipmux_runtime::control::{self, Answer, AskError, ControlCommand, DEFAULT_SOCKET, DrainProgress};

/// How often to ask the agent for its progress.
const POLL: Duration = Duration::from_millis(200);

/// Arguments of `vipmux drain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 if this node leads no VIP any more (see --ignore-unmovable), or after --cancel; 1 if it still \
                        leads one, or the agent cannot be asked. The node keeps draining until --cancel or until its agent \
                        restarts: it takes no VIP that another node can take, and gives up the rest as soon as one can."
)]
pub struct DrainArgs {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// Stop draining: lead VIPs again like any other node
    #[arg(long)]
    cancel: bool,
    /// How long to wait until all VIPs have moved: seconds, or `5m`
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    timeout: Duration,
    /// Succeed even if some VIPs cannot move because no other node can lead them now, as on a
    /// single node
    #[arg(long, conflicts_with = "cancel")]
    ignore_unmovable: bool,
    /// The agent's socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "VIPMUX_SOCKET")]
    socket: PathBuf,
}

/// Drains the node and prints the progress on standard output.
pub fn run(args: &DrainArgs) -> anyhow::Result<()> {
    if args.cancel {
        if args.ask(ControlCommand::Drain { cancel: true })?.draining {
            bail!("the agent keeps draining: is it being stopped?");
        }
        return print("drain ended: this node may lead VIPs again");
    }
    let began = Instant::now();
    let mut printed = BTreeSet::new();
    let mut progress = args.ask(ControlCommand::Drain { cancel: false })?;
    loop {
        for (vip, node) in progress.handed.iter().filter(|(vip, _)| printed.insert(*vip)) {
            print(format_args!("{vip} handed over to {node}"))?;
        }
        if !progress.draining {
            bail!("not drained: the drain was ended by another `vipmux drain --cancel` or by a restart of the agent");
        }
        if progress.held.is_empty() || began.elapsed() >= args.timeout {
            break;
        }
        sleep(POLL);
        progress = args.ask(ControlCommand::Draining)?;
    }
    for vip in &progress.held {
        print(format_args!("{vip} is still led here: not handed over within {:?}", args.timeout))?;
    }
    for (vip, why) in &progress.kept {
        print(format_args!("{vip} is still led here: {why}"))?;
    }
    match progress.held.len() + if args.ignore_unmovable { 0 } else { progress.kept.len() } {
        0 => {
            let seconds = began.elapsed().as_secs_f64();
            print(format_args!("drained: {} handed over in {seconds:.1} s", vip_count(printed.len())))
        }
        left => bail!(
            "not drained: {} still led here; the node keeps draining until `vipmux drain --cancel`",
            vip_count(left)
        ),
    }
}

fn print(line: impl Display) -> anyhow::Result<()> {
    ignore_broken_pipe(writeln!(io::stdout(), "{line}")).context("cannot write the output")
}

impl DrainArgs {
    fn ask(&self, command: ControlCommand) -> Result<DrainProgress, AskError> {
        match control::ask(&self.socket, command)? {
            Answer::Drain(progress) => Ok(progress),
            Answer::Error(error) => Err(AskError::Failed(error)),
            Answer::Diff(_) | Answer::Details(_) | Answer::Unknown(_) => {
                Err(AskError::Unasked { path: self.socket.clone() })
            }
        }
    }
}

fn vip_count(vips: usize) -> String {
    if vips == 1 { "1 VIP".to_owned() } else { format!("{vips} VIPs") }
}
