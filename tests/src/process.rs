//! Runs child processes, and keeps and watches their output.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, Read},
    os::unix::process::CommandExt as _,
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
    },
    unistd::Pid,
};

use crate::{cleanup::Guard, wait};

/// Lines of output that are kept.
const KEPT_LINES: usize = 20_000;
/// The time limit for the output of a process that has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// The time limit for a command that runs to its end.
const RUN: Duration = Duration::from_mins(2);
/// Lines of output that an error shows.
const SHOWN_LINES: usize = 30;

#[derive(Debug, Default)]
struct Output {
    lines: VecDeque<String>,
    /// Lines that were dropped.
    forgotten: usize,
    open_pipes: u32,
}

#[derive(Debug, Default)]
struct Log {
    output: Mutex<Output>,
    changed: Condvar,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running process, killed on drop.
#[derive(Debug)]
pub struct Process {
    label: String,
    child: Child,
    status: Option<ExitStatus>,
    log: Arc<Log>,
    guard: Guard,
}

impl Process {
    /// Starts a command and keeps its stdout and stderr. The process dies with the calling thread.
    pub fn spawn(label: &str, mut command: Command) -> Result<Self> {
        let (guard, mut child) = start(label, &mut command)?;
        let log = Arc::new(Log::default());
        if let Some(pipe) = child.stdout.take() {
            follow(&log, pipe)?;
        }
        if let Some(pipe) = child.stderr.take() {
            follow(&log, pipe)?;
        }
        Ok(Self { label: label.to_owned(), child, status: None, log, guard })
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of output, or finds an earlier one. Fails at once if the process has ended
    /// without it.
    pub fn wait_for_line(&self, what: &str, timeout: Duration, mut is_it: impl FnMut(&str) -> bool) -> Result<String> {
        let start = Instant::now();
        let mut next = 0;
        let mut output = self.log.lock();
        loop {
            let skip = next - output.forgotten.min(next);
            if let Some(line) = output.lines.iter().skip(skip).find(|line| is_it(line)) {
                return Ok(line.clone());
            }
            next = output.forgotten + output.lines.len();
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() || output.open_pipes == 0 {
                let why = if left.is_zero() { "did not say in time that it is" } else { "ended before it was" };
                bail!("{} {why} {what}; its last output:\n{}", self.label, last_lines(&output));
            }
            output = self.log.changed.wait_timeout(output, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns all output so far. Only the end of very long output is kept.
    pub fn output(&self) -> String {
        let output = self.log.lock();
        output.lines.iter().fold(String::new(), |text, line| text + line + "\n")
    }

    /// Returns the last lines of output.
    pub fn last_output(&self) -> String {
        last_lines(&self.log.lock())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if let Some(status) = self.status {
            bail!("{} has ended ({status})", self.label);
        }
        kill(Pid::from_raw(i32::try_from(self.id())?), signal)
            .with_context(|| format!("cannot send {signal} to {}", self.label))
    }

    /// Waits for its end, and for the end of its output.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let label = self.label.clone();
        let status = wait::until(&format!("the end of {label}"), timeout, || {
            self.poll()?.with_context(|| format!("{label} is running; its last output:\n{}", self.last_output()))
        })?;
        // Its last output may still be on the way. But a child of its own could hold the pipes open
        // forever.
        let is_open = |output: &mut Output| output.open_pipes > 0;
        drop(self.log.changed.wait_timeout_while(self.log.lock(), LAST_WORDS, is_open));
        Ok(status)
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        if self.poll()?.is_none() {
            self.signal(Signal::SIGKILL)?;
            self.wait(Duration::from_mins(1))?;
        }
        Ok(())
    }

    /// Returns its exit status, if it has ended.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
            if self.status.is_some() {
                self.guard.forget();
            }
        }
        Ok(self.status)
    }
}

fn last_lines(output: &Output) -> String {
    let skip = output.lines.len().saturating_sub(SHOWN_LINES);
    output.lines.iter().skip(skip).fold(String::new(), |text, line| text + "    " + line + "\n")
}

/// Reads lines until the pipe is closed, which ends the thread.
fn follow(log: &Arc<Log>, pipe: impl Read + Send + 'static) -> Result<()> {
    log.lock().open_pipes += 1;
    let log = Arc::clone(log);
    thread::Builder::new().name("output".to_owned()).spawn(move || {
        for line in BufReader::new(pipe).split(b'\n') {
            let Ok(line) = line else { break };
            let mut output = log.lock();
            if output.lines.len() == KEPT_LINES {
                output.lines.pop_front();
                output.forgotten += 1;
            }
            output.lines.push_back(String::from_utf8_lossy(&line).into_owned());
            log.changed.notify_all();
        }
        log.lock().open_pipes -= 1;
        log.changed.notify_all();
    })?;
    Ok(())
}

/// Starts a child that dies with the calling thread, with pipes for its output.
fn start(label: &str, command: &mut Command) -> Result<(Guard, Child)> {
    let die_together = || prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    // SAFETY: between fork and exec this makes a system call with plain arguments.
    unsafe { command.pre_exec(die_together) };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Guard::for_process(|| {
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {label} ({})", command.get_program().to_string_lossy()))?;
        Ok((Pid::from_raw(i32::try_from(child.id())?), child))
    })
}

/// Runs a command to its end. A command that takes too long is killed.
pub fn output(mut command: Command) -> Result<process::Output> {
    let label = format!("{command:?}");
    let (guard, child) = start(&label, &mut command)?;
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("output".to_owned()).spawn(move || drop(sender.send(child.wait_with_output())))?;
    // This guard kills the command if it has not ended.
    let output = receiver.recv_timeout(RUN).with_context(|| format!("{label} did not end within {RUN:?}"))?;
    guard.forget();
    output.with_context(|| format!("cannot follow {label}"))
}

/// Runs a command to its end and returns its stdout. If it fails, the error has its stderr.
pub fn run(command: Command) -> Result<String> {
    let label = format!("{command:?}");
    let output = output(command)?;
    if !output.status.success() {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{label} failed ({}): {stdout}{stderr}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}
