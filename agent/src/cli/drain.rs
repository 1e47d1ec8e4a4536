//! `vipmux drain`.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use super::{agent::time, config::SharedConfigArgs, table::quiet_pipe};
use crate::control::{self, Answer, AskError, Command, DEFAULT_SOCKET, Progress};

/// How often the agent is asked how far it is.
const POLL: Duration = Duration::from_millis(200);

/// Arguments of `vipmux drain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 when nothing is led here any more (see --ignore-unmovable), or after --cancel; 1 when something is, or the \
                        agent cannot be asked. The node then goes on draining: until --cancel, or until its agent is \
                        started again, it takes no VIP that another node can take, and what is left goes as soon as one can."
)]
pub struct Args {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// Take part again: lead VIPs like any other node
    #[arg(long)]
    cancel: bool,
    /// How long to wait until all is handed over: so many seconds, or `5m`
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    timeout: Duration,
    /// Take it for done where what is left cannot be led by any other node now: on a single node nothing can
    #[arg(long, conflicts_with = "cancel")]
    ignore_unmovable: bool,
    /// Where the agent listens
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "VIPMUX_SOCKET")]
    socket: PathBuf,
}

/// Not everything was handed over, or it is not known.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The agent could not be asked.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The node still leads some.
    #[error("not drained: {} still led here; the node goes on draining until `vipmux drain --cancel`", counted(*.0))]
    Left(usize),
    /// Somebody else wants it to take part.
    #[error(
        "not drained: the node takes part again, by somebody else's `vipmux drain --cancel` or since its agent was started again"
    )]
    Cancelled,
    /// The agent does otherwise than it is told.
    #[error("the agent goes on draining: is it being stopped?")]
    Draining,
    /// The output could not be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// Drains the node, and says on standard output how far it is.
pub fn run(args: &Args) -> Result<(), DrainError> {
    let mut out = io::stdout().lock();
    if args.cancel {
        if args.ask(Command::Drain { cancel: true })?.draining {
            return Err(DrainError::Draining);
        }
        return Ok(quiet_pipe(writeln!(out, "this node takes part again"))?);
    }
    let began = Instant::now();
    let mut told = BTreeSet::new();
    let mut progress = args.ask(Command::Drain { cancel: false })?;
    loop {
        for (vip, node) in progress.handed.iter().filter(|(vip, _)| told.insert(*vip)) {
            quiet_pipe(writeln!(out, "{vip} handed over to {node}"))?;
        }
        if !progress.draining {
            return Err(DrainError::Cancelled);
        }
        if progress.held.is_empty() || began.elapsed() >= args.timeout {
            break;
        }
        sleep(POLL);
        progress = args.ask(Command::Draining)?;
    }
    for vip in &progress.held {
        quiet_pipe(writeln!(out, "{vip} is still led here: not handed over within {:?}", args.timeout))?;
    }
    for (vip, why) in &progress.kept {
        quiet_pipe(writeln!(out, "{vip} is still led here: {why}"))?;
    }
    match progress.held.len() + if args.ignore_unmovable { 0 } else { progress.kept.len() } {
        0 => {
            let seconds = began.elapsed().as_secs_f64();
            Ok(quiet_pipe(writeln!(out, "drained: {} handed over in {seconds:.1} s", counted(told.len())))?)
        }
        left => Err(DrainError::Left(left)),
    }
}

impl Args {
    fn ask(&self, command: Command) -> Result<Progress, AskError> {
        match control::ask(&self.socket, command)? {
            Answer::Drain(progress) => Ok(progress),
            Answer::Error(error) => Err(AskError::Failed(error)),
            Answer::Diff(_) | Answer::Account(_) | Answer::Unknown(_) => {
                Err(AskError::Unasked { path: self.socket.clone() })
            }
        }
    }
}

fn counted(vips: usize) -> String {
    if vips == 1 { "1 VIP".to_owned() } else { format!("{vips} VIPs") }
}
